package vfio

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine"
	"github.com/dhcp-meta/dhcp-meta/pkg/engine/api"
	"github.com/dhcp-meta/dhcp-meta/pkg/sriov"
)

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
