package engine

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestReleaseByHand(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		w.audience = &audience{}
		w.space("c1", 1)
		e, _ := w.start()
		mustAttach(t, e, "c1")
		w.since()
		if err := e.Release(t.Context(), net1("c1")); err != nil {
			t.Fatal(err)
		}
		wantNotes(t, w, "RELEASE to 10.77.0.1", "clear 10.77.0.50/24", "delete")
		nothingLeft(t, w)
		mustDetach(t, e, "c1") // the pod's own DEL, later
		wantNotes(t, w)
		want := []string{"lease of 10.77.0.50/24 was ended by hand: the pod has no address until it is made again"}
		if diff := cmp.Diff(want, w.audience.eventsOf(LeaseReleased)); diff != "" {
			t.Errorf("events (-want +got):\n%s", diff)
		}
	})
}

// An ADD that is ended by hand says so itself.
func TestReleaseByHandDuringAdd(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		w.audience = &audience{}
		w.space("c1", 1)
		w.server.noAck = true
		e, _ := w.start()
		errC := attach(t, e, request("c1", "c1"))
		time.Sleep(2 * time.Second)
		if err := e.Release(t.Context(), net1("c1")); err != nil {
			t.Fatal(err)
		}
		if err := <-errC; !errors.Is(err, errDetached) {
			t.Errorf("ADD: %v", err)
		}
		if said := w.audience.eventsOf(LeaseReleased); len(said) > 0 {
			t.Errorf("events %q", said)
		}
		w.change(func() { w.server.held = nil }) // nobody was promised anything
		nothingLeft(t, w)
	})
}

// What is reported of a VM can be withdrawn by hand; nothing is sent for its guest.
func TestReleaseByHandOfAVM(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		ovnWorld(w)
		w.workload, w.audience = VM, &audience{}
		e, _ := w.start()
		mustAttach(t, e, "c1")
		if err := e.Release(t.Context(), net1("c1")); err != nil {
			t.Fatal(err)
		}
		said := w.audience.eventsOf(LeaseReleased)
		if len(said) != 1 || !strings.Contains(said[0], "withdrawn by hand") || w.server.releases > 0 {
			t.Errorf("events %q, DHCPRELEASE: %d", said, w.server.releases)
		}
	})
}

// What a release by hand could not send waits like that of a DEL, and is not
// ended a second time.
func TestReleaseByHandUnsent(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		w.audience = &audience{}
		w.space("c1", 1)
		e, _ := w.start()
		mustAttach(t, e, "c1")
		w.change(func() { w.noAnswer = true })
		if err := e.Release(t.Context(), net1("c1")); err != nil {
			t.Fatal(err)
		}
		want := []string{"lease of 10.77.0.50/24 was ended by hand, and its DHCPRELEASE waits until it can be sent: the pod has no address until it is made again"}
		if diff := cmp.Diff(want, w.audience.eventsOf(LeaseReleased)); diff != "" {
			t.Errorf("events (-want +got):\n%s", diff)
		}
		for verb, err := range map[string]error{
			"Release": e.Release(t.Context(), net1("c1")),
			"Renew":   func() error { _, err := e.Renew(t.Context(), net1("c1"), false); return err }(),
		} {
			if err == nil || !strings.Contains(err.Error(), "waits until it can be sent") {
				t.Errorf("%s: %v", verb, err)
			}
		}
		w.change(func() { w.noAnswer = false })
		time.Sleep(10 * time.Second)
		synctest.Wait()
		nothingLeft(t, w)
	})
}
