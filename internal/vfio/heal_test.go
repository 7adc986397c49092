package vfio

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dhcp-meta/dhcp-meta/pkg/sriov/sysfstest"
)

// K72: the engine is killed before each change that it makes to the world, on the
// way out, on the way back, and in the middle of healing; the next one finds the
// device and gives it back. With its name gone or not, a namespace may outlive the
// engine or end with it, as it does in a container.
func TestK72KilledAtEveryChange(t *testing.T) {
	type variant struct {
		name     string
		ends     bool // the namespace ends with the engine
		override string
	}
	for _, v := range []variant{{"namespace lives", false, ""}, {"namespace ends", true, ""}, {"override", false, "vfio-pci"}} {
		for at := 1; ; at++ {
			through := false
			t.Run(fmt.Sprintf("%s %d", v.name, at), func(t *testing.T) {
				through = killAt(t, at, v.ends, v.override)
			})
			if through {
				if at < 12 {
					t.Errorf("%s: only %d changes", v.name, at)
				}
				break
			}
			if t.Failed() {
				return
			}
		}
	}
}

// killAt kills the engine before change number at; true: it was through before.
func killAt(t *testing.T, at int, ends bool, override string) bool {
	w := newWorld(t)
	want := untouched(mac0)
	if want.Override = override; override != "" {
		must(t, w.tree.Put("sys/bus/pci/devices/"+vf0+"/driver_override", override+"\n"))
	}
	w.killAt = at
	b, err := w.engine().Borrow(t.Context(), loanOf(vf0, "vm", mac9))
	if err == nil {
		err = b.Return(t.Context())
	}
	w.mu.Lock()
	through := !w.dead
	died := w.ops
	w.mu.Unlock()
	if through {
		must(t, err)
		w.expect(vf0, want)
		return true
	}
	if !errors.Is(err, errDead) {
		t.Fatalf("killed at %q and got %v", died, err)
	}
	// The next life is killed too, in the middle of healing, and the one after that
	// finds what both have left.
	for life := 1; life <= 3; life++ {
		if ends {
			w.net.end(filepath.Join(w.dir, "netns", vf0))
		}
		w.mu.Lock()
		w.dead, w.killAt = false, 0
		if life < 3 {
			w.killAt = len(w.ops) + life*2
		}
		w.mu.Unlock()
		err = w.engine().Heal(t.Context())
	}
	must(t, err)
	w.expect(vf0, want)
	return false
}

// The engine heals before it lends the same device again, too.
func TestK72HealedBeforeTheNextADD(t *testing.T) {
	w := newWorld(t)
	w.killAt = 6 // after the interface was moved
	b, err := w.engine().Borrow(t.Context(), loanOf(vf0, "vm", nil))
	must(t, err)
	if err := b.Return(t.Context()); !errors.Is(err, errDead) {
		t.Fatalf("got %v", err)
	}
	if got := w.tree.Driver(vf0); got != "igbvf" {
		t.Fatalf("left on %q", got)
	}
	w.mu.Lock()
	w.dead, w.killAt = false, 0
	w.mu.Unlock()
	d := w.engine()
	b, err = d.Borrow(t.Context(), loanOf(vf0, "vm2", nil))
	must(t, err)
	must(t, b.Return(t.Context()))
	w.expect(vf0, untouched(mac0))
	if !strings.Contains(w.log.String(), "device that was left over is back on vfio-pci") {
		t.Errorf("nobody was told:\n%s", w.log)
	}
}

// A way back that fails is tried again, without anybody asking.
func TestK72ReturnFailsAndIsRepeated(t *testing.T) {
	w := newWorld(t)
	d := w.engine()
	b, err := d.Borrow(t.Context(), loanOf(vf0, "vm", nil))
	must(t, err)
	w.setFail(func(op string) error {
		if op == "unbind igbvf" {
			return errors.New("boom")
		}
		return nil
	})
	if err := b.Return(t.Context()); err == nil || !strings.Contains(err.Error(), "boom") {
		t.Fatalf("got %v", err)
	}
	if !strings.Contains(w.log.String(), "borrowed device is not back on vfio-pci, trying again") {
		t.Errorf("nobody was told:\n%s", w.log)
	}
	if err := b.Return(t.Context()); err == nil {
		t.Fatal("repeated, and it went well")
	}
	w.setFail(nil)
	must(t, b.Return(t.Context()))
	w.expect(vf0, untouched(mac0))
}

// B74, K77: a late DEL of a pod that had the device before changes nothing for the
// one that has it now.
func TestB74K77LateDELOfAnOlderPod(t *testing.T) {
	w := newWorld(t)
	d := w.engine()
	old, err := d.Borrow(t.Context(), loanOf(vf0, "c1", nil))
	must(t, err)
	must(t, old.Return(t.Context()))
	before := len(w.done())
	must(t, d.HealDevice(t.Context(), vf0)) // nothing is borrowed
	b, err := d.Borrow(t.Context(), loanOf(vf0, "c2", nil))
	must(t, err)
	during := len(w.done())
	must(t, d.HealDevice(t.Context(), vf0)) // the DEL of c1, while c2 is served
	must(t, d.Heal(t.Context()))
	must(t, old.Return(t.Context()))
	if got := len(w.done()); got != during || before >= during {
		t.Errorf("changed: %q", w.done()[during:])
	}
	if got := w.tree.Driver(vf0); got != "igbvf" {
		t.Errorf("device of c2 is on %q", got)
	}
	must(t, b.Return(t.Context()))
	w.expect(vf0, untouched(mac0))
	// What is no PCI device was never borrowed.
	must(t, d.HealDevice(t.Context(), "auxiliary:mlx5.sf.4"))
	must(t, d.HealDevice(t.Context(), ""))
}

// B74: what the journal names and somebody else has by now is left alone, and the
// entry goes.
func TestB74LeftAlone(t *testing.T) {
	for _, tt := range []struct {
		name string
		make func(w *world)
		want string
		why  string
	}{
		{"a virtual machine runs on it", func(w *world) {
			w.toVFIO(vf0)
			w.hold(4711, "qemu-kvm", "vfio/11")
		}, "vfio-pci", "process 4711 (qemu-kvm) has it open"},
		{"a pod has its interface", func(w *world) {
			w.net.end(filepath.Join(w.dir, "netns", vf0))
			w.net.mu.Lock()
			defer w.net.mu.Unlock()
			for index, l := range w.net.links {
				l.namespace = "/run/netns/c2"
				w.tree.Moved(vf0, index)
			}
		}, "igbvf", "its interface is in the namespace at /run/netns/c2"},
		{"sriov-cni gave it to another pod", func(w *world) {
			must(w.t, os.MkdirAll(filepath.Join(w.dir, "sriov/pci"), 0o755))
			must(w.t, os.WriteFile(filepath.Join(w.dir, "sriov/pci", vf0), []byte(w.dir), 0o600))
		}, "igbvf", "sriov-cni gave it to the pod at"},
		{"DPDK", func(w *world) {
			must(w.t, w.tree.Register(sysfstest.Driver{Name: "igb_uio", Module: "igb_uio"}))
			h := host(w)
			must(w.t, h.SetOverride(vf0, "igb_uio"))
			must(w.t, h.Unbind(vf0))
			_, err := h.Probe(vf0)
			must(w.t, err)
		}, "igb_uio", "its driver is igb_uio"},
		{"another device is there", func(w *world) {
			must(w.t, w.tree.Remove(vf0))
			must(w.t, w.tree.Add(sysfstest.Function{Address: vf0, ID: "8086:154c", Group: "11", PF: pf}))
		}, "", "another kind of device is at its address: 8086:154c, not 8086:10ca"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t)
			w.killAt = 7 // MAC set, interface moved
			b, err := w.engine().Borrow(t.Context(), loanOf(vf0, "c1", mac9))
			must(t, err)
			if err := b.Return(t.Context()); !errors.Is(err, errDead) {
				t.Fatalf("got %v", err)
			}
			w.mu.Lock()
			w.dead, w.killAt = false, 0
			w.mu.Unlock()
			tt.make(w)
			must(t, w.engine().Heal(t.Context()))
			if got := w.tree.Driver(vf0); got != tt.want {
				t.Errorf("driver %q, want %q", got, tt.want)
			}
			got := w.at(vf0)
			if got.Journal != "" || got.Namespaces != "" || got.MAC != mac9.String() {
				t.Errorf("afterwards %+v", got)
			}
			if log := w.log.String(); !strings.Contains(log, "belongs to somebody else by now") || !strings.Contains(log, tt.why) {
				t.Errorf("log has no %q:\n%s", tt.why, log)
			}
		})
	}
}

// toVFIO puts a device on vfio-pci, as an operator does.
func (w *world) toVFIO(address string) {
	h := host(w)
	must(w.t, h.SetOverride(address, "vfio-pci"))
	must(w.t, h.Unbind(address))
	if d, err := h.Probe(address); err != nil || d != "vfio-pci" {
		w.t.Fatalf("probe of %s: %q, %v", address, d, err)
	}
	must(w.t, h.SetOverride(address, ""))
}

// A reboot: the device may be on its kernel driver, on nothing, or not be there yet.
func TestK72Reboot(t *testing.T) {
	for name, make := range map[string]func(w *world){
		"on its kernel driver": func(*world) {},
		"on no driver":         func(w *world) { must(w.t, host(w).Unbind(vf0)) },
		"not there yet":        func(w *world) { must(w.t, w.tree.Remove(vf0)) },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.killAt = 6
			b, err := w.engine().Borrow(t.Context(), loanOf(vf0, "c1", nil))
			must(t, err)
			if err := b.Return(t.Context()); !errors.Is(err, errDead) {
				t.Fatalf("got %v", err)
			}
			w.mu.Lock()
			w.dead, w.killAt = false, 0
			w.mu.Unlock()
			w.net.end(filepath.Join(w.dir, "netns", vf0))
			make(w)
			must(t, w.engine().Heal(t.Context()))
			if name == "not there yet" {
				if files, _ := os.ReadDir(filepath.Join(w.dir, "borrowed")); len(files) != 0 {
					t.Errorf("left: %v", files)
				}
				return
			}
			w.expect(vf0, untouched(mac0))
		})
	}
}

// A journal that cannot be read costs no device: its name is enough to give it back.
func TestCorruptJournal(t *testing.T) {
	for name, content := range map[string]string{
		"no JSON": "{", "empty": "", "of a newer release": `{"version": 99}`, "of another device": `{"version": 1, "device": "` + vf1 + `"}`,
		"somewhere else": `{"version": 1, "device": "` + vf0 + `", "pf": "` + pf + `", "netns": "/etc/passwd"}`,
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			d := w.engine()
			w.toIGBVF(vf0)
			must(t, os.WriteFile(filepath.Join(w.dir, "borrowed", vf0+".json"), []byte(content), 0o600))
			must(t, os.WriteFile(filepath.Join(w.dir, "borrowed", "notes.txt"), nil, 0o600))
			must(t, d.Heal(t.Context()))
			must(t, os.Remove(filepath.Join(w.dir, "borrowed", "notes.txt")))
			w.expect(vf0, untouched(mac0))
			if !strings.Contains(w.log.String(), "journal of a borrowed device cannot be read") {
				t.Errorf("nobody was told:\n%s", w.log)
			}
		})
	}
}

// A private namespace without an entry is removed; others are not ours.
func TestSweepOfNamespaces(t *testing.T) {
	w := newWorld(t)
	d := w.engine()
	dir := filepath.Join(w.dir, "netns")
	must(t, os.MkdirAll(dir, 0o755))
	for _, name := range []string{vf0, "web"} {
		must(t, os.WriteFile(filepath.Join(dir, name), nil, 0o600))
		w.net.namespaces[filepath.Join(dir, name)] = true
	}
	must(t, d.Heal(t.Context()))
	if w.net.namespaces[filepath.Join(dir, vf0)] || !w.net.namespaces[filepath.Join(dir, "web")] {
		t.Errorf("left: %v", w.net.namespaces)
	}
}

// Healing that cannot work says so, keeps the entry, and ends with its caller.
func TestHealFails(t *testing.T) {
	w := newWorld(t)
	d := w.engine()
	b, err := d.Borrow(t.Context(), loanOf(vf0, "vm", nil))
	must(t, err)
	w.tree.Fail("vfio-pci", true)
	if err := b.Return(t.Context()); err == nil || !strings.Contains(err.Error(), `vfio-pci did not take it (its driver is ""): is its module loaded, is the IOMMU on?`) {
		t.Errorf("got %v", err)
	}
	if err := d.Heal(t.Context()); err == nil || w.at(vf0).Journal != vf0+".json" {
		t.Errorf("got %v, %+v", err, w.at(vf0))
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := d.HealDevice(ctx, vf0); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	w.tree.Fail("vfio-pci", false)
	must(t, d.Heal(t.Context()))
	w.expect(vf0, untouched(mac0))
}

func FuzzEntry(f *testing.F) {
	f.Add([]byte(`{"version":1,"device":"0000:01:10.0","id":"8086:10ca","override":"","pf":"0000:01:00.0","vf":0,"netns":"/run/dhcp-meta/netns/0000:01:10.0"}`))
	f.Add([]byte(`{"version":1,"device":"0000:01:10.0","pf":"0000:01:00.0","setMAC":"52:54:00:00:01:09","oldMAC":"x"}`))
	f.Add([]byte(`[]`))
	f.Fuzz(func(t *testing.T, b []byte) {
		e, err := parseEntry(vf0, b)
		if err != nil {
			return
		}
		if e.Device != vf0 || e.Netns != "" && filepath.Base(e.Netns) != vf0 {
			t.Errorf("%q is taken as %+v", b, e)
		}
	})
}
