package peers

import (
	"fmt"
	"slices"
	"testing"

	"github.com/dhcp-meta/dhcp-meta/tests/rig"
)

// verbs are the ADDs and DELs of each contender, and the leases that the server kept
// in spite of them.
type verbs map[string]*did

type did struct {
	adds, dels sample
	left       int
}

// turn lets one of the contenders add and delete n pods.
func (v verbs) turn(t *testing.T, p pair, f form, width, n int) {
	t.Helper()
	got := v[f.name]
	if got == nil {
		got = new(did)
		v[f.name] = got
	}
	pods, before := f.sandboxes(n), len(f.server.Held(t))
	_, adds := f.burst(t, "ADD", width, pods)
	p.rest(t)
	_, dels := f.burst(t, "DEL", width, pods)
	p.rest(t)
	got.adds.add(adds)
	got.dels.add(dels)
	got.left += len(f.server.Held(t)) - before
}

// rows are one of ADD, one of DEL, and one of the leases that are left.
func (v verbs) rows(what string) []row {
	add, del, left := newRow("ADD, "+what), newRow("DEL, "+what), newRow("... leases at the server after that")
	for name, got := range v {
		add.Figures[name], del.Figures[name], left.Figures[name] = got.adds.figure(), got.dels.figure(), less(got.left)
	}
	return []row{add, del, left}
}

// addAndDel is a plugin's ADD and DEL, from its start to its end, one after another
// and many at once.
func addAndDel(t *testing.T, x extent) []row {
	p := newPair(t, max(x.alone, slices.Max(x.widths)), roomy())
	all := p.forms(contenders...)
	one := verbs{}
	for round := range x.aloneRounds {
		for _, f := range rotated(all, round) {
			one.turn(t, p, f, 1, x.alone)
		}
		t.Logf("one at a time: round %d of %d", round+1, x.aloneRounds)
	}
	rows := one.rows("one at a time")[:2]
	for _, width := range x.widths {
		many := verbs{}
		for round := range x.rounds {
			for _, f := range rotated(all, round) {
				many.turn(t, p, f, width, width)
			}
			t.Logf("%d at once: round %d of %d", width, round+1, x.rounds)
		}
		rows = append(rows, many.rows(fmt.Sprintf("%d at once", width))...)
	}
	p.engine.left(t)
	return rows
}

// addWithPing is ADD with a server that first looks for three seconds whether the
// address is in use. It does so for six clients in half a minute, lets all others wait
// meanwhile, and trusts to luck for the rest; a new server for each turn, so that
// each finds it fresh.
func addWithPing(t *testing.T, x extent) []row {
	conf := roomy()
	conf.PingCheck = true
	p := newPair(t, slices.Max(x.pingWidths), conf)
	all := p.forms(reference, engine, fast)
	var rows []row
	for _, width := range append([]int{1}, x.pingWidths...) {
		const pinged = 6
		v, n, what := verbs{}, width, fmt.Sprintf("%d at once, server pings", width)
		if width == 1 {
			n, what = pinged, "one at a time, server pings"
		}
		for round := range x.pingRounds {
			for _, f := range rotated(all, round) {
				f.newServer(t, conf)
				v.turn(t, p, f, width, n)
			}
			t.Logf("%s: round %d of %d", what, round+1, x.pingRounds)
		}
		rows = append(rows, v.rows(what)[0]) // what a server was busy with is no measure of DEL
	}
	return rows
}

// addAgain is ADD of a pod that has its lease: of the same attachment, and of a new
// sandbox whose interface has the MAC of the old one, which ended without a DEL.
func addAgain(t *testing.T, x extent) []row {
	p := newPair(t, 2*x.again, roomy())
	same, moved := newRow("ADD of the same attachment again (IPAM plugin)"), newRow("ADD of a new sandbox, MAC kept")
	kept, stale := newRow("new sandboxes that got the pod's address again"), newRow("leases at the server after the DEL of both sandboxes")
	all := p.forms(reference, engine)
	for _, f := range all {
		pods := f.sandboxes(x.again)
		f.burst(t, "ADD", 8, pods)
		p.rest(t)
		_, got := f.alone().burst(t, "ADD", 1, pods)
		same.Figures[f.name] = got.figure()
		f.burst(t, "DEL", 8, pods)
		p.rest(t)
	}
	for _, f := range all {
		var got sample
		var again, left int
		pods := f.sandboxes(2 * x.again)
		before, after := pods[:x.again], pods[x.again:]
		for i := range before {
			g := f.with("mac", fmt.Sprintf("02:00:00:00:%02x:%02x", i/256, i%256))
			had, _ := g.burst(t, "ADD", 1, before[i:i+1])
			before[i].IP(t, "link", "del", "net1") // as the end of its namespace does
			has, took := g.burst(t, "ADD", 1, after[i:i+1])
			got.add(took)
			if had[0] == has[0] {
				again++
			}
		}
		p.rest(t)
		for _, list := range [][]*rig.Sandbox{before, after} {
			f.burst(t, "DEL", 8, list)
		}
		p.rest(t)
		left = f.left(t)
		moved.Figures[f.name] = got.figure()
		kept.Figures[f.name] = more(again, x.again)
		stale.Figures[f.name] = less(left)
	}
	return []row{same, moved, kept, stale}
}
