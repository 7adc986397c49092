package integration

import (
	"net/netip"
	"testing"

	"github.com/insomniacslk/dhcp/dhcpv4"

	"github.com/dhcp-meta/dhcp-meta/tests/rig"
)

// A bridge port that is still learning swallows the first messages of a client; it
// asks again by the RFC's schedule, in one transaction, and gets its lease.
func TestB04LearningBridge(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	// Two seconds of listening and two of learning are the kernel's least.
	l.Server.IP(t, "link", "add", "br0", "type", "bridge", "stp_state", "1", "forward_delay", "200")
	l.Server.IP(t, "addr", "del", rig.ServerAddr.String(), "dev", rig.ServerIface)
	l.Server.IP(t, "addr", "add", rig.ServerAddr.String(), "dev", "br0")
	l.Server.IP(t, "link", "set", "br0", "up")
	cfg := rig.Pool(0, 0)
	cfg.Interface = "br0"
	server := rig.RunDnsmasq(t, l.Server, cfg)
	l.Server.IP(t, "link", "set", rig.ServerIface, "master", "br0")

	pod := newSandbox(t)
	addr := leased(t, pod.mustAdd(t, l, pod.Call("net1", l.Macvlan(nil))))
	mac := pod.HardwareAddr(t, "net1")
	server.AwaitHeld(t, "the lease", rig.Holds(mac, addr.Addr()))
	sent := l.Capture.Count(0, rig.Type(dhcpv4.MessageTypeDiscover, mac))
	heard := 0
	for _, e := range server.Events(0) {
		if e.Kind == "DHCPDISCOVER" {
			heard++
		}
	}
	if sent < 2 || heard >= sent {
		t.Errorf("the server heard %d of %d DISCOVERs: the case is not the one meant", heard, sent)
	}
	first, mark := l.Capture.AwaitType(t, 0, rig.Patience, dhcpv4.MessageTypeDiscover, mac)
	second, _ := l.Capture.AwaitType(t, mark, rig.Patience, dhcpv4.MessageTypeDiscover, mac)
	if first.Msg.TransactionID != second.Msg.TransactionID {
		t.Error("the second DISCOVER has another transaction id")
	}
	// RFC 2131, 4.1: four seconds, one more or less.
	if wait := second.At.Sub(first.At); wait < seconds(3) {
		t.Errorf("the second DISCOVER came after %v, want 3 to 5 s", wait)
	}
}

// A NAK of a server that was not chosen does not count, however loud.
func TestB12NakOfAnotherServer(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	server := rig.StartDnsmasq(t, l.Server, rig.Pool(0, 0))
	loud := l.neighbour(t, "10.77.0.9/24")
	var naker *rig.Scripted
	ready := make(chan struct{})
	naker = rig.StartScripted(t, loud.Netns, rig.ServerIface, netip.MustParseAddr("10.77.0.9"), func(f rig.Frame) [][]byte {
		<-ready
		if f.Type != dhcpv4.MessageTypeRequest {
			return nil
		}
		return [][]byte{naker.Reply(f, rig.Terms{Addr: rig.ServerAddr}, dhcpv4.WithMessageType(dhcpv4.MessageTypeNak),
			rig.Without(dhcpv4.OptionSubnetMask, dhcpv4.OptionIPAddressLeaseTime))}
	})
	close(ready)
	pod := newSandbox(t)
	addr := leased(t, pod.mustAdd(t, l, pod.Call("net1", l.Macvlan(nil))))
	mac := pod.HardwareAddr(t, "net1")
	naker.Got.Await(t, "the REQUEST at the other server", 0, rig.Patience, rig.Type(dhcpv4.MessageTypeRequest, mac))
	server.AwaitHeld(t, "the lease", rig.Holds(mac, addr.Addr()))
	if n := l.Capture.Count(0, rig.Type(dhcpv4.MessageTypeDiscover, mac)); n != 1 {
		t.Errorf("%d DISCOVERs, want 1: the NAK counted", n)
	}
	pod.carries(t, "net1", addr)
}

// A second server, authoritative for another network on the same wire, does not
// get at a lease at T1: only its own server is asked.
func TestB12ForeignServerAtT1(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	server := rig.StartDnsmasq(t, l.Server, rig.Pool(seconds(4), seconds(60)))
	pod := newSandbox(t)
	addr := leased(t, pod.mustAdd(t, l, pod.Call("net1", l.Macvlan(nil))))
	lost := pod.watchLosses(t)
	mac := pod.HardwareAddr(t, "net1")
	_, mark := l.Capture.AwaitType(t, 0, rig.Patience, dhcpv4.MessageTypeAck, mac)
	foreign := l.neighbour(t, "10.78.0.1/24")
	cfg := rig.Pool(0, 0)
	cfg.Subnet = netip.MustParsePrefix("10.78.0.1/24")
	cfg.First, cfg.Last = netip.MustParseAddr("10.78.0.50"), netip.MustParseAddr("10.78.0.60")
	second := rig.RunDnsmasq(t, foreign.Netns, cfg)

	for range 2 {
		_, mark = l.Capture.AwaitType(t, mark, rig.Patience, dhcpv4.MessageTypeAck, mac)
	}
	if events := second.Events(0); len(events) != 0 {
		t.Errorf("the foreign server was asked: %v", events)
	}
	server.AwaitHeld(t, "the lease", rig.Holds(mac, addr.Addr()))
	pod.carries(t, "net1", addr)
	if gone := lost(); len(gone) != 0 {
		t.Errorf("net1 lost %v meanwhile", gone)
	}
}

// short is a lease of 24 s: room for three tries in each state.
func short() rig.ServerConfig {
	cfg := rig.Pool(seconds(4), seconds(12))
	cfg.Lifetime = seconds(24)
	return cfg
}

// At T1 nobody answers ARP for the server: that is said, nothing is given up, and
// at T2 the broadcast is heard.
func TestB18NoARPAtT1(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	server := rig.StartDhcpd(t, l.Server, short())
	pod := newSandbox(t)
	addr := leased(t, pod.mustAdd(t, l, pod.Call("net1", l.Macvlan(nil))))
	lost := pod.watchLosses(t)
	mac := pod.HardwareAddr(t, "net1")
	_, mark := l.Capture.AwaitType(t, 0, rig.Patience, dhcpv4.MessageTypeAck, mac)

	l.Server.IP(t, "link", "set", rig.ServerIface, "arp", "off")
	l.Engine.Lines.Await(t, "word of the silent ARP", 0, rig.Patience, contains("nobody answers for "+rig.ServerAddr.Addr().String()))
	_, next := l.Capture.Await(t, "rebinding by broadcast", mark, rig.Patience, requests(mac, true))
	if n := l.Capture.Count(mark, requests(mac, false)); n != 0 {
		t.Errorf("%d REQUESTs by unicast although nobody answers ARP", n)
	}
	l.Server.IP(t, "link", "set", rig.ServerIface, "arp", "on")
	l.Capture.AwaitType(t, next, rig.Patience, dhcpv4.MessageTypeAck, mac)
	server.AwaitHeld(t, "the lease", rig.Holds(mac, addr.Addr()))
	pod.carries(t, "net1", addr)
	if gone := lost(); len(gone) != 0 {
		t.Errorf("net1 lost %v meanwhile", gone)
	}
}

// A silent server is asked three times at least in RENEWING and in REBINDING, and
// an ACK in the last part of the lease still counts.
func TestB23ThreeTriesInEachState(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	server := rig.StartDhcpd(t, l.Server, short())
	pod := newSandbox(t)
	addr := leased(t, pod.mustAdd(t, l, pod.Call("net1", l.Macvlan(nil))))
	lost := pod.watchLosses(t)
	mac := pod.HardwareAddr(t, "net1")
	server.AwaitHeld(t, "the lease", rig.Holds(mac, addr.Addr()))
	server.Stop(t)
	_, mark := l.Capture.AwaitType(t, 0, rig.Patience, dhcpv4.MessageTypeAck, mac)

	_, next := l.Capture.Await(t, "rebinding", mark, rig.Patience, requests(mac, true))
	_, next = l.Capture.Await(t, "second try of rebinding", next, rig.Patience, requests(mac, true))
	if n := l.Capture.Count(mark, requests(mac, false)); n < 3 {
		t.Errorf("%d tries of RENEWING, want 3 at least", n)
	}
	server = rig.StartDhcpd(t, l.Server, server.Config())
	_, next = l.Capture.Await(t, "third try of rebinding", next, rig.Patience, requests(mac, true))
	l.Capture.AwaitType(t, next, rig.Patience, dhcpv4.MessageTypeAck, mac)
	server.AwaitHeld(t, "the same lease", rig.Holds(mac, addr.Addr()))
	pod.carries(t, "net1", addr)
	if gone := lost(); len(gone) != 0 {
		t.Errorf("net1 lost %v meanwhile", gone)
	}
}

// A server that does not listen for a moment, as when its scope is edited, is
// asked again: at an acquisition and at a renewal.
func TestU15ServerAwayForAMoment(t *testing.T) {
	onThreeServers(t, func(t *testing.T, l *lab, start rig.StartFunc) {
		pod := newSandbox(t)
		add := l.background("ADD", pod.Call("net1", l.Macvlan(nil)))
		_, mark := l.Capture.AwaitType(t, 0, rig.Patience, dhcpv4.MessageTypeDiscover, nil)
		server := start(t, l.Server, rig.Pool(seconds(4), seconds(16)))
		addr := leased(t, add.succeeds(t))
		mac := pod.HardwareAddr(t, "net1")
		server.AwaitHeld(t, "the lease", rig.Holds(mac, addr.Addr()))
		server.Stop(t)

		_, mark = l.Capture.AwaitType(t, mark, rig.Patience, dhcpv4.MessageTypeAck, mac)
		_, mark = l.Capture.Await(t, "a renewal into the gap", mark, rig.Patience, requests(mac, false))
		server = start(t, l.Server, server.Config())
		_, mark = l.Capture.Await(t, "the renewal again", mark, rig.Patience, requests(mac, false))
		l.Capture.AwaitType(t, mark, rig.Patience, dhcpv4.MessageTypeAck, mac)
		server.AwaitHeld(t, "the same lease", rig.Holds(mac, addr.Addr()))
		pod.carries(t, "net1", addr)
	})
}
