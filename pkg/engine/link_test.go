package engine

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// A link that comes back after T1 carries at once what has waited for it, long before
// the machine would send again.
func TestLinkWithoutCarrierAtT1(t *testing.T) {
	for request, down := range map[string]time.Duration{
		"REQUEST to 10.77.0.1": 30*time.Minute + 2*tellAfter,
		"REQUEST to all":       55 * time.Minute,
	} {
		t.Run(request, func(t *testing.T) {
			simulate(t, func(t *testing.T, w *world) {
				s := w.space("c1", 1)
				e, _ := w.start()
				mustAttach(t, e, "c1")
				up := make(chan struct{})
				w.change(func() { s.carrier = up })
				time.Sleep(down)
				w.since()
				close(up)
				synctest.Wait()
				wantNotes(t, w, request, "put leased 10.77.0.50/24", "configure 10.77.0.50/24")
			})
		})
	}
}

// A reason that is over is not told of for ever.
func TestLinkGoesDownAfterAnotherFault(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		s := w.space("c1", 1)
		e, _ := w.start()
		mustAttach(t, e, "c1")
		w.change(func() { s.carrier, w.openErr = make(chan struct{}), errors.New("too many open files") })
		says := func(text string) {
			t.Helper()
			if list, _ := e.List(t.Context()); len(list) != 1 || !strings.Contains(list[0].LastError, text) {
				t.Errorf("List = %+v, want %q", list, text)
			}
		}
		time.Sleep(30*time.Minute + time.Second)
		says("too many open files")
		w.change(func() { w.openErr = nil })
		time.Sleep(15 * time.Minute)
		says("net1 has no carrier")
	})
}

// A link that goes down under a lease is the reason for all that follows, and is
// told as that wherever somebody looks.
func TestLinkIsDownUntilTheLeaseEnds(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		s := w.space("c1", 1)
		w.audience = &audience{}
		e, _ := w.start()
		mustAttach(t, e, "c1")
		wants := func(state, text string) {
			t.Helper()
			list, err := e.List(t.Context())
			if err != nil || len(list) != 1 || list[0].State != state || !strings.Contains(list[0].LastError, text) {
				t.Errorf("List = %+v, %v; want %s and %q", list, err, state, text)
			}
		}
		w.change(func() { s.carrier = make(chan struct{}) })
		time.Sleep(30*time.Minute + tellAfter + time.Second)
		wants("RENEWING", "net1 has no carrier")
		if _, err := e.Renew(t.Context(), net1("c1"), false); err == nil || !strings.Contains(err.Error(), "nothing was sent for 10.77.0.50") ||
			!strings.Contains(err.Error(), "net1 has no carrier") {
			t.Errorf("Renew: %v", err)
		}
		time.Sleep(25 * time.Minute)
		wants("REBINDING", "nothing was sent in ")
		time.Sleep(10 * time.Minute)
		wants("SELECTING", "net1 has no carrier")
		_, err := e.Renew(t.Context(), net1("c1"), false)
		if err == nil || !strings.Contains(err.Error(), "net1 has no carrier") {
			t.Errorf("Renew without a lease: %v", err)
		}
		lost := w.audience.eventsOf(LeaseLost)
		if len(lost) != 1 || !strings.Contains(lost[0], "lease of 10.77.0.50 is lost: expired: nothing was sent in ") || !strings.Contains(lost[0], "net1 has no carrier") {
			t.Errorf("events of the loss: %q", lost)
		}
		w.change(func() { close(s.carrier) })
		synctest.Wait()
		time.Sleep(time.Minute)
		wants("BOUND", "")
		if list, _ := e.List(t.Context()); list[0].LastError != "" {
			t.Errorf("with a lease the last error is %q", list[0].LastError)
		}
	})
}
