package peers

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"testing"

	"github.com/dhcp-meta/dhcp-meta/tests/rig"
)

// atOnce is how many ADDs and DELs run at once where their speed is not the point.
const atOnce = 16

// load is what the daemons take from the machine with their leases, and what is left
// at the server of as many ADDs and DELs.
func load(t *testing.T, x extent) []row {
	most := slices.Max(x.loads)
	p := newPair(t, most, roomy())
	all := p.forms(reference, engine)
	pods := map[string][]*rig.Sandbox{}
	var rows []row
	for _, f := range all {
		pods[f.name] = f.sandboxes(most)
	}
	have := 0
	for _, leases := range append([]int{0}, x.loads...) {
		for _, f := range all {
			f.burst(t, "ADD", atOnce, pods[f.name][have:leases])
			p.rest(t)
		}
		have = leases
		rows = append(rows, loadRows(t, all, leases)...)
		t.Logf("%d leases are there", leases)
	}
	del, left := newRow(fmt.Sprintf("DEL, %d at once, with %s leases", atOnce, count(most))), newRow("leases at the server after all DELs, macvlan")
	for _, f := range all {
		_, got := f.burst(t, "DEL", atOnce, pods[f.name])
		del.Figures[f.name] = got.figure()
		p.rest(t)
		left.Figures[f.name] = less(f.left(t))
	}
	return append(rows, del, left)
}

func loadRows(t *testing.T, all []form, leases int) []row {
	with := fmt.Sprintf(" with %s leases", count(leases))
	threads, descriptors := newRow("OS threads"+with), newRow("descriptors"+with)
	memory, own := newRow("resident memory"+with), newRow("resident memory"+with+", without the program's file")
	var loads []rig.Load
	for _, f := range all {
		l := rig.LoadOf(t, f.process().PID())
		loads = append(loads, l)
		threads.Figures[f.name] = less(l.Threads)
		descriptors.Figures[f.name] = less(l.Descriptors)
		memory.Figures[f.name] = megabytes(l.RSS)
		own.Figures[f.name] = megabytes(anonymous(t, f.process().PID()))
	}
	// That they do not grow with the leases is what the engine is built for, and no
	// matter of time.
	if theirs, ours := loads[0], loads[1]; leases > 20 && (ours.Threads >= theirs.Threads || ours.Descriptors >= theirs.Descriptors) {
		t.Errorf("with %d leases the engine has %+v, the reference %+v", leases, ours, theirs)
	}
	return []row{threads, descriptors, memory, own}
}

func megabytes(bytes int64) figure {
	mb := float64(bytes) / 1e6
	return figure{Text: digits(mb) + " MB", Number: mb}
}

var rssAnon = regexp.MustCompile(`RssAnon:\s+(\d+) kB`)

// anonymous is the resident memory that is no file's, in bytes.
func anonymous(t testing.TB, pid int) int64 {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	m := rssAnon.FindSubmatch(text)
	if m == nil {
		t.Fatalf("no RssAnon in /proc/%d/status", pid)
	}
	kb, err := strconv.ParseInt(string(m[1]), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return kb << 10
}

// leftByIPAM runs the plugin dhcp alone, so that the address never comes to the
// interface, and tells what the server still lends afterwards.
func leftByIPAM(t *testing.T, x extent) []row {
	p := newPair(t, x.batch, roomy())
	left := newRow(fmt.Sprintf("leases at the server after %s ADDs and DELs, IPAM alone", count(x.batch*x.batches)))
	all := p.forms(reference, engine)
	for round := range x.batches {
		for _, f := range all {
			pods := f.sandboxes(x.batch)
			f.without().burst(t, "ADD", atOnce, pods)
			f.alone().burst(t, "ADD", atOnce, pods)
			f.alone().burst(t, "DEL", atOnce, pods)
			f.without().burst(t, "DEL", atOnce, pods)
		}
		t.Logf("IPAM alone: round %d of %d", round+1, x.batches)
	}
	p.rest(t)
	for _, f := range all {
		left.Figures[f.name] = less(f.left(t))
	}
	return []row{left}
}
