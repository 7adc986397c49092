package integration

import (
	"net"
	"slices"
	"testing"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/mdlayher/packet"
	"golang.org/x/sys/unix"

	"github.com/dhcp-meta/dhcp-meta/tests/rig"
)

// Answers that no server should send do not disturb an exchange with one that
// sends right ones.
func TestMalformedReplies(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	conn := l.rawConn(t)
	defer conn.Close()

	pod := newSandbox(t)
	call := pod.Call("net1", l.Macvlan(nil))
	add := l.background("ADD", call)
	discover, _ := l.Capture.AwaitType(t, 0, rig.Patience, dhcpv4.MessageTypeDiscover, nil)
	for _, reply := range malformed(t, discover) {
		frame := rig.ReplyFrame(rig.ServerAddr.Addr(), discover.EthSrc, reply)
		if _, err := conn.WriteTo(frame, &packet.Addr{HardwareAddr: discover.EthSrc}); err != nil {
			t.Fatal(err)
		}
	}
	rig.StartDnsmasq(t, l.Server, rig.Pool(0, 0)) // answers the next DISCOVER
	o := add.succeeds(t)
	if addr := leased(t, o).Addr(); addr.Compare(rig.Pool(0, 0).First) < 0 || addr.Compare(rig.Pool(0, 0).Last) > 0 {
		t.Errorf("got %v, which no right answer offered", addr)
	}
	l.Node.Del(t, call)
}

func (l *lab) rawConn(t *testing.T) *packet.Conn {
	t.Helper()
	var conn *packet.Conn
	err := l.Server.Do(func() error {
		ifi, err := net.InterfaceByName(rig.ServerIface)
		if err != nil {
			return err
		}
		conn, err = packet.Listen(ifi, packet.Raw, unix.ETH_P_IP, nil)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return conn
}

// malformed are replies to a DISCOVER, each wrong in a way of its own, as payloads
// of a UDP datagram.
func malformed(t *testing.T, discover rig.Frame) [][]byte {
	t.Helper()
	offer := func(change ...dhcpv4.Modifier) *dhcpv4.DHCPv4 {
		m, err := dhcpv4.NewReplyFromRequest(discover.Msg, append([]dhcpv4.Modifier{
			dhcpv4.WithMessageType(dhcpv4.MessageTypeOffer),
			dhcpv4.WithYourIP(net.IPv4(10, 77, 0, 200)),
			dhcpv4.WithServerIP(net.IPv4(10, 77, 0, 1)),
			dhcpv4.WithOption(dhcpv4.OptServerIdentifier(net.IPv4(10, 77, 0, 1))),
			dhcpv4.WithNetmask(net.CIDRMask(24, 32)),
			dhcpv4.WithLeaseTime(120),
		}, change...)...)
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	whole := offer().ToBytes()
	otherMAC := net.HardwareAddr{2, 0, 0, 0, 0, 9}
	return [][]byte{
		nil,
		whole[:100],
		whole[:240],
		append(slices.Clone(whole[:236]), 1, 2, 3, 4), // wrong magic cookie
		append(slices.Clone(whole[:245]), 54, 200, 1), // an option longer than the rest
		offer(dhcpv4.WithYourIP(net.IPv4zero)).ToBytes(),
		offer(dhcpv4.WithYourIP(net.IPv4bcast)).ToBytes(),
		offer(dhcpv4.WithYourIP(net.IPv4(127, 0, 0, 1))).ToBytes(),
		offer(dhcpv4.WithTransactionID(dhcpv4.TransactionID{1, 2, 3, 4})).ToBytes(),
		offer(func(m *dhcpv4.DHCPv4) { m.ClientHWAddr = otherMAC }).ToBytes(),
		offer(dhcpv4.WithGeneric(dhcpv4.OptionServerIdentifier, []byte{10})).ToBytes(),
		offer(dhcpv4.WithGeneric(dhcpv4.OptionSubnetMask, []byte{255, 0, 255, 0})).ToBytes(),
		offer(dhcpv4.WithGeneric(dhcpv4.OptionIPAddressLeaseTime, []byte{1})).ToBytes(),
		offer(dhcpv4.WithMessageType(dhcpv4.MessageTypeDiscover)).ToBytes(),
	}
}
