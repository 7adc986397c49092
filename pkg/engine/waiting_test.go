package engine

import (
	"strings"
	"testing"
	"time"
)

// An ADD that has to wait says so long before it fails, once, and what for.
func TestADDThatWaitsSaysSoEarly(t *testing.T) {
	tests := []struct {
		name string
		set  func(*world)
		want string // empty: nothing is said
	}{
		{"OK nobody answers", func(w *world) { w.server.silent = true }, "no answer to 3 messages in 15s; is there a server"},
		{"OK no carrier", func(w *world) { w.spaces["c1"].carrier = make(chan struct{}) }, "net1 has no carrier"},
		{"OK offers without a mask", func(w *world) { w.server.noMask = true }, "no usable offer; last reply left aside: "},
		{"OK the server refuses", func(w *world) { w.server.nak = true }, "a DHCP server refuses; last: "},
		{"OK nobody acknowledges", func(w *world) { w.server.noAck = true }, "10.77.0.50 was offered but no server acknowledged it"},
		{"OK an address at once", func(*world) {}, ""},
		{"OK the server is slow", func(w *world) {
			w.server.silent = true
			time.AfterFunc(10*time.Second, func() { w.change(func() { w.server.silent = false }) })
		}, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			simulate(t, func(t *testing.T, w *world) {
				w.space("c1", 1)
				w.audience = &audience{}
				tt.set(w)
				e, _ := w.start()
				go func() { _, _ = e.Attach(t.Context(), request("c1", "c1")) }() // of its outcome others tell
				time.Sleep(wordAfter - time.Millisecond)
				if said := w.audience.eventsOf(StillWaiting); len(said) > 0 {
					t.Errorf("said too early: %q", said)
				}
				time.Sleep(10 * time.Second)
				early := w.audience.eventsOf(StillWaiting)
				time.Sleep(2 * time.Minute)
				said := w.audience.eventsOf(StillWaiting)
				switch {
				case tt.want == "" && len(said) == 0:
				case len(early) != 1 || len(said) != 1 || tt.want == "" || !strings.HasPrefix(said[0], "no address from network lan so far: ") || !strings.Contains(said[0], tt.want):
					t.Errorf("said %q, then %q, want %q", early, said, tt.want)
				}
			})
		})
	}
}
