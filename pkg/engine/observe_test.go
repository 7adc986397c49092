package engine

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

// watcher is an Observer that writes down what is new to it.
type watcher struct {
	mu   sync.Mutex
	told []string
	last map[string]string
	all  int
}

func (o *watcher) Observe(v Observation) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.all++
	text := fmt.Sprintf("%s %s", v.ContainerID, v.Phase)
	if v.Phase == Leased {
		text += fmt.Sprintf(" %s from %s for %s", v.Lease.Addr, v.Lease.Server, v.Lease.Lifetime)
		if !v.Kept {
			text += " reported"
		}
	}
	if o.last == nil {
		o.last = make(map[string]string)
	}
	if o.last[v.ContainerID] != text {
		o.last[v.ContainerID] = text
		o.told = append(o.told, text)
	}
}

func (o *watcher) Restored() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.told = append(o.told, "restored")
}

// wantTold compares what is new since the last time.
func (o *watcher) wantTold(t *testing.T, want ...string) {
	t.Helper()
	synctest.Wait()
	o.mu.Lock()
	defer o.mu.Unlock()
	if diff := cmp.Diff(want, slices.Clip(o.told)); diff != "" {
		t.Errorf("observed (-want +got):\n%s", diff)
	}
	o.told = nil
}

const observed = "leased 10.77.0.50/24 from 10.77.0.1 for 1h0m0s"

// What others are shown of a lease: all of its life, and nothing new in a renewal.
func TestObserver(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		o := &watcher{}
		w.observer = o
		w.space("c1", 1)
		e, stop := w.start()
		o.wantTold(t, "restored")
		mustAttach(t, e, "c1")
		o.wantTold(t, "c1 "+observed)
		o.mu.Lock()
		before := o.all
		o.mu.Unlock()
		time.Sleep(24 * time.Hour)
		o.wantTold(t)
		o.mu.Lock()
		if o.all == before {
			t.Error("nothing was renewed")
		}
		o.last = nil
		o.mu.Unlock()

		stop()
		e, _ = w.start()
		o.wantTold(t, "c1 "+observed, "restored")

		w.change(func() { w.server.nak = true })
		time.Sleep(31 * time.Minute)
		o.wantTold(t, "c1 seeking")
		w.change(func() { w.server.nak = false })
		time.Sleep(10 * time.Minute)
		o.wantTold(t, "c1 "+observed)

		w.space("c2", 1) // the pod's next sandbox
		mustAttach(t, e, "c2")
		o.wantTold(t, "c1 superseded", "c2 "+observed)
		mustDetach(t, e, "c1")
		o.wantTold(t, "c1 ")
		w.remove("c2")
		o.wantTold(t, "c2 orphaned")
		mustDetach(t, e, "c2")
		o.wantTold(t, "c2 ")
	})
}

// Of an ADD nobody is told before it has succeeded, nor of the end of one that failed.
func TestObserverOfFailedAdd(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		o := &watcher{}
		w.observer, w.audience = o, &audience{err: ErrSuperseded}
		w.space("c1", 1)
		e, _ := w.start()
		o.wantTold(t, "restored")
		if _, err := e.Attach(t.Context(), request("c1", "c1")); err == nil {
			t.Fatal("Attach succeeds")
		}
		o.wantTold(t)
	})
}

// An ADD that comes again on another interface ends what was shown.
func TestObserverOfRetired(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		o := &watcher{}
		w.observer = o
		w.space("c1", 1)
		e, _ := w.start()
		mustAttach(t, e, "c1")
		o.wantTold(t, "restored", "c1 "+observed)
		w.remove("c1")
		w.space("c1", 1).carrier = make(chan struct{})
		if _, err := e.Attach(t.Context(), request("c1", "c1")); err == nil {
			t.Fatal("Attach without carrier succeeds")
		}
		synctest.Wait()
		if got := o.last["c1"]; got == "c1 "+observed {
			t.Errorf("shown still: %s", got)
		}
	})
}

func TestObserverOfVM(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		o := &watcher{}
		w.observer, w.workload = o, VM
		w.space("c1", 1)
		e, stop := w.start()
		mustAttach(t, e, "c1")
		o.wantTold(t, "restored", "c1 "+observed+" reported")
		stop()
		o.last = nil
		w.start()
		o.wantTold(t, "c1 "+observed+" reported", "restored")
	})
}
