package dhcp4

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParseClassless(t *testing.T) {
	for _, tt := range []struct {
		name string
		v    []byte
		want []Route
		err  string
	}{
		{name: "OK default", v: []byte{0, 10, 0, 0, 1}, want: []Route{route("0.0.0.0/0", "10.0.0.1")}},
		{name: "OK every length of a destination", v: []byte{
			8, 10, 10, 0, 0, 1,
			12, 172, 16, 10, 0, 0, 1,
			24, 192, 168, 1, 10, 0, 0, 1,
			32, 192, 168, 1, 9, 10, 0, 0, 1,
		}, want: []Route{
			route("10.0.0.0/8", "10.0.0.1"), route("172.16.0.0/12", "10.0.0.1"),
			route("192.168.1.0/24", "10.0.0.1"), route("192.168.1.9/32", "10.0.0.1"),
		}},
		{name: "OK on the link", v: []byte{32, 169, 254, 169, 254, 0, 0, 0, 0}, want: []Route{route("169.254.169.254/32", "")}},
		{name: "OK host bits are masked out", v: []byte{12, 172, 31, 10, 0, 0, 1}, want: []Route{route("172.16.0.0/12", "10.0.0.1")}},
		{name: "OK the same route twice", v: []byte{0, 10, 0, 0, 1, 0, 10, 0, 0, 1}, want: []Route{route("0.0.0.0/0", "10.0.0.1")}},
		{name: "OK two ways to one destination", v: []byte{0, 10, 0, 0, 1, 0, 10, 0, 0, 2}, want: []Route{route("0.0.0.0/0", "10.0.0.1"), route("0.0.0.0/0", "10.0.0.2")}},
		{name: "bad empty", v: []byte{}, err: "is empty"},
		{name: "bad 33 bits", v: []byte{33, 10, 9, 0, 1, 10, 77, 0, 1}, err: "has a destination of 33 bits"},
		{name: "bad end in a destination", v: []byte{32, 10, 9, 0}, err: "ends within a route"},
		{name: "bad end in a router", v: []byte{32, 10, 9, 0, 1, 10}, err: "ends within a route"},
		{name: "bad end in the second route", v: []byte{0, 10, 0, 0, 1, 24, 10}, err: "ends within a route"},
		{name: "bad router", v: []byte{0, 224, 0, 0, 1}, err: "has the router 224.0.0.1"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := parseClassless(tt.v)
			if text := errorText(err); text != tt.err {
				t.Errorf("error %q, want %q", text, tt.err)
			}
			if diff := cmp.Diff(tt.want, got, equalAddrs); diff != "" {
				t.Errorf("routes (-want +got):\n%s", diff)
			}
		})
	}
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func TestParseStatic(t *testing.T) {
	for _, tt := range []struct {
		name     string
		v        any
		want     []Route
		problems string
	}{
		{name: "OK class A", v: "10.0.0.0,10.0.0.1", want: []Route{route("10.0.0.0/8", "10.0.0.1")}},
		{name: "OK class B", v: "172.16.0.0,10.0.0.1", want: []Route{route("172.16.0.0/16", "10.0.0.1")}},
		{name: "OK class C", v: "192.168.7.0,10.0.0.1", want: []Route{route("192.168.7.0/24", "10.0.0.1")}},
		{name: "OK host", v: "192.168.7.9,10.0.0.1", want: []Route{route("192.168.7.9/32", "10.0.0.1")}},
		{name: "OK bits below the class mask: no more than the host", v: "10.9.0.0,10.0.0.1", want: []Route{route("10.9.0.0/32", "10.0.0.1")}},
		{name: "OK two", v: "10.0.0.0,10.0.0.1,192.168.7.0,10.0.0.2", want: []Route{route("10.0.0.0/8", "10.0.0.1"), route("192.168.7.0/24", "10.0.0.2")}},
		{name: "bad default", v: "0.0.0.0,10.0.0.1,192.168.7.0,10.0.0.1", want: []Route{route("192.168.7.0/24", "10.0.0.1")}, problems: "has a route to 0.0.0.0 over 10.0.0.1: left out"},
		{name: "bad router", v: "192.168.7.0,0.0.0.0", problems: "has a route to 192.168.7.0 over 0.0.0.0: left out"},
		{name: "bad multicast", v: "224.0.0.0,10.0.0.1", problems: "has a route to 224.0.0.0 over 10.0.0.1: left out"},
		{name: "bad empty", v: []byte{}, problems: "is 0 bytes long, not a multiple of 8: not used"},
		{name: "bad half", v: "10.0.0.0", problems: "is 4 bytes long, not a multiple of 8: not used"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, problems := parseStatic(wireValue(tt.v))
			if diff := cmp.Diff(tt.want, got, equalAddrs); diff != "" {
				t.Errorf("routes (-want +got):\n%s", diff)
			}
			if text := strings.Join(problems, "; "); text != tt.problems {
				t.Errorf("problems %q, want %q", text, tt.problems)
			}
		})
	}
}

// TestLinksFirst: the routes of a /32 in an order in which a kernel takes them.
func TestLinksFirst(t *testing.T) {
	for _, tt := range []struct {
		name     string
		in, want []Route
	}{
		{"OK none", nil, nil},
		{"OK default", []Route{route("0.0.0.0/0", "10.0.0.1")}, []Route{route("10.0.0.1/32", ""), route("0.0.0.0/0", "10.0.0.1")}},
		{
			"OK two routes over one router",
			[]Route{route("0.0.0.0/0", "10.0.0.1"), route("10.9.0.0/16", "10.0.0.1")},
			[]Route{route("10.0.0.1/32", ""), route("0.0.0.0/0", "10.0.0.1"), route("10.9.0.0/16", "10.0.0.1")},
		},
		{
			"OK two routers",
			[]Route{route("0.0.0.0/0", "10.0.0.1"), route("10.9.0.0/16", "10.0.0.2")},
			[]Route{route("10.0.0.1/32", ""), route("10.0.0.2/32", ""), route("0.0.0.0/0", "10.0.0.1"), route("10.9.0.0/16", "10.0.0.2")},
		},
		{
			"OK the link is there, behind",
			[]Route{route("0.0.0.0/0", "10.0.0.1"), route("10.0.0.0/24", "")},
			[]Route{route("10.0.0.0/24", ""), route("0.0.0.0/0", "10.0.0.1")},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, linksFirst(tt.in), equalAddrs); diff != "" {
				t.Errorf("routes (-want +got):\n%s", diff)
			}
		})
	}
}

func TestNextHop(t *testing.T) {
	routed := Lease{
		Addr:    netip.MustParsePrefix("10.0.0.5/24"),
		Routers: addrs("10.0.0.1"),
		Routes: []Route{
			route("0.0.0.0/0", "10.0.0.1"), route("172.16.0.0/12", "10.0.0.2"), route("172.16.9.0/24", "10.0.0.3"),
			route("169.254.0.0/16", ""), route("10.0.0.128/25", "10.0.0.4"),
		},
	}
	for _, tt := range []struct {
		name     string
		l        Lease
		to, want string
	}{
		{"OK in the prefix", routed, "10.0.0.9", "10.0.0.9"},
		{"OK on an on-link route", routed, "169.254.169.254", "169.254.169.254"},
		{"OK longest match", routed, "172.16.9.1", "10.0.0.3"},
		{"OK shorter match", routed, "172.17.0.1", "10.0.0.2"},
		{"OK longer match than the prefix", routed, "10.0.0.200", "10.0.0.4"},
		{"OK default", routed, "8.8.8.8", "10.0.0.1"},
		{"OK router, where option 121 has no default", Lease{Addr: routed.Addr, Routers: addrs("10.0.0.7,10.0.0.8")}, "8.8.8.8", "10.0.0.7"},
		{"OK no way but the link", Lease{Addr: routed.Addr}, "8.8.8.8", "8.8.8.8"},
		{"OK everything on the link", Lease{Addr: routed.Addr, Routers: addrs("10.0.0.1"), Routes: []Route{route("0.0.0.0/0", "")}}, "8.8.8.8", "8.8.8.8"},
		{"OK no lease", Lease{}, "8.8.8.8", "8.8.8.8"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := tt.l.NextHop(netip.MustParseAddr(tt.to)); got != netip.MustParseAddr(tt.want) {
				t.Errorf("next hop to %s is %s, want %s", tt.to, got, tt.want)
			}
		})
	}
}
