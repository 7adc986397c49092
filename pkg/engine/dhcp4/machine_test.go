package dhcp4

import (
	"encoding/binary"
	"math/rand/v2"
	"net"
	"net/netip"
	"strings"
	"time"

	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/insomniacslk/dhcp/iana"
)

// epoch is when the tests begin.
var epoch = time.Date(2026, 9, 1, 0, 0, 0, 0, time.UTC)

// equalAddrs lets cmp look at addresses.
var equalAddrs = cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{})

func at(d time.Duration) time.Time { return epoch.Add(d) }

// steady is a source of randomness without jitter: each value lies in the middle
// of the range, and differs from the one before in a bit that only transaction ids
// show.
type steady struct{ n uint64 }

func (s *steady) Uint64() uint64 {
	s.n++
	return 1<<63 + s.n<<32
}

var (
	testMAC  = net.HardwareAddr{0x02, 0, 0, 0, 0, 0x05}
	otherMAC = net.HardwareAddr{0x02, 0, 0, 0, 0, 0x09}
	// testID is 01 and the MAC.
	testID = []byte{1, 0x02, 0, 0, 0, 0, 0x05}
)

func testConfig() Config {
	return Config{HardwareAddr: testMAC, ClientID: testID, Rand: rand.New(&steady{})}
}

// answer builds a server's message to the client of testConfig. Options are
// pairs of a code and a value: an address as text, a number of seconds, or bytes.
func answer(kind dhcpv4.MessageType, xid dhcpv4.TransactionID, yiaddr string, options ...any) *dhcpv4.DHCPv4 {
	msg := &dhcpv4.DHCPv4{
		OpCode: dhcpv4.OpcodeBootReply, HWType: iana.HWTypeEthernet, TransactionID: xid,
		ClientHWAddr: testMAC, YourIPAddr: net.ParseIP(yiaddr).To4(),
		Options: dhcpv4.Options{optMessageType: {byte(kind)}},
	}
	for i := 0; i < len(options); i += 2 {
		msg.Options[uint8(options[i].(int))] = wireValue(options[i+1])
	}
	return msg
}

func wireValue(v any) []byte {
	switch v := v.(type) {
	case string:
		var b []byte
		for s := range strings.SplitSeq(v, ",") {
			b = append(b, netip.MustParseAddr(s).AsSlice()...)
		}
		return b
	case int:
		return binary.BigEndian.AppendUint32(nil, uint32(v))
	}
	return v.([]byte)
}

// grant are the options of an ordinary OFFER or ACK of 10.0.0.1: an hour, /24.
func grant(more ...any) []any {
	return append([]any{optServerID, "10.0.0.1", optSubnetMask, "255.255.255.0", optLeaseTime, 3600}, more...)
}

func received(msg *dhcpv4.DHCPv4) Received {
	return Received{Msg: msg, From: netip.MustParseAddr("10.0.0.1")}
}

// boundMachine returns a machine that got 10.0.0.5/24 at the epoch, and its
// lease. more are further options of OFFER and ACK.
func boundMachine(cfg Config, more ...any) (*Machine, Lease) {
	m := New(cfg)
	m.Step(epoch, Start{})
	m.Step(epoch, received(answer(dhcpv4.MessageTypeOffer, m.xid, "10.0.0.5", grant(more...)...)))
	m.Step(epoch, received(answer(dhcpv4.MessageTypeAck, m.xid, "10.0.0.5", grant(more...)...)))
	l, ok := m.Lease()
	if !ok {
		panic("dhcp4: the ordinary DORA of the tests gave no lease")
	}
	return m, l
}

// sends returns the messages among the actions.
func sends(acts []Action) (out []Send) {
	for _, a := range acts {
		if s, ok := a.(Send); ok {
			out = append(out, s)
		}
	}
	return out
}
