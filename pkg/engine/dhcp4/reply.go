package dhcp4

import (
	"bytes"
	"fmt"
	"net/netip"
	"slices"

	"github.com/insomniacslk/dhcp/dhcpv4"
)

// reply is a message that vet let through: an OFFER, ACK or NAK in the running
// transaction, of a server that may be listened to. As an event it is internal
// to the machine.
type reply struct {
	Received
	kind dhcpv4.MessageType
	// server is the zero Addr when option 54 is missing or senseless; vet lets no
	// such reply through.
	server netip.Addr
	// remarks are what was found wrong with it and is put up with.
	remarks []string
}

// vet checks all of a message that does not depend on what was asked. An Ignore
// says why it is left aside.
func (m *Machine) vet(in Received) (reply, *Ignore) {
	switch m.state {
	case Init, Probing, Bound, Stopped:
		r := reply{Received: in}
		return r, ignore(r, KindState, "no answer is awaited in %s", m.state)
	}
	r, no := readReply(m.cfg, m.xid, in)
	if no != nil {
		return r, no
	}
	if !r.server.IsValid() && m.knowsServerOf(r) {
		r.server = m.lease.Server
		r.remarks = append(r.remarks, fmt.Sprintf("ack has no server identifier (option 54): it came from %s, which was asked", r.server))
	}
	if !r.server.IsValid() {
		return r, ignore(r, KindOptions, "%s from %s has no valid server identifier (option 54)", r.name(), in.From)
	}
	if why := m.cfg.denies(r.server); why != "" {
		return r, ignore(r, KindDenied, "%s of server %s, which is %s", r.name(), r.server, why)
	}
	return r, nil
}

// readReply reads a message as a reply in a transaction of a client.
func readReply(cfg Config, xid dhcpv4.TransactionID, in Received) (reply, *Ignore) {
	r := reply{Received: in}
	msg := in.Msg
	switch {
	case in.Err != nil:
		return r, ignore(r, KindMalformed, "%v", in.Err)
	case msg == nil:
		return r, ignore(r, KindType, "empty message")
	case in.From.IsValid() && !in.From.Unmap().Is4():
		return r, ignore(r, KindType, "message came from %s, not over IPv4", in.From)
	case msg.OpCode != dhcpv4.OpcodeBootReply:
		return r, ignore(r, KindType, "message has op %d and is no reply", msg.OpCode)
	case !bytes.Equal(msg.ClientHWAddr, cfg.HardwareAddr):
		return r, ignore(r, KindHardwareAddr, "message is for hardware address %s", msg.ClientHWAddr)
	case msg.TransactionID != xid:
		return r, ignore(r, KindTransaction, "message is of transaction %s, not %s", msg.TransactionID, xid)
	}
	r.kind = msg.MessageType()
	switch r.kind {
	case dhcpv4.MessageTypeOffer, dhcpv4.MessageTypeAck, dhcpv4.MessageTypeNak:
	case dhcpv4.MessageTypeNone:
		return r, ignore(r, KindType, "message has no type (option 53): BOOTP, not DHCP")
	default:
		return r, ignore(r, KindType, "message of type %s is not for a client", r.kind)
	}
	r.server = serverID(msg)
	// RFC 6842, 3: another client's. Servers before it send none.
	if echo := msg.Options[optClientID]; len(echo) > 0 && len(cfg.ClientID) > 0 && !bytes.Equal(echo, cfg.ClientID) {
		return r, ignore(r, KindClientID, "%s from %s is for client identifier %x (option 61)", r.name(), in.From, echo)
	}
	return r, nil
}

// serverID reads option 54; the zero Addr when there is no valid one. Where it
// came twice, and was joined (RFC 3396), the last one counts: a server that is told
// to send another identifier may send its own before it (dnsmasq with
// dhcp-option-force, B19).
func serverID(msg *dhcpv4.DHCPv4) netip.Addr {
	id := msg.Options[optServerID]
	if len(id) == 8 {
		id = id[4:]
	}
	if a := addr4(id); len(id) == 4 && isHost(a) {
		return a
	}
	return netip.Addr{}
}

// knowsServerOf tells whether a reply without option 54 can only be of the server
// of the lease: the ACK to a REQUEST that went to that one alone, and from its
// address. RFC 2131, table 3, has the option as a MUST, but a lease that goes on
// needs no new server.
func (m *Machine) knowsServerOf(r reply) bool {
	_, sent := r.Msg.Options[optServerID]
	return !sent && m.state == Renewing && r.kind == dhcpv4.MessageTypeAck && r.From.Unmap() == m.lease.Server
}

// denies says in words why a server may not be listened to; empty: it may.
func (c Config) denies(server netip.Addr) string {
	switch {
	case slices.Contains(c.DenyServers, server):
		return "in the list of denied servers"
	case len(c.Servers) > 0 && !slices.Contains(c.Servers, server):
		return "not in the list of allowed servers"
	}
	return ""
}

// name is the kind of message in words.
func (r reply) name() string {
	switch r.kind {
	case dhcpv4.MessageTypeOffer:
		return "offer"
	case dhcpv4.MessageTypeAck:
		return "ack"
	}
	return "nak"
}

// nakText is a NAK in words, with the server's own (option 56).
func (r reply) nakText() string {
	text := fmt.Sprintf("nak from server %s", r.server)
	if said := r.Msg.Options[optMessage]; len(said) > 0 {
		text += fmt.Sprintf(": %q", said)
	}
	return text
}

func ignore(r reply, kind Kind, format string, args ...any) *Ignore {
	return &Ignore{Msg: r.Msg, From: r.From, Server: r.server, Kind: kind, Reason: fmt.Sprintf(format, args...)}
}

func ignored(r reply, kind Kind, format string, args ...any) []Action {
	return []Action{*ignore(r, kind, format, args...)}
}

// isHost tells whether an address can be that of a host: a client, a server or a
// router.
func isHost(a netip.Addr) bool {
	if !a.Is4() {
		return false
	}
	first := a.As4()[0]
	return first != 0 && first != 127 && first < 224
}
