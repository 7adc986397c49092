package integration

import (
	"strings"
	"testing"

	"github.com/dhcp-meta/dhcp-meta/tests/rig"
)

// Whatever routes a DHCP server sends, what the pod reached over its own network it
// still reaches over it: the kernel is asked where a packet goes. Each refused
// route is said once, over a renewal too.
func TestRouteSafety(t *testing.T) {
	t.Parallel()
	lan := rig.NewLAN(t)
	engine := rig.StartEngine(t, lan.Node, "--protected-network=10.96.0.0/12", "--protected-network=10.244.0.0/16")
	l := &lab{&rig.Lab{LAN: lan, Engine: engine}}
	cfg := rig.Pool(0, 0)
	refused := []string{"0.0.0.0/0", "0.0.0.0/1", "128.0.0.0/1", "10.96.0.0/16", "10.244.3.0/24",
		"172.20.5.0/24", "169.254.169.254/32", "127.0.0.0/8", "224.0.0.0/4"}
	sent := append([]string{"10.9.0.0/16"}, refused...)
	cfg.Dnsmasq = []string{"--dhcp-option=121," + strings.Join(sent, ",10.77.0.1,") + ",10.77.0.1"}
	rig.StartDnsmasq(t, l.Server, cfg)

	pod := newSandbox(t)
	rig.Veth(t, pod.Netns, "eth0", l.Node, "pod-eth0")
	pod.IP(t, "addr", "add", "10.244.0.5/24", "dev", "eth0")
	pod.IP(t, "route", "add", "default", "via", "10.244.0.1")
	pod.IP(t, "route", "add", "172.20.0.0/16", "via", "10.244.0.1")
	before := map[string]string{}
	for _, dst := range []string{"198.51.100.1", "8.8.8.8", "10.96.0.10", "10.244.3.9", "172.20.5.5", "169.254.169.254", "10.99.1.1"} {
		before[dst] = pod.routeGet(t, dst)
	}
	call := pod.Call("net1", l.Macvlan(nil))
	o := pod.mustAdd(t, l, call)
	pod.expectRoutes(t, o, []rig.Route{route("10.9.0.0/16", "10.77.0.1")})
	for dst, want := range before {
		if got := pod.routeGet(t, dst); got != want {
			t.Errorf("the way to %s was %q, is %q", dst, want, got)
		}
	}
	if got := pod.routeGet(t, "10.9.1.1"); !strings.Contains(got, "via 10.77.0.1 dev net1 src "+leased(t, o).Addr().String()) {
		t.Errorf("the way to 10.9.1.1 is %q", got)
	}
	l.Engine.MustCommand(t, "renew", pod.ID)
	for _, dst := range refused {
		n := l.Engine.Lines.Count(0, func(line string) bool {
			return contains("route of the lease is not installed")(line) && contains("route to "+dst+" ")(line)
		})
		if n != 1 {
			t.Errorf("the refusal of %s is said %d times, want once", dst, n)
		}
	}
	// With DEL all is as it was.
	l.Node.Del(t, call)
	if got := pod.routeGet(t, "10.9.1.1"); !strings.Contains(got, "dev eth0") {
		t.Errorf("after DEL the way to 10.9.1.1 is %q", got)
	}
}

// `routes.allow` and `routes.deny` of the network, a router that is not on the
// link, and a default route that is wanted.
func TestRoutesOfTheNetwork(t *testing.T) {
	t.Parallel()
	const sent = "--dhcp-option=121,10.9.0.0/16,10.77.0.1,10.10.0.0/16,10.77.0.1,10.11.0.0/16,192.0.2.1,0.0.0.0/0,10.77.0.1"
	for _, tt := range []struct {
		name     string
		settings object
		want     []rig.Route
	}{
		{"OK allow", object{"routes": object{"allow": []string{"10.9.0.0/16"}}, "defaultRoute": "never"},
			[]rig.Route{route("10.9.0.0/16", "10.77.0.1")}},
		{"OK deny", object{"routes": object{"deny": []string{"10.9.7.0/24"}}},
			[]rig.Route{route("10.10.0.0/16", "10.77.0.1"), route("default", "10.77.0.1")}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			serveRoutes(t, []string{sent}, tt.settings, tt.want...)
		})
	}
}
