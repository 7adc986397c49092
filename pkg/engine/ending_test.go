package engine

import (
	"encoding/json"
	"errors"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// A pod is deleted whose network has no server: its ADD, for whose end the runtime
// waits, ends at once, others' go on, and an ADD that comes too late sends nothing.
func TestPodDeletedDuringAdd(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		ovnWorld(w)
		w.space("c2", 2)
		w.server.silent = true
		e, _ := w.start()
		r, other := request("c1", "c1"), request("c2", "c2")
		other.Pod.Name, other.Pod.UID = "web-1", "uid-2"
		errC, otherC := attach(t, e, r), attach(t, e, other)
		time.Sleep(5 * time.Second)
		begin := time.Now()
		w.endPod(r.Pod)
		if err := <-errC; !errors.Is(err, errEnding) || time.Since(begin) > time.Second {
			t.Errorf("after %s: %v", time.Since(begin), err)
		}
		w.change(func() { w.server.silent = false })
		if err := <-otherC; err != nil {
			t.Errorf("ADD of another pod: %v", err)
		}
		mustDetach(t, e, "c2")
		nothingLeft(t, w)
		w.server.sawHostname, begin = "", time.Now()
		for what, call := range map[string]func() error{
			"Attach":  func() error { return <-attach(t, e, r) },
			"Prepare": func() error { return e.Prepare(t.Context(), r) },
		} {
			if err := call(); !errors.Is(err, errEnding) || time.Since(begin) > 0 || w.server.sawHostname != "" {
				t.Errorf("%s after %s, with a message of %q: %v", what, time.Since(begin), w.server.sawHostname, err)
			}
		}
		nothingLeft(t, w)
	})
}

// The word comes when the ADD is not yet one that could be told of.
func TestPodDeletedAtTheBeginningOfAnAdd(t *testing.T) {
	for name, had := range map[string]bool{"its first": false, "another one of the same attachment": true} {
		t.Run(name, func(t *testing.T) {
			simulate(t, func(t *testing.T, w *world) {
				ovnWorld(w)
				e, _ := w.start()
				r := request("c1", "c1")
				if had {
					mustAttach(t, e, "c1")
					r.DHCP = json.RawMessage(`{"hostname":"other"}`)
				}
				w.endPod(r.Pod)
				w.cluster.spared = 1
				if err := <-attach(t, e, r); !errors.Is(err, errEnding) {
					t.Errorf("Attach: %v", err)
				}
				nothingLeft(t, w)
			})
		})
	}
}

// A pod with a lease is deleted, and takes its time to end: it has its address until
// its DEL, whatever is asked for meanwhile.
func TestPodIsDeletedSlowly(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		s := ovnWorld(w)
		e, _ := w.start()
		mustAttach(t, e, "c1")
		w.endPod(request("c1", "c1").Pod)
		time.Sleep(2 * patrolEvery)
		synctest.Wait()
		again := request("c1", "c1")
		again.DHCP = json.RawMessage(`{"hostname":"other"}`)
		if err := <-attach(t, e, again); !errors.Is(err, errEnding) {
			t.Errorf("Attach: %v", err)
		}
		if rec := w.records[net1("c1")]; rec.Phase != Leased || !s.setup.Addr.IsValid() {
			t.Errorf("record %+v, interface %+v", rec, s.setup)
		}
		mustDetach(t, e, "c1")
		nothingLeft(t, w)
	})
}

// A renewal by hand is no ADD, and goes on for a pod that takes its time to end.
func TestPodDeletedDuringARenewalByHand(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		ovnWorld(w)
		e, _ := w.start()
		mustAttach(t, e, "c1")
		w.change(func() { w.server.silent = true })
		errC := make(chan error, 1)
		go func() {
			_, err := e.Renew(t.Context(), net1("c1"), true)
			errC <- err
		}()
		time.Sleep(time.Second)
		w.change(func() { w.server.silent = false })
		w.endPod(request("c1", "c1").Pod)
		if err := <-errC; err != nil {
			t.Errorf("Renew: %v", err)
		}
		mustDetach(t, e, "c1")
		nothingLeft(t, w)
	})
}

// A pod that was started without an engine, and is being deleted, keeps what the
// wrapped plugin gave it.
func TestPodDeletedBeforeItsLateLease(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		s, r := passedWorld(w)
		foreign := netip.MustParsePrefix("10.77.0.9/24")
		s.foreign = []netip.Prefix{foreign}
		w.cluster.ending = map[Pod]bool{r.Pod: true}
		w.start()
		time.Sleep(5 * time.Minute)
		synctest.Wait()
		if !slices.Equal(s.foreign, []netip.Prefix{foreign}) || len(w.records) > 0 {
			t.Errorf("addresses %v, records %v", s.foreign, w.records)
		}
	})
}
