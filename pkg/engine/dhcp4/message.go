package dhcp4

import (
	"encoding/binary"
	"hash/fnv"
	"math"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/insomniacslk/dhcp/iana"
)

// The options that the machine reads or writes.
const (
	optSubnetMask     = 1
	optRouter         = 3
	optDNS            = 6
	optHostname       = 12
	optDomain         = 15
	optMTU            = 26
	optStaticRoute    = 33
	optNTP            = 42
	optRequestedAddr  = 50
	optLeaseTime      = 51
	optOverload       = 52
	optMessageType    = 53
	optServerID       = 54
	optParameterList  = 55
	optMessage        = 56
	optMaxMessageSize = 57
	optT1             = 58
	optT2             = 59
	optVendorClass    = 60
	optClientID       = 61
	optRapidCommit    = 80
	optRelayAgent     = 82
	optSearch         = 119
	optClassless      = 121
	optMSClassless    = 249 // Microsoft's number of 121, from before it had one
	optPad            = 0
	optEnd            = 255
)

// maxOption is the longest value that fits into one option.
const maxOption = math.MaxUint8

// defaultMTU and minMessageSize bound option 57; RFC 2132, 9.10.
const (
	defaultMTU     = 1500
	minMessageSize = 576
)

// reserved tells whether an option is the machine's own business and cannot come
// from Config.Options: what identifies the client and the transaction, what only
// relays and servers write, and rapid commit, which Config.RapidCommit asks for.
// Options 12 and 60 may come from there when Config does
// not set them otherwise.
func reserved(code uint8) bool {
	switch code {
	case optPad, optEnd, optRequestedAddr, optOverload, optMessageType, optServerID, optParameterList,
		optMessage, optMaxMessageSize, optT1, optT2, optClientID, optRapidCommit, optRelayAgent:
		return true
	}
	return false
}

// sendDiscover sends a DISCOVER, the first or another one.
func (m *Machine) sendDiscover(now time.Time) []Action {
	// An ACK may answer it where rapid commit is asked for.
	m.noteAsked(now)
	m.secs = secondsSince(m.begun, now)
	return m.sent(now, Send{Msg: m.discover()})
}

// discover builds a DISCOVER.
func (m *Machine) discover() *dhcpv4.DHCPv4 {
	msg := m.question(dhcpv4.MessageTypeDiscover, m.secs)
	wish := m.cfg.Address
	if !wish.Is4() {
		wish = m.wish
	}
	if wish.Is4() && wish != m.avoid {
		msg.Options[optRequestedAddr] = wire4(wish)
	}
	if m.cfg.RapidCommit {
		msg.Options[optRapidCommit] = nil
	}
	return msg
}

// noteAsked notes when a message leaves that an ACK may answer.
func (m *Machine) noteAsked(now time.Time) {
	if m.tries == 0 {
		m.asked = now
	}
	m.last = now
}

// sendRequest sends the REQUEST of the state; RFC 2131, table 4.
func (m *Machine) sendRequest(now time.Time) []Action {
	m.noteAsked(now)
	secs := secondsSince(m.begun, now)
	if m.state == Requesting {
		// RFC 2131, 3.1 number 3: relays that wait for a count of seconds must treat
		// both messages alike.
		secs = m.secs
	}
	send := Send{Msg: m.question(dhcpv4.MessageTypeRequest, secs)}
	l := m.wanted()
	switch m.state {
	case Requesting:
		send.Msg.Options[optServerID] = wire4(l.Server)
		send.Msg.Options[optRequestedAddr] = wire4(l.Addr.Addr())
	case Rebooting:
		send.Msg.Options[optRequestedAddr] = wire4(l.Addr.Addr())
	case Renewing:
		send.Msg.ClientIPAddr = wire4(l.Addr.Addr())
		send.Msg.SetUnicast() // the answer comes to ciaddr
		send.To, send.Via = l.Server, l.NextHop(l.Server)
	case Rebinding:
		send.Msg.ClientIPAddr = wire4(l.Addr.Addr())
	}
	return m.sent(now, send)
}

// sent counts the message and sets the deadline for its answer.
func (m *Machine) sent(now time.Time, s Send) []Action {
	m.tries++
	m.deadline = now.Add(retransmitDelay(m.cfg.Rand, m.tries))
	if m.held {
		if end := m.lease.ExpireAt(); !end.IsZero() && end.Before(m.deadline) {
			m.deadline = end
		}
	}
	return []Action{s}
}

// question builds what DISCOVER and REQUEST have in common; RFC 2131, table 5.
func (m *Machine) question(kind dhcpv4.MessageType, secs uint16) *dhcpv4.DHCPv4 {
	msg := message(m.cfg, m.xid, kind)
	msg.NumSeconds = secs
	if m.cfg.Broadcast {
		msg.SetBroadcast()
	}
	o := msg.Options
	o[optParameterList] = parameterList(slices.Concat(m.cfg.Request, m.cfg.Require))
	o[optMaxMessageSize] = maxMessageSize(m.cfg.MTU)
	if m.cfg.Hostname != "" {
		o[optHostname] = []byte(m.cfg.Hostname)
	}
	if m.cfg.VendorClass != "" {
		o[optVendorClass] = []byte(m.cfg.VendorClass)
	}
	for _, opt := range m.cfg.Options {
		if _, own := o[opt.Code]; !own && !reserved(opt.Code) && len(opt.Value) <= maxOption {
			o[opt.Code] = opt.Value
		}
	}
	return msg
}

// Release returns the DHCPRELEASE that gives l back, a lease or a claim; no
// machine is needed for it. Of cfg it takes only HardwareAddr and ClientID, which
// must be those of the lease. RFC 2131, 4.4.6 and table 5: unicast to the server,
// with no option but the message type and who is concerned.
func Release(cfg Config, l Lease) Send {
	msg := message(cfg, releaseXID(cfg, l), dhcpv4.MessageTypeRelease)
	msg.ClientIPAddr = wire4(l.Addr.Addr())
	msg.Options[optServerID] = wire4(l.Server)
	return Send{Msg: msg, To: l.Server, Via: l.NextHop(l.Server)}
}

// decline builds the DHCPDECLINE of an address that another host uses; RFC 2131,
// 4.4.4 and table 5: by broadcast, and ciaddr is 0, for the address is not ours.
func (m *Machine) decline(l Lease, text string) Send {
	msg := message(m.cfg, newXID(m.cfg.Rand), dhcpv4.MessageTypeDecline)
	msg.Options[optRequestedAddr] = wire4(l.Addr.Addr())
	msg.Options[optServerID] = wire4(l.Server)
	msg.Options[optMessage] = []byte(text)
	return Send{Msg: msg}
}

// releaseXID is the transaction id of a RELEASE. Nothing answers one, so it need
// not be hard to guess; and the same RELEASE sent again is the same message.
func releaseXID(cfg Config, l Lease) (xid dhcpv4.TransactionID) {
	h := fnv.New32a()
	h.Write(cfg.HardwareAddr)
	h.Write(wire4(l.Addr.Addr()))
	h.Write(binary.BigEndian.AppendUint64(nil, uint64(l.Start.UnixNano())))
	h.Sum(xid[:0])
	return xid
}

// message builds what all messages of a client have in common.
func message(cfg Config, xid dhcpv4.TransactionID, kind dhcpv4.MessageType) *dhcpv4.DHCPv4 {
	zero := net.IPv4zero.To4()
	msg := &dhcpv4.DHCPv4{
		OpCode:        dhcpv4.OpcodeBootRequest,
		HWType:        iana.HWTypeEthernet,
		TransactionID: xid,
		ClientIPAddr:  zero,
		YourIPAddr:    zero,
		ServerIPAddr:  zero,
		GatewayIPAddr: zero,
		ClientHWAddr:  cfg.HardwareAddr,
		Options:       dhcpv4.Options{optMessageType: {byte(kind)}},
	}
	if len(cfg.ClientID) > 0 {
		msg.Options[optClientID] = cfg.ClientID
	}
	return msg
}

// parameterList is option 55: the machine's own list and then what else is
// wished for. Option 121 stands before 3, as RFC 3442 asks: a server with little
// room leaves out the last ones. 249 follows 121, for which alone it stands in.
func parameterList(request []uint8) []byte {
	list := []byte{
		optSubnetMask, optClassless, optMSClassless, optRouter, optDNS, optDomain, optMTU, optStaticRoute, optNTP,
		optLeaseTime, optServerID, optT1, optT2, optSearch,
	}
	for _, code := range request {
		if code != optPad && code != optEnd && !slices.Contains(list, code) {
			list = append(list, code)
		}
	}
	return list
}

// maxMessageSize is option 57. Servers take it as the size of the IP datagram.
func maxMessageSize(mtu int) []byte {
	if mtu == 0 {
		mtu = defaultMTU
	}
	size := min(max(mtu, minMessageSize), math.MaxUint16)
	return binary.BigEndian.AppendUint16(nil, uint16(size))
}

// secondsSince is the field 'secs'.
func secondsSince(begun, now time.Time) uint16 {
	return uint16(min(max(now.Sub(begun)/time.Second, 0), math.MaxUint16))
}

func newXID(r *rand.Rand) (xid dhcpv4.TransactionID) {
	binary.BigEndian.PutUint32(xid[:], r.Uint32())
	return xid
}

// wire4 returns an IPv4 address as the codec takes it; nil for any other, which
// it writes as 0.0.0.0 (and panics on one of 16 bytes).
func wire4(a netip.Addr) net.IP {
	if !a.Is4() {
		return nil
	}
	return a.AsSlice()
}

// addr4 returns the IPv4 address in a field of the codec; the zero Addr when
// there is none.
func addr4(ip net.IP) netip.Addr {
	a, _ := netip.AddrFromSlice(ip)
	if a = a.Unmap(); a.Is4() {
		return a
	}
	return netip.Addr{}
}
