package nic

import (
	"encoding/binary"
	"net"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/insomniacslk/dhcp/dhcpv4"
	"golang.org/x/net/bpf"
	"golang.org/x/net/ipv4"
)

var (
	testMAC   = net.HardwareAddr{0x02, 0xaa, 0xbb, 0xcc, 0xdd, 0x01}
	otherMAC  = net.HardwareAddr{0x02, 0xaa, 0xbb, 0xcc, 0xdd, 0x02}
	serverIP  = netip.MustParseAddr("10.77.0.1")
	clientIP  = netip.MustParseAddr("10.77.0.50")
	anyIP     = netip.IPv4Unspecified()
	limitedBC = netip.MustParseAddr("255.255.255.255")
)

// reply returns an ACK for mac as a server puts it on the wire.
func reply(t testing.TB, mac net.HardwareAddr, modify ...dhcpv4.Modifier) []byte {
	t.Helper()
	msg, err := dhcpv4.New(append([]dhcpv4.Modifier{
		dhcpv4.WithMessageType(dhcpv4.MessageTypeAck),
		dhcpv4.WithHwAddr(mac),
		dhcpv4.WithTransactionID(dhcpv4.TransactionID{1, 2, 3, 4}),
		dhcpv4.WithYourIP(clientIP.AsSlice()),
		dhcpv4.WithReply(&dhcpv4.DHCPv4{OpCode: dhcpv4.OpcodeBootRequest, ClientHWAddr: mac, TransactionID: dhcpv4.TransactionID{1, 2, 3, 4}}),
	}, modify...)...)
	if err != nil {
		t.Fatalf("build reply: %v", err)
	}
	b := datagram(serverIP, clientIP, 7, msg.ToBytes())
	binary.BigEndian.PutUint16(b[ipv4Len:], serverPort)
	binary.BigEndian.PutUint16(b[ipv4Len+2:], clientPort)
	return b
}

// withOptions puts IP options of n bytes into the datagram.
func withOptions(b []byte, n int) []byte {
	out := append([]byte{}, b[:ipv4Len]...)
	for range n {
		out = append(out, 1) // no operation
	}
	out = append(out, b[ipv4Len:]...)
	out[0] = 4<<4 | byte((ipv4Len+n)/4)
	binary.BigEndian.PutUint16(out[2:], uint16(len(out)))
	return out
}

// edit returns a copy of b with bytes put at off.
func edit(b []byte, off int, bytes ...byte) []byte {
	out := append([]byte{}, b...)
	copy(out[off:], bytes)
	return out
}

type frameCase struct {
	name  string
	frame []byte
	// filter and parse tell whether the filter passes the frame and whether the
	// parser takes it. The filter may pass more.
	filter, parse bool
}

func frameCases(t testing.TB) []frameCase {
	ok := reply(t, testMAC)
	udp := ipv4Len
	dhcp := udp + udpLen
	return []frameCase{
		{"OK plain", ok, true, true},
		{"OK ip options", withOptions(ok, 8), true, true},
		{"OK longest ip options", withOptions(ok, 40), true, true},
		{"OK padding behind", append(append([]byte{}, ok...), make([]byte, 18)...), true, true},
		{"OK dont fragment", edit(ok, 6, 0x40, 0), true, true},
		{"OK bad udp checksum", edit(ok, udp+6, 0xde, 0xad), true, true},
		{"OK no udp checksum", edit(ok, udp+6, 0, 0), true, true},
		{"OK from another port, as some relays do", edit(ok, udp, 0x12, 0x34), true, true},
		{"bad empty", nil, false, false},
		{"bad ends in ip header", ok[:12], false, false},
		{"bad ends in udp header", ok[:udp+4], false, false},
		{"bad ends in chaddr", ok[:dhcp+30], false, false},
		{"bad ends in options", ok[:len(ok)-80], true, false},
		{"bad ip version 6", edit(ok, 0, 0x65), false, false},
		{"bad ip header length 16", edit(ok, 0, 0x44), false, false},
		{"bad ip total length short", edit(ok, 2, 0, 27), true, false},
		{"bad ip total length beyond", edit(ok, 2, 0xff, 0xff), true, false},
		{"bad first fragment", edit(ok, 6, 0x20, 0), false, false},
		{"bad last fragment", edit(ok, 6, 0, 0x10), false, false},
		{"bad tcp", edit(ok, 9, 6), false, false},
		{"bad port", edit(ok, udp+2, 0, 67), false, false},
		{"bad udp length short", edit(ok, udp+4, 0, 7), true, false},
		{"bad udp length beyond", edit(ok, udp+4, 0xff, 0xff), true, false},
		{"bad request", edit(ok, dhcp, 1), false, false},
		{"bad chaddr", reply(t, otherMAC), false, false},
		{"bad chaddr in last byte", edit(ok, dhcp+33, 0x77), false, false},
		{"bad hlen", edit(ok, dhcp+2, 16), true, false},
		{"bad cookie", edit(ok, dhcp+236, 0), true, false},
	}
}

func TestParseReply(t *testing.T) {
	for _, tt := range frameCases(t) {
		t.Run(tt.name, func(t *testing.T) {
			got, err := parseReply(tt.frame, testMAC)
			if (err == nil) != tt.parse {
				t.Fatalf("err = %v, want taken = %v", err, tt.parse)
			}
			if err != nil {
				return
			}
			if got.From != serverIP || got.Msg.MessageType() != dhcpv4.MessageTypeAck || !got.Msg.YourIPAddr.Equal(clientIP.AsSlice()) {
				t.Fatalf("got %v from %s", got.Msg, got.From)
			}
		})
	}
}

func TestParseReplyKeepsNothingOfTheBuffer(t *testing.T) {
	for name, b := range map[string][]byte{
		"options":         reply(t, testMAC, dhcpv4.WithOption(dhcpv4.OptHostName("pod"))),
		"options in file": overloaded(t),
	} {
		got, err := parseReply(b, testMAC)
		if err != nil {
			t.Fatal(err)
		}
		clear(b)
		if got.Msg.HostName() != "pod" || got.From != serverIP {
			t.Errorf("%s: message changed with the buffer: %v", name, got.Msg)
		}
	}
}

// overloaded returns an ACK with the host name "pod" in the field 'file'
// (RFC 2132, 9.3).
func overloaded(t testing.TB) []byte {
	t.Helper()
	b := reply(t, testMAC, dhcpv4.WithOption(dhcpv4.OptGeneric(dhcpv4.OptionOptionOverload, []byte{1})))
	const file = ipv4Len + udpLen + 108 // RFC 2131, figure 1
	return edit(b, file, 12, 3, 'p', 'o', 'd', 255)
}

func TestReplyFilter(t *testing.T) {
	vm, err := bpf.NewVM(replyFilter(testMAC))
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range frameCases(t) {
		t.Run(tt.name, func(t *testing.T) {
			n, err := vm.Run(tt.frame)
			if err != nil {
				t.Fatal(err)
			}
			want := 0
			if tt.filter {
				want = takeAll
			}
			if n != want {
				t.Fatalf("filter passes %d bytes, want %d", n, want)
			}
		})
	}
}

func TestDatagram(t *testing.T) {
	for _, tt := range []struct {
		name     string
		src, dst netip.Addr
		payload  []byte
	}{
		{"OK broadcast", anyIP, limitedBC, make([]byte, 300)},
		{"OK unicast, odd length", clientIP, serverIP, []byte("odd")},
		{"OK empty", clientIP, serverIP, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := datagram(tt.src, tt.dst, 0x1234, tt.payload)
			h, err := ipv4.ParseHeader(b)
			if err != nil {
				t.Fatal(err)
			}
			want := &ipv4.Header{
				Version: 4, Len: 20, TotalLen: 28 + len(tt.payload), ID: 0x1234, TTL: 64, Protocol: 17,
				Checksum: int(binary.BigEndian.Uint16(b[10:])), Src: tt.src.AsSlice(), Dst: tt.dst.AsSlice(),
			}
			if diff := cmp.Diff(want, h, cmp.Comparer(func(a, b net.IP) bool { return a.Equal(b) })); diff != "" {
				t.Errorf("header (-want +got):\n%s", diff)
			}
			// A sum over data with its own checksum is all ones (RFC 1071).
			if got := fold(sum(0, b[:20])); got != 0xffff {
				t.Errorf("ip checksum leaves %#x", got)
			}
			if got := fold(sum(pseudoHeader(b), b[20:])); got != 0xffff {
				t.Errorf("udp checksum leaves %#x", got)
			}
			wantUDP := []byte{0, 68, 0, 67, 0, byte(8 + len(tt.payload)), b[26], b[27]}
			if len(tt.payload) == 300 {
				wantUDP[4], wantUDP[5] = 1, 52
			}
			if diff := cmp.Diff(wantUDP, b[20:28]); diff != "" {
				t.Errorf("udp header (-want +got):\n%s", diff)
			}
		})
	}
}

// A checksum that comes out as 0 is sent as 0xffff: 0 means none.
func TestDatagramZeroChecksum(t *testing.T) {
	b := datagram(anyIP, limitedBC, 1, []byte{0, 0})
	rest := binary.BigEndian.Uint16(b[26:])
	b = datagram(anyIP, limitedBC, 1, binary.BigEndian.AppendUint16(nil, rest))
	if got := binary.BigEndian.Uint16(b[26:]); got != 0xffff {
		t.Fatalf("checksum %#x, want 0xffff", got)
	}
}

func TestMessagesHaveBOOTPLength(t *testing.T) {
	msg, err := dhcpv4.New(dhcpv4.WithMessageType(dhcpv4.MessageTypeRelease), dhcpv4.WithHwAddr(testMAC))
	if err != nil {
		t.Fatal(err)
	}
	if n := len(msg.ToBytes()); n < 300 {
		t.Fatalf("message of %d bytes: relays drop less than 300 (RFC 1542, 2.1)", n)
	}
}

func FuzzParseFrame(f *testing.F) {
	for _, tt := range frameCases(f) {
		f.Add(tt.frame)
	}
	vm, err := bpf.NewVM(replyFilter(testMAC))
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		got, err := parseReply(b, testMAC)
		if err != nil {
			return
		}
		if got.Msg.OpCode != dhcpv4.OpcodeBootReply || got.Msg.ClientHWAddr.String() != testMAC.String() || !got.From.Is4() {
			t.Fatalf("took %v from %s", got.Msg, got.From)
		}
		if n, err := vm.Run(b); err != nil || n == 0 {
			t.Fatalf("the filter drops what the parser takes: %d %v", n, err)
		}
	})
}
