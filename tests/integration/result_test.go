package integration

import (
	"maps"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/dhcp-meta/dhcp-meta/tests/rig"
)

// The DHCP server's router does not take the default route from the pod's own
// network, unless the network says so.
func TestB46DefaultRouteStays(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name     string
		settings object
		want     []rig.Route
	}{
		{"OK never, the default", nil, nil},
		{"OK always, with a metric", object{"defaultRoute": "always", "routeMetric": 50},
			[]rig.Route{{Dst: "default", Gateway: "10.77.0.1", Metric: 50}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			l := newLab(t)
			rig.StartDnsmasq(t, l.Server, rig.Pool(0, 0))
			pod := newSandbox(t)
			rig.Veth(t, pod.Netns, "eth0", l.Node, "pod-eth0")
			pod.IP(t, "addr", "add", "10.244.0.5/24", "dev", "eth0")
			pod.IP(t, "route", "add", "default", "via", "10.244.0.1")
			before := pod.Routes(t, "eth0")
			o := pod.mustAdd(t, l, pod.Call("net1", l.Macvlan(tt.settings)))
			pod.expectRoutes(t, o, tt.want)
			if diff := cmp.Diff(before, pod.Routes(t, "eth0")); diff != "" {
				t.Errorf("routes of eth0 (-want +got):\n%s", diff)
			}
		})
	}
}

// expectRoutes checks that net1 has the connected route and those of want, that
// all of them go with the leased address, and that the result tells of want.
func (s *sandbox) expectRoutes(t testing.TB, o rig.Outcome, want []rig.Route) {
	t.Helper()
	addr := leased(t, o)
	all := []rig.Route{{Dst: addr.Masked().String(), Dev: "net1", Source: addr.Addr().String()}}
	for _, r := range want {
		r.Dev, r.Source = "net1", addr.Addr().String()
		all = append(all, r)
	}
	order := cmpopts.SortSlices(func(a, b rig.Route) bool { return a.Dst < b.Dst })
	// The kernel's own connected route may carry any metric.
	got := s.Routes(t, "net1")
	for i := range got {
		if got[i].Dst == all[0].Dst {
			got[i].Metric = 0
		}
	}
	if diff := cmp.Diff(all, got, order); diff != "" {
		t.Errorf("routes over net1 (-want +got):\n%s", diff)
	}
	if got := len(o.Result.Routes); got != len(want) {
		t.Errorf("the result has %d routes, want %d: %s", got, len(want), o.Stdout)
	}
}

// Classless routes (option 121), and when they count alone.
func TestK56K57RoutesOfTheServer(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name    string
		options []string
		want    []rig.Route
	}{
		{"OK static route of option 33",
			[]string{"--dhcp-option=3,10.77.0.1", "--dhcp-option=33,10.8.0.1,10.77.0.1"},
			[]rig.Route{route("default", "10.77.0.1"), route("10.8.0.1", "10.77.0.1")}},
		{"OK no router (B53)", []string{"--dhcp-option=3"}, nil},
	} {
		t.Run(tt.name, func(t *testing.T) { t.Parallel(); serveRoutes(t, tt.options, nil, tt.want...) })
	}
}

// RFC 3442: with option 121 both Router and Static Route are ignored.
func TestB47ClasslessRoutesBeatRouter(t *testing.T) {
	t.Parallel()
	serveRoutes(t,
		[]string{"--dhcp-option=3,10.77.0.1", "--dhcp-option=121,10.9.0.0/16,10.77.0.7", "--dhcp-option=33,10.8.0.1,10.77.0.1"},
		nil, route("10.9.0.0/16", "10.77.0.7"))
}

// Router 0.0.0.0 in option 121: the destination is on the link. The metadata service
// of a cloud is reached only when the network names it.
func TestB49OnLinkRoute(t *testing.T) {
	t.Parallel()
	byDefault := route("default", "10.77.0.1")
	for _, tt := range []struct {
		name     string
		settings object
		dst      string
		want     []rig.Route
	}{
		{"OK host on the link", nil, "203.0.113.9", []rig.Route{route("203.0.113.9", ""), byDefault}},
		{"bad metadata service", nil, "169.254.169.254", []rig.Route{byDefault}},
		{"OK metadata service by name", object{"routes": object{"allow": []string{"0.0.0.0/0", "169.254.169.254/32"}}},
			"169.254.169.254", []rig.Route{route("169.254.169.254", ""), byDefault}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			options := []string{"--dhcp-option=121,0.0.0.0/0,10.77.0.1," + tt.dst + "/32,0.0.0.0"}
			serveRoutes(t, options, tt.settings, tt.want...)
		})
	}
}

// route is a route of a lease; an empty gateway is a route on the link.
func route(dst, gateway string) rig.Route { return rig.Route{Dst: dst, Gateway: gateway} }

// A broken option 121 is ignored as a whole, and Router counts again.
func TestB52BrokenClasslessRoutes(t *testing.T) {
	t.Parallel()
	for name, option := range map[string]string{
		"bad short":          "20:0a:09:00:01:0a",
		"bad prefix over 32": "21:0a:09:00:01:0a:4d:00:01",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			serveRoutes(t, []string{"--dhcp-option=3,10.77.0.1", "--dhcp-option-force=121," + option},
				nil, route("default", "10.77.0.1"))
		})
	}
}

// serveRoutes runs ADD against a server with these options, with a default route
// allowed, and compares routes.
func serveRoutes(t *testing.T, options []string, settings object, want ...rig.Route) {
	t.Helper()
	l := newLab(t)
	cfg := rig.Pool(0, 0)
	cfg.Dnsmasq = options
	rig.StartDnsmasq(t, l.Server, cfg)
	pod := newSandbox(t)
	all := object{"defaultRoute": "always"}
	maps.Copy(all, settings)
	pod.expectRoutes(t, pod.mustAdd(t, l, pod.Call("net1", l.Macvlan(all))), want)
}

// Without a mask there is nothing to configure: ADD fails clearly, and what the
// server lent meanwhile is given back.
func TestB53NoMask(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	cfg := rig.Pool(0, 0)
	cfg.Dnsmasq = []string{"--dhcp-option=1"}
	server := rig.StartDnsmasq(t, l.Server, cfg)
	pod := newSandbox(t)
	call := pod.Call("net1", l.Macvlan(object{"timeout": "5s"}))
	l.Node.Refuse(t, "ADD", call, 11, "subnet mask")
	server.AwaitHeld(t, "empty", rig.Nothing)
	l.expectNothingLeft(t)
	if have := pod.Addresses(t, "net1"); have != nil {
		t.Errorf("net1 carries %v", have)
	}
}

// Options 6, 15 and 119 are asked for and stand in the result.
func TestB54DNSInTheResult(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	cfg := rig.Pool(0, 0)
	cfg.Dnsmasq = []string{
		"--dhcp-option=6,10.77.0.3,10.77.0.4", "--dhcp-option=15,site.example",
		"--dhcp-option=option:domain-search,a.example,b.example",
	}
	rig.StartDnsmasq(t, l.Server, cfg)
	pod := newSandbox(t)
	o := pod.mustAdd(t, l, pod.Call("net1", l.Macvlan(nil)))
	dns := o.Result.DNS
	if diff := cmp.Diff([]string{"10.77.0.3", "10.77.0.4"}, dns.Nameservers); diff != "" {
		t.Errorf("nameservers (-want +got):\n%s", diff)
	}
	if dns.Domain != "site.example" {
		t.Errorf("domain %q, want site.example", dns.Domain)
	}
	if diff := cmp.Diff([]string{"a.example", "b.example"}, dns.Search); diff != "" {
		t.Errorf("search (-want +got):\n%s", diff)
	}
}

// The pod's name goes to the server as its host name.
func TestHostnameReachesTheServer(t *testing.T) {
	onBothServers(t, func(t *testing.T, l *lab, start rig.StartFunc) {
		server := start(t, l.Server, rig.Pool(0, 0))
		pod := newSandbox(t)
		pod.mustAdd(t, l, pod.Call("net1", l.Macvlan(nil)))
		server.AwaitHeld(t, "a lease with the pod's name", func(held []rig.Held) bool {
			return len(held) == 1 && contains(pod.Pod)(held[0].Hostname)
		})
	})
}

// Wrapped bridge, and the chained form behind bridge and tuning, work as macvlan
// does.
func TestBridgeDelegate(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	server := rig.StartDnsmasq(t, l.Server, rig.Pool(seconds(3), seconds(60)))
	l.Node.IP(t, "link", "add", "br0", "type", "bridge")
	l.Node.IP(t, "link", "set", rig.Uplink, "master", "br0")
	l.Node.IP(t, "link", "set", "br0", "up")
	pod := newSandbox(t)
	call := pod.Call("net1", l.Delegate(object{"type": "bridge", "bridge": "br0"}, nil))
	o := pod.mustAdd(t, l, call)
	addr := leased(t, o).Addr()
	server.AwaitHeld(t, "the lease", rig.Holds(pod.HardwareAddr(t, "net1"), addr))
	pod.expectPing(t, addr, rig.ServerAddr.Addr())
	// bridge reports bridge, host end and container end; all stay, in order.
	if n := len(o.Result.Interfaces); n != 3 {
		t.Errorf("%d interfaces in the result, want bridge's three: %s", n, o.Stdout)
	}
	l.Node.Del(t, call)
	server.AwaitHeld(t, "empty", rig.Nothing)
}
