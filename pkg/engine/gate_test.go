package engine

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"
)

// attachMany attaches n pods, each in a namespace of its own.
func attachMany(t *testing.T, w *world, e *Engine, n int, network string) {
	t.Helper()
	for i := range n {
		c := fmt.Sprintf("%s-%d", network, i)
		w.space(c, byte(len(w.spaces)+1))
		r := request(c, c)
		r.Pod.UID, r.Network = c, network
		if _, err := e.Attach(t.Context(), r); err != nil {
			t.Fatalf("Attach(%s): %v", c, err)
		}
	}
}

// The server is silent, so that every question waits for its answer: no more
// than the gate lets through are asked at one time.
func TestGateBoundsQuestionsOfOneNetwork(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		e, _ := w.start()
		attachMany(t, w, e, 60, "lan")
		attachMany(t, w, e, 5, "other")
		w.change(func() { w.server.silent = true })
		w.since()
		time.Sleep(30*time.Minute + time.Second) // T1 of all
		synctest.Wait()
		if asked := len(w.since()); asked != 16+5 {
			t.Errorf("%d questions wait for their answers, want 16 of lan and 5 of the other network", asked)
		}
	})
}

func TestGateLosesNoLease(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		e, _ := w.start()
		attachMany(t, w, e, 60, "lan")
		w.change(func() { w.server.silent = true })
		time.Sleep(50 * time.Minute)
		w.change(func() { w.server.silent = false })
		time.Sleep(9 * time.Minute)
		synctest.Wait()
		for path, s := range w.spaces {
			if !s.setup.Addr.IsValid() || time.Until(s.until) < 20*time.Minute {
				t.Errorf("%s: %v until %s", path, s.setup.Addr, s.until)
			}
		}
	})
}

func TestRestartSpreadsWhatIsDue(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		e, stop := w.start()
		attachMany(t, w, e, 60, "lan")
		stop()
		time.Sleep(40 * time.Minute)
		w.since()
		w.start()
		synctest.Wait()
		if early := len(w.since()); early > 5 {
			t.Errorf("%d things happen at once at the start", early)
		}
		time.Sleep(10 * time.Second)
		synctest.Wait()
		for path, s := range w.spaces {
			if time.Until(s.until) < 59*time.Minute {
				t.Errorf("%s is not renewed", path)
			}
		}
	})
}
