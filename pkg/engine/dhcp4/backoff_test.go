package dhcp4

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// TestRetransmitDelay: RFC 2131, 4.1. Each delay is spread over all of its two
// seconds, and never leaves them.
func TestRetransmitDelay(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for n, middle := range []time.Duration{
		1: 4 * time.Second, 2: 8 * time.Second, 3: 16 * time.Second, 4: 32 * time.Second, 5: 64 * time.Second, 6: 64 * time.Second, 1000: 64 * time.Second,
	} {
		if middle == 0 {
			continue
		}
		shortest, longest := time.Duration(1<<62), time.Duration(0)
		for range 1000 {
			d := retransmitDelay(r, n)
			shortest, longest = min(shortest, d), max(longest, d)
		}
		if shortest < middle-jitter || shortest > middle-jitter*9/10 {
			t.Errorf("message %d: the shortest delay is %s, want %s or a little more", n, shortest, middle-jitter)
		}
		if longest > middle+jitter || longest < middle+jitter*9/10 {
			t.Errorf("message %d: the longest delay is %s, want %s or a little less", n, longest, middle+jitter)
		}
	}
}

// TestRenewDelay lists when the tries of a state come, counted from its beginning.
func TestRenewDelay(t *testing.T) {
	const s, m, h = time.Second, time.Minute, time.Hour
	for _, tt := range []struct {
		whole time.Duration
		want  []time.Duration
	}{
		{4 * h, []time.Duration{0, 2 * h, 3 * h, 210 * m, 225 * m, 232*m + 30*s, 236*m + 15*s, 238*m + 7500*time.Millisecond, 239*m + 7500*time.Millisecond}},
		{5 * m, []time.Duration{0, 150 * s, 225 * s}},
		{4 * m, []time.Duration{0, 120 * s, 180 * s}},
		{1 * m, []time.Duration{0, 30 * s, 45 * s}},
		{8 * s, []time.Duration{0, 4 * s, 6 * s}},
		{2 * s, []time.Duration{0, 1 * s, 1500 * time.Millisecond}},
		{300 * time.Millisecond, []time.Duration{0}},
	} {
		var got []time.Duration
		for at := time.Duration(0); at < tt.whole; {
			got = append(got, at)
			at += renewDelay(tt.whole-at, tt.whole)
		}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("tries in %s (-want +got):\n%s", tt.whole, diff)
		}
	}
}

// TestConflictWait: no less than 10 s (RFC 2131), longer each time, and no more
// often than once a minute in the end (RFC 5227).
func TestConflictWait(t *testing.T) {
	for n, want := range map[int]time.Duration{1: 10 * time.Second, 2: 20 * time.Second, 3: 40 * time.Second, 4: time.Minute, 1000: time.Minute} {
		if got := conflictWait(n); got != want {
			t.Errorf("wait after conflict %d is %s, want %s", n, got, want)
		}
	}
}
