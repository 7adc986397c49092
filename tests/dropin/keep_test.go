package dropin

import (
	"net/netip"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"

	"github.com/dhcp-meta/dhcp-meta/tests/rig"
)

// A lease of the drop-in is renewed by unicast from its own address at T1, by an engine
// that was killed meanwhile too, and where the server cannot be reached so, rebound by
// broadcast at T2. There is no second exchange; the reference makes one of each.
func TestK61K93RenewalAndRebinding(t *testing.T) {
	t.Parallel()
	l := newLab(t, rig.Program("dhcp-meta"))
	cfg := rig.Pool(4*time.Second, 12*time.Second)
	cfg.Lifetime = 24 * time.Second
	server := rig.StartDhcpd(t, l.Server, cfg)
	s, conf := rig.NewSandbox(t), l.macvlan()
	addr := addrOf(l.add(t, s, conf).IPs[0].Address.IP)
	awaitAdoption(t, s, addr)
	mac := s.HardwareAddr(t, "net1")
	is := func(broadcast bool) func(rig.Frame) bool {
		return func(f rig.Frame) bool {
			return rig.Type(dhcpv4.MessageTypeRequest, mac)(f) && f.Src.Addr() == addr && (f.Dst.Addr() != rig.ServerAddr.Addr()) == broadcast
		}
	}
	_, mark := l.Capture.AwaitType(t, 0, rig.Patience, dhcpv4.MessageTypeAck, mac)
	after := mark
	for _, end := range []func(testing.TB){nil, l.engine.Kill} {
		if end != nil {
			l.engine.Restart(t, end)
		}
		_, mark = l.Capture.Await(t, "a renewal", mark, rig.Patience, is(false))
		_, mark = l.Capture.AwaitType(t, mark, rig.Patience, dhcpv4.MessageTypeAck, mac)
	}
	l.Server.IP(t, "link", "set", rig.ServerIface, "arp", "off")
	_, mark = l.Capture.Await(t, "rebinding", mark, rig.Patience, is(true))
	l.Server.IP(t, "link", "set", rig.ServerIface, "arp", "on")
	l.Capture.AwaitType(t, mark, rig.Patience, dhcpv4.MessageTypeAck, mac)
	if n := l.Capture.Count(after, rig.Type(dhcpv4.MessageTypeDiscover, nil)); n != 0 {
		t.Errorf("%d DHCPDISCOVER after the ADD", n)
	}
	awaitAdoption(t, s, addr)
	l.run(t, "DEL", s, conf)
	server.AwaitHeld(t, "no lease", rig.Nothing)
}

// A reservation brings the same address again after the lease has expired, without a
// word of the runtime; meanwhile the interface has none.
func TestK95ReservationOverExpiry(t *testing.T) {
	t.Parallel()
	l := newLab(t, rig.Program("dhcp-meta"))
	const mac, reserved = "02:00:00:00:95:02", "10.77.0.55"
	cfg := rig.Pool(2*time.Second, 4*time.Second)
	cfg.Lifetime = 6 * time.Second
	const host = "host pod { hardware ethernet " + mac + "; fixed-address " + reserved + "; }"
	server := rig.RunDhcpd(t, l.Server, cfg, host)
	s, conf := rig.NewSandbox(t), l.macvlan()
	conf["mac"] = mac
	addr := addrOf(l.add(t, s, conf).IPs[0].Address.IP)
	if addr.String() != reserved {
		t.Fatalf("the pod has %v, reserved is %s", addr, reserved)
	}
	awaitAdoption(t, s, addr)
	server.Stop(t)
	s.AwaitAddress(t, "net1", netip.Addr{})
	rig.RunDhcpd(t, l.Server, cfg, host)
	s.AwaitAddress(t, "net1", addr)
	awaitAdoption(t, s, addr)
	l.run(t, "DEL", s, conf)
	l.engine.AwaitNoRecords(t)
}

// Two interfaces of one sandbox on one network have an address each, and the end of one
// leaves the other its own.
func TestO17TwoInterfacesOfOnePod(t *testing.T) {
	onBoth(t, func(t *testing.T, l *lab) {
		server := rig.RunDnsmasq(t, l.Server, rig.Pool(0, 0))
		s, conf := rig.NewSandbox(t), l.macvlan()
		addr := addrOf(l.add(t, s, conf).IPs[0].Address.IP)
		l.ifName = "net2"
		other := addrOf(l.add(t, s, conf).IPs[0].Address.IP)
		if addr == other {
			t.Errorf("both have %v", addr)
		}
		if held := server.Held(t); len(held) != 2 {
			t.Errorf("the server holds %v", held)
		}
		l.run(t, "DEL", s, conf)
		server.AwaitHeld(t, "the lease of net1", rig.Holds(s.HardwareAddr(t, "net1"), addr))
		l.ifName = "net1"
		l.run(t, "DEL", s, conf)
		server.AwaitHeld(t, "no lease", rig.Nothing)
	})
}
