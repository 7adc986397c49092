package integration

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/insomniacslk/dhcp/dhcpv4"

	"github.com/dhcp-meta/dhcp-meta/tests/rig"
)

// An administrator edits a scope so that a live lease is not in it any longer, and
// the server does not answer its renewals. The lease lives to its end, then its
// address goes and one of the new scope comes; all of it is said.
func TestU17ScopeWithoutTheAddress(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	cfg := rig.Pool(seconds(3), seconds(6))
	cfg.Lifetime = seconds(10)
	kea := rig.StartKea(t, l.Server, cfg).(*rig.Kea)
	pod := newSandbox(t)
	old := leased(t, pod.mustAdd(t, l, pod.Call("net1", l.Macvlan(nil)))).Addr()
	mac := pod.HardwareAddr(t, "net1")
	_, mark := l.Capture.AwaitType(t, 0, rig.Patience, dhcpv4.MessageTypeAck, mac)
	kea.Reconfigure(t, func(dhcp4 rig.Object) {
		rig.KeaSubnet(dhcp4)["pools"] = []object{{"pool": "10.77.0.100 - 10.77.0.110"}}
	})

	_, mark = l.Capture.Await(t, "rebinding in vain", mark, rig.Patience, requests(mac, true))
	ack, _ := l.Capture.AwaitType(t, mark, rig.Patience, dhcpv4.MessageTypeAck, mac)
	if yours(ack).Compare(netip.MustParseAddr("10.77.0.100")) < 0 {
		t.Errorf("got %v, which is not of the new scope", yours(ack))
	}
	pod.AwaitAddress(t, "net1", yours(ack))
	kea.AwaitHeld(t, "the new address", holdsToo(mac, yours(ack)))
	l.Engine.Lines.Await(t, "word of the old address", 0, rig.Patience, func(line string) bool {
		return contains("address is given up")(line) && contains(old.String())(line)
	})
	pod.expectPing(t, yours(ack), rig.ServerAddr.Addr())
}

// The site moves to another DHCP server: the old one is stopped, the new one knows
// nothing of its leases. Where its pool has the client's address the client keeps
// it, otherwise it gets another one, by itself: at a NAK, or at the end of its
// lease where the new server is silent.
func TestU25CutOver(t *testing.T) {
	for name, first := range map[string]string{"address stays": "10.77.0.50", "address changes": "10.77.0.100"} {
		t.Run(name, func(t *testing.T) {
			onThreeServers(t, func(t *testing.T, l *lab, start rig.StartFunc) {
				l.cutOver(t, start, netip.MustParseAddr(first))
			})
		})
	}
}

func (l *lab) cutOver(t *testing.T, start rig.StartFunc, first netip.Addr) {
	t.Helper()
	short := rig.Pool(seconds(4), seconds(7))
	short.Lifetime = seconds(14)
	old := rig.StartDhcpd(t, l.Server, short)
	pod := newSandbox(t)
	addr := leased(t, pod.mustAdd(t, l, pod.Call("net1", l.Macvlan(nil)))).Addr()
	mac := pod.HardwareAddr(t, "net1")
	_, mark := l.Capture.AwaitType(t, 0, rig.Patience, dhcpv4.MessageTypeAck, mac)
	old.Stop(t)
	cfg := rig.Pool(seconds(60), seconds(90))
	cfg.Subnet = netip.MustParsePrefix("10.77.0.2/24")
	cfg.First = first
	cfg.Last = netip.MustParseAddr("10.77.0.110")
	l.Server.IP(t, "addr", "del", rig.ServerAddr.String(), "dev", rig.ServerIface)
	l.Server.IP(t, "addr", "add", cfg.Subnet.String(), "dev", rig.ServerIface)
	server := start(t, l.Server, cfg)

	ack, _ := l.Capture.AwaitType(t, mark, rig.Patience, dhcpv4.MessageTypeAck, mac)
	keeps := addr.Compare(first) >= 0
	if (yours(ack) == addr) != keeps {
		t.Errorf("had %v, got %v from a pool that begins at %v", addr, yours(ack), first)
	}
	if id := ack.Msg.ServerIdentifier(); !id.Equal(cfg.Subnet.Addr().AsSlice()) {
		t.Errorf("the ACK is of %v, want the new server's", id)
	}
	pod.AwaitAddress(t, "net1", yours(ack))
	server.AwaitHeld(t, "the lease", rig.Holds(mac, yours(ack)))
	// What is asked for by hand goes to the new server.
	l.Engine.MustCommand(t, "renew", pod.ID)
	if st := l.status(t, pod, "net1"); st.Server != cfg.Subnet.Addr().String() || st.Address != yours(ack).String()+"/24" {
		t.Errorf("the engine lists %s of server %s", st.Address, st.Server)
	}
}

// What a renewal changes in mask, routes and MTU reaches the interface, without
// taking the address away for longer than it takes to put it back; or is only
// reported where the network says so.
func TestChangedLeaseReachesTheInterface(t *testing.T) {
	t.Parallel()
	for _, policy := range []string{"apply", "keep-and-report"} {
		t.Run(policy, func(t *testing.T) {
			t.Parallel()
			l := newLab(t)
			cfg := rig.Pool(0, 0)
			cfg.Dnsmasq = []string{"--dhcp-option=121,10.8.0.0/16,10.77.0.1"}
			server := rig.StartDnsmasq(t, l.Server, cfg)
			pod := newSandbox(t)
			call := pod.Call("net1", l.Macvlan(object{"onChange": policy}))
			addr := leased(t, pod.mustAdd(t, l, call))

			server.Stop(t)
			cfg = server.Config()
			cfg.Dnsmasq = []string{"--dhcp-option=1,255.255.0.0", "--dhcp-option=121,10.9.0.0/16,10.77.0.2", "--dhcp-option=26,1400"}
			server = rig.StartDnsmasq(t, l.Server, cfg)
			l.Engine.MustCommand(t, "renew", pod.ID)

			line, _ := l.Engine.Lines.Await(t, "word of the change", 0, rig.Patience, contains("lease has changed"))
			for _, what := range []string{"address", "routes", "mtu", "10.9.0.0/16", "1400"} {
				if !strings.Contains(line, what) {
					t.Errorf("the log does not say %q: %s", what, line)
				}
			}
			if policy == "apply" {
				pod.carries(t, "net1", netip.PrefixFrom(addr.Addr(), 16))
				pod.expectWay(t, "10.9.0.0/16", "10.77.0.2", "1400")
			} else {
				pod.carries(t, "net1", addr)
				pod.expectWay(t, "10.8.0.0/16", "10.77.0.1", "1500")
				l.Engine.Lines.Await(t, "word of the policy", 0, rig.Patience, contains("interface does not follow the lease"))
			}
			l.Node.Del(t, call)
			server.AwaitHeld(t, "empty", rig.Nothing)
		})
	}
}

// expectWay checks the one route over a router of net1, and its MTU.
func (s *sandbox) expectWay(t testing.TB, dst, via, mtu string) {
	t.Helper()
	routed := slices.DeleteFunc(s.Routes(t, "net1"), func(r rig.Route) bool { return r.Gateway == "" })
	if len(routed) != 1 || routed[0].Dst != dst || routed[0].Gateway != via {
		t.Errorf("routes over a router: %+v, want %s via %s", routed, dst, via)
	}
	if out := s.IP(t, "link", "show", "dev", "net1"); !strings.Contains(out, "mtu "+mtu+" ") {
		t.Errorf("the MTU is not %s: %s", mtu, out)
	}
}

// A server of `denyServers`, or none of `servers`, is not listened to, whatever it
// offers and however quick it is; the log names it once.
func TestServersThatMayNotAnswer(t *testing.T) {
	t.Parallel()
	const foreign = "10.77.0.9"
	for name, settings := range map[string]object{
		"denied":      {"denyServers": []string{foreign}},
		"not allowed": {"servers": []string{rig.ServerAddr.Addr().String()}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLab(t)
			neighbour := l.neighbour(t, foreign+"/24")
			cfg := rig.Pool(0, 0)
			cfg.Subnet = netip.MustParsePrefix(foreign + "/24")
			cfg.First, cfg.Last = netip.MustParseAddr("10.77.0.70"), netip.MustParseAddr("10.77.0.80")
			rogue := rig.RunDnsmasq(t, neighbour.Netns, cfg)
			pod := newSandbox(t)
			add := l.background("ADD", pod.Call("net1", l.Macvlan(settings)))
			rogue.Await(t, 0, rig.Patience, "DHCPOFFER", "")
			l.Engine.Lines.Await(t, "word of the foreign server", 0, rig.Patience, func(line string) bool {
				return contains("may not be listened to")(line) && contains(foreign)(line)
			})
			server := rig.StartDnsmasq(t, l.Server, rig.Pool(0, 0))
			addr := leased(t, add.succeeds(t))
			server.AwaitHeld(t, "the lease", rig.Holds(pod.HardwareAddr(t, "net1"), addr.Addr()))
			if held := rogue.Held(t); len(held) != 0 {
				t.Errorf("the foreign server holds %v", held)
			}
			if n := l.Engine.Lines.Count(0, contains("may not be listened to")); n != 1 {
				t.Errorf("the foreign server is named %d times, want once", n)
			}
		})
	}
}
