package peers

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dhcp-meta/dhcp-meta/tests/rig"
)

// sample is how long the same thing took many times, and how often it failed.
type sample struct {
	took   []time.Duration
	failed int
}

func (s *sample) add(o sample) {
	s.took = append(s.took, o.took...)
	s.failed += o.failed
}

// percentile is the smallest value that p of a hundred do not exceed.
func (s sample) percentile(p int) time.Duration {
	if len(s.took) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(s.took))
	return sorted[max((len(sorted)*p+99)/100-1, 0)]
}

// figure is the sample for the table.
func (s sample) figure() figure {
	f := figure{Number: ms(s.percentile(50)), High: ms(s.percentile(99))}
	f.Text = fmt.Sprintf("%s / %s ms", digits(f.Number), digits(f.High))
	if s.failed > 0 {
		f.Text += fmt.Sprintf(", %d of %d failed", s.failed, s.failed+len(s.took))
	}
	return f
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// digits is a number with no more of them than it is good for.
func digits(n float64) string {
	switch {
	case n >= 9.95:
		return group(fmt.Sprintf("%.0f", n))
	case n == 0:
		return "0"
	}
	return fmt.Sprintf("%.1f", n)
}

// group puts commas between thousands.
func group(n string) string {
	if len(n) <= 3 {
		return n
	}
	return group(n[:len(n)-3]) + "," + n[len(n)-3:]
}

// rest waits until both daemons have done what they do after their answers, which
// is not to fall into the other's turn: no time of the processor for a while. That is
// longer than a second, after which the engine looks at a new address for the last
// time.
func (p pair) rest(t testing.TB) {
	t.Helper()
	quiet := 1200 * time.Millisecond
	if *results == "" {
		quiet = 100 * time.Millisecond // no time counts
	}
	const most = 20 * time.Second
	again := time.NewTicker(50 * time.Millisecond)
	defer again.Stop()
	used, since, begun := p.used(t), time.Now(), time.Now()
	for time.Since(since) < quiet && time.Since(begun) < most {
		<-again.C
		if now := p.used(t); now != used {
			used, since = now, time.Now()
		}
	}
}

// used is the time of the processor that both daemons have had.
func (p pair) used(t testing.TB) string {
	t.Helper()
	var all string
	for _, s := range []*side{p.reference, p.engine} {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", s.process().PID()))
		if err != nil {
			t.Fatal(err)
		}
		// The name of the program, in brackets, may hold blanks. User's and system's
		// time are the fields 14 and 15 (proc_pid_stat(5)).
		_, rest, _ := strings.Cut(string(text), ") ")
		all += strings.Join(strings.Fields(rest)[11:13], " ") + " "
	}
	return all
}

// rotated is the list beginning with its nth element: who is first in a round is
// another one each time.
func rotated(list []form, n int) []form {
	n %= len(list)
	return slices.Concat(list[n:], list[:n])
}

// left is how many leases the server still has when all pods are gone. In the short
// race that must be none of ours; in the whole one a server that has to share the
// processors with hundreds of plugins may have lost a datagram, and the table tells.
func (s *side) left(t testing.TB) int {
	t.Helper()
	if s.engine != nil {
		s.engine.AwaitNoRecords(t)
		if *results == "" {
			s.server.AwaitHeld(t, "no lease after the DEL of all pods", rig.Nothing)
		}
	}
	return len(s.server.Held(t))
}
