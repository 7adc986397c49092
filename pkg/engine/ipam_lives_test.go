package engine

import (
	"errors"
	"maps"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestK93RestartBetweenAnswerAndAdoption(t *testing.T) {
	for name, put := range map[string]func(*testing.T, *world){
		"address came while the engine was away": func(_ *testing.T, w *world) { w.place("c1", "10.77.0.50/24") },
		"address comes after the restart":        func(*testing.T, *world) {},
	} {
		t.Run(name, func(t *testing.T) {
			simulate(t, func(t *testing.T, w *world) {
				w.space("c1", 1)
				e, stop := w.start()
				mustAsk(t, e, "c1")
				stop()
				put(t, w)
				w.since()
				e, _ = w.start()
				w.place("c1", "10.77.0.50/24")
				time.Sleep(time.Second)
				synctest.Wait()
				if !w.adopted("c1") {
					t.Errorf("not adopted after the restart: %v", w.since())
				}
				for _, n := range w.since() {
					if n == "DISCOVER to all" || n == "REQUEST to all" {
						t.Errorf("restart: %s", n)
					}
				}
				mustDetach(t, e, "c1")
				nothingLeft(t, w)
			})
		})
	}
}

// The engine dies between the record of the adoption and the lifetime on the
// interface.
func TestK93CrashInAdoption(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		w.space("c1", 1)
		e, stop := w.start()
		mustAsk(t, e, "c1")
		w.change(func() { w.cfgErr = errors.New("killed") })
		w.place("c1", "10.77.0.50/24")
		time.Sleep(time.Second)
		stop()
		if rec := w.records[net1("c1")]; !rec.Adopted || !w.spaces["c1"].until.IsZero() {
			t.Fatalf("not between the two: %+v", rec)
		}
		w.cfgErr = nil
		e, _ = w.start()
		synctest.Wait()
		if !w.adopted("c1") {
			t.Error("address has no lifetime after the restart")
		}
		mustDetach(t, e, "c1")
		nothingLeft(t, w)
	})
}

// OVN-Kubernetes tells no pod and keeps a pod's MAC over its sandboxes.
func TestB84NewSandboxIsKnownByItsMAC(t *testing.T) {
	tests := []struct {
		name  string
		mac   byte
		pod   Pod
		held  int
		older Phase
	}{
		{"OK same MAC", 1, Pod{}, 1, Superseded},
		{"OK another MAC is another pod", 2, Pod{}, 2, Leased},
		{"OK same MAC, and the caller names another pod", 1, Pod{Namespace: "shop", Name: "web-1", UID: "uid-2"}, 1, Leased},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			simulate(t, func(t *testing.T, w *world) {
				w.space("c1", 1)
				w.space("c2", tt.mac)
				e, _ := w.start()
				mustAsk(t, e, "c1")
				w.place("c1", "10.77.0.50/24")
				time.Sleep(time.Minute)
				w.since()
				r := ipamRequest("c2")
				r.Pod = tt.pod
				if _, err := e.Attach(t.Context(), r); err != nil {
					t.Fatal(err)
				}
				synctest.Wait()
				notes := w.since()
				if len(w.server.held) != tt.held || w.records[net1("c1")].Phase != tt.older {
					t.Fatalf("the server holds %v, the older is %s", w.server.held, w.records[net1("c1")].Phase)
				}
				if tt.older != Superseded {
					return
				}
				if slices.Contains(notes, "DISCOVER to all") || !slices.Contains(notes, "REQUEST to all") {
					t.Errorf("not confirmed by INIT-REBOOT: %v", notes)
				}
				if got := w.carries("c1"); got.IsValid() {
					t.Errorf("the older sandbox still carries %s", got)
				}
				mustDetach(t, e, "c1") // late
				if w.server.releases != 0 {
					t.Error("the DEL of the older sandbox gave the lease back")
				}
				mustDetach(t, e, "c2")
				nothingLeft(t, w)
			})
		})
	}
}

// The engine dies when the newer sandbox has claimed what the older one holds.
func TestB84CrashInATakeoverByMAC(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		w.space("c1", 1)
		e, stop := w.start()
		mustAsk(t, e, "c1")
		w.place("c1", "10.77.0.50/24")
		time.Sleep(time.Minute)
		stop()
		w.space("c2", 1)
		claim := w.records[net1("c1")]
		claim.AttachmentID, claim.Phase, claim.Setup, claim.Adopted = net1("c2"), Claimed, Setup{}, false
		claim.Netns = w.spaces["c2"].link.Netns
		w.records[claim.AttachmentID] = claim

		w.start()
		synctest.Wait()
		if w.server.releases != 1 || len(w.server.held) != 0 {
			t.Errorf("%d releases, the server holds %v", w.server.releases, w.server.held)
		}
		time.Sleep(time.Minute)
		if got := w.carries("c1"); got.IsValid() {
			t.Errorf("the older sandbox still carries %s, which was given back", got)
		}
	})
}

// On ipvlan all interfaces have the MAC of their parent: the identity is the
// reference's, which tells sandboxes apart.
func TestIPVLANOfTheDHCPPlugin(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		for _, c := range []string{"c1", "c2"} {
			w.space(c, 1).link.Kind = "ipvlan"
		}
		e, stop := w.start()
		first, second := mustAsk(t, e, "c1"), mustAsk(t, e, "c2")
		if first.Address == second.Address {
			t.Errorf("both have %s", first.Address)
		}
		ids := slices.Sorted(maps.Keys(w.server.held))
		if diff := cmp.Diff([]string{"\x00c1/lan/net1", "\x00c2/lan/net1"}, ids); diff != "" {
			t.Errorf("clients (-want +got):\n%s", diff)
		}
		if !w.server.sawBroadcast {
			t.Error("replies are not asked for by broadcast")
		}
		// The identity is that of the ADD after a restart too.
		stop()
		e, _ = w.start()
		time.Sleep(2 * time.Hour)
		synctest.Wait()
		if got := slices.Sorted(maps.Keys(w.server.held)); cmp.Diff(ids, got) != "" {
			t.Errorf("clients after the restart: %q", got)
		}
		mustDetach(t, e, "c1")
		mustDetach(t, e, "c2")
		nothingLeft(t, w)
	})
}

// One sandbox may have several interfaces on one network.
func TestO17TwoInterfacesOfOneSandbox(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		w.space("c1", 1)
		w.space("c1b", 2)
		e, _ := w.start()
		mustAsk(t, e, "c1")
		r := ipamRequest("c1b")
		r.AttachmentID = AttachmentID{ContainerID: "c1", IfName: "net2"}
		if _, err := e.Attach(t.Context(), r); err != nil {
			t.Fatal(err)
		}
		if len(w.server.held) != 2 {
			t.Errorf("the server holds %v", w.server.held)
		}
		mustDetach(t, e, "c1")
		if len(w.server.held) != 1 {
			t.Errorf("after the DEL of net1 the server holds %v", w.server.held)
		}
	})
}
