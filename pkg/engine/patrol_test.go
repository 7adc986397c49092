package engine

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Multus sends no GC: an attachment whose pod is gone from the API, or has another
// UID, ends within a minute, by its word at once, and its lease is given back while
// its interface is there.
func TestPodThatIsGoneEndsItsAttachment(t *testing.T) {
	for _, told := range []bool{true, false} {
		simulate(t, func(t *testing.T, w *world) {
			ovnWorld(w)
			e, _ := w.start()
			mustAttach(t, e, "c1")
			w.audience.since()
			w.deletePod(request("c1", "c1").Pod, told)
			if !told {
				time.Sleep(patrolEvery + time.Second)
			}
			synctest.Wait()
			if w.server.releases != 1 {
				t.Errorf("told %t: %d releases", told, w.server.releases)
			}
			nothingLeft(t, w)
			if told := w.audience.since(); !slices.Equal(told, []string{"withdraw c1"}) {
				t.Errorf("told %q", told)
			}
			if n := counted(t, e, metricDead, "pod"); n != 1 {
				t.Errorf("counted %v", n)
			}
			mustDetach(t, e, "c1") // late
		})
	}
}

// Its interface is gone too: what cannot be given back goes by the rules of the
// outbox, over another interface of the network.
func TestPodAndNamespaceAreGone(t *testing.T) {
	for _, neighbour := range []bool{true, false} {
		simulate(t, func(t *testing.T, w *world) {
			ovnWorld(w)
			e, _ := w.start()
			mustAttach(t, e, "c1")
			w.remove("c1")
			synctest.Wait()
			if rec := w.records[net1("c1")]; rec.Phase != Orphaned {
				t.Errorf("record %+v", rec)
			}
			if neighbour {
				w.space("c2", 2)
				r := request("c2", "c2")
				r.Pod.UID = "uid-2"
				if _, err := e.Attach(t.Context(), r); err != nil {
					t.Fatal(err)
				}
			}
			w.deletePod(request("c1", "c1").Pod, true)
			time.Sleep(firstDelivery + time.Second)
			synctest.Wait()
			if _, ok := w.records[net1("c1")]; ok {
				t.Errorf("records %v", w.records)
			}
			if want := map[bool]int{true: 1, false: 0}[neighbour]; w.server.releases != want {
				t.Errorf("%d releases, want %d", w.server.releases, want)
			}
		})
	}
}

// An API server that does not answer decides nothing, for as long as it likes; nor
// does a cache that knows no better.
func TestPatrolEndsNoLivingPod(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		ovnWorld(w)
		e, _ := w.start()
		mustAttach(t, e, "c1")
		w.change(func() { w.cluster.away = true })
		w.deletePod(request("c1", "c1").Pod, true)
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		if _, err := e.Check(t.Context(), request("c1", "c1")); err != nil {
			t.Error(err)
		}
		w.change(func() { w.cluster.away, w.cluster.gone = false, nil })
		w.cluster.tell(request("c1", "c1").Pod) // a word that proves wrong
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		if _, err := e.Check(t.Context(), request("c1", "c1")); err != nil || w.server.releases > 0 {
			t.Errorf("%v, %d releases", err, w.server.releases)
		}
	})
}

// What is left of superseded sandboxes, and of VMs, ends with pod or namespace.
func TestPatrolEndsWhatNobodyKeeps(t *testing.T) {
	attach := func(t *testing.T, w *world) *Engine {
		e, _ := w.start()
		mustAttach(t, e, "c1")
		return e
	}
	for name, end := range map[string]func(*world){
		"namespace gone": func(w *world) { w.change(func() { delete(w.spaces, "c1") }) }, // without a word
		"another namespace": func(w *world) {
			w.change(func() { w.spaces["c1"].cookie = 99 })
		},
		"pod gone": func(w *world) { w.deletePod(request("c1", "c1").Pod, false) },
	} {
		t.Run("VM/"+name, func(t *testing.T) {
			simulate(t, func(t *testing.T, w *world) {
				vmWorld(w)
				attach(t, w)
				w.since()
				end(w)
				time.Sleep(patrolEvery + time.Second)
				synctest.Wait()
				wantNotes(t, w, "delete")
				if w.audience.seen(net1("c1")).IsValid() {
					t.Errorf("published %v", w.audience.shown)
				}
			})
		})
		t.Run("VM without a cluster/"+name, func(t *testing.T) {
			if name == "pod gone" {
				t.Skip("nobody could tell")
			}
			simulate(t, func(t *testing.T, w *world) {
				vmWorld(w)
				e, stop := w.start()
				mustAttach(t, e, "c1")
				stop()
				w.cluster.none = true
				w.start()
				end(w)
				time.Sleep(patrolEvery + time.Second)
				synctest.Wait()
				if len(w.records) > 0 {
					t.Errorf("records %v", w.records)
				}
			})
		})
		t.Run("superseded/"+name, func(t *testing.T) {
			simulate(t, func(t *testing.T, w *world) {
				ovnWorld(w)
				e := attach(t, w)
				w.space("c2", 1)
				mustAttach(t, e, "c2")
				w.since()
				w.audience.since()
				end(w)
				time.Sleep(patrolEvery + time.Second)
				synctest.Wait()
				if _, ok := w.records[net1("c1")]; ok {
					t.Errorf("records %v", w.records)
				}
				if told := w.audience.since(); slices.Contains(told, "withdraw c1") {
					t.Errorf("told %q", told)
				}
			})
		})
	}
}

// A watch that does not work is no reason to keep the lease of a namespace that is
// gone for a kept one until T1.
func TestPatrolFindsWhatTheWatchMissed(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		w.watchErr = errors.New("too many open files")
		w.space("c1", 1)
		e, _ := w.start()
		mustAttach(t, e, "c1")
		w.remove("c1")
		time.Sleep(patrolEvery + time.Second)
		synctest.Wait()
		if rec := w.records[net1("c1")]; rec.Phase != Orphaned {
			t.Errorf("record %+v", rec)
		}
	})
}

// The pod goes in the middle of its ADD: nothing waits for the server, and nothing
// is left.
func TestPodGoneDuringAdd(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		ovnWorld(w)
		w.server.silent = true
		e, _ := w.start()
		errC := attach(t, e, request("c1", "c1"))
		time.Sleep(5 * time.Second)
		begin := time.Now()
		w.deletePod(request("c1", "c1").Pod, true)
		if err := <-errC; !errors.Is(err, ErrSuperseded) || time.Since(begin) > time.Second {
			t.Errorf("after %s: %v", time.Since(begin), err)
		}
		nothingLeft(t, w)
	})
}

// DEL answers before its packet sockets are closed, which the kernel takes its time
// for; and nothing is open when the engine has ended.
func TestDelDoesNotWaitForSockets(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		w.space("c1", 1)
		w.closing = 20 * time.Millisecond
		e, stop := w.start()
		mustAttach(t, e, "c1")
		time.Sleep(time.Second)
		begin := time.Now()
		mustDetach(t, e, "c1")
		if took := time.Since(begin); took > 0 {
			t.Errorf("DEL took %s", took)
		}
		stop()
		if w.open != 0 {
			t.Errorf("%d ports are open when the engine has ended", w.open)
		}
		// What comes after that waits.
		e.closeLater(&wire{port: &port{w: w, closed: true}})
	})
}

// Leases are counted on a clock that goes on while the machine is suspended, and
// timers are not: they are looked at when the clocks have drifted apart.
func TestLeasesAfterASuspend(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		w.space("c1", 1)
		slept := time.Duration(0)
		w.now = func() time.Time {
			w.mu.Lock()
			defer w.mu.Unlock()
			return time.Now().Add(slept)
		}
		e, _ := w.start()
		mustAttach(t, e, "c1")
		w.since()
		time.Sleep(time.Minute)
		w.change(func() { slept = 40 * time.Minute }) // past T1
		time.Sleep(patrolEvery + time.Second)
		synctest.Wait()
		if notes := w.since(); !slices.Contains(notes, "REQUEST to 10.77.0.1") {
			t.Errorf("what happened: %q", notes)
		}
		w.change(func() { slept, w.server.silent = 4*time.Hour, true }) // past the end
		time.Sleep(patrolEvery + time.Second)
		synctest.Wait()
		if notes := w.since(); !slices.ContainsFunc(notes, func(n string) bool { return strings.HasPrefix(n, "clear ") }) {
			t.Errorf("what happened: %q", notes)
		}
	})
}

// counted is the value of a counter with one label.
func counted(t *testing.T, e *Engine, name, label string) float64 {
	t.Helper()
	families, err := e.cfg.Metrics.registry.(*prometheus.Registry).Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == name && m.GetLabel()[0].GetValue() == label {
				return m.GetCounter().GetValue()
			}
		}
	}
	t.Fatalf("no counter %s of %s", name, label)
	return 0
}
