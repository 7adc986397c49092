package integration

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/insomniacslk/dhcp/dhcpv4"

	"github.com/dhcp-meta/dhcp-meta/tests/rig"
)

// CHECK compares and never acquires: a thousand of them send nothing and leave
// nothing open, and one for a container that nobody knows is an error.
func TestB85CheckAcquiresNothing(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	server := rig.StartDnsmasq(t, l.Server, rig.Pool(0, 0))
	pod := newSandbox(t)
	call := pod.Call("net1", l.Macvlan(nil))
	o := pod.mustAdd(t, l, call)
	l.Node.Check(t, call, o.Result)

	mark, before := l.Capture.Len(), l.Engine.Load(t)
	for range 1000 {
		l.Node.Check(t, call, o.Result)
	}
	after := l.Engine.Load(t)
	if after.Threads > before.Threads+4 {
		t.Errorf("after 1000 CHECKs %+v, before %+v", after, before)
	}
	l.Engine.AwaitDescriptors(t, before.Descriptors+2)
	unknown := call.WithPrev(t, o.Result)
	unknown.ContainerID = rig.RandomHex(32)
	if o, err := l.Node.CNI("CHECK", unknown); err != nil || o.Err == nil {
		t.Errorf("CHECK of an unknown container: %v, %v; want an error", o.Stdout, err)
	}
	if frames := l.Capture.Since(mark); len(frames) != 0 {
		t.Errorf("CHECK sent %v", frames)
	}
	if held := server.Held(t); len(held) != 1 {
		t.Errorf("the server holds %v, want the one lease", held)
	}
}

// CHECK sees that the address or a route has been taken away.
func TestCheckSeesWhatIsMissing(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	rig.StartDnsmasq(t, l.Server, rig.Pool(0, 0))
	pod := newSandbox(t)
	call := pod.Call("net1", l.Macvlan(object{"defaultRoute": "always"}))
	o := pod.mustAdd(t, l, call)
	l.Node.Check(t, call, o.Result)
	pod.IP(t, "route", "del", "default")
	l.Node.Refuse(t, "CHECK", call.WithPrev(t, o.Result), 999, "route default via 10.77.0.1")
	pod.IP(t, "addr", "flush", "dev", "net1")
	l.Node.Refuse(t, "CHECK", call.WithPrev(t, o.Result), 999, leased(t, o).Addr().String())
}

// STATUS is code 50 without a ready engine. GC ends what the runtime no longer
// knows, of this network alone, and hands the list on to the delegate.
func TestB93StatusAndGC(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	server := rig.StartDnsmasq(t, l.Server, rig.Pool(0, 0))
	recorder := rig.NewRecorder(t, []string{"macvlan"})
	conf := l.Macvlan(nil)
	status := rig.Call{Conf: conf, Path: recorder.Folder}
	l.must(t, "STATUS", status)

	kept, swept, foreign := newSandbox(t), newSandbox(t), newSandbox(t)
	addr := leased(t, kept.mustAdd(t, l, kept.Call("net1", conf)))
	swept.mustAdd(t, l, swept.Call("net1", conf))
	other := l.Macvlan(nil)
	other["name"] = "other-site"
	foreign.mustAdd(t, l, foreign.Call("net1", other))

	gc := l.Macvlan(nil)
	gc["cni.dev/valid-attachments"] = []object{{"containerID": kept.ID, "ifname": "net1"}}
	l.must(t, "GC", rig.Call{Conf: gc, Path: recorder.Folder})
	server.AwaitHeld(t, "the kept and the foreign lease", func(held []rig.Held) bool { return len(held) == 2 })
	if len(l.Engine.Leases(t)) != 2 || l.status(t, kept, "net1").Address != addr.String() {
		t.Errorf("the engine lists %+v", l.Engine.Leases(t))
	}
	l.status(t, foreign, "net1")
	calls := recorder.Calls(t, "GC")
	if len(calls) != 1 {
		t.Fatalf("%d GCs of the delegate, want 1", len(calls))
	}
	var got struct {
		Valid json.RawMessage `json:"cni.dev/valid-attachments"`
	}
	if err := json.Unmarshal(calls[0].Stdin, &got); err != nil {
		t.Fatal(err)
	}
	want, _ := json.Marshal(gc["cni.dev/valid-attachments"])
	if diff := cmp.Diff(string(want), string(got.Valid)); diff != "" {
		t.Errorf("the delegate's valid attachments (-want +got):\n%s", diff)
	}

	l.Engine.Kill(t)
	l.Node.Refuse(t, "STATUS", status, 50, l.Engine.Socket)
	l.Node.Refuse(t, "GC", rig.Call{Conf: gc, Path: recorder.Folder}, 11, l.Engine.Socket)
}

// VERSION names what the specification asks for, without an engine.
func TestVersion(t *testing.T) {
	t.Parallel()
	lan := rig.NewLAN(t)
	o, err := lan.Node.CNI("VERSION", rig.Call{Conf: object{"cniVersion": "1.0.0"}})
	if err != nil || o.Err != nil {
		t.Fatalf("VERSION: %v, %v", o.Err, err)
	}
	var got struct {
		Supported []string `json:"supportedVersions"`
	}
	if err := json.Unmarshal([]byte(o.Stdout), &got); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"0.3.1", "0.4.0", "1.0.0", "1.1.0"}, got.Supported); diff != "" {
		t.Errorf("versions (-want +got):\n%s", diff)
	}
}

// Results come in the version that the configuration asks for.
func TestResultVersions(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	server := rig.StartDnsmasq(t, l.Server, rig.Pool(0, 0))
	for _, version := range []string{"0.3.1", "0.4.0", "1.0.0", "1.1.0"} {
		pod := newSandbox(t)
		conf := l.Macvlan(nil)
		conf["cniVersion"] = version
		call := pod.Call("net1", conf)
		o := l.Node.Add(t, call)
		var got struct {
			Version string `json:"cniVersion"`
			IPs     []struct{ Address string }
		}
		if err := json.Unmarshal([]byte(o.Stdout), &got); err != nil || got.Version != version || len(got.IPs) != 1 {
			t.Errorf("cniVersion %s: %v in %s", version, err, o.Stdout)
		}
		l.Node.Del(t, call)
	}
	server.AwaitHeld(t, "empty", rig.Nothing)
}

// A new sandbox of the same pod takes the lease over; the DEL of the old one, when
// it comes, touches nothing but its own record.
func TestNewSandboxTakesTheLeaseOver(t *testing.T) {
	onBothServers(t, func(t *testing.T, l *lab, start rig.StartFunc) {
		server := start(t, l.Server, rig.Pool(0, 0))
		old := newSandbox(t)
		conf := l.Macvlan(object{"mac": "derive"})
		first := leased(t, old.mustAdd(t, l, old.Call("net1", conf)))
		// The node has thrown the sandbox away, and its DEL is late.
		old.Delete(t)
		next := newSandbox(t)
		next.Pod, next.UID = old.Pod, old.UID
		second := leased(t, next.mustAdd(t, l, next.Call("net1", conf)))
		if second != first {
			t.Errorf("the new sandbox got %v, want the pod's %v", second, first)
		}
		mac := next.HardwareAddr(t, "net1")
		server.AwaitHeld(t, "one lease for the pod", rig.Holds(mac, second.Addr()))

		l.Node.Del(t, old.Call("net1", conf))
		if n := l.Capture.Count(0, rig.Type(dhcpv4.MessageTypeRelease, nil)); n != 0 {
			t.Errorf("the old sandbox's DEL sent %d RELEASEs", n)
		}
		server.AwaitHeld(t, "one lease for the pod", rig.Holds(mac, second.Addr()))
		if have := next.Addresses(t, "net1"); len(have) != 1 || have[0].Addr != second {
			t.Errorf("the new net1 carries %v, want %v", have, second)
		}
		l.Node.Del(t, next.Call("net1", conf))
		server.AwaitHeld(t, "empty", rig.Nothing)
		l.expectNothingLeft(t)
	})
}

// With a MAC of its own, a new sandbox is another client to the server. The pod
// still holds one lease: that of the old sandbox is given back.
func TestNewSandboxWithAnotherMAC(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	server := rig.StartDnsmasq(t, l.Server, rig.Pool(0, 0))
	conf := l.Macvlan(nil)
	old, next := newSandbox(t), newSandbox(t)
	old.mustAdd(t, l, old.Call("net1", conf))
	next.Pod, next.UID = old.Pod, old.UID
	addr := leased(t, next.mustAdd(t, l, next.Call("net1", conf)))
	server.AwaitHeld(t, "one lease for the pod", rig.Holds(next.HardwareAddr(t, "net1"), addr.Addr()))
	if have := old.Addresses(t, "net1"); len(have) != 0 {
		t.Errorf("the old sandbox still carries %v", have)
	}
	l.Node.Del(t, old.Call("net1", conf))
	l.Node.Del(t, next.Call("net1", conf))
	server.AwaitHeld(t, "empty", rig.Nothing)
	l.expectNothingLeft(t)
}

// must executes a verb that must succeed.
func (l *lab) must(t testing.TB, verb string, call rig.Call) {
	t.Helper()
	o, err := l.Node.CNI(verb, call)
	if err != nil || o.Err != nil {
		t.Fatalf("%s: %v, %v\n%s", verb, err, o.Err, o.Stderr)
	}
}
