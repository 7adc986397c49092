package integration

import (
	"testing"

	"github.com/insomniacslk/dhcp/dhcpv4"

	"github.com/dhcp-meta/dhcp-meta/tests/rig"
)

// unsent counts the lines that say that a RELEASE could not be sent.
func (l *lab) unsent() int { return l.Engine.Lines.Count(0, contains("release is not sent")) }

// A link that is down carries no RELEASE. DEL succeeds, it is said once, nothing
// is left on the node, and the lease is the server's to end.
func TestB32LinkDownAtDel(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	server := rig.StartDnsmasq(t, l.Server, rig.Pool(0, 0))
	pod := newSandbox(t)
	call := pod.Call("net1", l.Macvlan(nil))
	addr := leased(t, pod.mustAdd(t, l, call)).Addr()
	mac := pod.HardwareAddr(t, "net1")
	_, mark := l.Capture.AwaitType(t, 0, rig.Patience, dhcpv4.MessageTypeAck, mac)
	l.Node.IP(t, "link", "set", rig.Uplink, "down")

	l.Node.Del(t, call)
	if n := l.unsent(); n != 1 {
		t.Errorf("%d lines of an unsent RELEASE, want 1", n)
	}
	l.expectNothingLeft(t)
	l.Node.IP(t, "link", "set", rig.Uplink, "up")
	if frames := l.Capture.Since(mark); len(frames) != 0 {
		t.Errorf("sent over a link that was down: %v", frames)
	}
	server.AwaitHeld(t, "the lease, which nobody gave back", rig.Holds(mac, addr))
}

// A RELEASE for which nobody answers ARP never goes to the broadcast MAC. It waits,
// also over a restart of the engine, and arrives when the server answers again.
func TestB32ReleaseAfterARPIsBack(t *testing.T) {
	t.Parallel()
	for _, restart := range []bool{false, true} {
		name := map[bool]string{false: "engine stays", true: "engine restarts"}[restart]
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLab(t)
			// The chained form: its interface stays after DEL, for another plugin to end.
			pod, call := l.vethPod(t)
			l.Server.IP(t, "link", "set", "v1", "up")
			capture := rig.StartCapture(t, l.Server, "v1")
			server := l.serveVeth(t)
			addr := leased(t, pod.mustAdd(t, l, call)).Addr()
			mac := pod.HardwareAddr(t, "net1")
			l.Server.IP(t, "link", "set", "v1", "arp", "off")

			l.Node.Del(t, call)
			if n := l.unsent(); n != 1 {
				t.Errorf("%d lines of an unsent RELEASE, want 1", n)
			}
			if st := l.status(t, pod, "net1"); st.State != "RELEASING" {
				t.Errorf("the engine lists %s, want RELEASING", st.State)
			}
			if restart {
				l.Engine.Restart(t, l.Engine.Kill)
			}
			l.Server.IP(t, "link", "set", "v1", "arp", "on")
			f, _ := capture.AwaitType(t, 0, rig.Patience, dhcpv4.MessageTypeRelease, mac)
			if f.Src.Addr() != addr || f.EthDst.String() == "ff:ff:ff:ff:ff:ff" {
				t.Errorf("RELEASE went from %v to %v", f.Src, f.EthDst)
			}
			server.AwaitHeld(t, "empty", rig.Nothing)
			l.expectNothingLeft(t)
		})
	}
}

// The RELEASE of an interface that has gone is carried by another one of the
// network, in the name of the address that it is for.
func TestB32ReleaseOverANeighbour(t *testing.T) {
	onThreeServers(t, func(t *testing.T, l *lab, start rig.StartFunc) {
		server := start(t, l.Server, rig.Pool(0, 0))
		conf := l.Macvlan(nil)
		gone, stays := newSandbox(t), newSandbox(t)
		addr := leased(t, gone.mustAdd(t, l, gone.Call("net1", conf))).Addr()
		mac := gone.HardwareAddr(t, "net1")
		kept := leased(t, stays.mustAdd(t, l, stays.Call("net1", conf))).Addr()
		l.Server.IP(t, "link", "set", rig.ServerIface, "arp", "off")
		l.Node.Del(t, gone.Call("net1", conf))
		l.Server.IP(t, "link", "set", rig.ServerIface, "arp", "on")

		f, _ := l.Capture.AwaitType(t, 0, rig.Patience, dhcpv4.MessageTypeRelease, mac)
		if f.Src.Addr() != addr || !f.Msg.ClientIPAddr.Equal(addr.AsSlice()) {
			t.Errorf("RELEASE went from %v for %v, want %v", f.Src, f.Msg.ClientIPAddr, addr)
		}
		server.AwaitHeld(t, "the other pod's lease alone", rig.Holds(stays.HardwareAddr(t, "net1"), kept))
		stays.expectPing(t, kept, rig.ServerAddr.Addr())
		l.Node.Del(t, stays.Call("net1", conf))
		server.AwaitHeld(t, "empty", rig.Nothing)
		l.expectNothingLeft(t)
	})
}

// An address that waits to be given back and is in use again by then is not given
// back: that would take it from its new holder.
func TestB32ReleaseOfAnAddressInUseAgain(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	server := rig.StartDnsmasq(t, l.Server, rig.Pool(0, 0))
	const mac = "02:00:00:00:10:02"
	first, again := newSandbox(t), newSandbox(t)
	conf := l.macvlanWith(mac, nil)
	carrier := newSandbox(t)
	carrier.mustAdd(t, l, carrier.Call("net1", l.Macvlan(nil)))
	addr := leased(t, first.mustAdd(t, l, first.Call("net1", conf))).Addr()
	const answersARP = "net/ipv4/conf/" + rig.ServerIface + "/arp_ignore"
	l.Server.Sysctl(t, answersARP, "8") // no request is answered
	l.Node.Del(t, first.Call("net1", conf))

	// Another pod comes with the same MAC, and the server takes it for the same
	// client. It needs no ARP; the RELEASE does, so that waits however slow this ADD
	// is.
	if got := leased(t, again.mustAdd(t, l, again.Call("net1", conf))).Addr(); got != addr {
		t.Fatalf("got %v, want %v: the case is not the one meant", got, addr)
	}
	l.Server.Sysctl(t, answersARP, "0")
	l.Engine.Lines.Await(t, "word of the dropped RELEASE", 0, rig.Patience, contains("in use again"))
	l.Engine.MustCommand(t, "renew", again.ID)
	server.AwaitHeld(t, "the lease", holdsToo(again.HardwareAddr(t, "net1"), addr))
	if n := l.Capture.Count(0, rig.Type(dhcpv4.MessageTypeRelease, nil)); n != 0 {
		t.Errorf("%d RELEASEs, want none", n)
	}
}
