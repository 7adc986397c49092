package routing

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine/dhcp4"
)

// route reads "10.9.0.0/16 10.77.0.1", and "10.9.0.0/16" for one on the link.
func route(text string) dhcp4.Route {
	dst, gw, over := strings.Cut(text, " ")
	r := dhcp4.Route{Dst: netip.MustParsePrefix(dst)}
	if over {
		r.Gateway = netip.MustParseAddr(gw)
	}
	return r
}

func lease(addr string, routes ...string) dhcp4.Lease {
	l := dhcp4.Lease{Addr: netip.MustParsePrefix(addr)}
	for _, r := range routes {
		l.Routes = append(l.Routes, route(r))
	}
	return l
}

func withRouter(l dhcp4.Lease, router string) dhcp4.Lease {
	l.Routers = append(l.Routers, netip.MustParseAddr(router))
	return l
}

// show is the inverse of route.
func show(routes []dhcp4.Route) []string {
	var out []string
	for _, r := range routes {
		text := r.Dst.String()
		if r.Gateway.IsValid() {
			text += " " + r.Gateway.String()
		}
		out = append(out, text)
	}
	return out
}

func nets(texts ...string) []netip.Prefix {
	var out []netip.Prefix
	for _, s := range texts {
		out = append(out, netip.MustParsePrefix(s))
	}
	return out
}

// A row is a lease, a policy, and what Admit makes of them.
type row struct {
	name   string
	policy Policy
	lease  dhcp4.Lease
	want   []string // admitted
	refuse []string // refusals: their reason and their text
}

func run(t *testing.T, rows []row) {
	t.Helper()
	for _, tt := range rows {
		t.Run(tt.name, func(t *testing.T) {
			admitted, refused := Admit(tt.policy, tt.lease)
			if diff := cmp.Diff(tt.want, show(admitted), cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("admitted (-want +got):\n%s", diff)
			}
			var got []string
			for _, r := range refused {
				got = append(got, string(r.Reason)+": "+r.String())
			}
			if diff := cmp.Diff(tt.refuse, got, cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("refused (-want +got):\n%s", diff)
			}
		})
	}
}

const wide = "a prefix shorter than /8 takes the traffic of a default route (defaultRoute)"

// Field case B46: a default route of a secondary network displaces the cluster's.
func TestB46DefaultRoute(t *testing.T) {
	never, always := Policy{}, Policy{DefaultRoute: true}
	run(t, []row{
		{"OK a network of its own", never, lease("10.77.0.50/24", "10.9.0.0/16 10.77.0.1"), []string{"10.9.0.0/16 10.77.0.1"}, nil},
		{"OK largest network", never, lease("10.77.0.50/24", "10.0.0.0/8 10.77.0.1"), []string{"10.0.0.0/8 10.77.0.1"}, nil},
		{"OK no routes", never, lease("10.77.0.50/24"), nil, nil},
		{"OK no lease", never, dhcp4.Lease{}, nil, nil},
		{"OK asked for", always, lease("10.77.0.50/24", "0.0.0.0/0 10.77.0.1"), []string{"0.0.0.0/0 10.77.0.1"}, nil},
		{
			"OK asked for, in halves", always, lease("10.77.0.50/24", "0.0.0.0/1 10.77.0.1", "128.0.0.0/1 10.77.0.1"),
			[]string{"0.0.0.0/1 10.77.0.1", "128.0.0.0/1 10.77.0.1"}, nil,
		},
		{
			"OK asked for, and no list of networks matters", Policy{
				DefaultRoute: true, Allow: nets("10.0.0.0/8"), Deny: nets("10.1.0.0/16"),
				Protected: nets("10.244.0.0/16"), Existing: nets("10.244.3.0/24", "0.0.0.0/0"),
			}, lease("10.77.0.50/24", "0.0.0.0/0 10.77.0.1"), []string{"0.0.0.0/0 10.77.0.1"}, nil,
		},
		{"OK on the link", always, lease("10.77.0.50/24", "8.8.8.8/32 192.0.2.1", "0.0.0.0/0"), []string{"0.0.0.0/0", "8.8.8.8/32 192.0.2.1"}, nil},
		{
			"bad default route, the network beside it is fine", never, lease("10.77.0.50/24", "0.0.0.0/0 10.77.0.1", "10.9.0.0/16 10.77.0.1"),
			[]string{"10.9.0.0/16 10.77.0.1"}, []string{"default: route to 0.0.0.0/0 over 10.77.0.1: no default route is wanted here (defaultRoute)"},
		},
		{
			"bad halves", never, lease("10.77.0.50/24", "0.0.0.0/1 10.77.0.1", "128.0.0.0/1"), nil,
			[]string{"wide: route to 0.0.0.0/1 over 10.77.0.1: " + wide, "wide: route to 128.0.0.0/1 on the link: " + wide},
		},
		{
			"bad smaller pieces", never, lease("10.77.0.50/24", "64.0.0.0/2 10.77.0.1", "8.0.0.0/7 10.77.0.1"), nil,
			[]string{"wide: route to 64.0.0.0/2 over 10.77.0.1: " + wide, "wide: route to 8.0.0.0/7 over 10.77.0.1: " + wide},
		},
		{
			"bad piece that takes loopback along, though asked for", always, lease("10.77.0.50/24", "64.0.0.0/2 10.77.0.1"), nil,
			[]string{"special: route to 64.0.0.0/2 over 10.77.0.1: overlaps 127.0.0.0/8, loopback"},
		},
		{
			"bad asked for, over a router that is not there", always, lease("10.77.0.50/24", "0.0.0.0/0 10.78.0.1"), nil,
			[]string{"router: route to 0.0.0.0/0 over 10.78.0.1: the router is not on the link: neither in 10.77.0.0/24 nor in an on-link route of the lease that was admitted"},
		},
	})
}

// Pieces that are no default route each are one together.
func TestManyRoutesAreADefaultRoute(t *testing.T) {
	// of gives n networks of /9 that are apart, from 16.0.0.0 on.
	of := func(n int) dhcp4.Lease {
		l := lease("10.77.0.50/24")
		for i := range n {
			dst := netip.AddrFrom4([4]byte{byte(16 + i/2), byte(i % 2 * 128), 0, 0})
			l.Routes = append(l.Routes, dhcp4.Route{Dst: netip.PrefixFrom(dst, 9), Gateway: netip.MustParseAddr("10.77.0.1")})
		}
		return l
	}
	atLimit, above := of(64), of(65)
	if admitted, refused := Admit(Policy{}, atLimit); len(admitted) != 64 || refused != nil {
		t.Errorf("an eighth: %d admitted, refused %v", len(admitted), refused)
	}
	// Networks inside others add nothing.
	nested := atLimit
	nested.Routes = append(slices.Clone(nested.Routes), route("16.0.0.0/24 10.77.0.1"), route("31.5.0.0/16"))
	if admitted, refused := Admit(Policy{}, nested); len(admitted) != 66 || refused != nil {
		t.Errorf("an eighth with networks inside: %d admitted, refused %v", len(admitted), refused)
	}
	admitted, refused := Admit(Policy{}, above)
	if admitted != nil || len(refused) != 65 {
		t.Errorf("more than an eighth: admitted %v, %d refused", admitted, len(refused))
	}
	for _, r := range refused {
		if r.Reason != ReasonWide {
			t.Errorf("reason is %q: %v", r.Reason, r)
		}
	}
	if admitted, refused := Admit(Policy{DefaultRoute: true}, above); len(admitted) != 65 || refused != nil {
		t.Errorf("more than an eighth, asked for: %d admitted, refused %v", len(admitted), refused)
	}
	// What is refused for itself does not count.
	if admitted, refused := Admit(Policy{Deny: nets("16.0.0.0/8")}, above); len(admitted) != 63 || len(refused) != 2 {
		t.Errorf("more than an eighth, less what is denied: %d admitted, refused %v", len(admitted), refused)
	}
}

func TestSpecialAddresses(t *testing.T) {
	refusal := func(dst, why string) row {
		return row{"bad " + dst, Policy{}, lease("10.77.0.50/24", dst), nil, []string{"special: route to " + dst + " on the link: overlaps " + why}}
	}
	run(t, []row{
		refusal("127.0.0.0/8", "127.0.0.0/8, loopback"),
		refusal("127.0.0.53/32", "127.0.0.0/8, loopback"),
		refusal("169.254.0.0/16", "169.254.0.0/16, link-local addresses and metadata services"),
		refusal("169.254.169.254/32", "169.254.0.0/16, link-local addresses and metadata services"),
		refusal("169.0.0.0/8", "169.254.0.0/16, link-local addresses and metadata services"),
		refusal("224.0.0.251/32", "224.0.0.0/4, multicast"),
		refusal("239.0.0.0/8", "224.0.0.0/4, multicast"),
		refusal("240.0.0.0/8", "240.0.0.0/4, reserved addresses and broadcast"),
		refusal("255.255.255.255/32", "240.0.0.0/4, reserved addresses and broadcast"),
		refusal("0.0.0.0/32", "0.0.0.0/8, this host (RFC 1122)"),
		refusal("0.0.0.0/8", "0.0.0.0/8, this host (RFC 1122)"),
		{
			"bad leased address", Policy{}, lease("10.77.0.50/24", "10.77.0.50/32 10.77.0.1"), nil,
			[]string{"own: route to 10.77.0.50/32 over 10.77.0.1: is the leased address itself"},
		},
		{"OK the prefix of the leased address", Policy{}, lease("10.77.0.50/24", "10.77.0.0/24", "10.77.0.51/32"), []string{"10.77.0.0/24", "10.77.0.51/32"}, nil},
	})
}

// Field case B49: a cloud's link routes, to its router and to its metadata
// service, and a mask of /32.
func TestB49CloudRoutes(t *testing.T) {
	cloud := lease("10.128.0.9/32", "0.0.0.0/0 10.128.0.1", "10.128.0.1/32", "169.254.169.254/32")
	metadata := "special: route to 169.254.169.254/32 on the link: overlaps 169.254.0.0/16, link-local addresses and metadata services"
	named := nets("0.0.0.0/0", "169.254.169.254/32")
	run(t, []row{
		{
			"OK link routes first, metadata asked for by name", Policy{DefaultRoute: true, Allow: named}, cloud,
			[]string{"10.128.0.1/32", "169.254.169.254/32", "0.0.0.0/0 10.128.0.1"}, nil,
		},
		{
			"OK metadata of the recipe", Policy{DefaultRoute: true, Allow: named}, lease("10.77.0.50/24", "0.0.0.0/0 10.77.0.1", "169.254.169.254/32"),
			[]string{"169.254.169.254/32", "0.0.0.0/0 10.77.0.1"}, nil,
		},
		{
			"OK more of the range asked for", Policy{Allow: nets("169.254.0.0/16")}, lease("10.77.0.50/24", "169.254.169.0/24 10.77.0.1"),
			[]string{"169.254.169.0/24 10.77.0.1"}, nil,
		},
		{"bad metadata by a wide allow", Policy{DefaultRoute: true, Allow: nets("0.0.0.0/0")}, cloud, []string{"10.128.0.1/32", "0.0.0.0/0 10.128.0.1"}, []string{metadata}},
		{"bad metadata not asked for", Policy{DefaultRoute: true}, cloud, []string{"10.128.0.1/32", "0.0.0.0/0 10.128.0.1"}, []string{metadata}},
		{
			"bad more than was asked for", Policy{Allow: named}, lease("10.77.0.50/24", "169.254.169.0/24"), nil,
			[]string{"special: route to 169.254.169.0/24 on the link: overlaps 169.254.0.0/16, link-local addresses and metadata services"},
		},
		{
			"bad metadata that the node protects", Policy{Allow: named, Protected: nets("169.254.169.254/32")}, lease("10.77.0.50/24", "169.254.169.254/32"), nil,
			[]string{"protected: route to 169.254.169.254/32 on the link: overlaps the protected network 169.254.169.254/32"},
		},
		{
			"OK router of option 3 gets its link route, once", Policy{DefaultRoute: true},
			withRouter(lease("10.128.0.9/32", "0.0.0.0/0 172.31.1.1", "10.9.0.0/16 172.31.1.1"), "172.31.1.1"),
			[]string{"172.31.1.1/32", "0.0.0.0/0 172.31.1.1", "10.9.0.0/16 172.31.1.1"}, nil,
		},
		{
			"OK that link route need not be allowed", Policy{Allow: nets("10.9.0.0/16")},
			withRouter(lease("10.128.0.9/32", "10.9.0.0/16 172.31.1.1"), "172.31.1.1"),
			[]string{"172.31.1.1/32", "10.9.0.0/16 172.31.1.1"}, nil,
		},
		{
			"OK link-local router by name", Policy{DefaultRoute: true, Allow: nets("169.254.1.1/32")},
			withRouter(lease("10.128.0.9/32", "0.0.0.0/0 169.254.1.1"), "169.254.1.1"),
			[]string{"169.254.1.1/32", "0.0.0.0/0 169.254.1.1"}, nil,
		},
		{
			"bad no route over a router, no link route", Policy{}, withRouter(lease("10.128.0.9/32", "0.0.0.0/0 172.31.1.1"), "172.31.1.1"), nil,
			[]string{"default: route to 0.0.0.0/0 over 172.31.1.1: no default route is wanted here (defaultRoute)"},
		},
		{
			"bad router of option 3 in a protected network", Policy{DefaultRoute: true, Protected: nets("172.31.0.0/16")},
			withRouter(lease("10.128.0.9/32", "0.0.0.0/0 172.31.1.1"), "172.31.1.1"), nil,
			[]string{"router: route to 0.0.0.0/0 over 172.31.1.1: the router needs a route of its own, which overlaps the protected network 172.31.0.0/16"},
		},
		{
			"bad router that no option 3 names", Policy{DefaultRoute: true}, lease("10.128.0.9/32", "0.0.0.0/0 172.31.1.1"), nil,
			[]string{"router: route to 0.0.0.0/0 over 172.31.1.1: the router is not on the link: neither in 10.128.0.9/32 nor in an on-link route of the lease that was admitted"},
		},
	})
}

func TestRoutersAreOnTheLink(t *testing.T) {
	off := func(prefix string) string {
		return "the router is not on the link: neither in " + prefix + " nor in an on-link route of the lease that was admitted"
	}
	run(t, []row{
		{
			"OK over a link route, whatever the order", Policy{}, lease("10.77.0.50/24", "10.9.0.0/16 10.78.0.1", "10.78.0.0/24"),
			[]string{"10.78.0.0/24", "10.9.0.0/16 10.78.0.1"}, nil,
		},
		{"OK link of two", Policy{}, lease("10.77.0.0/31", "10.9.0.0/16 10.77.0.1"), []string{"10.9.0.0/16 10.77.0.1"}, nil},
		{
			"bad over a link route that was refused", Policy{Deny: nets("10.78.0.7/32")}, lease("10.77.0.50/24", "10.9.0.0/16 10.78.0.1", "10.78.0.0/24"), nil,
			[]string{
				"denied: route to 10.78.0.0/24 on the link: overlaps 10.78.0.7/32 of routes.deny",
				"router: route to 10.9.0.0/16 over 10.78.0.1: " + off("10.77.0.0/24"),
			},
		},
		{
			"bad over another router", Policy{}, lease("10.77.0.50/24", "10.78.0.0/24 10.77.0.1", "10.9.0.0/16 10.78.0.1"), []string{"10.78.0.0/24 10.77.0.1"},
			[]string{"router: route to 10.9.0.0/16 over 10.78.0.1: " + off("10.77.0.0/24")},
		},
		{
			"bad router of option 3 outside a real mask", Policy{}, withRouter(lease("10.77.0.50/24", "10.9.0.0/16 10.78.0.1"), "10.78.0.1"), nil,
			[]string{"router: route to 10.9.0.0/16 over 10.78.0.1: " + off("10.77.0.0/24")},
		},
		{
			"bad over ourselves", Policy{}, lease("10.77.0.50/24", "10.9.0.0/16 10.77.0.50"), nil,
			[]string{"router: route to 10.9.0.0/16 over 10.77.0.50: the router is the leased address itself"},
		},
		{
			"bad over the first and the last address", Policy{}, lease("10.77.3.50/23", "10.9.0.0/16 10.77.2.0", "10.10.0.0/16 10.77.3.255", "10.11.0.0/16 10.77.2.255"),
			[]string{"10.11.0.0/16 10.77.2.255"}, []string{
				"router: route to 10.9.0.0/16 over 10.77.2.0: the router is no host of 10.77.2.0/23",
				"router: route to 10.10.0.0/16 over 10.77.3.255: the router is no host of 10.77.2.0/23",
			},
		},
	})
}

func TestNetworksOfOthers(t *testing.T) {
	cluster := Policy{Protected: nets("10.244.0.0/16", "10.96.0.0/12", "192.168.7.0/24")}
	pod := Policy{Existing: nets("0.0.0.0/0", "128.0.0.0/1", "10.244.3.0/24", "10.96.0.0/12")}
	run(t, []row{
		{"OK apart", cluster, lease("10.77.0.50/24", "10.9.0.0/16 10.77.0.1", "10.112.0.0/12 10.77.0.1"), []string{"10.9.0.0/16 10.77.0.1", "10.112.0.0/12 10.77.0.1"}, nil},
		{
			"bad covers pods and services", cluster, lease("10.77.0.50/24", "10.0.0.0/8 10.77.0.1"), nil,
			[]string{"protected: route to 10.0.0.0/8 over 10.77.0.1: overlaps the protected network 10.244.0.0/16"},
		},
		{
			"bad the cluster's DNS", cluster, lease("10.77.0.50/24", "10.96.0.10/32 10.77.0.1"), nil,
			[]string{"protected: route to 10.96.0.10/32 over 10.77.0.1: overlaps the protected network 10.96.0.0/12"},
		},
		{
			"bad protected, though allowed by name", Policy{Protected: nets("10.244.0.0/16"), Allow: nets("10.244.0.0/16")}, lease("10.77.0.50/24", "10.244.0.0/16 10.77.0.1"), nil,
			[]string{"protected: route to 10.244.0.0/16 over 10.77.0.1: overlaps the protected network 10.244.0.0/16"},
		},
		{
			"OK wider than what the pod has, which wins by the longer match", pod, lease("10.77.0.50/24", "10.244.0.0/16 10.77.0.1", "172.16.0.0/12 10.77.0.1"),
			[]string{"10.244.0.0/16 10.77.0.1", "172.16.0.0/12 10.77.0.1"}, nil,
		},
		{
			"bad the same, and more specific", pod, lease("10.77.0.50/24", "10.244.3.0/24 10.77.0.1", "10.244.3.128/25 10.77.0.1", "10.97.0.0/16"), nil,
			[]string{
				"existing: route to 10.244.3.0/24 over 10.77.0.1: lies inside 10.244.3.0/24, to which the namespace has a route already",
				"existing: route to 10.244.3.128/25 over 10.77.0.1: lies inside 10.244.3.0/24, to which the namespace has a route already",
				"existing: route to 10.97.0.0/16 on the link: lies inside 10.96.0.0/12, to which the namespace has a route already",
			},
		},
	})
}

func TestAllowAndDeny(t *testing.T) {
	run(t, []row{
		{
			"OK inside what is allowed", Policy{Allow: nets("172.16.0.0/12", "10.0.0.0/8")}, lease("10.77.0.50/24", "10.0.0.0/8 10.77.0.1", "10.9.0.0/16 10.77.0.1"),
			[]string{"10.0.0.0/8 10.77.0.1", "10.9.0.0/16 10.77.0.1"}, nil,
		},
		{
			"bad outside, across, and denied within", Policy{Allow: nets("10.8.0.0/14"), Deny: nets("10.9.1.0/24")},
			lease("10.77.0.50/24", "192.168.0.0/16 10.77.0.1", "10.8.0.0/13 10.77.0.1", "10.9.1.7/32 10.77.0.1", "10.9.0.0/16 10.77.0.1", "10.10.0.0/16 10.77.0.1"),
			[]string{"10.10.0.0/16 10.77.0.1"}, []string{
				"not-allowed: route to 192.168.0.0/16 over 10.77.0.1: lies inside no prefix of routes.allow",
				"denied: route to 10.8.0.0/13 over 10.77.0.1: overlaps 10.9.1.0/24 of routes.deny",
				"denied: route to 10.9.1.7/32 over 10.77.0.1: overlaps 10.9.1.0/24 of routes.deny",
				"denied: route to 10.9.0.0/16 over 10.77.0.1: overlaps 10.9.1.0/24 of routes.deny",
			},
		},
		{
			"bad across two that are allowed", Policy{Allow: nets("10.8.0.0/16", "10.9.0.0/16")}, lease("10.77.0.50/24", "10.8.0.0/15 10.77.0.1"), nil,
			[]string{"not-allowed: route to 10.8.0.0/15 over 10.77.0.1: lies inside no prefix of routes.allow"},
		},
		{
			"bad all of them denied", Policy{Deny: nets("0.0.0.0/0")}, lease("10.77.0.50/24", "10.9.0.0/16 10.77.0.1"), nil,
			[]string{"denied: route to 10.9.0.0/16 over 10.77.0.1: overlaps 0.0.0.0/0 of routes.deny"},
		},
	})
}

// The mask of a lease is a route too.
func TestConnected(t *testing.T) {
	for _, tt := range []struct {
		name   string
		policy Policy
		addr   string
		want   string
	}{
		{"OK", Policy{Protected: nets("10.244.0.0/16"), Existing: nets("10.244.3.0/24", "0.0.0.0/0")}, "10.77.0.50/24", ""},
		{"OK not for the lists of routes", Policy{Allow: nets("192.168.0.0/16"), Deny: nets("10.0.0.0/8")}, "10.77.0.50/24", ""},
		{"OK a single address makes no route", Policy{Protected: nets("10.77.0.0/24")}, "10.77.0.50/32", ""},
		{"bad half of all", Policy{DefaultRoute: true}, "10.77.0.50/1", "wide: route to 0.0.0.0/1 on the link: " + wide},
		{"bad the network of pods within", Policy{Protected: nets("10.244.0.0/16")}, "10.77.0.50/8", "protected: route to 10.0.0.0/8 on the link: overlaps the protected network 10.244.0.0/16"},
		{"bad the network of another interface", Policy{Existing: nets("10.77.0.0/24")}, "10.77.0.50/24", "existing: route to 10.77.0.0/24 on the link: lies inside 10.77.0.0/24, to which the namespace has a route already"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := ""
			if r, bad := Connected(tt.policy, netip.MustParsePrefix(tt.addr)); bad {
				got = string(r.Reason) + ": " + r.String()
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("refusal (-want +got):\n%s", diff)
			}
		})
	}
}
