package integration

import (
	"bytes"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"

	"github.com/dhcp-meta/dhcp-meta/tests/rig"
)

// At T1 the client asks its own server by unicast, from the leased address, and
// names neither the address nor the server in options (RFC 2131, 4.3.6, table 5).
func TestB16RenewPacketForm(t *testing.T) {
	onBothServers(t, func(t *testing.T, l *lab, start rig.StartFunc) {
		start(t, l.Server, rig.Pool(seconds(3), seconds(60)))
		pod := newSandbox(t)
		addr := leased(t, pod.mustAdd(t, l, pod.Call("net1", l.Macvlan(nil)))).Addr()
		mac := pod.HardwareAddr(t, "net1")
		first, mark := l.Capture.AwaitType(t, 0, rig.Patience, dhcpv4.MessageTypeRequest, mac)

		f, _ := l.Capture.AwaitType(t, mark, rig.Patience, dhcpv4.MessageTypeRequest, mac)
		if f.Src.Addr() != addr || f.Dst.Addr() != rig.ServerAddr.Addr() {
			t.Errorf("the renewal went from %v to %v, want %v to %v", f.Src, f.Dst, addr, rig.ServerAddr.Addr())
		}
		if got := f.EthDst.String(); got == "ff:ff:ff:ff:ff:ff" {
			t.Error("the renewal was an Ethernet broadcast")
		}
		if got := f.Msg.ClientIPAddr; !got.Equal(addr.AsSlice()) {
			t.Errorf("ciaddr is %v, want %v", got, addr)
		}
		for _, o := range []dhcpv4.OptionCode{dhcpv4.OptionRequestedIPAddress, dhcpv4.OptionServerIdentifier} {
			if f.Msg.Options.Has(o) {
				t.Errorf("the renewal has option %v", o)
			}
		}
		if f.Msg.TransactionID == first.Msg.TransactionID {
			t.Error("the renewal has the transaction id of the acquisition")
		}
		if a, b := first.Msg.Options.Get(dhcpv4.OptionClientIdentifier), f.Msg.Options.Get(dhcpv4.OptionClientIdentifier); string(a) != string(b) {
			t.Errorf("option 61 was %x and is %x", a, b)
		}
	})
}

// A NAK at T1 takes the address away at once; the client starts over and gets
// another one. The server has lent the address to somebody else meanwhile.
func TestB20NakInRenewing(t *testing.T) {
	onBothServers(t, func(t *testing.T, l *lab, start rig.StartFunc) {
		server := start(t, l.Server, rig.Pool(seconds(4), seconds(60)))
		pod := newSandbox(t)
		old := leased(t, pod.mustAdd(t, l, pod.Call("net1", l.Macvlan(nil)))).Addr()
		mac := pod.HardwareAddr(t, "net1")
		server.AwaitHeld(t, "the lease", rig.Holds(mac, old))

		server.Stop(t)
		cfg := server.Config()
		table, err := os.ReadFile(cfg.LeaseFile)
		if err != nil {
			t.Fatal(err)
		}
		table = bytes.ReplaceAll(table, []byte(mac.String()), []byte("02:00:00:00:00:01"))
		if err := os.WriteFile(cfg.LeaseFile, table, 0o644); err != nil {
			t.Fatal(err)
		}
		mark := l.Capture.Len()
		server = start(t, l.Server, cfg)

		l.Capture.AwaitType(t, mark, rig.Patience, dhcpv4.MessageTypeNak, mac)
		ack, _ := l.Capture.AwaitType(t, mark, rig.Patience, dhcpv4.MessageTypeAck, mac)
		addr, _ := netip.AddrFromSlice(ack.Msg.YourIPAddr.To4())
		if addr == old {
			t.Fatalf("got %v again after the NAK", addr)
		}
		pod.AwaitAddress(t, "net1", addr)
		server.AwaitHeld(t, "the new lease", func(held []rig.Held) bool {
			return slices.ContainsFunc(held, func(h rig.Held) bool { return rig.Holds(mac, addr)([]rig.Held{h}) })
		})
		if n := l.Capture.Count(mark, rig.Type(dhcpv4.MessageTypeNak, mac)); n != 1 {
			t.Errorf("%d NAKs, want 1", n)
		}
		if st := l.status(t, pod, "net1"); st.Address != addr.String()+"/24" {
			t.Errorf("the engine lists %s, want %v", st.Address, addr)
		}
		pod.expectPing(t, addr, rig.ServerAddr.Addr())
	})
}

// In REBINDING any server may answer, and is the one to ask from then on.
func TestB28RebindToAnotherServer(t *testing.T) {
	onBothServers(t, func(t *testing.T, l *lab, start rig.StartFunc) {
		server := start(t, l.Server, rig.Pool(seconds(3), seconds(8)))
		pod := newSandbox(t)
		addr := leased(t, pod.mustAdd(t, l, pod.Call("net1", l.Macvlan(nil)))).Addr()
		mac := pod.HardwareAddr(t, "net1")

		server.Stop(t)
		second := netip.MustParsePrefix("10.77.0.2/24")
		l.Server.IP(t, "addr", "del", rig.ServerAddr.String(), "dev", rig.ServerIface)
		l.Server.IP(t, "addr", "add", second.String(), "dev", rig.ServerIface)
		cfg := server.Config()
		cfg.Subnet = second
		mark := l.Capture.Len()
		server = start(t, l.Server, cfg)

		f, mark := l.Capture.Await(t, "REBINDING", mark, rig.Patience, func(f rig.Frame) bool {
			return rig.Type(dhcpv4.MessageTypeRequest, mac)(f) && f.Dst.Addr().String() == "255.255.255.255"
		})
		if f.Src.Addr() != addr || !f.Msg.ClientIPAddr.Equal(addr.AsSlice()) {
			t.Errorf("the rebinding REQUEST came from %v with ciaddr %v, want %v", f.Src, f.Msg.ClientIPAddr, addr)
		}
		_, mark = l.Capture.AwaitType(t, mark, rig.Patience, dhcpv4.MessageTypeAck, mac)
		// The next T1 goes to the server that answered.
		f, _ = l.Capture.AwaitType(t, mark, rig.Patience, dhcpv4.MessageTypeRequest, mac)
		if f.Dst.Addr() != second.Addr() {
			t.Errorf("the next renewal goes to %v, want %v", f.Dst, second.Addr())
		}
		if n := l.Capture.Count(0, rig.Type(dhcpv4.MessageTypeDiscover, mac)); n != 1 {
			t.Errorf("%d DISCOVERs, want the one of ADD", n)
		}
		if have := pod.Addresses(t, "net1"); len(have) != 1 || have[0].Addr.Addr() != addr {
			t.Errorf("net1 carries %v, want %v", have, addr)
		}
		server.AwaitHeld(t, "the same lease", rig.Holds(mac, addr))
	})
}

// The node's uplink is down from T1 on until the lease has ended: everybody who looks
// is told that it is the link, and when it is up again the pod has an address.
func TestLinkDownUntilTheLeaseEnds(t *testing.T) {
	t.Parallel()
	for name, server := range map[string]struct {
		start rig.StartFunc
		cfg   rig.ServerConfig
		ends  bool // the lease, within the test; one of dnsmasq has two minutes
	}{
		"dnsmasq": {rig.StartDnsmasq, rig.Pool(seconds(4), seconds(12)), false},
		"Kea":     {rig.StartKea, lasting(rig.Pool(seconds(4), seconds(12)), seconds(20)), true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const why = "net1 has no carrier"
			l := newLab(t)
			server.start(t, l.Server, server.cfg)
			pod := newSandbox(t)
			addr := leased(t, pod.mustAdd(t, l, pod.Call("net1", l.Macvlan(nil)))).Addr()
			mac := pod.HardwareAddr(t, "net1")
			l.Node.IP(t, "link", "set", rig.Uplink, "down")

			_, mark := l.Engine.Lines.Await(t, "word of the link", 0, rig.Patience, linesWith("link is not ready", why))
			if st := l.status(t, pod, "net1"); st.State == "BOUND" || !strings.Contains(st.LastError, why) {
				t.Errorf("the engine lists %s with the last error %q", st.State, st.LastError)
			}
			if out := l.Engine.MustCommand(t, "leases"); !strings.Contains(out, why) {
				t.Errorf("leases does not say why:\n%s", out)
			}
			_, mark = l.Engine.Lines.Await(t, "T2", mark, rig.Patience, linesWith("server is silent, asking all servers now", why))
			if n := l.Engine.Lines.Count(0, linesWith("link is not ready")); n != 1 {
				t.Errorf("%d lines of the link, want 1", n)
			}
			if server.ends {
				l.Engine.Lines.Await(t, "the loss", mark, rig.Patience, linesWith("address is given up", "reason=expired", why))
				pod.AwaitAddress(t, "net1", netip.Addr{})
			}
			r := l.Engine.Command(t, "renew", pod.id())
			if r.Code != 1 || !strings.Contains(r.Stderr, why) {
				t.Errorf("renew: %+v", r)
			}

			sent := l.Capture.Len()
			l.Node.IP(t, "link", "set", rig.Uplink, "up")
			l.Capture.AwaitType(t, sent, 2*rig.Patience, dhcpv4.MessageTypeAck, mac)
			pod.AwaitAddress(t, "net1", addr)
		})
	}
}

// lasting is cfg with another lease time.
func lasting(cfg rig.ServerConfig, lifetime time.Duration) rig.ServerConfig {
	cfg.Lifetime = lifetime
	return cfg
}

// linesWith is a condition on lines.
func linesWith(parts ...string) func(string) bool {
	return func(line string) bool {
		return !slices.ContainsFunc(parts, func(part string) bool { return !strings.Contains(line, part) })
	}
}

// 0xffffffff is a lease without end: nothing is planned, and the address has no
// end either.
func TestB26InfiniteLease(t *testing.T) {
	onBothServers(t, func(t *testing.T, l *lab, start rig.StartFunc) {
		cfg := rig.Pool(0, 0)
		cfg.Lifetime = 0
		server := start(t, l.Server, cfg)
		pod := newSandbox(t)
		call := pod.Call("net1", l.Macvlan(nil))
		addr := leased(t, pod.mustAdd(t, l, call))
		ack, _ := l.Capture.AwaitType(t, 0, rig.Patience, dhcpv4.MessageTypeAck, nil)
		if got := ack.Msg.Options.Get(dhcpv4.OptionIPAddressLeaseTime); string(got) != "\xff\xff\xff\xff" {
			t.Fatalf("option 51 is %x: the case is not the one meant", got)
		}
		st := l.status(t, pod, "net1")
		if !st.Infinite || st.T1 != nil || st.T2 != nil || st.Expiry != nil || st.State != "BOUND" {
			t.Errorf("the engine lists %+v, want an infinite lease without T1, T2 and end", st)
		}
		if have := pod.Addresses(t, "net1"); len(have) != 1 || have[0] != (rig.Address{Addr: addr, Valid: rig.Forever}) {
			t.Errorf("net1 carries %v, want %v for ever", have, addr)
		}
		l.Engine.Restart(t, l.Engine.Kill)
		if st := l.status(t, pod, "net1"); !st.Infinite || st.State != "BOUND" {
			t.Errorf("after a restart the engine lists %+v, want an infinite lease", st)
		}
		l.Node.Del(t, call)
		server.AwaitHeld(t, "empty", rig.Nothing)
	})
}

// The longest finite lease, 136 years, overflows nothing.
func TestB26LongestFiniteLease(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	cfg := rig.Pool(0, 0)
	cfg.Lifetime = (rig.Forever - 1) * time.Second
	rig.StartKea(t, l.Server, cfg)
	pod := newSandbox(t)
	pod.mustAdd(t, l, pod.Call("net1", l.Macvlan(nil)))
	ack, mark := l.Capture.AwaitType(t, 0, rig.Patience, dhcpv4.MessageTypeAck, nil)
	if got := ack.Msg.Options.Get(dhcpv4.OptionIPAddressLeaseTime); string(got) != "\xff\xff\xff\xfe" {
		t.Fatalf("option 51 is %x: the case is not the one meant", got)
	}
	st := l.status(t, pod, "net1")
	if st.Infinite || st.State != "BOUND" || st.T1 == nil || time.Until(*st.T1) < 30*365*24*time.Hour {
		t.Errorf("the engine lists %+v, want BOUND until T1 in decades", st)
	}
	if later := l.Capture.Since(mark); len(later) != 0 {
		t.Errorf("frames after the ACK: %v", later)
	}
}

// When nobody answers until the end of the lease, the address goes at its end; when
// a server is back, a new one comes by itself.
func TestExpiryAndRecovery(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	cfg := rig.Pool(seconds(2), seconds(4))
	cfg.Lifetime = seconds(8)
	server := rig.StartKea(t, l.Server, cfg)
	pod := newSandbox(t)
	call := pod.Call("net1", l.Macvlan(nil))
	pod.mustAdd(t, l, call)
	mac := pod.HardwareAddr(t, "net1")
	server.Stop(t)

	pod.AwaitAddress(t, "net1", netip.Addr{})
	if o, err := l.Node.CNI("CHECK", call.WithPrev(t, nil)); err != nil || o.Err == nil {
		t.Errorf("CHECK of an expired lease: %v %v, want an error", o.Err, err)
	}

	mark := l.Capture.Len()
	server = rig.StartKea(t, l.Server, server.Config())
	ack, _ := l.Capture.AwaitType(t, mark, 3*rig.Patience, dhcpv4.MessageTypeAck, mac)
	addr, _ := netip.AddrFromSlice(ack.Msg.YourIPAddr.To4())
	pod.AwaitAddress(t, "net1", addr)
	server.AwaitHeld(t, "the new lease", rig.Holds(mac, addr))
}

// The kernel takes the address away at the end of its lease although the engine is
// dead, and its routes with it.
func TestAddressEndsWithoutTheEngine(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	cfg := rig.Pool(0, 0)
	cfg.Lifetime = seconds(6)
	rig.StartKea(t, l.Server, cfg)
	pod := newSandbox(t)
	pod.mustAdd(t, l, pod.Call("net1", l.Macvlan(object{"defaultRoute": "always"})))
	if got := pod.Routes(t, "net1"); len(got) != 2 {
		t.Errorf("routes %v, want the connected one and a default", got)
	}
	l.Engine.Kill(t)
	pod.AwaitAddress(t, "net1", netip.Addr{})
	if got := pod.Routes(t, "net1"); len(got) != 0 {
		t.Errorf("routes left: %v", got)
	}
}
