package handover

import (
	"os"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/dhcp-meta/dhcp-meta/tests/vm/guest"
)

// tracedLab is a wire with a server and an engine whose writes are seen.
func tracedLab(t *testing.T, args ...string) (*guest.Lab, *guest.Tracer) {
	t.Helper()
	l := guest.NewLabWithout(t, args...)
	l.Server = guest.StartServer(t)
	return l, l.Trace(t)
}

// Where the kernel has no driver for the device, the ADD fails before the device is
// touched, and says what is missing.
func TestK70B77NoDriver(t *testing.T) {
	l, tr := tracedLab(t)
	for _, tt := range []struct {
		name    string
		prepare func(t *testing.T)
		word    string
	}{
		{"not on the disk", func(t *testing.T) { guest.Unload(t, "igbvf"); guest.Remove(t, "igbvf") }, "driver"},
		{"blacklisted", func(t *testing.T) { guest.Unload(t, "igbvf"); guest.Blacklist(t, "igbvf") }, "blacklist"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			vf := guest.VF(t, 0)
			tt.prepare(t)
			refuse(t, l, newPod(t, l, vf, discover), 4, string(vf), tt.word)
			untouched(t, tr)
		})
	}
}

// A driver that is on the disk and not loaded is loaded by the engine.
func TestB77DriverNotLoaded(t *testing.T) {
	vf := guest.VF(t, 0)
	l := guest.NewLab(t)
	guest.Unload(t, "igbvf")
	p := newPod(t, l, vf, discover)
	mustHave(t, l, p, l.Node.Add(t, p.call), 0)
	l.Node.Del(t, p.call)
	if !guest.Loaded("igbvf") {
		t.Error("igbvf is not loaded; who has served the device?")
	}
}

// A driver that fails to probe: the kernel says that the write went well, the device
// has no driver, and the ADD fails with the device back.
func TestB77DriverFailsToProbe(t *testing.T) {
	vf := guest.VF(t, 0)
	l, tr := tracedLab(t)
	guest.Unload(t, "igbvf")
	guest.Break(t, "igbvf", "igbvf_probe")
	refuse(t, l, newPod(t, l, vf, discover), 11, string(vf), "igbvf")
	vf.MustBeBack(t)
	if !guest.Loaded("igbvf") || len(writes(tr)) == 0 {
		t.Errorf("the driver was never tried; writes: %v", writes(tr))
	}
}

// What somebody else has open is not touched: the unbind would block until that is
// over, and nobody could end it.
func TestGroupHeldByAnotherProcess(t *testing.T) {
	l, tr := tracedLab(t)
	for _, tt := range []struct {
		name string
		hold func(testing.TB, guest.Device) *guest.Guest
	}{{"group", guest.HoldGroup}, {"device", guest.Hold}} {
		t.Run(tt.name, func(t *testing.T) {
			vf := guest.VF(t, 0)
			before := len(writes(tr))
			vm := tt.hold(t, vf)
			refuse(t, l, newPod(t, l, vf, discover), 11, string(vf), "has it open")
			if w := writes(tr)[before:]; len(w) != 0 {
				t.Errorf("the engine has written to sysfs: %v", w)
			}
			vm.Release()
			p := newPod(t, l, vf, discover)
			mustHave(t, l, p, l.Node.Add(t, p.call), 0)
			l.Node.Del(t, p.call)
		})
	}
}

// The kind of device decides, not its maker; an operator may narrow it.
func TestB79K69AllowAndDeny(t *testing.T) {
	vf := guest.VF(t, 0)
	for _, tt := range []struct {
		flag string
		ok   bool
	}{
		{"--vfio-deny=8086:10ca", false}, {"--vfio-allow=15b3:101e", false}, {"--vfio-allow=15b3:101e,8086:10ca", true},
	} {
		t.Run(tt.flag, func(t *testing.T) {
			l, tr := tracedLab(t, tt.flag)
			p := newPod(t, l, vf, discover)
			if !tt.ok {
				refuse(t, l, p, 4, "8086:10ca", "list")
				untouched(t, tr)
				return
			}
			mustHave(t, l, p, l.Node.Add(t, p.call), 0)
			l.Node.Del(t, p.call)
		})
	}
}

// Devices that are on vfio-pci and are no virtual function of a network interface,
// and addresses that are none: one clear error each.
func TestBadDevices(t *testing.T) {
	l, tr := tracedLab(t)
	for _, tt := range []struct {
		name   string
		device func(t *testing.T) guest.Device
		words  []string
	}{
		{"a physical function", func(t *testing.T) guest.Device { return onVFIO(t, guest.BarePF) }, []string{"physical function", "0000:02:00.0"}},
		{"no function of another device", func(t *testing.T) guest.Device { return onVFIO(t, guest.Neighbour) }, []string{"no virtual function"}},
		{"no network interface", ssdFunction, []string{"no network interface", "1b36:0010"}},
		{"nothing there", func(*testing.T) guest.Device { return "0000:7f:1f.7" }, []string{"0000:7f:1f.7"}},
		// The wrapped plugin knows these no better.
		{"no address", func(*testing.T) guest.Device { return "eth0" }, nil},
		{"a path", func(*testing.T) guest.Device { return "../../../../etc/passwd" }, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d := tt.device(t)
			p := newPod(t, l, d, discover)
			o, err := l.Node.CNI("ADD", p.call)
			if err != nil {
				t.Fatal(err)
			}
			if o.Err == nil {
				t.Fatalf("the ADD succeeded: %s", o.Stdout)
			}
			t.Logf("refused: %v", o.Err)
			for _, word := range tt.words {
				if !strings.Contains(o.Err.Msg+o.Err.Details, word) {
					t.Errorf("the error does not say %q: %v", word, o.Err)
				}
			}
			untouched(t, tr)
		})
	}
}

// onVFIO gives a device to vfio-pci for the test.
func onVFIO(t *testing.T, d guest.Device) guest.Device {
	t.Helper()
	d.Bind(t, "vfio-pci")
	guest.Write(t, d.Path("driver_override"), "\n")
	t.Cleanup(func() {
		d.MustBeBack(t)
		d.Bind(t, "")
	})
	return d
}

// ssdFunction is a virtual function of the SSD, on vfio-pci.
func ssdFunction(t *testing.T) guest.Device {
	t.Helper()
	guest.Run(t, "modprobe", "nvme")
	guest.Await(t, "the SSD has its driver", func() bool { return guest.SSD.Driver() == "nvme" })
	guest.Write(t, guest.SSD.Path("sriov_drivers_autoprobe"), "0")
	guest.Write(t, guest.SSD.Path("sriov_numvfs"), "1")
	t.Cleanup(func() {
		guest.Write(t, guest.SSD.Path("sriov_numvfs"), "0")
		guest.Run(t, "rmmod", "nvme")
	})
	return onVFIO(t, guest.Function(t, guest.SSD, 0))
}

// A sysfs that is mounted read-only, as in a container that was not told otherwise.
func TestSysfsReadOnly(t *testing.T) {
	vf := guest.VF(t, 0)
	l := guest.NewLabWithout(t)
	l.Server = guest.StartServer(t)
	const script = `mount -o remount,bind,ro /sys && exec "$@"`
	p, _ := guest.TraceProgram(t, "dhcp-engine", nil, append([]string{"/bin/busybox", "unshare", "-m", "--propagation", "slave", "sh", "-c", script, "sh"}, l.Arguments()...)...)
	l.Engine.Process = p
	l.Engine.AwaitReady(t)
	refuse(t, l, newPod(t, l, vf, discover), 4, "read-only")
	if _, err := os.Stat(l.Engine.StateDir + "/borrowed/" + string(vf) + ".json"); err == nil {
		t.Error("the journal says that the device is borrowed")
	}
}

// The device goes away in the middle, as when somebody sets sriov_numvfs to 0: one
// clear error, and no engine that hangs. When it is back it can be borrowed again.
func TestDeviceVanishes(t *testing.T) {
	l, tr := tracedLab(t)
	for _, tt := range []struct {
		name string
		at   func(guest.Step) bool
	}{
		{"before it is unbound", func(s guest.Step) bool { return strings.HasSuffix(s.Path, "vfio-pci/unbind") }},
		{"without a driver", func(s guest.Step) bool { return strings.HasSuffix(s.Path, "/drivers_probe") }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d := guest.VF(t, 0)
			var gone atomic.Bool
			tr.Decide(func(s guest.Step) guest.Verdict {
				if s.Sysfs() && tt.at(s) && gone.CompareAndSwap(false, true) {
					guest.Write(t, guest.PF.Path("sriov_numvfs"), "0")
				}
				return guest.Verdict{}
			})
			p := newPod(t, l, d, discover)
			o, err := l.Node.CNI("ADD", p.call)
			if err != nil {
				t.Fatal(err)
			}
			if o.Err == nil || !gone.Load() {
				t.Fatalf("the ADD succeeded, or the device was never taken: %s", o.Stdout)
			}
			t.Logf("refused: %v", o.Err)
			guest.MakeVFs(t)
			guest.VF(t, 0)
			l.Node.Del(t, p.call) // host-device looks for the device also then
			again := newPod(t, l, d, discover)
			mustHave(t, l, again, l.Node.Add(t, again.call), 0)
			l.Node.Del(t, again.call)
			l.Engine.AwaitNoRecords(t)
		})
	}
}

// Two functions of one NIC with one MAC: frames of either would go to the other.
func TestAnotherFunctionHasTheMAC(t *testing.T) {
	vf := guest.VF(t, 0)
	l, tr := tracedLab(t)
	pf := guest.PF.Netdev(t)
	guest.Run(t, "ip", "link", "set", pf, "vf", "1", "mac", guest.MAC(0).String())
	t.Cleanup(func() { guest.Run(t, "ip", "link", "set", pf, "vf", "1", "mac", guest.MAC(1).String()) })
	p := newPod(t, l, vf, discover)
	o, err := l.Node.CNI("ADD", p.call)
	if err != nil {
		t.Fatal(err)
	}
	if o.Err == nil || !strings.Contains(o.Err.Msg, guest.MAC(0).String()) {
		t.Fatalf("not refused for the MAC: %v %s", o.Err, o.Stdout)
	}
	t.Logf("refused: %v", o.Err)
	untouched(t, tr)
}
