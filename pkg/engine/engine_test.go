package engine

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine/api"
)

// net1 is the attachment of a container's net1.
func net1(container string) AttachmentID {
	return AttachmentID{ContainerID: container, IfName: "net1"}
}

// attach begins an ADD; what comes of it is in the channel.
func attach(t *testing.T, e *Engine, r api.Request) <-chan error {
	errC := make(chan error, 1)
	go func() {
		_, err := e.Attach(t.Context(), r)
		errC <- err
	}()
	return errC
}

// mustAttach attaches the container whose namespace path is its own name.
func mustAttach(t *testing.T, e *Engine, container string) api.Lease {
	t.Helper()
	l, err := e.Attach(t.Context(), request(container, container))
	if err != nil {
		t.Fatalf("Attach(%s): %v", container, err)
	}
	return l
}

func mustDetach(t *testing.T, e *Engine, container string) {
	t.Helper()
	if err := e.Detach(t.Context(), net1(container)); err != nil {
		t.Errorf("Detach(%s): %v", container, err)
	}
}

// nothingLeft fails when the world remembers anything of anybody.
func nothingLeft(t *testing.T, w *world) {
	t.Helper()
	synctest.Wait() // ports are closed after the answer
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.records) > 0 {
		t.Errorf("records are left: %v", w.records)
	}
	if len(w.server.held) > 0 {
		t.Errorf("the server still holds %v", w.server.held)
	}
	for path, s := range w.spaces {
		if s.setup.Addr.IsValid() {
			t.Errorf("%s still carries %s", path, s.setup.Addr)
		}
	}
	if w.open > 0 {
		t.Errorf("%d ports are open", w.open)
	}
}

func wantNotes(t *testing.T, w *world, want ...string) {
	t.Helper()
	if diff := cmp.Diff(want, w.since()); diff != "" {
		t.Errorf("what happened (-want +got):\n%s", diff)
	}
}

func TestPersistThenConfigureThenAnswer(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		w.space("c1", 1)
		e, _ := w.start()
		got := mustAttach(t, e, "c1")
		want := api.Lease{
			HardwareAddr: "02:00:00:00:00:01", Address: "10.77.0.50/24", Gateway: "10.77.0.1",
			DNS: api.DNS{Nameservers: []string{"10.77.0.3"}, Domain: "site.example"},
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("answer (-want +got):\n%s", diff)
		}
		wantNotes(t, w, "DISCOVER to all", "put claimed 10.77.0.50/24", "REQUEST to all", "probe 10.77.0.50 full=false",
			"put leased 10.77.0.50/24", "configure 10.77.0.50/24", "announce 10.77.0.50")
		mustDetach(t, e, "c1")
		wantNotes(t, w, "RELEASE to 10.77.0.1", "clear 10.77.0.50/24", "delete")
		nothingLeft(t, w)
	})
}

func TestAttachIsIdempotent(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		w.space("c1", 1)
		e, _ := w.start()
		first := mustAttach(t, e, "c1")
		w.since()
		if diff := cmp.Diff(first, mustAttach(t, e, "c1")); diff != "" {
			t.Errorf("second answer (-first +second):\n%s", diff)
		}
		wantNotes(t, w)
	})
}

// BOUND holds no socket, and the lease is renewed for as long as the pod lives.
func TestKeepsLeaseWithoutSocket(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		s := w.space("c1", 1)
		e, _ := w.start()
		mustAttach(t, e, "c1")
		for range 10 {
			synctest.Wait()
			if w.open != 0 {
				t.Fatalf("%d ports are open while BOUND", w.open)
			}
			w.since()
			time.Sleep(30*time.Minute + time.Second)
			synctest.Wait()
			wantNotes(t, w, "REQUEST to 10.77.0.1", "put leased 10.77.0.50/24", "configure 10.77.0.50/24")
			if left := time.Until(s.until); left < 59*time.Minute {
				t.Fatalf("kernel takes the address away in %s", left)
			}
		}
	})
}

func TestB15NoServer(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		w.space("c1", 1)
		w.server.silent = true
		e, _ := w.start()
		begin := time.Now()
		_, err := e.Attach(t.Context(), request("c1", "c1"))
		if took := time.Since(begin); took >= 100*time.Second || took < 90*time.Second {
			t.Errorf("Attach gave up after %s", took)
		}
		if code := api.CodeOf(err); code != api.CodeTryAgain {
			t.Errorf("code %d", code)
		}
		for _, part := range []string{"net1", "02:00:00:00:00:01", "no DHCP server answered within 1m39s", "5 DHCPDISCOVER"} {
			if err == nil || !strings.Contains(err.Error(), part) {
				t.Errorf("error does not say %q: %v", part, err)
			}
		}
		nothingLeft(t, w)
		w.change(func() { w.server.silent = false })
		mustAttach(t, e, "c1")
	})
}

func TestErrorNamesWhatHappened(t *testing.T) {
	tests := []struct {
		name string
		set  func(*world)
		want string
	}{
		{"bad B53 offers without mask", func(w *world) { w.server.noMask = true }, "subnet mask"},
		{"bad server refuses", func(w *world) { w.server.nak = true }, "refused"},
		{"bad no carrier", func(w *world) { w.spaces["c1"].carrier = make(chan struct{}) }, "net1 has no carrier"},
		{"bad full disk", func(w *world) { w.putErr = func(Record) error { return errors.New("no space left on device") } },
			"keep the record of c1:net1: no space left on device"},
		{"bad interface cannot be configured", func(w *world) { w.cfgErr = errors.New("route exists") },
			"configure 10.77.0.50/24: route exists"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			simulate(t, func(t *testing.T, w *world) {
				w.space("c1", 1)
				tt.set(w)
				e, _ := w.start()
				_, err := e.Attach(t.Context(), request("c1", "c1"))
				if err == nil || !strings.Contains(err.Error(), tt.want) {
					t.Errorf("got %v, want it to say %q", err, tt.want)
				}
				nothingLeft(t, w)
			})
		})
	}
}

// Invariant 6: whatever the moment in which the caller goes away, nothing of its
// ADD is left.
func TestCallerGoneLeavesNothing(t *testing.T) {
	for _, moment := range []string{"DISCOVER to all", "put claimed 10.77.0.50/24", "REQUEST to all",
		"probe 10.77.0.50 full=false", "put leased 10.77.0.50/24", "configure 10.77.0.50/24"} {
		t.Run(moment, func(t *testing.T) {
			simulate(t, func(t *testing.T, w *world) {
				w.space("c1", 1)
				e, _ := w.start()
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				reached := false
				w.onNote = func(n string) {
					if n == moment {
						reached = true
						cancel()
					}
				}
				if l, err := e.Attach(ctx, request("c1", "c1")); err == nil {
					t.Errorf("Attach = %+v for a caller that is gone", l)
				}
				if !reached {
					t.Errorf("never came to %q", moment)
				}
				nothingLeft(t, w)
			})
		})
	}
}

// Invariant 3.
func TestPutThatFailsStopsWhatItWasFor(t *testing.T) {
	for _, phase := range []Phase{Claimed, Leased} {
		t.Run(string(phase), func(t *testing.T) {
			simulate(t, func(t *testing.T, w *world) {
				w.space("c1", 1)
				w.putErr = func(r Record) error {
					if r.Phase == phase {
						return errors.New("no space left on device")
					}
					return nil
				}
				e, _ := w.start()
				if _, err := e.Attach(t.Context(), request("c1", "c1")); err == nil {
					t.Error("Attach succeeds without a record")
				}
				notes := w.since()
				after := notes[slices.Index(notes, "put "+string(phase)+" fails")+1:]
				for _, n := range after {
					if strings.HasPrefix(n, "REQUEST") || strings.HasPrefix(n, "configure") {
						t.Errorf("%q after the Put failed", n)
					}
				}
				nothingLeft(t, w)
			})
		})
	}
}

func TestB85ChecksAcquireNothing(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		w.space("c1", 1)
		e, _ := w.start()
		mustAttach(t, e, "c1")
		w.since()
		for range 1000 {
			if _, err := e.Check(t.Context(), request("c1", "c1")); err != nil {
				t.Fatalf("Check: %v", err)
			}
		}
		if _, err := e.Check(t.Context(), request("never", "c1")); err == nil {
			t.Error("Check of an unknown attachment passes")
		}
		w.change(func() { w.spaces["c1"].setup = Setup{} })
		if _, err := e.Check(t.Context(), request("c1", "c1")); err == nil {
			t.Error("Check passes although the address is missing")
		}
		wantNotes(t, w)
	})
}

func TestSettingsReachTheInterface(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		s := w.space("c1", 1)
		w.server.mtu = 1400
		e, _ := w.start()
		r := request("c1", "c1")
		r.DHCP = []byte(`{"defaultRoute":"always","routeMetric":200,"mac":"derive"}`)
		got, err := e.Attach(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		want := Setup{Addr: netip.MustParsePrefix("10.77.0.50/24"), MTU: 1400, PriorMTU: 1500,
			Routes: []Route{{Dst: netip.MustParsePrefix("0.0.0.0/0"), Gateway: netip.MustParseAddr("10.77.0.1"), Metric: 200}}}
		if diff := cmp.Diff(want, s.setup, cmp.Comparer(func(a, b netip.Prefix) bool { return a == b }),
			cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
			t.Errorf("setup (-want +got):\n%s", diff)
		}
		if got.HardwareAddr == "02:00:00:00:00:01" || got.HardwareAddr != s.link.HardwareAddr.String() || got.MTU != 1400 {
			t.Errorf("answer %+v, interface %s", got, s.link.HardwareAddr)
		}
	})
}

func TestB46NoDefaultRouteUnlessAskedFor(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		s := w.space("c1", 1)
		e, _ := w.start()
		got := mustAttach(t, e, "c1")
		if len(s.setup.Routes) > 0 || len(got.Routes) > 0 || got.Gateway != "10.77.0.1" {
			t.Errorf("installed %v, answered %+v", s.setup.Routes, got)
		}
	})
}

func TestBadInputIsRefusedBeforeAnything(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		w.space("c1", 1)
		e, _ := w.start()
		r := request("c1", "c1")
		r.DHCP = []byte(`{"macc":"keep"}`)
		_, attachErr := e.Attach(t.Context(), r)
		for verb, err := range map[string]error{"Prepare": e.Prepare(t.Context(), r), "Attach": attachErr} {
			if api.CodeOf(err) != api.CodeConfig || err == nil || !strings.Contains(err.Error(), "macc") {
				t.Errorf("%s: code %d, %v", verb, api.CodeOf(err), err)
			}
		}
		if err := e.Prepare(t.Context(), request("c2", "c2")); api.CodeOf(err) != api.CodeEnv {
			t.Errorf("Prepare without a namespace: code %d, %v", api.CodeOf(err), err)
		}
		wantNotes(t, w)
	})
}

// The same attachment twice is the same lease only while it is the same
// interface, on the same network, and carries what it was given.
func TestRepeatedAddOfWhatIsNotThereAnyMore(t *testing.T) {
	tests := []struct {
		name   string
		change func(*world, *api.Request)
		held   int // by the server afterwards
	}{
		{"OK interface was made again, with another MAC", func(w *world, _ *api.Request) {
			s := w.spaces["c1"]
			s.setup, s.link.HardwareAddr = Setup{}, []byte{2, 0, 0, 0, 0, 9}
		}, 1},
		{"OK address was taken off", func(w *world, _ *api.Request) { w.spaces["c1"].setup = Setup{} }, 1},
		{"OK namespace was made again", func(w *world, _ *api.Request) {
			s := w.spaces["c1"]
			w.cookies++
			s.cookie, s.link.Netns.Cookie, s.setup = w.cookies, w.cookies, Setup{}
		}, 1},
		{"OK another network", func(_ *world, r *api.Request) { r.Network = "other" }, 1},
		{"OK other settings", func(_ *world, r *api.Request) { r.DHCP = []byte(`{"clientID":"duid"}`) }, 1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			simulate(t, func(t *testing.T, w *world) {
				w.space("c1", 1)
				e, _ := w.start()
				mustAttach(t, e, "c1")
				r := request("c1", "c1")
				w.change(func() { tt.change(w, &r) })
				got, err := e.Attach(t.Context(), r)
				if err != nil {
					t.Fatal(err)
				}
				if on := w.carries("c1").String(); on != got.Address || got.HardwareAddr != w.spaces["c1"].link.HardwareAddr.String() {
					t.Errorf("answer %+v, interface carries %s", got, on)
				}
				if len(w.server.held) != tt.held {
					t.Errorf("the server holds %v", w.server.held)
				}
				mustDetach(t, e, "c1")
				nothingLeft(t, w)
			})
		})
	}
}
