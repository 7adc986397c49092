package vfio

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine"
	"github.com/dhcp-meta/dhcp-meta/pkg/engine/api"
	"github.com/dhcp-meta/dhcp-meta/pkg/sriov"
	"github.com/dhcp-meta/dhcp-meta/pkg/sriov/sysfstest"
)

// B71, K68, K45: a virtual function on vfio-pci is given to its kernel driver for a
// moment, and is back on vfio-pci at the end; in this order, and with nothing else.
func TestB71K68K45ThereAndBack(t *testing.T) {
	w := newWorld(t)
	d := w.engine()
	b, err := d.Borrow(t.Context(), loanOf(vf0, "vm", nil))
	must(t, err)
	want := engine.Target{Netns: engine.Netns{Path: filepath.Join(w.dir, "netns", vf0), Cookie: 77}, IfName: "vf0"}
	if got := b.Target(); got != want {
		t.Errorf("target %+v, want %+v", got, want)
	}
	// K71: the interface has the MAC that the VM will have, is up, and in no
	// namespace that anybody else looks at.
	if l := w.net.of(vf0); l == nil || l.namespace != want.Netns.Path || !l.up || l.mac.String() != mac0.String() {
		t.Errorf("interface %+v", l)
	}
	if got := w.tree.Driver(vf0); got != "igbvf" {
		t.Errorf("borrowed device is on %q", got)
	}
	must(t, b.Return(t.Context()))
	w.expect(vf0, untouched(mac0))
	must(t, b.Return(t.Context())) // it may be repeated
	wantOps := []string{
		"journal put", "make namespace", "unbind vfio-pci", "drivers_probe", "move",
		"driver_override vfio-pci", "unbind igbvf", "drivers_probe", "driver_override", "remove namespace", "journal remove",
	}
	if diff := cmp.Diff(wantOps, w.done()); diff != "" {
		t.Errorf("changes (-want +got):\n%s", diff)
	}
}

// K71: where the physical function has another MAC for the device than the one that
// the VM will have, it is set for the exchange, and put back.
func TestK71MACBySettingThePhysicalFunction(t *testing.T) {
	for name, had := range map[string]net.HardwareAddr{"another": mac0, "none": hw("00:00:00:00:00:00")} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.net.macs["eth1"][0] = had
			d := w.engine()
			b, err := d.Borrow(t.Context(), loanOf(vf0, "vm", mac9))
			must(t, err)
			if l := w.net.of(vf0); l.mac.String() != mac9.String() {
				t.Errorf("interface has %s", l.mac)
			}
			must(t, b.Return(t.Context()))
			w.expect(vf0, untouched(had))
			if !strings.Contains(w.log.String(), "physical function has another MAC for a device") {
				t.Errorf("nobody was told:\n%s", w.log)
			}
		})
	}
	// A MAC that somebody has set meanwhile is theirs.
	w := newWorld(t)
	b, err := w.engine().Borrow(t.Context(), loanOf(vf0, "vm", mac9))
	must(t, err)
	must(t, w.net.SetMAC("eth1", 0, hw("52:54:00:00:01:0a")))
	must(t, b.Return(t.Context()))
	w.expect(vf0, untouched(hw("52:54:00:00:01:0a")))
}

// The override that a device had comes back: whoever set it relies on it.
func TestK72OverrideAsItWas(t *testing.T) {
	w := newWorld(t)
	must(t, w.tree.Put("sys/bus/pci/devices/"+vf0+"/driver_override", "vfio-pci\n"))
	b, err := w.engine().Borrow(t.Context(), loanOf(vf0, "vm", nil))
	must(t, err)
	if got, _ := host(w).Override(vf0); got != "" {
		t.Errorf("override is %q while it is away", got)
	}
	must(t, b.Return(t.Context()))
	want := untouched(mac0)
	want.Override = "vfio-pci"
	w.expect(vf0, want)
}

// A physical function that keeps drivers off its virtual functions is told which.
func TestK69DriverByNameWithoutAutoprobe(t *testing.T) {
	w := newWorld(t)
	must(t, w.tree.Put("sys/bus/pci/devices/"+pf+"/sriov_drivers_autoprobe", "0\n"))
	b, err := w.engine().Borrow(t.Context(), loanOf(vf0, "vm", nil))
	must(t, err)
	if got := w.tree.Driver(vf0); got != "igbvf" {
		t.Errorf("on %q", got)
	}
	must(t, b.Return(t.Context()))
	w.expect(vf0, untouched(mac0))
}

// vfio-pci that was told of the device by its id (new_id) is asked before igbvf: then
// igbvf is named.
func TestK69VFIOTakesItAgain(t *testing.T) {
	w := newWorld(t)
	must(t, w.tree.AddIDs("vfio-pci", "8086:10ca"))
	b, err := w.engine().Borrow(t.Context(), loanOf(vf0, "vm", nil))
	must(t, err)
	if got := w.tree.Driver(vf0); got != "igbvf" {
		t.Errorf("on %q", got)
	}
	must(t, b.Return(t.Context()))
	w.expect(vf0, untouched(mac0))
}

// B79, K69: devices of other makers go the same way; their module is loaded when it
// is not there.
func TestB79K69OtherMakers(t *testing.T) {
	for _, tt := range []struct{ id, driver string }{{"8086:154c", "iavf"}, {"15b3:101e", "mlx5_core"}, {"14e4:16dc", "bnxt_en"}} {
		t.Run(tt.driver, func(t *testing.T) {
			w := newWorld(t)
			must(t, w.tree.AddModule(sysfstest.Driver{Name: tt.driver, Module: tt.driver, IDs: []string{tt.id}}))
			must(t, w.tree.Add(sysfstest.Function{Address: vf2, ID: tt.id, Driver: "vfio-pci", Group: "13", PF: pf, VF: 2}))
			w.net.macs["eth1"][2] = mac9
			b, err := w.engine().Borrow(t.Context(), loanOf(vf2, "vm", mac9))
			must(t, err)
			if got := w.tree.Driver(vf2); got != tt.driver {
				t.Errorf("on %q", got)
			}
			must(t, b.Return(t.Context()))
			if got := w.tree.Driver(vf2); got != "vfio-pci" {
				t.Errorf("on %q afterwards", got)
			}
		})
	}
}

// B76: udev renames the interface between any two looks at it, and it may come some
// time after its driver.
func TestB76RenamedAndLate(t *testing.T) {
	w := newWorld(t)
	w.net.late = true
	w.setFail(func(op string) error {
		if op == "move" {
			return w.tree.Rename(vf0, "enp1s0v0") // after it was found, before it is moved
		}
		return nil
	})
	b, err := w.engine().Borrow(t.Context(), loanOf(vf0, "vm", nil))
	must(t, err)
	if l := w.net.of(vf0); l.name != "vf0" || l.namespace == "" {
		t.Errorf("interface %+v", l)
	}
	must(t, b.Return(t.Context()))
	w.expect(vf0, untouched(mac0))
}

// K70, B77: what must not be touched is refused with one clear error, before the
// first write.
func TestK70B77Refused(t *testing.T) {
	sound := loanOf(vf0, "vm", nil)
	with := func(l engine.Loan, address string) engine.Loan { l.Device = address; return l }
	for _, tt := range []struct {
		name string
		make func(w *world)
		loan engine.Loan
		cfg  func(*Config)
		code uint
		err  string
	}{
		{"no PCI address", nil, with(sound, "auxiliary:mlx5.sf.4"), nil, api.CodeConfig, `"auxiliary:mlx5.sf.4" is no PCI address, such as 0000:3b:02.4`},
		{"not there", nil, with(sound, "0000:01:1f.0"), nil, api.CodeEnv, "0000:01:1f.0: no such PCI device is on this node"},
		{"PF", nil, with(sound, pf), nil, api.CodeEnv, "is a physical function, not one of its virtual functions"},
		{"no NIC", func(w *world) {
			must(t, w.tree.Add(sysfstest.Function{Address: "0000:02:00.1", ID: "1b36:0010", Class: "010802", Driver: "vfio-pci", PF: pf, VF: 4}))
		}, with(sound, "0000:02:00.1"), nil, api.CodeEnv, "is no network interface: its class is 01"},
		{"not on vfio-pci", func(w *world) { w.toIGBVF(vf0) }, sound, nil, api.CodeEnv, `it is not on vfio-pci: its driver is "igbvf"`},
		{"denied", nil, sound, func(c *Config) { c.Policy.Deny = []sriov.ID{{Vendor: 0x8086, Device: 0x10ca}} }, api.CodeEnv, "devices of kind 8086:10ca are on the deny-list"},
		{"not allowed", nil, sound, func(c *Config) { c.Policy.Allow = []sriov.ID{{Vendor: 0x8086, Device: 0x154c}} }, api.CodeEnv, "devices of kind 8086:10ca are not on the allow-list"},
		{"no driver", func(w *world) {
			must(t, w.tree.Add(sysfstest.Function{Address: vf2, ID: "8086:154c", Driver: "vfio-pci", Group: "13", PF: pf, VF: 2}))
			w.net.macs["eth1"][2] = mac9
		}, with(sound, vf2), nil, api.CodeEnv, "no kernel driver fits 0000:01:10.4 (8086:154c, modalias pci:v00008086d0000154C"},
		{"blacklisted", func(w *world) {
			must(t, w.tree.AddModule(sysfstest.Driver{Name: "iavf", Module: "iavf", IDs: []string{"8086:154c"}}))
			must(t, w.tree.Put("etc/modprobe.d/b.conf", "blacklist iavf\n"))
			must(t, w.tree.Add(sysfstest.Function{Address: vf2, ID: "8086:154c", Driver: "vfio-pci", Group: "13", PF: pf, VF: 2}))
			w.net.macs["eth1"][2] = mac9
		}, with(sound, vf2), nil, api.CodeEnv, "module iavf is blacklisted in /etc/modprobe.d/b.conf"},
		{"group open", func(w *world) { w.hold(4711, "qemu-kvm", "vfio/11") }, sound, nil, api.CodeTryAgain, "the device is in use: process 4711 (qemu-kvm) has it open"},
		{"device open", func(w *world) {
			must(t, w.tree.Put("sys/bus/pci/devices/"+vf0+"/vfio-dev/vfio3/dev", "511:3\n"))
			w.hold(4712, "dpdk-testpmd", "vfio/devices/vfio3")
		}, sound, nil, api.CodeTryAgain, "the device is in use: process 4712 (dpdk-testpmd) has it open"},
		{"group not here", func(w *world) { must(t, os.Remove(filepath.Join(w.tree.Root, "dev/vfio/11"))) }, sound, nil, api.CodeTryAgain, "/dev/vfio/11 is not here"},
		{"another pod's", func(w *world) {
			must(t, os.MkdirAll(filepath.Join(w.dir, "sriov/pci"), 0o755))
			must(t, os.WriteFile(filepath.Join(w.dir, "sriov/pci", vf0), []byte(w.dir), 0o600))
		}, sound, nil, api.CodeTryAgain, "it belongs to another pod: sriov-cni gave it to the one at "},
		{"MAC of another VF", nil, loanOf(vf0, "vm", mac1), nil, api.CodeEnv, "virtual function 1 of eth1 has the same MAC 52:54:00:00:01:01"},
		{"MAC of the PF", nil, loanOf(vf0, "vm", macPF), nil, api.CodeEnv, "its physical function eth1 has the same MAC 52:54:00:00:00:01"},
		{"no MAC", func(w *world) { w.net.macs["eth1"][0] = hw("00:00:00:00:00:00") }, sound, nil, api.CodeEnv, "it has no MAC of its own"},
		{"PF down", func(w *world) { w.net.up = false }, sound, nil, api.CodeEnv, "its physical function eth1 is down"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t)
			if tt.make != nil {
				tt.make(w)
			}
			cfg := tt.cfg
			if cfg == nil {
				cfg = func(*Config) {}
			}
			d := w.engine(cfg)
			before := len(w.done())
			_, err := d.Borrow(t.Context(), tt.loan)
			if err == nil || !strings.Contains(err.Error(), tt.err) {
				t.Fatalf("got %v, want %q", err, tt.err)
			}
			if got := api.CodeOf(err); got != tt.code {
				t.Errorf("code %d, want %d", got, tt.code)
			}
			if ops := w.done()[before:]; len(ops) != 0 {
				t.Errorf("it was touched: %q", ops)
			}
			// The next one is served.
			if tt.cfg == nil && tt.name != "PF down" {
				b, err := d.Borrow(t.Context(), loanOf(vf1, "other", nil))
				must(t, err)
				must(t, b.Return(t.Context()))
			}
		})
	}
}

// toIGBVF puts a device on its kernel driver, as an operator does.
func (w *world) toIGBVF(address string) {
	h := host(w)
	must(w.t, h.Unbind(address))
	if d, err := h.Probe(address); err != nil || d != "igbvf" {
		w.t.Fatalf("probe of %s: %q, %v", address, d, err)
	}
}

// K72: whatever step fails, once, the device is as it was, and the error says which.
func TestK72OneFailureAStep(t *testing.T) {
	for n, tt := range []struct{ op, err string }{
		{"journal put", "boom"},
		{"make namespace", "boom"},
		{"mac", "boom"},
		{"unbind vfio-pci", "unbind 0000:01:10.0 from vfio-pci: "},
		{"drivers_probe", "look for a driver for 0000:01:10.0: "},
		{"move", "boom"},
	} {
		t.Run(tt.op, func(t *testing.T) {
			w := newWorld(t)
			d := w.engine()
			var once bool
			w.setFail(func(op string) error {
				if op == tt.op && !once {
					once = true
					return errors.New("boom")
				}
				return nil
			})
			_, err := d.Borrow(t.Context(), loanOf(vf0, "vm", mac9))
			if !once || err == nil || !strings.Contains(err.Error(), tt.err) || !strings.Contains(err.Error(), "boom") {
				t.Fatalf("step %d: got %v", n, err)
			}
			if api.CodeOf(err) != api.CodeTryAgain {
				t.Errorf("code %d", api.CodeOf(err))
			}
			w.expect(vf0, untouched(mac0))
			b, err := d.Borrow(t.Context(), loanOf(vf0, "vm", nil))
			must(t, err)
			must(t, b.Return(t.Context()))
			w.expect(vf0, untouched(mac0))
		})
	}
	t.Run("no driver takes it", func(t *testing.T) {
		w := newWorld(t)
		w.tree.Fail("igbvf", true)
		_, err := w.engine().Borrow(t.Context(), loanOf(vf0, "vm", nil))
		if err == nil || !strings.Contains(err.Error(), "driver igbvf did not take the device: the kernel's log (dmesg) says why") {
			t.Errorf("got %v", err)
		}
		w.expect(vf0, untouched(mac0))
	})
	t.Run("no interface", func(t *testing.T) {
		w := newWorld(t)
		w.net.silent = true
		_, err := w.engine(func(c *Config) { c.Window = 4 * time.Second }).Borrow(t.Context(), loanOf(vf0, "vm", nil))
		if err == nil || !strings.Contains(err.Error(), "no interface has appeared") || !strings.Contains(err.Error(), "--vfio-window") {
			t.Errorf("got %v", err)
		}
		w.expect(vf0, untouched(mac0))
	})
	t.Run("MAC not taken", func(t *testing.T) {
		w := newWorld(t)
		d := w.engine()
		w.setFail(func(op string) error {
			if op == "unbind vfio-pci" { // somebody else sets another one in between
				w.net.mu.Lock()
				w.net.macs["eth1"][0] = hw("52:54:00:00:01:0b")
				w.net.mu.Unlock()
			}
			return nil
		})
		if _, err := d.Borrow(t.Context(), loanOf(vf0, "vm", nil)); err == nil || !strings.Contains(err.Error(), "it has MAC 52:54:00:00:01:0b and does not take 52:54:00:00:01:00") {
			t.Errorf("got %v", err)
		}
		w.expect(vf0, untouched(hw("52:54:00:00:01:0b")))
	})
}

// A virtual function that vanishes in the middle leaves nothing behind, and one
// error.
func TestVanishes(t *testing.T) {
	for _, when := range []string{"unbind vfio-pci", "drivers_probe", "move", "after"} {
		t.Run(when, func(t *testing.T) {
			w := newWorld(t)
			d := w.engine()
			var once bool
			w.setFail(func(op string) error {
				if op == when && !once {
					once = true
					return w.tree.Remove(vf0)
				}
				return nil
			})
			b, err := d.Borrow(t.Context(), loanOf(vf0, "vm", nil))
			if when == "after" {
				must(t, err)
				must(t, w.tree.Remove(vf0))
				must(t, b.Return(t.Context()))
			} else if err == nil {
				t.Error("it was borrowed")
			}
			if files, _ := os.ReadDir(filepath.Join(w.dir, "borrowed")); len(files) != 0 || len(w.net.namespaces) != 0 {
				t.Errorf("left: %v, %v", files, w.net.namespaces)
			}
			if !strings.Contains(w.log.String(), "borrowed device is no longer there") {
				t.Errorf("nobody was told:\n%s", w.log)
			}
		})
	}
}

// K72: the end of the caller, at any moment, is a way back too.
func TestK72CanceledCaller(t *testing.T) {
	for _, when := range []string{"journal put", "make namespace", "mac", "unbind vfio-pci", "drivers_probe", "move"} {
		t.Run(when, func(t *testing.T) {
			w := newWorld(t)
			d := w.engine()
			ctx, cancel := context.WithCancelCause(t.Context())
			defer cancel(nil)
			w.setFail(func(op string) error {
				if op == when {
					cancel(errors.New("the runtime gave up"))
				}
				return nil
			})
			b, err := d.Borrow(ctx, loanOf(vf0, "vm", mac9))
			if err == nil { // it was through before it looked
				must(t, b.Return(ctx))
			} else if !strings.Contains(err.Error(), "the runtime gave up") {
				t.Errorf("got %v", err)
			}
			// A write under way when the caller left ends on its own.
			eventually(t, "the device is back", func() bool { return w.at(vf0) == untouched(mac0) })
		})
	}
}

// The window: a borrower that does not give the device back loses it.
func TestK72WindowIsALimit(t *testing.T) {
	w := newWorld(t)
	d := w.engine(func(c *Config) { c.Window = 4 * time.Second })
	b, err := d.Borrow(t.Context(), loanOf(vf0, "vm", nil))
	must(t, err)
	start := time.Now()
	eventually(t, "the device is back", func() bool { return w.at(vf0) == untouched(mac0) })
	t.Logf("back after %s", time.Since(start).Round(time.Millisecond))
	must(t, b.Return(t.Context()))
	if !strings.Contains(w.log.String(), "borrowed device was not given back in time") {
		t.Errorf("nobody was told:\n%s", w.log)
	}
}

// A process that opens the device between the look and the write makes the kernel
// keep the writer. The caller does not wait for it, nobody else gets the device
// meanwhile, and it is given back when the kernel lets go.
func TestK72KernelThatDoesNotReturn(t *testing.T) {
	w := newWorld(t)
	d := w.engine(func(c *Config) { c.Window = 3 * time.Second })
	release := w.tree.Hold(vf0)
	defer release()
	if _, err := d.Borrow(t.Context(), loanOf(vf0, "vm", nil)); err == nil || !strings.Contains(err.Error(), "the kernel does not return") {
		t.Fatalf("got %v", err)
	}
	if got := w.tree.Driver(vf0); got != "" {
		t.Errorf("driver %q", got)
	}
	ctx, cancel := context.WithTimeoutCause(t.Context(), 50*time.Millisecond, errors.New("no patience"))
	defer cancel()
	if _, err := d.Borrow(ctx, loanOf(vf0, "vm2", nil)); err == nil || !strings.Contains(err.Error(), "no patience") {
		t.Errorf("second borrower: %v", err)
	}
	if err := d.HealDevice(ctx, vf0); err == nil {
		t.Error("healed while the kernel does not return")
	}
	release()
	eventually(t, "the device is back", func() bool { return w.at(vf0) == untouched(mac0) })
	b, err := d.Borrow(t.Context(), loanOf(vf0, "vm3", nil))
	must(t, err)
	must(t, b.Return(t.Context()))
}

// Two devices are borrowed at once, one device is not, and two do not have one MAC.
func TestTwoAtOnce(t *testing.T) {
	w := newWorld(t)
	d := w.engine()
	b0, err := d.Borrow(t.Context(), loanOf(vf0, "vm0", mac9))
	must(t, err)
	if _, err := d.Borrow(t.Context(), loanOf(vf1, "vm1", mac9)); err == nil || !strings.Contains(err.Error(), "same MAC") {
		t.Errorf("two with one MAC: %v", err)
	}
	b1, err := d.Borrow(t.Context(), loanOf(vf1, "vm1", nil))
	must(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := d.Borrow(ctx, loanOf(vf0, "vm2", nil)); err == nil || api.CodeOf(err) != api.CodeTryAgain {
		t.Errorf("one device twice: %v", err)
	}
	must(t, b1.Return(t.Context()))
	must(t, b0.Return(t.Context()))
	w.expect(vf0, untouched(mac0))
	w.expect(vf1, untouched(mac1))
}

// The lock of sriov-cni, of today's and of older releases: who has it works on the
// device, and nobody else.
func TestSRIOVCNILocks(t *testing.T) {
	for _, name := range []string{"vf_lock/" + vf0 + ".lock", vf0} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			path := filepath.Join(w.dir, "sriov/pci", name)
			must(t, os.MkdirAll(filepath.Dir(path), 0o755))
			must(t, os.WriteFile(path, nil, 0o600))
			f, err := os.Open(path)
			must(t, err)
			defer f.Close()
			must(t, unix.Flock(int(f.Fd()), unix.LOCK_EX))
			d := w.engine()
			ctx, cancel := context.WithTimeoutCause(t.Context(), 100*time.Millisecond, errors.New("no patience"))
			defer cancel()
			if _, err := d.Borrow(ctx, loanOf(vf0, "vm", nil)); err == nil || !strings.Contains(err.Error(), "no patience") || len(w.done()) != 0 {
				t.Fatalf("got %v, %q", err, w.done())
			}
			must(t, f.Close())
			b, err := d.Borrow(t.Context(), loanOf(vf0, "vm", nil))
			must(t, err)
			g, err := os.Open(path)
			must(t, err)
			defer g.Close()
			if err := unix.Flock(int(g.Fd()), unix.LOCK_EX|unix.LOCK_NB); !errors.Is(err, unix.EWOULDBLOCK) {
				t.Errorf("sriov-cni would not wait: %v", err)
			}
			must(t, b.Return(t.Context()))
			must(t, unix.Flock(int(g.Fd()), unix.LOCK_EX|unix.LOCK_NB))
		})
	}
	// What sriov-cni noted of this very pod is no other pod.
	w := newWorld(t)
	own := filepath.Join(w.dir, "own")
	must(t, os.WriteFile(own, nil, 0o600))
	must(t, os.MkdirAll(filepath.Join(w.dir, "sriov/pci"), 0o755))
	must(t, os.WriteFile(filepath.Join(w.dir, "sriov/pci", vf0), []byte(w.dir+"/../"+filepath.Base(w.dir)+"/own"), 0o600))
	l := loanOf(vf0, "vm", nil)
	l.Netns.Path = own
	b, err := w.engine().Borrow(t.Context(), l)
	must(t, err)
	must(t, b.Return(t.Context()))
}

func TestK48InspectTouchesNothing(t *testing.T) {
	w := newWorld(t)
	d := w.engine()
	got, err := d.Inspect(t.Context(), vf0)
	if want := (engine.Device{Address: vf0, Driver: "vfio-pci", VFIO: true}); err != nil || got != want {
		t.Errorf("got %+v, %v", got, err)
	}
	if got, err := d.Inspect(t.Context(), pf); err != nil || got.VFIO || got.Driver != "igb" {
		t.Errorf("got %+v, %v", got, err)
	}
	for address, code := range map[string]uint{"eth0": api.CodeConfig, "0000:01:1f.0": api.CodeEnv} {
		if _, err := d.Inspect(t.Context(), address); api.CodeOf(err) != code {
			t.Errorf("%s: %v", address, err)
		}
	}
	if !slices.Equal(w.done(), nil) {
		t.Errorf("changes: %q", w.done())
	}
}

func TestBadConfig(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	must(t, os.WriteFile(file, nil, 0o600))
	for _, dir := range []string{"", "relative", file} {
		if _, err := New(Config{StateDir: dir, PCI: sriov.Config{Root: t.TempDir()}}); err == nil {
			t.Errorf("state folder %q is taken", dir)
		}
	}
}
