package rig

import (
	"encoding/binary"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/mdlayher/packet"
	"golang.org/x/sys/unix"
)

// Script answers a client's message with any number of payloads of UDP datagrams,
// also such as no DHCP server would send.
type Script func(client Frame) [][]byte

// Scripted is a DHCP server that does as the test says.
type Scripted struct {
	// Got is what clients have sent.
	Got  Stream[Frame]
	conn *packet.Conn
	addr netip.Addr
}

// StartScripted answers on an interface of the namespace, from addr, until the
// test ends. The script runs on a goroutine of its own, one message at a time.
func StartScripted(t testing.TB, n *Netns, ifName string, addr netip.Addr, script Script) *Scripted {
	t.Helper()
	s := &Scripted{addr: addr}
	err := n.Do(func() error {
		ifi, err := net.InterfaceByName(ifName)
		if err != nil {
			return err
		}
		s.conn, err = packet.Listen(ifi, packet.Raw, unix.ETH_P_IP, nil)
		return err
	})
	if err != nil {
		t.Fatalf("listen on %s in %s: %v", ifName, n.Name, err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.serve(t, script)
	}()
	t.Cleanup(func() {
		s.conn.Close()
		<-done
	})
	return s
}

func (s *Scripted) serve(t testing.TB, script Script) {
	defer s.Got.End()
	buf := make([]byte, 1<<16)
	for {
		n, _, err := s.conn.ReadFrom(buf)
		if err != nil {
			return
		}
		f, ok := parseFrame(buf[:n])
		if !ok || !f.FromClient() {
			continue
		}
		for _, payload := range script(f) {
			frame := ReplyFrame(s.addr, f.EthSrc, payload)
			if _, err := s.conn.WriteTo(frame, &packet.Addr{HardwareAddr: f.EthSrc}); err != nil {
				t.Errorf("scripted server: %v", err)
				return
			}
		}
		s.Got.Add(f)
	}
}

// Terms is what a scripted server lends.
type Terms struct {
	Addr             netip.Prefix
	Lifetime, T1, T2 time.Duration
}

// Reply is a right answer to a client's message, OFFER or ACK, which the modifiers
// may spoil; nil for messages that get no answer.
func (s *Scripted) Reply(f Frame, terms Terms, change ...dhcpv4.Modifier) []byte {
	kind := dhcpv4.MessageTypeOffer
	switch f.Type {
	case dhcpv4.MessageTypeDiscover:
	case dhcpv4.MessageTypeRequest:
		kind = dhcpv4.MessageTypeAck
	default:
		return nil
	}
	server := net.IP(s.addr.AsSlice())
	seconds := func(d time.Duration) uint32 { return uint32(d.Seconds()) }
	mods := []dhcpv4.Modifier{
		dhcpv4.WithMessageType(kind),
		dhcpv4.WithYourIP(terms.Addr.Addr().AsSlice()),
		dhcpv4.WithOption(dhcpv4.OptServerIdentifier(server)),
		dhcpv4.WithNetmask(net.CIDRMask(terms.Addr.Bits(), 32)),
		dhcpv4.WithLeaseTime(seconds(terms.Lifetime)),
	}
	if terms.T1 > 0 {
		mods = append(mods,
			dhcpv4.WithGeneric(dhcpv4.OptionRenewTimeValue, binary.BigEndian.AppendUint32(nil, seconds(terms.T1))),
			dhcpv4.WithGeneric(dhcpv4.OptionRebindingTimeValue, binary.BigEndian.AppendUint32(nil, seconds(terms.T2))))
	}
	m, err := dhcpv4.NewReplyFromRequest(f.Msg, append(mods, change...)...)
	if err != nil {
		panic(err) // only of a modifier, and these give none
	}
	return m.ToBytes()
}

// Without is a modifier that leaves an option out.
func Without(codes ...dhcpv4.OptionCode) dhcpv4.Modifier {
	return func(m *dhcpv4.DHCPv4) {
		for _, c := range codes {
			m.Options.Del(c)
		}
	}
}

// ReplyFrame wraps a payload into UDP 67 to 68, IPv4 from a server to everyone, and
// Ethernet to a client.
func ReplyFrame(server netip.Addr, client net.HardwareAddr, payload []byte) []byte {
	b := make([]byte, 0, 14+20+8+len(payload))
	b = append(b, client...)
	b = append(b, 2, 0, 0, 0, 0, 1)
	b = binary.BigEndian.AppendUint16(b, unix.ETH_P_IP)
	ip := make([]byte, 20)
	ip[0], ip[8], ip[9] = 0x45, 64, unix.IPPROTO_UDP
	binary.BigEndian.PutUint16(ip[2:], uint16(20+8+len(payload)))
	copy(ip[12:], server.AsSlice())
	copy(ip[16:], net.IPv4bcast.To4())
	var sum uint32
	for i := 0; i < len(ip); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(ip[i:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	binary.BigEndian.PutUint16(ip[10:], ^uint16(sum))
	b = append(b, ip...)
	b = binary.BigEndian.AppendUint16(b, 67)
	b = binary.BigEndian.AppendUint16(b, 68)
	b = binary.BigEndian.AppendUint16(b, uint16(8+len(payload)))
	b = append(b, 0, 0) // no checksum (RFC 768)
	return append(b, payload...)
}
