package rig

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/mdlayher/packet"
	"golang.org/x/sys/unix"
)

// Frame is a DHCP message on the wire.
type Frame struct {
	At             time.Time
	EthSrc, EthDst net.HardwareAddr
	Src, Dst       netip.AddrPort
	// Type is the message type of Msg.
	Type dhcpv4.MessageType
	Msg  *dhcpv4.DHCPv4
	// PartialChecksum says that the UDP checksum was not the right one: the
	// sender left it to an offload that a veth pair never does.
	PartialChecksum bool
}

func (f Frame) String() string {
	return fmt.Sprintf("%s %s %s>%s %s>%s xid=%x ciaddr=%v yiaddr=%v",
		f.At.Format("15:04:05.000"), f.Type, f.EthSrc, f.EthDst, f.Src, f.Dst,
		f.Msg.TransactionID, f.Msg.ClientIPAddr, f.Msg.YourIPAddr)
}

// FromClient tells whether a client sent it.
func (f Frame) FromClient() bool { return f.Msg.OpCode == dhcpv4.OpcodeBootRequest }

// Capture is all DHCP that passes an interface, both ways.
type Capture struct {
	Stream[Frame]
}

// StartCapture listens on an interface of the namespace until the test ends.
func StartCapture(t testing.TB, n *Netns, ifName string) *Capture {
	t.Helper()
	var conn *packet.Conn
	err := n.Do(func() error {
		ifi, err := net.InterfaceByName(ifName)
		if err != nil {
			return err
		}
		conn, err = packet.Listen(ifi, packet.Raw, unix.ETH_P_ALL, nil)
		return err
	})
	if err != nil {
		t.Fatalf("capture on %s in %s: %v", ifName, n.Name, err)
	}
	t.Cleanup(func() { conn.Close() })
	c := new(Capture)
	go c.read(conn)
	return c
}

func (c *Capture) read(conn *packet.Conn) {
	defer c.End()
	buf := make([]byte, 1<<16)
	for {
		n, _, err := conn.ReadFrom(buf)
		if errors.Is(err, unix.ENETDOWN) {
			continue // the link went down; it may come back
		}
		if err != nil {
			return
		}
		if f, ok := parseFrame(buf[:n]); ok {
			c.Add(f)
		}
	}
}

// parseFrame decodes Ethernet, IPv4 and UDP; false for everything but DHCP. Wrong
// checksums are let through: the tests look at what is sent.
func parseFrame(b []byte) (Frame, bool) {
	const ethernet = 14
	if len(b) < ethernet+20 || binary.BigEndian.Uint16(b[12:]) != unix.ETH_P_IP {
		return Frame{}, false
	}
	ip := b[ethernet:]
	header := int(ip[0]&0x0f) * 4
	if ip[9] != unix.IPPROTO_UDP || header < 20 || len(ip) < header+8 {
		return Frame{}, false
	}
	udp := ip[header:]
	srcPort, dstPort := binary.BigEndian.Uint16(udp), binary.BigEndian.Uint16(udp[2:])
	if (srcPort != 67 || dstPort != 68) && (srcPort != 68 || dstPort != 67) {
		return Frame{}, false
	}
	msg, err := dhcpv4.FromBytes(udp[8:])
	if err != nil {
		return Frame{}, false
	}
	return Frame{
		At:     time.Now(),
		EthDst: append(net.HardwareAddr(nil), b[0:6]...),
		EthSrc: append(net.HardwareAddr(nil), b[6:12]...),
		Src:    netip.AddrPortFrom(netip.AddrFrom4([4]byte(ip[12:16])), srcPort),
		Dst:    netip.AddrPortFrom(netip.AddrFrom4([4]byte(ip[16:20])), dstPort),
		Type:   msg.MessageType(),
		Msg:    msg,

		PartialChecksum: checksum(ip[12:20], udp) != 0,
	}, true
}

// checksum is the UDP checksum over the pseudo header and a datagram with its own
// checksum in it: 0 when that is right (RFC 768). A datagram without one, which is
// right too, gives 0.
func checksum(addrs, udp []byte) uint16 {
	udp = udp[:min(len(udp), int(binary.BigEndian.Uint16(udp[4:])))]
	if udp[6] == 0 && udp[7] == 0 {
		return 0
	}
	sum := uint32(unix.IPPROTO_UDP) + uint32(len(udp))
	for _, b := range [][]byte{addrs, udp} {
		for i, c := range b {
			sum += uint32(c) << (8 * (1 - i%2))
		}
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}

// Type is a condition on frames: a message type of one client; a nil mac stands
// for any client.
func Type(want dhcpv4.MessageType, mac net.HardwareAddr) func(Frame) bool {
	return func(f Frame) bool {
		return f.Type == want && (mac == nil || f.Msg.ClientHWAddr.String() == mac.String())
	}
}

// AwaitType waits for a message type of a client since mark.
func (c *Capture) AwaitType(t testing.TB, mark int, wait time.Duration, want dhcpv4.MessageType, mac net.HardwareAddr) (Frame, int) {
	t.Helper()
	return c.Await(t, fmt.Sprintf("DHCP %v of %v on the wire", want, mac), mark, wait, Type(want, mac))
}
