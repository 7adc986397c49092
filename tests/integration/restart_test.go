package integration

import (
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/insomniacslk/dhcp/dhcpv4"

	"github.com/dhcp-meta/dhcp-meta/tests/rig"
)

// A restart, however it comes, sends nothing, renews at the old T1, and a later DEL
// still releases.
func TestB38RestartKeepsLeases(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(*rig.Engine, testing.TB){
		"SIGTERM": func(e *rig.Engine, t testing.TB) { e.Stop(t) },
		"SIGKILL": func(e *rig.Engine, t testing.TB) { e.Kill(t) },
	} {
		t.Run(name, func(t *testing.T) {
			onBothServers(t, func(t *testing.T, l *lab, start rig.StartFunc) {
				server := start(t, l.Server, rig.Pool(seconds(8), seconds(60)))
				pod := newSandbox(t)
				call := pod.Call("net1", l.Macvlan(nil))
				addr := leased(t, pod.mustAdd(t, l, call))
				mac := pod.HardwareAddr(t, "net1")
				first, mark := l.Capture.AwaitType(t, 0, rig.Patience, dhcpv4.MessageTypeAck, mac)
				t1 := l.status(t, pod, "net1").T1

				l.Engine.Restart(t, func(t testing.TB) { end(l.Engine, t) })
				if got := l.status(t, pod, "net1"); got.T1 == nil || !got.T1.Equal(*t1) && got.T1.Sub(*t1).Abs() > seconds(1) {
					t.Errorf("T1 was %v, is %v after the restart", t1, got.T1)
				}
				if have := pod.Addresses(t, "net1"); len(have) != 1 || have[0].Addr != addr {
					t.Errorf("net1 carries %v after the restart, want %v", have, addr)
				}
				renewal, mark := l.Capture.Await(t, "a message of the client", mark, rig.Patience, rig.Frame.FromClient)
				if renewal.Type != dhcpv4.MessageTypeRequest || renewal.Src.Addr() != addr.Addr() {
					t.Errorf("the first message after the restart is %v, want the renewal", renewal)
				}
				if early := seconds(7); renewal.At.Sub(first.At) < early {
					t.Errorf("the renewal came %v after the ACK, want the old T1 of 8 s", renewal.At.Sub(first.At))
				}
				l.Capture.AwaitType(t, mark, rig.Patience, dhcpv4.MessageTypeAck, mac)
				l.Node.Del(t, call)
				server.AwaitHeld(t, "empty", rig.Nothing)
				l.expectNothingLeft(t)
			})
		})
	}
}

// A lease whose T1 went by while the engine was down is asked for again by
// INIT-REBOOT before it is renewed further.
func TestRestartPastT1VerifiesTheLease(t *testing.T) {
	onBothServers(t, func(t *testing.T, l *lab, start rig.StartFunc) {
		server := start(t, l.Server, rig.Pool(seconds(3), seconds(60)))
		pod := newSandbox(t)
		addr := leased(t, pod.mustAdd(t, l, pod.Call("net1", l.Macvlan(nil)))).Addr()
		mac := pod.HardwareAddr(t, "net1")
		l.Engine.Kill(t)
		awaitPast(t, l, seconds(4))
		mark := l.Capture.Len()
		l.Engine.Start(t)
		f, mark := l.Capture.Await(t, "a message of the client", mark, rig.Patience, rig.Frame.FromClient)
		// RFC 2131, table 5: INIT-REBOOT has option 50, no option 54, ciaddr 0.
		if f.Type != dhcpv4.MessageTypeRequest || !f.Msg.RequestedIPAddress().Equal(addr.AsSlice()) ||
			f.Msg.Options.Has(dhcpv4.OptionServerIdentifier) {
			t.Errorf("the first message is %v, want a REQUEST of INIT-REBOOT", f.Msg.Summary())
		}
		l.Capture.AwaitType(t, mark, rig.Patience, dhcpv4.MessageTypeAck, mac)
		server.AwaitHeld(t, "the lease", rig.Holds(mac, addr))
		if have := pod.Addresses(t, "net1"); len(have) != 1 || have[0].Addr.Addr() != addr {
			t.Errorf("net1 carries %v, want %v", have, addr)
		}
	})
}

// A record of a namespace that is gone, with another one at its path now, is not
// taken for the new one: not a packet leaves the new namespace. The lease waits for
// a new sandbox of the pod, or for the DEL.
func TestRestartDoesNotAdoptANewNamespace(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	rig.StartDnsmasq(t, l.Server, rig.Pool(0, 0))
	pod := newSandbox(t)
	pod.mustAdd(t, l, pod.Call("net1", l.Macvlan(nil)))
	l.Engine.Kill(t)
	pod.Recreate(t)
	l.Node.IP(t, "link", "add", "link", rig.Uplink, "name", "m0", "netns", pod.Name, "type", "macvlan", "mode", "bridge")
	pod.IP(t, "link", "set", "m0", "name", "net1", "up")

	mark := l.Capture.Len()
	l.Engine.Start(t)
	l.Engine.Lines.Await(t, "word of the gone interface", 0, rig.Patience, contains("interface is gone"))
	if st := l.status(t, pod, "net1"); st.State != "ORPHANED" {
		t.Errorf("the engine lists %+v, want ORPHANED", st)
	}
	if have := pod.Addresses(t, "net1"); len(have) != 0 {
		t.Errorf("the new net1 carries %v", have)
	}
	mac := pod.HardwareAddr(t, "net1")
	for _, f := range l.Capture.Since(mark) {
		if f.EthSrc.String() == mac.String() {
			t.Errorf("sent from the new namespace: %v", f)
		}
	}
	l.Node.Del(t, pod.Call("net1", l.Macvlan(nil)))
	l.expectNothingLeft(t)
}

// A corrupt record costs its own lease, with a warning, and nothing else.
func TestCorruptRecordCostsOneLease(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	server := rig.StartDnsmasq(t, l.Server, rig.Pool(0, 0))
	one, two := newSandbox(t), newSandbox(t)
	one.mustAdd(t, l, one.Call("net1", l.Macvlan(nil)))
	kept := leased(t, two.mustAdd(t, l, two.Call("net1", l.Macvlan(nil))))
	l.Engine.Kill(t)

	files, err := filepath.Glob(filepath.Join(l.Engine.StateDir, "attachments", one.ID+"*"))
	if err != nil || len(files) != 1 {
		t.Fatalf("records of %s: %v, %v", one.ID, files, err)
	}
	if err := os.WriteFile(files[0], []byte(`{"version":`), 0o600); err != nil {
		t.Fatal(err)
	}
	l.Engine.Start(t)
	leases := l.Engine.Leases(t)
	if len(leases) != 1 || leases[0].ContainerID != two.ID || netip.MustParsePrefix(leases[0].Address) != kept {
		t.Errorf("the engine lists %+v, want %s with %v", leases, two.ID, kept)
	}
	if n := l.Engine.Lines.Count(0, contains(one.ID)); n == 0 {
		t.Errorf("the log does not name the record of %s", one.ID)
	}
	l.Node.Del(t, two.Call("net1", l.Macvlan(nil)))
	server.AwaitHeld(t, "one lease", func(held []rig.Held) bool { return len(held) == 1 })
	l.Node.Del(t, one.Call("net1", l.Macvlan(nil)))
}
