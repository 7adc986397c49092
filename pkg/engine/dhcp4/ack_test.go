package dhcp4

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/insomniacslk/dhcp/dhcpv4"
)

func addrs(list string) (out []netip.Addr) {
	for s := range strings.SplitSeq(list, ",") {
		out = append(out, netip.MustParseAddr(s))
	}
	return out
}

func route(dst, gateway string) Route {
	r := Route{Dst: netip.MustParsePrefix(dst)}
	if gateway != "" {
		r.Gateway = netip.MustParseAddr(gateway)
	}
	return r
}

// parse reads an ACK with the options of grant and more; a nil value takes an
// option away.
func parse(t *testing.T, known netip.Prefix, yiaddr string, more ...any) (Lease, []string, error) {
	t.Helper()
	msg := answer(dhcpv4.MessageTypeAck, dhcpv4.TransactionID{}, yiaddr, grant()...)
	for i := 0; i < len(more); i += 2 {
		code := uint8(more[i].(int))
		if more[i+1] == nil {
			delete(msg.Options, code)
			continue
		}
		msg.Options[code] = wireValue(more[i+1])
	}
	return parseLease(reply{Received: received(msg), kind: dhcpv4.MessageTypeAck, server: netip.MustParseAddr("10.0.0.1")}, known)
}

// TestParseLease reads what an ordinary ACK and its odd relatives say besides the
// address. The wanted lease is what differs from an hour of 10.0.0.5/24.
func TestParseLease(t *testing.T) {
	for _, tt := range []struct {
		name    string
		options []any
		want    func(l *Lease)
		remarks []string
	}{
		{name: "OK nothing but the address", want: func(*Lease) {}},
		{
			name:    "OK T1 and T2",
			options: []any{optT1, 8, optT2, 16},
			want:    func(l *Lease) { l.T1, l.T2 = 8*time.Second, 16*time.Second },
		},
		{
			name:    "OK T1 alone",
			options: []any{optT1, 8},
			want:    func(l *Lease) { l.T1 = 8 * time.Second },
		},
		{
			name:    "OK T2 alone",
			options: []any{optT2, 3000},
			want:    func(l *Lease) { l.T2 = 3000 * time.Second },
		},
		{
			name:    "bad T2 before the default T1",
			options: []any{optT2, 60},
			want:    func(*Lease) {},
			remarks: []string{"T1 0 s and T2 60 s (options 58 and 59) do not fit a lease of 3600 s: 30m0s and 52m30s are used"},
		},
		{
			name:    "bad T1 after T2",
			options: []any{optT1, 16, optT2, 8},
			want:    func(*Lease) {},
			remarks: []string{"T1 16 s and T2 8 s (options 58 and 59) do not fit a lease of 3600 s: 30m0s and 52m30s are used"},
		},
		{
			name:    "bad T1 and T2 infinite in a finite lease",
			options: []any{optT1, infiniteSeconds, optT2, infiniteSeconds},
			want:    func(*Lease) {},
			remarks: []string{"T1 4294967295 s and T2 4294967295 s (options 58 and 59) do not fit a lease of 3600 s: 30m0s and 52m30s are used"},
		},
		{
			name:    "bad T1 of three bytes",
			options: []any{optT1, []byte{0, 0, 8}},
			want:    func(*Lease) {},
			remarks: []string{"option 58 is 3 bytes long, not 4"},
		},
		{
			name:    "OK lease of a second",
			options: []any{optLeaseTime, 1},
			want: func(l *Lease) {
				l.Lifetime, l.T1, l.T2 = time.Second, 500*time.Millisecond, 875*time.Millisecond
			},
		},
		{
			name:    "OK routers, time servers, without the zeros",
			options: []any{optRouter, "10.0.0.1,0.0.0.0", optNTP, "10.0.0.4,10.0.0.5"},
			want: func(l *Lease) {
				l.Routers, l.NTP = addrs("10.0.0.1"), addrs("10.0.0.4,10.0.0.5")
				l.Routes = []Route{route("0.0.0.0/0", "10.0.0.1")}
			},
		},
		{
			name:    "OK no router but zeros",
			options: []any{optRouter, "0.0.0.0"},
			want:    func(*Lease) {},
		},
		{
			name:    "bad routers of five bytes",
			options: []any{optRouter, []byte{10, 0, 0, 1, 10}},
			want:    func(*Lease) {},
			remarks: []string{"option 3 (routers) is 5 bytes long, not a multiple of 4: not used"},
		},
		{
			name:    "bad name servers without any",
			options: []any{optDNS, []byte{}},
			want:    func(*Lease) {},
			remarks: []string{"option 6 (name servers) is 0 bytes long, not a multiple of 4: not used"},
		},
		{
			name:    "bad name server among good ones",
			options: []any{optDNS, "10.0.0.3,255.255.255.255,127.0.0.1,10.0.0.4"},
			want:    func(l *Lease) { l.DNS = addrs("10.0.0.3,10.0.0.4") },
			remarks: []string{
				"option 6 (name servers): 255.255.255.255 is not a host",
				"option 6 (name servers): 127.0.0.1 is not a host",
			},
		},
		{
			name:    "OK domain with a zero byte and a dot at its end",
			options: []any{optDomain, []byte("site.example.\x00")},
			want:    func(l *Lease) { l.Domain = "site.example" },
		},
		{
			name:    "bad domain that would write into a resolv.conf",
			options: []any{optDomain, []byte("x\nnameserver 192.0.2.1")},
			want:    func(*Lease) {},
			remarks: []string{`option 15 (domain) "x\nnameserver 192.0.2.1" is not a domain name: not used`},
		},
		{
			name:    "OK least MTU",
			options: []any{optMTU, []byte{0, 68}},
			want:    func(l *Lease) { l.MTU = 68 },
		},
		{
			name:    "bad MTU of 67",
			options: []any{optMTU, []byte{0, 67}},
			want:    func(*Lease) {},
			remarks: []string{"option 26 (mtu) is 0043, not two bytes of 68 or more: not used"},
		},
		{
			name:    "bad MTU of one byte",
			options: []any{optMTU, []byte{200}},
			want:    func(*Lease) {},
			remarks: []string{"option 26 (mtu) is c8, not two bytes of 68 or more: not used"},
		},
		{
			name:    "bad search list",
			options: []any{optSearch, []byte{3, 'a'}},
			want:    func(*Lease) {},
			remarks: []string{"option 119 (search list) ends within a label: not used"},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			want := Lease{
				Addr: netip.MustParsePrefix("10.0.0.5/24"), Server: netip.MustParseAddr("10.0.0.1"),
				Lifetime: time.Hour, T1: 30 * time.Minute, T2: 52*time.Minute + 30*time.Second,
			}
			tt.want(&want)
			got, remarks, err := parse(t, netip.Prefix{}, "10.0.0.5", tt.options...)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, got, equalAddrs); diff != "" {
				t.Errorf("lease (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tt.remarks, remarks); diff != "" {
				t.Errorf("remarks (-want +got):\n%s", diff)
			}
		})
	}
}

func TestParseLeaseRefuses(t *testing.T) {
	for _, tt := range []struct {
		name    string
		yiaddr  string
		options []any
		want    string
	}{
		{"bad no address", "0.0.0.0", nil, "ack of 0.0.0.0 is not an address for a host"},
		{"bad address of this network", "0.1.2.3", nil, "ack of 0.1.2.3 is not an address for a host"},
		{"bad loopback", "127.0.0.5", nil, "ack of 127.0.0.5 is not an address for a host"},
		{"bad multicast", "224.0.0.5", nil, "ack of 224.0.0.5 is not an address for a host"},
		{"bad class E", "240.0.0.5", nil, "ack of 240.0.0.5 is not an address for a host"},
		{"bad broadcast to all", "255.255.255.255", nil, "ack of 255.255.255.255 is not an address for a host"},
		{"bad network address", "10.0.0.0", nil, "ack of 10.0.0.0 is the network address of 10.0.0.0/24"},
		{"bad broadcast address", "10.0.0.255", nil, "ack of 10.0.0.255 is the broadcast address of 10.0.0.0/24"},
		{"bad mask of three bytes", "10.0.0.5", []any{optSubnetMask, []byte{255, 255, 255}}, "ack of 10.0.0.5 has a subnet mask (option 1) of 3 bytes"},
		{"bad mask with a hole", "10.0.0.5", []any{optSubnetMask, "255.0.255.0"}, "ack of 10.0.0.5 has the subnet mask (option 1) 255.0.255.0, which is none"},
		{"bad mask of zero", "10.0.0.5", []any{optSubnetMask, "0.0.0.0"}, "ack of 10.0.0.5 has the subnet mask (option 1) 0.0.0.0, which is none"},
		{"bad no lease time", "10.0.0.5", []any{optLeaseTime, nil}, "ack of 10.0.0.5 has no lease time (option 51)"},
		{"bad lease time of two bytes", "10.0.0.5", []any{optLeaseTime, []byte{14, 16}}, "ack of 10.0.0.5 has no lease time (option 51)"},
		{"bad lease time of zero", "10.0.0.5", []any{optLeaseTime, 0}, "ack of 10.0.0.5 has a lease time of 0 (option 51)"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l, _, err := parse(t, netip.Prefix{}, tt.yiaddr, tt.options...)
			if err == nil || err.Error() != tt.want {
				t.Errorf("got %v, %v; want error %q", l.Addr, err, tt.want)
			}
		})
	}
}

// TestParseLeaseNarrowMask: in a /31 and a /32 every address is a host's
// (RFC 3021).
func TestParseLeaseNarrowMask(t *testing.T) {
	for _, tt := range []struct{ addr, mask string }{
		{"10.0.0.4/31", "255.255.255.254"},
		{"10.0.0.5/31", "255.255.255.254"},
		{"10.0.0.0/32", "255.255.255.255"},
		{"10.0.0.6/30", "255.255.255.252"},
	} {
		want := netip.MustParsePrefix(tt.addr)
		l, _, err := parse(t, netip.Prefix{}, want.Addr().String(), optSubnetMask, tt.mask)
		if err != nil || l.Addr != want {
			t.Errorf("got %v, %v; want %v", l.Addr, err, want)
		}
	}
}

// TestMaskIsKept: an ACK that extends a lease need not repeat the mask; one that
// says another mask is believed.
func TestMaskIsKept(t *testing.T) {
	known := netip.MustParsePrefix("10.0.0.5/20")
	for _, tt := range []struct {
		name   string
		mask   any
		want   string
		remark string
	}{
		{"OK none", nil, "10.0.0.5/20", ""},
		{"OK another", "255.255.255.128", "10.0.0.5/25", ""},
		{"bad one", "255.0.255.0", "10.0.0.5/20", "ack of 10.0.0.5 has the subnet mask (option 1) 255.0.255.0, which is none: /20 is kept"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l, remarks, err := parse(t, known, "10.0.0.5", optSubnetMask, tt.mask)
			if err != nil || l.Addr != netip.MustParsePrefix(tt.want) {
				t.Errorf("got %v, %v; want %s", l.Addr, err, tt.want)
			}
			if got := strings.Join(remarks, "; "); got != tt.remark {
				t.Errorf("remarks %q, want %q", got, tt.remark)
			}
		})
	}
}

// TestLongOption: RFC 3396. An option over 255 bytes comes in parts, here of option
// 121, cut within a route.
func TestLongOption(t *testing.T) {
	var v []byte
	var want []Route
	for i := range byte(40) {
		v = append(v, 24, 10, 9, i, 10, 0, 0, 1)
		want = append(want, Route{Dst: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 9, i, 0}), 24), Gateway: netip.MustParseAddr("10.0.0.1")})
	}
	sent := answer(dhcpv4.MessageTypeAck, dhcpv4.TransactionID{}, "10.0.0.5", grant(optClassless, v)...)
	msg, err := dhcpv4.FromBytes(sent.ToBytes())
	if err != nil {
		t.Fatal(err)
	}
	l, _, err := parseLease(reply{Received: received(msg), kind: dhcpv4.MessageTypeAck}, netip.Prefix{})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, l.Routes, equalAddrs); diff != "" {
		t.Errorf("routes (-want +got):\n%s", diff)
	}
}
