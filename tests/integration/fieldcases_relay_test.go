package integration

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/insomniacslk/dhcp/dhcpv4"

	"github.com/dhcp-meta/dhcp-meta/tests/rig"
)

// farServers are the servers that a lab is tried with behind a relay.
var farServers = map[string]rig.StartFunc{
	"dnsmasq": func(t testing.TB, n *rig.Netns, cfg rig.ServerConfig) rig.Server {
		// By itself it names the relay as the router, and none to who renews without.
		cfg.Dnsmasq = []string{"--dhcp-option=3,10.77.0.1"}
		return rig.StartDnsmasq(t, n, cfg)
	},
	"Kea": rig.StartKea,
	"dhcpd": func(t testing.TB, n *rig.Netns, cfg rig.ServerConfig) rig.Server {
		return rig.RunDhcpd(t, n, cfg,
			"subnet 10.99.0.0 netmask 255.255.255.0 { }",
			"option domain-name-servers 10.77.0.1;", `option domain-name "site.example";`)
	},
}

var relays = map[string]rig.RelayFunc{"dhcrelay": rig.StartDhcrelay, "dnsmasq relay": rig.StartDnsmasqRelay}

// With the server behind a relay, a client gets its lease by way of the relay, and
// renews and releases by unicast over the LAN's router, though its network has no
// default route: the lease itself tells the next hop. The server sees the leased
// address as the source, as it came. (U01, U02, U03, U21)
func TestU01LeaseThroughARelay(t *testing.T) {
	t.Parallel()
	for relayName, relay := range relays {
		for serverName, start := range farServers {
			t.Run(relayName+", "+serverName, func(t *testing.T) {
				t.Parallel()
				l := newFarLab(t)
				server := start(t, l.far.Netns, rig.Pool(seconds(3), seconds(60)))
				relay(t, l.LAN, rig.FarAddr.Addr())
				l.relayedLife(t, server)
			})
		}
	}
}

func (l *farLab) relayedLife(t *testing.T, server rig.Server) {
	t.Helper()
	pod := newSandbox(t)
	call := pod.Call("net1", l.Macvlan(nil))
	addr := leased(t, pod.mustAdd(t, l.lab, call))
	mac := pod.HardwareAddr(t, "net1")
	server.AwaitHeld(t, "the lease", rig.Holds(mac, addr.Addr()))
	ack, acked := l.Capture.AwaitType(t, 0, rig.Patience, dhcpv4.MessageTypeAck, mac)
	if !ack.Msg.GatewayIPAddr.Equal(rig.ServerAddr.Addr().AsSlice()) {
		t.Errorf("the ACK of ADD has giaddr %v: the case is not the one meant", ack.Msg.GatewayIPAddr)
	}
	if st := l.status(t, pod, "net1"); st.Server != rig.FarAddr.Addr().String() {
		t.Errorf("the engine lists server %s, want %v", st.Server, rig.FarAddr.Addr())
	}

	unicast := func(want dhcpv4.MessageType) func(rig.Frame) bool {
		return func(f rig.Frame) bool {
			return rig.Type(want, mac)(f) && f.Src.Addr() == addr.Addr() && f.Dst.Addr() == rig.FarAddr.Addr() &&
				f.Msg.GatewayIPAddr.IsUnspecified() && f.Msg.ClientIPAddr.Equal(addr.Addr().AsSlice())
		}
	}
	_, mark := l.far.Capture.Await(t, "renewal by unicast at the far server", 0, rig.Patience, unicast(dhcpv4.MessageTypeRequest))
	l.Capture.AwaitType(t, acked, rig.Patience, dhcpv4.MessageTypeAck, mac)
	if n := l.Capture.Count(0, requests(mac, true)); n != 1 {
		t.Errorf("%d REQUESTs by broadcast, want the one of ADD", n)
	}
	pod.carries(t, "net1", addr)

	l.Node.Del(t, call)
	l.far.Capture.Await(t, "RELEASE by unicast at the far server", mark, rig.Patience, unicast(dhcpv4.MessageTypeRelease))
	server.AwaitHeld(t, "empty", rig.Nothing)
	l.expectNothingLeft(t)
}

// Where the way to a far server is blocked for clients, renewals by unicast fail
// quietly, and a broadcast over the relay saves the lease at T2: the same address,
// which is never off the interface. (U04)
func TestB19FarServerBlocked(t *testing.T) {
	t.Parallel()
	l := newFarLab(t)
	server := rig.StartDnsmasq(t, l.far.Netns, rig.Pool(seconds(3), seconds(8)))
	rig.StartDnsmasqRelay(t, l.LAN, rig.FarAddr.Addr())
	l.Server.Nft(t, "ip saddr 10.77.0.50-10.77.0.60 udp dport 67 drop")
	pod := newSandbox(t)
	addr := leased(t, pod.mustAdd(t, l.lab, pod.Call("net1", l.Macvlan(nil))))
	lost := pod.watchLosses(t)
	mac := pod.HardwareAddr(t, "net1")
	_, mark := l.Capture.AwaitType(t, 0, rig.Patience, dhcpv4.MessageTypeAck, mac)

	// The rule lets nothing through that comes from a leased address, and a
	// rebinding does too; the relay takes it, so it opens for T2.
	_, next := l.Capture.Await(t, "a renewal", mark, rig.Patience, requests(mac, false))
	_, next = l.Capture.Await(t, "a second renewal", next, rig.Patience, requests(mac, false))
	if n := l.Capture.Count(mark, rig.Type(dhcpv4.MessageTypeAck, mac)); n != 0 {
		t.Fatalf("%d ACKs of blocked renewals: the case is not the one meant", n)
	}
	l.Server.NftClear(t)
	l.Server.Nft(t, "ip saddr 10.77.0.50-10.77.0.60 ip daddr 10.99.0.2 udp dport 67 drop")
	_, next = l.Capture.Await(t, "rebinding by broadcast", next, rig.Patience, requests(mac, true))
	l.Capture.AwaitType(t, next, rig.Patience, dhcpv4.MessageTypeAck, mac)
	server.AwaitHeld(t, "the same lease", rig.Holds(mac, addr.Addr()))
	pod.carries(t, "net1", addr)
	if gone := lost(); len(gone) != 0 {
		t.Errorf("net1 lost %v meanwhile", gone)
	}
}

// A server may call itself by an address to which no way leads, on the link of its
// clients even.
func TestB19ServerIdentifierNowhere(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	server := rig.StartKea(t, l.Server, rig.Pool(seconds(3), seconds(6))).(*rig.Kea)
	server.Reconfigure(t, func(dhcp4 rig.Object) {
		dhcp4["option-data"] = []object{{"name": "dhcp-server-identifier", "data": "172.31.255.1"}}
	})
	pod := newSandbox(t)
	addr := leased(t, pod.mustAdd(t, l, pod.Call("net1", l.Macvlan(nil))))
	lost := pod.watchLosses(t)
	mac := pod.HardwareAddr(t, "net1")
	_, mark := l.Capture.AwaitType(t, 0, rig.Patience, dhcpv4.MessageTypeAck, mac)
	f, mark := l.Capture.Await(t, "a renewal", mark, rig.Patience, requests(mac, false))
	if f.Dst.Addr() != netip.MustParseAddr("172.31.255.1") {
		t.Errorf("the renewal goes to %v, want option 54", f.Dst)
	}
	_, mark = l.Capture.Await(t, "rebinding by broadcast", mark, rig.Patience, requests(mac, true))
	l.Capture.AwaitType(t, mark, rig.Patience, dhcpv4.MessageTypeAck, mac)
	server.AwaitHeld(t, "the same lease", rig.Holds(mac, addr.Addr()))
	pod.carries(t, "net1", addr)
	if gone := lost(); len(gone) != 0 {
		t.Errorf("net1 lost %v meanwhile", gone)
	}
}

// dnsmasq names the relay as the router, and after a restart none to a client that
// renews without it. The way to the far server and the default route are kept all the same, over
// renewals and a restart of the engine, and the RELEASE arrives.
func TestU02RouterLeftOutAtRenewal(t *testing.T) {
	t.Parallel()
	l := newFarLab(t)
	server := rig.StartDnsmasq(t, l.far.Netns, rig.Pool(0, 0))
	rig.StartDnsmasqRelay(t, l.LAN, rig.FarAddr.Addr())
	pod := newSandbox(t)
	call := pod.Call("net1", l.Macvlan(object{"defaultRoute": "always"}))
	o := pod.mustAdd(t, l.lab, call)
	mac := pod.HardwareAddr(t, "net1")
	server.Stop(t)
	server = rig.StartDnsmasq(t, l.far.Netns, server.Config())
	for range 2 {
		mark := l.Capture.Len()
		l.Engine.MustCommand(t, "renew", pod.ID)
		ack, _ := l.Capture.AwaitType(t, mark, rig.Patience, dhcpv4.MessageTypeAck, mac)
		if ack.Msg.Options.Has(dhcpv4.OptionRouter) {
			t.Errorf("the renewal brought a router: the case is not the one meant")
		}
		pod.expectRoutes(t, o, []rig.Route{route("default", "10.77.0.1")})
	}
	l.Engine.Restart(t, l.Engine.Kill)
	l.Node.Del(t, call)
	server.AwaitHeld(t, "empty", rig.Nothing)
	l.expectNothingLeft(t)
}

// Another instance of a server takes over its address and its table: the next
// renewal is answered by it, and nothing changes for the client.
func TestU05ReplicaTakesOver(t *testing.T) {
	t.Parallel()
	for name, start := range farServers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newFarLab(t)
			first := start(t, l.far.Netns, rig.Pool(seconds(4), seconds(60)))
			rig.StartDhcrelay(t, l.LAN, rig.FarAddr.Addr())
			pod := newSandbox(t)
			call := pod.Call("net1", l.Macvlan(nil))
			addr := leased(t, pod.mustAdd(t, l.lab, call))
			lost := pod.watchLosses(t)
			mac := pod.HardwareAddr(t, "net1")
			first.AwaitHeld(t, "the lease", rig.Holds(mac, addr.Addr()))
			first.Stop(t)

			// The replica is another host, with its own MAC, behind the same address.
			l.far.IP(t, "link", "set", rig.ServerIface, "address", "02:00:00:00:99:02")
			_, mark := l.Capture.AwaitType(t, 0, rig.Patience, dhcpv4.MessageTypeAck, mac)
			replica := start(t, l.far.Netns, first.Config())
			l.Server.IP(t, "neigh", "flush", "to", rig.FarAddr.Addr().String())
			ack, _ := l.Capture.AwaitType(t, mark, rig.Patience, dhcpv4.MessageTypeAck, mac)
			if !ack.Msg.ServerIdentifier().Equal(rig.FarAddr.Addr().AsSlice()) || yours(ack) != addr.Addr() {
				t.Errorf("the renewal was answered with %v", ack.Msg.Summary())
			}
			pod.carries(t, "net1", addr)
			if gone := lost(); len(gone) != 0 {
				t.Errorf("net1 lost %v meanwhile", gone)
			}
			l.Node.Del(t, call)
			replica.AwaitHeld(t, "empty", rig.Nothing)
		})
	}
}

// A server does not answer a relay that it does not know. ADD says that there was
// no offer, in its own time, and leaves nothing.
func TestU06UntrustedRelay(t *testing.T) {
	t.Parallel()
	l := newFarLab(t)
	l.Server.IP(t, "addr", "del", rig.ServerAddr.String(), "dev", rig.ServerIface)
	l.Server.IP(t, "addr", "add", "10.78.0.1/24", "dev", rig.ServerIface)
	server := rig.RunDhcpd(t, l.far.Netns, rig.Pool(0, 0), "subnet 10.99.0.0 netmask 255.255.255.0 { }")
	rig.StartDhcrelay(t, l.LAN, rig.FarAddr.Addr())
	pod := newSandbox(t)
	l.Node.Refuse(t, "ADD", pod.Call("net1", l.Macvlan(object{"timeout": "3s"})), 11, "no DHCP server answered")
	server.Lines.Await(t, "refusal of the relay in the server's log", 0, rig.Patience, contains("unknown network segment"))
	l.expectNothingLeft(t)
}

// What a scope of a far server says is what the client reports: address, mask,
// router, DNS and domain.
func TestU08ScopeOfAFarServer(t *testing.T) {
	t.Parallel()
	l := newFarLab(t)
	rig.RunDhcpd(t, l.far.Netns, rig.Pool(0, 0), "subnet 10.99.0.0 netmask 255.255.255.0 { }",
		"option domain-name-servers 10.99.0.53, 10.99.0.54;", `option domain-name "site.example";`,
		`option domain-search "a.example", "b.example";`)
	rig.StartDhcrelay(t, l.LAN, rig.FarAddr.Addr())
	pod := newSandbox(t)
	o := pod.mustAdd(t, l.lab, pod.Call("net1", l.Macvlan(object{"defaultRoute": "always"})))
	if addr := leased(t, o); addr.Masked() != rig.ServerAddr.Masked() {
		t.Errorf("leased %v, want an address of %v", addr, rig.ServerAddr.Masked())
	}
	if gw := o.Result.IPs[0].Gateway; !gw.Equal(rig.ServerAddr.Addr().AsSlice()) {
		t.Errorf("gateway %v, want %v", gw, rig.ServerAddr.Addr())
	}
	dns := o.Result.DNS
	got := [][]string{dns.Nameservers, {dns.Domain}, dns.Search}
	want := [][]string{{"10.99.0.53", "10.99.0.54"}, {"site.example"}, {"a.example", "b.example"}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("DNS (-want +got):\n%s", diff)
	}
	pod.expectPing(t, leased(t, o).Addr(), rig.FarAddr.Addr())
}
