package vfio

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

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
