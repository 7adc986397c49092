package engine

import (
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func TestDelDuringAdd(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		w.space("c1", 1)
		w.server.silent = true
		e, _ := w.start()
		errC := attach(t, e, request("c1", "c1"))
		time.Sleep(5 * time.Second)
		begin := time.Now()
		mustDetach(t, e, "c1")
		if took := time.Since(begin); took > 0 {
			t.Errorf("Detach waited %s for the ADD", took)
		}
		if err := <-errC; !errors.Is(err, errDetached) {
			t.Errorf("Attach: %v", err)
		}
		nothingLeft(t, w)
	})
}

func TestB33DetachTwiceAndUnknown(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		w.space("c1", 1)
		e, _ := w.start()
		mustAttach(t, e, "c1")
		for _, c := range []string{"c1", "c1", "never"} {
			mustDetach(t, e, c)
		}
		if w.server.releases != 1 {
			t.Errorf("%d releases", w.server.releases)
		}
		nothingLeft(t, w)
	})
}

// Whoever comes first gives the lease back, and nobody stops it in the middle.
func TestManyDelsAtOnce(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		w.space("c1", 1)
		e, _ := w.start()
		mustAttach(t, e, "c1")
		w.change(func() {
			w.onSend = func() { time.Sleep(100 * time.Millisecond) } // an ARP that takes its time
		})
		var wg sync.WaitGroup
		for range 20 {
			wg.Go(func() { mustDetach(t, e, "c1") })
		}
		wg.Wait()
		if w.server.releases != 1 {
			t.Errorf("%d releases", w.server.releases)
		}
		nothingLeft(t, w)
	})
}

func TestB36DelWithoutNetns(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		w.space("c1", 1)
		e, _ := w.start()
		mustAttach(t, e, "c1")
		w.remove("c1")
		begin := time.Now()
		mustDetach(t, e, "c1")
		if took := time.Since(begin); took > 0 {
			t.Errorf("Detach waited %s", took)
		}
		if len(w.records) != 0 {
			t.Errorf("records are left: %v", w.records)
		}
	})
}

func TestB32ReleaseThatCannotBeSent(t *testing.T) {
	tests := map[string]func(*world){
		"link down":  func(w *world) { w.spaces["c1"].carrier = make(chan struct{}) },
		"ARP silent": func(w *world) { w.noAnswer = true },
	}
	for name, set := range tests {
		t.Run(name, func(t *testing.T) {
			simulate(t, func(t *testing.T, w *world) {
				w.space("c1", 1)
				e, _ := w.start()
				mustAttach(t, e, "c1")
				set(w)
				begin := time.Now()
				mustDetach(t, e, "c1")
				if took := time.Since(begin); took > 2*time.Second {
					t.Errorf("Detach took %s", took)
				}
				if a := w.spaces["c1"].setup.Addr; a.IsValid() {
					t.Errorf("net1 still carries %s", a)
				}
				w.remove("c1") // as the wrapped plugin's DEL does
				time.Sleep(firstDelivery + time.Second)
				synctest.Wait()
				if len(w.records) > 0 {
					t.Errorf("left: %v", w.records)
				}
			})
		})
	}
}
