package engine

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine/api"
)

const vf = "0000:3b:02.4"

// vfWorld has a pod whose device is on vfio-pci: a VM's.
func vfWorld(w *world) *space {
	s := vmWorld(w)
	s.noLink = true
	w.devices = &devices{w: w, vfio: map[string]net.HardwareAddr{vf: {2, 0, 0, 0, 0, 7}}}
	return s
}

func vfRequest(container string) api.Request {
	r := request(container, container)
	r.DeviceID, r.HardwareAddr = vf, "02:00:00:00:00:01"
	return r
}

// back fails when a device is anywhere but on vfio-pci.
func back(t *testing.T, w *world) {
	t.Helper()
	w.devices.mu.Lock()
	defer w.devices.mu.Unlock()
	if len(w.devices.away) > 0 || w.devices.vfio[vf] == nil {
		t.Errorf("devices away: %v", w.devices.away)
	}
}

// The whole hand-over: the device comes, is asked for its address with the guest's
// MAC, and is back before the answer; nothing of the pod is touched.
func TestK45HandOver(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		s := vfWorld(w)
		e, _ := w.start()
		if err := e.Prepare(t.Context(), vfRequest("c1")); err != nil {
			t.Fatal(err)
		}
		wantNotes(t, w)
		got, err := e.Attach(t.Context(), vfRequest("c1"))
		if err != nil || got.HardwareAddr != "02:00:00:00:00:01" || got.Address != "10.77.0.50/24" {
			t.Errorf("Attach = %+v, %v", got, err)
		}
		wantNotes(t, w, "borrow", "DISCOVER to all", "put claimed 10.77.0.50/24", "REQUEST to all", "probe 10.77.0.50 full=false",
			"put leased 10.77.0.50/24", "return")
		back(t, w)
		if s.setup.Addr.IsValid() || w.open != 0 {
			t.Errorf("pod carries %s, %d ports are open", s.setup.Addr, w.open)
		}
		if rec := w.records[net1("c1")]; !rec.VFIO || rec.DeviceID != vf || rec.Workload != VM {
			t.Errorf("record %+v", rec)
		}
		if diff := cmp.Diff([]string{"reset c1 VM", "reset c1 VM", "publish c1 10.77.0.50/24", "AddressReported c1"}, w.audience.since()); diff != "" {
			t.Errorf("told (-want +got):\n%s", diff)
		}
		// The same ADD again is the same answer, without another loan.
		if again, err := e.Attach(t.Context(), vfRequest("c1")); err != nil || again.Address != got.Address || w.devices.loans != 1 {
			t.Errorf("again: %+v, %v, %d loans", again, err, w.devices.loans)
		}
		if _, err := e.Check(t.Context(), vfRequest("c1")); err != nil {
			t.Errorf("Check: %v", err)
		}
		time.Sleep(3 * time.Hour)
		w.since()
		// The late DEL of a pod whose device another pod owns by now.
		mustDetach(t, e, "c1")
		wantNotes(t, w, "delete")
		if w.devices.loans != 1 {
			t.Errorf("%d loans", w.devices.loans)
		}
	})
}

// The MAC of the exchange is the guest's: of the plugin's result, else of the pod's
// annotation, else what the device has.
func TestK45MACOfTheExchange(t *testing.T) {
	for _, tt := range []struct {
		name, result string
		facts        net.HardwareAddr
		want         string
	}{
		{"OK result", "02:00:00:00:00:01", net.HardwareAddr{2, 0, 0, 0, 0, 2}, "02:00:00:00:00:01"},
		{"OK annotation", "", net.HardwareAddr{2, 0, 0, 0, 0, 2}, "02:00:00:00:00:02"},
		{"OK device", "", nil, "02:00:00:00:00:07"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			simulate(t, func(t *testing.T, w *world) {
				vfWorld(w)
				w.cluster.mac = tt.facts
				e, _ := w.start()
				r := vfRequest("c1")
				r.HardwareAddr = tt.result
				got, err := e.Attach(t.Context(), r)
				if err != nil || got.HardwareAddr != tt.want {
					t.Errorf("Attach = %+v, %v", got, err)
				}
			})
		})
	}
}

// K48: a container with such a device is refused before anything is touched, unless
// its network says otherwise; then it is served as a VM is.
func TestK48ContainerOnVFIO(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		vfWorld(w)
		w.workload = Container
		e, _ := w.start()
		_, attachErr := e.Attach(t.Context(), vfRequest("c1"))
		for verb, err := range map[string]error{"Prepare": e.Prepare(t.Context(), vfRequest("c1")), "Attach": attachErr} {
			if api.CodeOf(err) != api.CodeConfig || !strings.Contains(err.Error(), vf) || !strings.Contains(err.Error(), `"vfioContainers": "discover"`) {
				t.Errorf("%s: code %d, %v", verb, api.CodeOf(err), err)
			}
		}
		wantNotes(t, w)
		r := vfRequest("c1")
		r.DHCP = []byte(`{"vfioContainers":"discover"}`)
		if got, err := e.Attach(t.Context(), r); err != nil || got.Address != "10.77.0.50/24" {
			t.Errorf("Attach = %+v, %v", got, err)
		}
		back(t, w)
		time.Sleep(2 * time.Hour)
		w.since()
		mustDetach(t, e, "c1")
		wantNotes(t, w, "delete")
	})
}

func TestDeviceThatCannotBeHad(t *testing.T) {
	for _, tt := range []struct {
		name string
		set  func(*world, *api.Request)
		code uint
		want string
	}{
		{"bad no such device", func(_ *world, r *api.Request) { r.DeviceID = "0000:ff:00.0" }, api.CodeConfig, "no device 0000:ff:00.0"},
		{"bad left borrowed", func(w *world, _ *api.Request) {
			w.devices.away, w.devices.healErr = map[string]bool{vf: true}, errors.New("probe failed")
		}, api.CodeTryAgain, "does not go back to vfio-pci: probe failed"},
		{"bad derived MAC", func(_ *world, r *api.Request) { r.DHCP = []byte(`{"mac":"derive"}`) }, api.CodeConfig, `"mac": "derive" cannot be had`},
		{"bad MAC in the result", func(_ *world, r *api.Request) { r.HardwareAddr = "02:00" }, api.CodeConfig, "02:00"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			simulate(t, func(t *testing.T, w *world) {
				vfWorld(w)
				r := vfRequest("c1")
				e, _ := w.start()
				tt.set(w, &r)
				_, attachErr := e.Attach(t.Context(), r)
				for verb, err := range map[string]error{"Prepare": e.Prepare(t.Context(), r), "Attach": attachErr} {
					if api.CodeOf(err) != tt.code || err == nil || !strings.Contains(err.Error(), tt.want) {
						t.Errorf("%s: code %d, %v", verb, api.CodeOf(err), err)
					}
				}
				wantNotes(t, w)
			})
		})
	}
	t.Run("OK another kind of device", func(t *testing.T) {
		simulate(t, func(t *testing.T, w *world) {
			vfWorld(w).noLink = false
			e, _ := w.start()
			r := vfRequest("c1")
			r.DeviceID = "mlx5_core.sf.4"
			if _, err := e.Attach(t.Context(), r); err != nil || w.devices.loans > 0 {
				t.Errorf("Attach: %v, %d loans", err, w.devices.loans)
			}
		})
	})
	t.Run("bad an engine that borrows none", func(t *testing.T) {
		simulate(t, func(t *testing.T, w *world) {
			vfWorld(w)
			w.devices = nil
			e, _ := w.start()
			if _, err := e.Attach(t.Context(), vfRequest("c1")); err == nil || !strings.Contains(err.Error(), "this engine borrows none") {
				t.Errorf("Attach: %v", err)
			}
		})
	})
}

// One failure a step: whatever fails, the device is back, and nothing is left.
func TestHandOverThatFails(t *testing.T) {
	never := errors.New("no space left on device")
	tests := []struct {
		name string
		set  func(*world, context.CancelFunc)
		want string
		rels int
		away bool
	}{
		{"bad borrow", func(w *world, _ context.CancelFunc) {
			w.devices.borrowErr = errors.New("group 12 is open in process 7")
		}, "group 12 is open", 0, false},
		{"bad claim is not persisted", func(w *world, _ context.CancelFunc) {
			w.putErr = func(r Record) error { return map[Phase]error{Claimed: never}[r.Phase] }
		}, "no space left", 0, false},
		{"bad lease is not persisted", func(w *world, _ context.CancelFunc) {
			w.putErr = func(r Record) error { return map[Phase]error{Leased: never}[r.Phase] }
		}, "no space left", 1, false},
		{"bad server is silent", func(w *world, _ context.CancelFunc) { w.server.silent = true }, "no DHCP server answered within 13s", 0, false},
		{"bad publication", func(w *world, _ context.CancelFunc) {
			w.cluster.ovn = true
			w.audience.fails = func(what string) error { return map[string]error{"publish": errAway}[what] }
		}, "could not be made known", 1, false},
		{"bad superseded", func(w *world, _ context.CancelFunc) {
			w.audience.fails = func(what string) error { return map[string]error{"publish": ErrSuperseded}[what] }
		}, "leased for nobody", 1, false},
		{"bad another MAC than asked for", func(w *world, _ context.CancelFunc) {
			w.onNote = func(n string) {
				if n == "borrow" {
					w.spaces["vf/"+vf].link.HardwareAddr = net.HardwareAddr{2, 0, 0, 0, 0, 9}
				}
			}
		}, "has the MAC 02:00:00:00:00:09, its guest will have 02:00:00:00:00:01", 0, false},
		{"bad device does not go back at once", func(w *world, _ context.CancelFunc) {
			w.devices.returnErr = func(try int) error { return map[int]error{1: errors.New("bind: device or resource busy")}[try] }
		}, "device " + vf + " does not go back to vfio-pci: bind: device or resource busy", 1, false},
		{"bad device does not go back at all", func(w *world, _ context.CancelFunc) {
			w.devices.returnErr = func(int) error { return fmt.Errorf("bind: %w", context.DeadlineExceeded) }
		}, "does not go back to vfio-pci: bind", 1, true},
	}
	for _, moment := range []string{"borrow", "DISCOVER to all", "put claimed 10.77.0.50/24", "REQUEST to all", "put leased 10.77.0.50/24"} {
		rels := 1
		if moment == "borrow" || moment == "DISCOVER to all" {
			rels = 0
		}
		tests = append(tests, struct {
			name string
			set  func(*world, context.CancelFunc)
			want string
			rels int
			away bool
		}{"bad caller goes at " + moment, func(w *world, cancel context.CancelFunc) {
			w.onNote = func(n string) {
				if n == moment {
					cancel()
				}
			}
		}, "canceled", rels, false})
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			simulate(t, func(t *testing.T, w *world) {
				vfWorld(w)
				e, _ := w.start()
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				tt.set(w, cancel)
				_, err := e.Attach(ctx, vfRequest("c1"))
				if err == nil || !strings.Contains(err.Error(), tt.want) {
					t.Errorf("error %v, want %q", err, tt.want)
				}
				if !tt.away {
					back(t, w)
				}
				if w.server.releases > tt.rels {
					t.Errorf("%d releases", w.server.releases)
				}
				w.change(func() { w.onNote = nil })
				nothingLeft(t, w)
				if got := w.audience.seen(net1("c1")); got.IsValid() {
					t.Errorf("published %s", got)
				}
				// And the next one works, unless the device is still away.
				w.audience.fails, w.devices.returnErr, w.devices.borrowErr = nil, nil, nil
				w.change(func() {
					w.putErr, w.server.silent = nil, false
					w.devices.lent = map[string]bool{}
				})
				if _, err := e.Attach(t.Context(), vfRequest("c1")); err != nil {
					t.Errorf("the next ADD: %v", err)
				}
				back(t, w)
			})
		})
	}
}

// A server that is slow to answer, and a device that is slow to come, do not keep a
// device for longer than its window.
func TestWindowBoundsTheExchange(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		vfWorld(w)
		w.server.silent = true
		w.devices.takes = 4 * time.Second
		e, _ := w.start()
		begin := time.Now()
		if _, err := e.Attach(t.Context(), vfRequest("c1")); err == nil {
			t.Error("Attach succeeds")
		}
		if took := time.Since(begin); took > 15*time.Second {
			t.Errorf("the device was away for %s", took)
		}
		back(t, w)
	})
}

// The engine dies at each visible step of an ADD, and comes back: the device is on
// vfio-pci before anything is served, and no record is left but that of a lease that
// was given.
func TestKilledInTheHandOver(t *testing.T) {
	for _, at := range crashes(t, func(w *world) { vfWorld(w) }, vfRequest("c1")) {
		t.Run(at.after, func(t *testing.T) {
			simulate(t, func(t *testing.T, w *world) {
				vfWorld(w)
				at.restore(w)
				e, _ := w.start()
				synctest.Wait()
				back(t, w)
				if notes := w.since(); slices.ContainsFunc(notes, func(n string) bool { return strings.Contains(n, " to ") }) {
					t.Errorf("sent: %q", notes)
				}
				if rec, ok := w.records[net1("c1")]; ok && rec.Phase != Leased {
					t.Errorf("record %+v", rec)
				}
				mustDetach(t, e, "c1") // the runtime's, after the ADD that broke off
				if len(w.records) > 0 || w.audience.seen(net1("c1")).IsValid() {
					t.Errorf("left: %v, published %v", w.records, w.audience.shown)
				}
				w.space("c2", 1)
				if _, err := e.Attach(t.Context(), vfRequest("c2")); err != nil {
					t.Errorf("the next ADD: %v", err)
				}
				back(t, w)
			})
		})
	}
}

// Healing that fails keeps no lease from being served.
func TestStartWithADeviceThatStaysAway(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		vfWorld(w)
		w.devices.healErr = errors.New("probe failed")
		e, _ := w.start()
		if err := e.Ready(); err != nil {
			t.Error(err)
		}
	})
}
