package dropin

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/insomniacslk/dhcp/dhcpv4"

	"github.com/dhcp-meta/dhcp-meta/tests/rig"
)

// alone is the configuration with which the plugin dhcp itself is run. Notes of our
// plugin go where the engine looks for them.
func (l *lab) alone() object {
	return object{"cniVersion": "1.0.0", "name": "office-lan", "type": "dhcp", "ipam": object{
		"type": "dhcp", "daemonSocketPath": l.socket, "dhcp": object{"stateDir": l.engine.StateDir}}}
}

// TestK77UnknownDel: a DEL of what was never served succeeds, also without a
// namespace, and nothing is sent.
func TestK77UnknownDel(t *testing.T) {
	onBoth(t, func(t *testing.T, l *lab) {
		gone := *rig.NewSandbox(t).Netns
		gone.Path = ""
		for name, s := range map[string]*rig.Sandbox{
			"with a namespace":    rig.NewSandbox(t),
			"without a namespace": {Netns: &gone, ID: rig.RandomHex(32)},
		} {
			if out, err := l.try(t, "DEL", s, l.alone()); err != nil {
				t.Errorf("DEL %s: %v: %s", name, err, out)
			}
		}
		if n := l.Capture.Count(0, rig.Frame.FromClient); n != 0 {
			t.Errorf("%d messages were sent", n)
		}
	})
}

// TestRequestThatEndsTheReference: what ends the reference's daemon, an ADD without
// ipam, is an error here, and the next call is served.
func TestRequestThatEndsTheReference(t *testing.T) {
	onBoth(t, func(t *testing.T, l *lab) {
		s := rig.NewSandbox(t)
		conf := l.alone()
		delete(conf, "ipam")
		if out, err := l.try(t, "ADD", s, conf); err == nil {
			t.Errorf("an ADD without ipam succeeded: %s", out)
		}
		l.run(t, "DEL", s, l.alone())
	})
}

// TestK77DelWithoutEngine: with the engine away a DEL of ours succeeds, and what was
// leased is given back when it returns. The reference's plugin has an error of its own
// there, which nothing behind its socket can change.
func TestK77DelWithoutEngine(t *testing.T) {
	t.Parallel()
	l := newLab(t, rig.Program("dhcp-meta"))
	server := rig.RunDnsmasq(t, l.Server, rig.Pool(0, 0))
	s, conf := rig.NewSandbox(t), l.macvlan()
	conf["ipam"].(object)["dhcp"] = object{"stateDir": l.engine.StateDir}
	r := l.add(t, s, conf)
	awaitAdoption(t, s, addrOf(r.IPs[0].Address.IP))
	l.engine.Kill(t)
	l.run(t, "DEL", rig.NewSandbox(t), l.alone()) // unknown
	mark := l.Capture.Len()
	l.run(t, "DEL", s, l.alone()) // of the IPAM plugin only: the interface is there
	if held := server.Held(t); len(held) != 1 {
		t.Errorf("the server holds %v while no engine is there", held)
	}
	l.engine.Start(t)
	f, _ := l.Capture.AwaitType(t, mark, rig.Patience, dhcpv4.MessageTypeRelease, nil)
	if f.Src.Addr() != addrOf(r.IPs[0].Address.IP) {
		t.Errorf("RELEASE %v, want one from %v", f, r.IPs[0].Address.IP)
	}
	server.AwaitHeld(t, "no lease", rig.Nothing)
	l.engine.AwaitNoRecords(t)
	s.AwaitAddress(t, "net1", netip.Addr{})
}

// A pod that has a default route keeps it: the lease's is not in the result, and does
// not come with the adoption either. What else the lease routes is there.
func TestDefaultRouteOfThePodStays(t *testing.T) {
	onBoth(t, func(t *testing.T, l *lab) {
		pool := rig.Pool(0, 0)
		pool.Dnsmasq = []string{"--dhcp-option=121,198.51.100.0/24,10.77.0.7,0.0.0.0/0,10.77.0.1"}
		rig.RunDnsmasq(t, l.Server, pool)
		s, conf := rig.NewSandbox(t), l.macvlan()
		s.IP(t, "link", "add", "eth0", "type", "veth", "peer", "name", "peer0")
		s.IP(t, "link", "set", "peer0", "up")
		s.IP(t, "link", "set", "eth0", "up")
		s.IP(t, "address", "add", "10.244.0.5/24", "dev", "eth0")
		s.IP(t, "route", "add", "default", "via", "10.244.0.1")
		r := l.add(t, s, conf)
		for _, route := range r.Routes {
			if ones, _ := route.Dst.Mask.Size(); ones == 0 {
				t.Errorf("the result has a default route: %v", r)
			}
		}
		awaitAdoptionWith(t, s, addrOf(r.IPs[0].Address.IP), "198.51.100.0/24")
		for _, route := range s.Routes(t, "net1") {
			if route.Dst == "default" {
				t.Errorf("net1 has a default route: %+v", route)
			}
		}
		if have := s.Routes(t, "eth0"); !slices.ContainsFunc(have, func(r rig.Route) bool { return r.Dst == "default" }) {
			t.Errorf("the pod's default route is gone: %+v", have)
		}
		check := l.conf(conf)
		check["prevResult"] = r
		l.run(t, "CHECK", s, check)
		l.run(t, "DEL", s, conf)
	})
}
