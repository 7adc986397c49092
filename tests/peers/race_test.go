package peers

import (
	"flag"
	"testing"
	"time"

	"github.com/dhcp-meta/dhcp-meta/tests/rig"
)

// results is the folder for what the parts of the whole race found. A part that is run
// alone (-run) replaces its own there, and the documents are made of all of them.
var results = flag.String("peers-results", "", "run the whole race, keep results in this `folder`, and rewrite docs/performance.md and docs/peers.svg")

func TestMain(m *testing.M) { rig.Main(m) }

// extent is how much of everything is run.
type extent struct {
	alone, aloneRounds int   // pods of a turn in which one ADD follows the other
	widths             []int // ADDs at once
	rounds             int
	pingWidths         []int
	pingRounds         int
	again              int // pods that are added again
	loads              []int
	batch, batches     int // of ADDs and DELs by IPAM alone
}

var (
	whole = extent{
		alone: 20, aloneRounds: 10, widths: []int{60, 250}, rounds: 5,
		pingWidths: []int{60, 250}, pingRounds: 2, again: 60, loads: []int{60, 1000}, batch: 100, batches: 10,
	}
	short = extent{
		alone: 2, aloneRounds: 1, widths: []int{6}, rounds: 1, again: 3, loads: []int{6, 24}, batch: 6, batches: 2,
	}
)

// TestRace is the whole race with -peers-results, and a short one without.
func TestRace(t *testing.T) {
	rig.Need(t)
	x := short
	if *results != "" {
		x = whole
		version(t)
		t.Cleanup(func() { publish(t, *results) })
	}
	part := func(name string, run func(t *testing.T, x extent) []row) {
		t.Run(name, func(t *testing.T) {
			begun := time.Now()
			rows := run(t, x)
			t.Logf("%s took %v", name, time.Since(begun).Round(time.Second))
			for _, r := range rows {
				t.Logf("%s: %v", r.What, r)
			}
			if *results != "" && !t.Failed() {
				keep(t, *results, name, rows)
			}
		})
	}
	part("add", addAndDel)
	part("again", addAgain)
	part("load", load)
	part("left", leftByIPAM)
	if *results == "" {
		return // what follows takes minutes of real time
	}
	// These wait for most of their time, so they do that side by side.
	t.Run("waiting", func(t *testing.T) {
		for name, run := range map[string]func(*testing.T, extent) []row{
			"ping": addWithPing, "restart": restart, "nak": nak, "expiry": expiry,
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				rows := run(t, x)
				for _, r := range rows {
					t.Logf("%s: %v", r.What, r)
				}
				if !t.Failed() {
					keep(t, *results, name, rows)
				}
			})
		}
	})
}
