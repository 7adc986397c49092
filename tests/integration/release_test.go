package integration

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/insomniacslk/dhcp/dhcpv4"

	"github.com/dhcp-meta/dhcp-meta/tests/rig"
)

// A RELEASE from 0.0.0.0 is dropped by the server's kernel. Ours leaves by unicast
// from the leased address and has the lease's own client identifier (RFC 2131,
// 4.4.4), and the server's table shows its effect.
func TestB30ReleaseIsHeard(t *testing.T) {
	onBothServers(t, func(t *testing.T, l *lab, start rig.StartFunc) {
		server := start(t, l.Server, rig.Pool(0, 0))
		pod := newSandbox(t)
		call := pod.Call("net1", l.Macvlan(nil))
		addr := leased(t, pod.mustAdd(t, l, call)).Addr()
		mac := pod.HardwareAddr(t, "net1")
		request, mark := l.Capture.AwaitType(t, 0, rig.Patience, dhcpv4.MessageTypeRequest, mac)

		l.Node.Del(t, call)
		f, _ := l.Capture.AwaitType(t, mark, rig.Patience, dhcpv4.MessageTypeRelease, mac)
		if f.Src.Addr() != addr || f.Dst.Addr() != rig.ServerAddr.Addr() {
			t.Errorf("RELEASE went from %v to %v, want %v to %v", f.Src, f.Dst, addr, rig.ServerAddr.Addr())
		}
		if got := f.EthDst.String(); got == "ff:ff:ff:ff:ff:ff" {
			t.Error("RELEASE was an Ethernet broadcast")
		}
		if !f.Msg.ClientIPAddr.Equal(addr.AsSlice()) || f.Msg.Options.Has(dhcpv4.OptionRequestedIPAddress) {
			t.Errorf("RELEASE has ciaddr %v and options %v, want ciaddr %v and no option 50", f.Msg.ClientIPAddr, f.Msg.Options, addr)
		}
		if got := f.Msg.ServerIdentifier(); !got.Equal(rig.ServerAddr.Addr().AsSlice()) {
			t.Errorf("RELEASE names server %v, want %v", got, rig.ServerAddr.Addr())
		}
		if a, b := request.Msg.Options.Get(dhcpv4.OptionClientIdentifier), f.Msg.Options.Get(dhcpv4.OptionClientIdentifier); string(a) != string(b) {
			t.Errorf("option 61 was %x and is %x", a, b)
		}
		server.AwaitHeld(t, "empty", rig.Nothing)
		if n := l.Capture.Count(0, rig.Type(dhcpv4.MessageTypeRelease, mac)); n != 1 {
			t.Errorf("%d RELEASEs, want 1", n)
		}
	})
}

// DEL may come twice and for what nobody knows: success, without a packet.
func TestB33DelTwiceAndUnknown(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	server := rig.StartDnsmasq(t, l.Server, rig.Pool(0, 0))
	pod := newSandbox(t)
	call := pod.Call("net1", l.Macvlan(nil))
	pod.mustAdd(t, l, call)
	l.Node.Del(t, call)
	server.AwaitHeld(t, "empty", rig.Nothing)

	mark := l.Capture.Len()
	l.Node.Del(t, call)
	unknown := call
	unknown.ContainerID = rig.RandomHex(32)
	l.Node.Del(t, unknown)
	if frames := l.Capture.Since(mark); len(frames) != 0 {
		t.Errorf("packets of a DEL of nothing: %v", frames)
	}
	l.expectNothingLeft(t)
}

// After a reboot, or when the runtime was quicker, the namespace is gone and
// CNI_NETNS empty: the record goes, and DEL succeeds.
func TestB36DelWithoutNetns(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	rig.StartDnsmasq(t, l.Server, rig.Pool(0, 0))
	before := l.Engine.Load(t)
	pod := newSandbox(t)
	call := pod.Call("net1", l.Macvlan(nil))
	pod.mustAdd(t, l, call)
	pod.Delete(t)

	call.Netns = ""
	l.Node.Del(t, call)
	l.expectNothingLeft(t)
	l.Engine.AwaitDescriptors(t, before.Descriptors+2)
}

// A DEL while the engine is down does not keep the pod; the engine finds out when
// it is back.
func TestB42DelWhileTheEngineIsDown(t *testing.T) {
	onBothServers(t, func(t *testing.T, l *lab, start rig.StartFunc) {
		server := start(t, l.Server, rig.Pool(0, 0))
		pod := newSandbox(t)
		call := pod.Call("net1", l.Macvlan(nil))
		pod.mustAdd(t, l, call)
		l.Engine.Kill(t)

		l.Node.Del(t, call)
		if out, err := pod.TryIP("link", "show", "dev", "net1"); err == nil {
			t.Errorf("the delegate's DEL has not run: %s", out)
		}
		l.Engine.Start(t)
		// The interface is gone, so no RELEASE can leave: the lease waits for the
		// pod's next sandbox, or for the runtime's next DEL.
		addr := server.Held(t)[0].Addr.String()
		l.Engine.Lines.Await(t, "word of the lease of "+addr, 0, rig.Patience, contains(addr))
		l.Node.Del(t, call)
		l.expectNothingLeft(t)
	})
}

// A RELEASE that could not be sent, since its own interface went with a DEL that
// found no engine, is sent over another pod's interface on the network.
func TestB42ReleaseAfterAll(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	server := rig.StartDnsmasq(t, l.Server, rig.Pool(0, 0))
	conf := l.Macvlan(nil)
	gone, stays := newSandbox(t), newSandbox(t)
	gone.mustAdd(t, l, gone.Call("net1", conf))
	addr := leased(t, stays.mustAdd(t, l, stays.Call("net1", conf)))
	l.Engine.Kill(t)
	l.Node.Del(t, gone.Call("net1", conf))

	l.Engine.Start(t)
	l.Node.Del(t, gone.Call("net1", conf)) // the runtime's next try
	server.AwaitHeld(t, "the other pod's lease alone", rig.Holds(stays.HardwareAddr(t, "net1"), addr.Addr()))
	l.Node.Del(t, stays.Call("net1", conf))
	server.AwaitHeld(t, "empty", rig.Nothing)
	l.expectNothingLeft(t)
}

// The lease of a MAC that follows the pod is given back at DEL or never: by the time
// that the engine is back the MAC may have it on another node. So it is said that it
// stays, why, and until when.
func TestB42DerivedMACIsNotReleasedLater(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	server := rig.StartDnsmasq(t, l.Server, rig.Pool(0, 0))
	stays, gone := newSandbox(t), newSandbox(t)
	conf := l.Macvlan(object{"mac": "derive"})
	stays.mustAdd(t, l, stays.Call("net1", conf)) // a RELEASE that may wait could go over it
	addr := leased(t, gone.mustAdd(t, l, gone.Call("net1", conf))).Addr()
	mac := gone.HardwareAddr(t, "net1")
	l.Engine.Kill(t)
	l.Node.Del(t, gone.Call("net1", conf))

	l.Engine.Start(t)
	line, _ := l.Engine.Lines.Await(t, "word of the lease that stays", 0, rig.Patience,
		linesWith("lease is not given back, it stays at the server until it expires", addr.String()))
	for _, word := range []string{"why=\"identity outlives the sandbox\"", "until=", "also on another node"} {
		if !strings.Contains(line, word) {
			t.Errorf("the line does not say %q: %s", word, line)
		}
	}
	server.AwaitHeld(t, "the lease, which nobody gave back", holdsToo(mac, addr))
	if n := l.Capture.Count(0, rig.Type(dhcpv4.MessageTypeRelease, mac)); n != 0 {
		t.Errorf("%d RELEASEs, want none", n)
	}
	if st := l.Engine.Leases(t); len(st) != 1 || st[0].ContainerID != stays.ID {
		t.Errorf("the engine lists %+v, want the pod that runs", st)
	}
}

// The delegate's DEL runs once for each of its ADDs: some plugins do harm at a
// second one.
func TestDelegateDelOnce(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	rig.StartDnsmasq(t, l.Server, rig.Pool(0, 0))
	recorder := rig.NewRecorder(t, []string{"macvlan"})
	pod := newSandbox(t)
	call := pod.Call("net1", l.Macvlan(nil))
	call.Path = recorder.Folder
	pod.mustAdd(t, l, call)
	for range 3 {
		l.Node.Del(t, call)
	}
	if diff := cmp.Diff([]string{"ADD", "DEL"}, verbs(recorder.Calls(t))); diff != "" {
		t.Errorf("calls of the delegate (-want +got):\n%s", diff)
	}
	// The same sandbox may be used again.
	pod.mustAdd(t, l, call)
	l.Node.Del(t, call)
	if diff := cmp.Diff([]string{"ADD", "DEL", "ADD", "DEL"}, verbs(recorder.Calls(t))); diff != "" {
		t.Errorf("calls of the delegate (-want +got):\n%s", diff)
	}
}

// A delegate's DEL that failed is tried again with the runtime's next DEL.
func TestDelegateDelThatFailedIsRepeated(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	server := rig.StartDnsmasq(t, l.Server, rig.Pool(0, 0))
	pod := newSandbox(t)
	call := pod.Call("net1", l.Macvlan(nil))
	pod.mustAdd(t, l, call)
	failing := rig.NewRecorder(t, []string{"macvlan"}, "DEL")
	call.Path = failing.Folder
	l.Node.Refuse(t, "DEL", call, 111, "fails as the test wants it")
	// The address is given back all the same.
	server.AwaitHeld(t, "empty", rig.Nothing)
	call.Path = ""
	l.Node.Del(t, call)
	l.expectNothingLeft(t)
}

// A DEL that comes while ADD waits for a server ends the ADD, and nothing is left.
func TestDelDuringAdd(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	pod := newSandbox(t)
	call := pod.Call("net1", l.Macvlan(nil))
	add := l.background("ADD", call)
	l.Capture.AwaitType(t, 0, rig.Patience, dhcpv4.MessageTypeDiscover, nil)
	l.Node.Del(t, call)
	if o := add.wait(t); o.Err == nil {
		t.Errorf("ADD succeeded without a server: %s", o.Stdout)
	}
	l.expectNothingLeft(t)
	if out, err := pod.TryIP("link", "show", "dev", "net1"); err == nil {
		t.Errorf("net1 is still there: %s", out)
	}
}

// Twenty DELs of one attachment at once: one RELEASE, one DEL of the delegate, and
// twenty successes.
func TestTwentyDelsAtOnce(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	server := rig.StartDnsmasq(t, l.Server, rig.Pool(0, 0))
	recorder := rig.NewRecorder(t, []string{"macvlan"})
	pod := newSandbox(t)
	call := pod.Call("net1", l.Macvlan(nil))
	call.Path = recorder.Folder
	pod.mustAdd(t, l, call)

	var wg sync.WaitGroup
	errs := make(chan error, 20)
	for range 20 {
		wg.Go(func() {
			o, err := l.Node.CNI("DEL", call)
			if err == nil && o.Err != nil {
				err = fmt.Errorf("%w: %s", o.Err, o.Stderr)
			}
			errs <- err
		})
	}
	wg.Wait()
	close(errs)
	for err := range errs {
		if err != nil {
			t.Error(err)
		}
	}
	server.AwaitHeld(t, "empty", rig.Nothing)
	if n := l.Capture.Count(0, rig.Type(dhcpv4.MessageTypeRelease, nil)); n != 1 {
		t.Errorf("%d RELEASEs, want 1", n)
	}
	if n := len(recorder.Calls(t, "DEL")); n != 1 {
		t.Errorf("%d DELs of the delegate, want 1", n)
	}
	l.expectNothingLeft(t)
}
