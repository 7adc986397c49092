package handover

import (
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"

	"github.com/dhcp-meta/dhcp-meta/tests/rig"
	"github.com/dhcp-meta/dhcp-meta/tests/vm/guest"
)

// The whole way: the kernel's driver is found by modalias, the exchange runs with the
// MAC that the guest will have, the device is back before the answer, the result says
// the address, nothing is kept, and DEL gives nothing back.
func TestB71K45K68K69K71HandOver(t *testing.T) {
	vf := guest.VF(t, 0)
	l := guest.NewLab(t)
	p := newPod(t, l, vf, discover)
	o := l.Node.Add(t, p.call)
	vf.MustBeBack(t) // before anything else is looked at
	addr := mustHave(t, l, p, o, 0)
	for _, f := range l.Capture.Since(0) {
		if f.FromClient() && f.Msg.ClientHWAddr.String() != guest.MAC(0).String() {
			t.Errorf("a frame of another MAC: %v", f)
		}
	}
	if a := p.Addresses(t, "net1"); len(a) != 0 {
		t.Errorf("the pod's namespace has %v", a)
	}
	o2 := l.Node.Add(t, p.call)
	if again := mustHave(t, l, p, o2, 0); again != addr {
		t.Errorf("a second ADD of the same attachment says %v, the first one said %v", again, addr)
	}
	l.Node.Check(t, p.call, o.Result)
	l.Node.Del(t, p.call)
	l.Engine.AwaitNoRecords(t)
	nothing(t, l.Capture, 0, "a RELEASE", isRelease)
}

// The engine does it with nothing but itself and the wrapped plugin: there is no dhcp
// binary, no daemon and no client on this node, and none is started.
func TestK74NoOtherProgram(t *testing.T) {
	vf := guest.VF(t, 0)
	l := guest.NewLab(t)
	p := newPod(t, l, vf, discover)
	p.call.Path = t.TempDir()
	if err := os.Symlink(rig.Plugins()+"/host-device", p.call.Path+"/host-device"); err != nil {
		t.Fatal(err)
	}
	mustHave(t, l, p, l.Node.Add(t, p.call), 0)
	out := guest.Run(t, "sh", "-c", "cat /proc/[0-9]*/comm")
	if strings.Contains(out, "udhcpc") || strings.Contains(out, "dhclient") {
		t.Errorf("a client is running:\n%s", out)
	}
	l.Node.Del(t, p.call)
}

// After the ADD the engine has no thread, descriptor or packet for the lease: only a
// small record, which the DEL takes away.
func TestK76NothingIsKept(t *testing.T) {
	vf := guest.VF(t, 0)
	l := guest.NewLab(t)
	first := newPod(t, l, vf, discover)
	l.Node.Add(t, first.call) // what is made once is made now
	l.Node.Del(t, first.call)
	l.Engine.AwaitNoRecords(t)
	before := l.Engine.Load(t)
	p := newPod(t, l, vf, discover)
	mustHave(t, l, p, l.Node.Add(t, p.call), 0)
	l.Engine.AwaitDescriptors(t, before.Descriptors)
	if r := l.Engine.Records(t); len(r) != 1 {
		t.Errorf("records %v, want one", r)
	}
	if left, err := os.ReadDir(l.Engine.StateDir + "/borrowed"); err == nil && len(left) > 0 {
		t.Errorf("the journal still has %v", left)
	}
	l.Node.Del(t, p.call)
	l.Engine.AwaitNoRecords(t)
	l.Engine.AwaitDescriptors(t, before.Descriptors)
}

// DEL of a pod with a device needs no engine, and sends nothing; the engine that comes
// back forgets the attachment.
func TestK77DelWithoutTheEngine(t *testing.T) {
	vf := guest.VF(t, 0)
	l := guest.NewLab(t)
	p := newPod(t, l, vf, discover)
	mustHave(t, l, p, l.Node.Add(t, p.call), 0)
	l.Engine.Stop(t)
	l.Node.Del(t, p.call)
	l.Engine.Start(t)
	l.Engine.AwaitNoRecords(t)
	nothing(t, l.Capture, 0, "a RELEASE", isRelease)
	if held := l.Server.Held(t); len(held) != 1 {
		t.Errorf("the server holds %v; the guest's own client takes the lease over", held)
	}
}

// A container that has its device for DPDK is refused before the device is touched,
// unless its network says otherwise.
func TestK48ContainerIsRefused(t *testing.T) {
	vf := guest.VF(t, 0)
	l := guest.NewLabWithout(t)
	l.Server = guest.StartServer(t)
	tr := l.Trace(t)
	p := newPod(t, l, vf, nil)
	refuse(t, l, p, 7, "vfio", string(vf))
	untouched(t, tr)
	if n := l.Capture.Len(); n != 0 {
		t.Errorf("%d DHCP messages on the wire", n)
	}
}

// untouched sees that the engine has written nothing to sysfs.
func untouched(t testing.TB, tr *guest.Tracer) {
	t.Helper()
	if w := writes(tr); len(w) != 0 {
		t.Errorf("the engine has written to sysfs: %v", w)
	}
}

// writes are the engine's writes to sysfs, from its start on.
func writes(tr *guest.Tracer) []guest.Step {
	return slices.DeleteFunc(tr.Steps(), func(s guest.Step) bool { return !s.Sysfs() })
}

// Two devices at once have an exchange each, and none gets in the other's way.
func TestTwoDevicesAtOnce(t *testing.T) {
	l := guest.NewLab(t)
	var pods []pod
	for i := range guest.VFs {
		pods = append(pods, newPod(t, l, guest.VF(t, i), discover))
	}
	errs := make(chan error, len(pods))
	results := make([]rig.Outcome, len(pods))
	for i, p := range pods {
		go func() {
			o, err := l.Node.CNI("ADD", p.call)
			results[i] = o
			errs <- err
		}()
	}
	for range pods {
		if err := <-errs; err != nil {
			t.Fatal(err)
		}
	}
	for i, p := range pods {
		if results[i].Err != nil {
			t.Fatalf("ADD of device %d: %v", i, results[i].Err)
		}
		mustHave(t, l, p, results[i], i)
		l.Node.Del(t, p.call)
	}
	l.Engine.AwaitNoRecords(t)
}

// A late DEL of a pod that is gone does not touch the device that a new pod has, nor
// what the new pod's virtual machine does with it.
func TestB74LateDelOfTheOldPod(t *testing.T) {
	vf := guest.VF(t, 0)
	l := guest.NewLabWithout(t)
	l.Server = guest.StartServer(t)
	tr := l.Trace(t)
	first := newPod(t, l, vf, discover)
	l.Node.Add(t, first.call)
	second := newPod(t, l, vf, discover)
	mustHave(t, l, second, l.Node.Add(t, second.call), 0)
	vm := guest.Hold(t, vf)
	mark, before := l.Capture.Len(), len(writes(tr))
	l.Node.Del(t, first.call)
	if w := writes(tr)[before:]; len(w) != 0 {
		t.Errorf("the late DEL has written to sysfs: %v", w)
	}
	nothing(t, l.Capture, mark, "a message after the late DEL", func(rig.Frame) bool { return true })
	if list := l.Engine.Leases(t); len(list) != 1 || list[0].ContainerID != second.ID {
		t.Errorf("the engine has %v, want the second pod's", list)
	}
	vm.Release()
	l.Node.Del(t, second.call)
}

// Nobody answers: the ADD fails in its time, and the device is back.
func TestK72SilentServer(t *testing.T) {
	vf := guest.VF(t, 0)
	l := guest.NewLabWithout(t)
	l.Engine.Start(t)
	p := newPod(t, l, vf, rig.Object{"vfioContainers": "discover", "timeout": "8s"})
	begin := time.Now()
	refuse(t, l, p, 11, "net1", guest.MAC(0).String())
	vf.MustBeBack(t)
	if l.Capture.Count(0, rig.Type(dhcpv4.MessageTypeDiscover, guest.MAC(0))) == 0 {
		t.Errorf("no DISCOVER was sent in %v", time.Since(begin))
	}
}

// The runtime kills the plugin while the server is silent: the device is back without
// anybody's help.
func TestK72CallerGone(t *testing.T) {
	vf := guest.VF(t, 0)
	l := guest.NewLabWithout(t)
	l.Engine.Start(t)
	p := newPod(t, l, vf, discover)
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		_, _ = l.Node.CNI("ADD", p.call)
	}()
	l.Capture.AwaitType(t, 0, rig.Patience, dhcpv4.MessageTypeDiscover, guest.MAC(0))
	if vf.Driver() != "igbvf" {
		t.Errorf("the device has driver %q while its exchange runs", vf.Driver())
	}
	if err := exec.Command("killall", "-9", "dhcp-meta").Run(); err != nil {
		t.Fatal(err)
	}
	<-gone
	guest.Await(t, "the device is back", func() bool { return vf.Driver() == "vfio-pci" && vf.Override() == "" })
	l.Engine.AwaitNoRecords(t)
	l.Node.Del(t, p.call)
}

// However long the caller would wait: the device is away for the time of the window
// and no longer.
func TestK72WindowEnds(t *testing.T) {
	const window = 15 * time.Second
	vf := guest.VF(t, 0)
	l := guest.NewLabWithout(t, "--vfio-window="+window.String())
	tr := l.Trace(t)
	var away, back time.Time
	tr.Decide(func(s guest.Step) guest.Verdict {
		switch {
		case s.Sysfs() && strings.HasSuffix(s.Path, "/vfio-pci/unbind"):
			away = time.Now()
		case s.Sysfs():
			back = time.Now()
		}
		return guest.Verdict{}
	})
	p := newPod(t, l, vf, discover)
	refuse(t, l, p, 11, "net1")
	vf.MustBeBack(t)
	tr.Decide(nil)
	if l.Capture.Count(0, rig.Type(dhcpv4.MessageTypeDiscover, guest.MAC(0))) == 0 {
		t.Error("no DISCOVER was sent")
	}
	// The engine keeps a part of the window for the way back; a slow machine gets
	// some time more here.
	if took := back.Sub(away); took <= 0 || took > window+guest.Quiet {
		t.Errorf("the device was away for %v, with a window of %v", took, window)
	}
}

// A physical function that offers its virtual ones to no driver by itself: the driver
// must be named.
func TestK69NoAutoprobe(t *testing.T) {
	autoprobe := guest.PF.Path("sriov_drivers_autoprobe")
	guest.Write(t, autoprobe, "0")
	t.Cleanup(func() { guest.Write(t, autoprobe, "1") })
	vf := guest.VF(t, 0)
	l := guest.NewLab(t)
	p := newPod(t, l, vf, discover)
	mustHave(t, l, p, l.Node.Add(t, p.call), 0)
	vf.MustBeBack(t)
	l.Node.Del(t, p.call)
}
