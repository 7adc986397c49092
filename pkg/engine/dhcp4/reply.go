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
	kind   dhcpv4.MessageType
	server netip.Addr
}

// vet checks all of a message that does not depend on the state. A reason says
// why it is left aside.
func (m *Machine) vet(in Received) (r reply, reason string) {
	switch m.state {
	case Init, Bound, Stopped:
		return r, "no answer is awaited in " + m.state.String()
	}
	msg := in.Msg
	switch {
	case msg == nil:
		return r, "empty message"
	case in.From.IsValid() && !in.From.Unmap().Is4():
		return r, fmt.Sprintf("message came from %s, not over IPv4", in.From)
	case msg.OpCode != dhcpv4.OpcodeBootReply:
		return r, fmt.Sprintf("message has op %d and is no reply", msg.OpCode)
	case !bytes.Equal(msg.ClientHWAddr, m.cfg.HardwareAddr):
		return r, fmt.Sprintf("message is for hardware address %s", msg.ClientHWAddr)
	case msg.TransactionID != m.xid:
		return r, fmt.Sprintf("message is of transaction %s, not %s", msg.TransactionID, m.xid)
	}
	r = reply{Received: in, kind: msg.MessageType()}
	switch r.kind {
	case dhcpv4.MessageTypeOffer, dhcpv4.MessageTypeAck, dhcpv4.MessageTypeNak:
	case dhcpv4.MessageTypeNone:
		return r, "message has no type (option 53): BOOTP, not DHCP"
	default:
		return r, fmt.Sprintf("message of type %s is not for a client", r.kind)
	}
	// RFC 2131, table 3: the server identifier MUST be in all three.
	id := msg.Options[optServerID]
	if r.server = addr4(id); len(id) != 4 || !isHost(r.server) {
		return r, fmt.Sprintf("%s from %s has no valid server identifier (option 54)", r.name(), in.From)
	}
	if len(m.cfg.Servers) > 0 && !slices.Contains(m.cfg.Servers, r.server) {
		return r, fmt.Sprintf("%s of server %s, which is not in the list of allowed servers", r.name(), r.server)
	}
	// RFC 6842, 3: another client's. Servers before it send none.
	if echo := msg.Options[optClientID]; len(echo) > 0 && len(m.cfg.ClientID) > 0 &&
		!bytes.Equal(echo, m.cfg.ClientID) {
		return r, fmt.Sprintf("%s of server %s is for client identifier %x (option 61)", r.name(), r.server, echo)
	}
	return r, ""
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

func ignore(in Received, reason string) Action {
	return Ignore{Msg: in.Msg, From: in.From, Reason: reason}
}

func ignored(r reply, reason string) []Action { return []Action{ignore(r.Received, reason)} }

// isHost tells whether an address can be that of a host: a client, a server or a
// router.
func isHost(a netip.Addr) bool {
	if !a.Is4() {
		return false
	}
	first := a.As4()[0]
	return first != 0 && first != 127 && first < 224
}
