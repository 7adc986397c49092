package engine

import (
	"fmt"
	"maps"
	"net"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine/api"
)

// crash is what a world remembers when the engine dies after a visible step of an
// ADD.
type crash struct {
	after   string
	records map[AttachmentID]Record
	held    map[string]netip.Addr
	setup   map[string]Setup
	away    map[string]bool
	vfio    map[string]net.HardwareAddr
	shown   map[AttachmentID]netip.Prefix
	cookies map[string]uint64
}

// crashes runs an ADD whole in a world of its own, and returns the states between
// its steps.
func crashes(t *testing.T, set func(*world), r api.Request) []crash {
	t.Helper()
	var all []crash
	simulate(t, func(t *testing.T, w *world) {
		set(w)
		e, _ := w.start()
		w.onNote = func(n string) { all = append(all, w.remember(fmt.Sprintf("%d %s", len(all), n))) }
		if _, err := e.Attach(t.Context(), r); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		w.change(func() { w.onNote = nil })
	})
	if len(all) < 4 {
		t.Fatalf("an ADD has but %d steps", len(all))
	}
	return all
}

// remember is called under the world's lock, while the ADD waits for its step.
func (w *world) remember(after string) crash {
	c := crash{after: after, records: maps.Clone(w.records), held: maps.Clone(w.server.held), setup: map[string]Setup{}, cookies: map[string]uint64{}}
	for path, s := range w.spaces {
		if !strings.HasPrefix(path, "vf/") {
			c.setup[path], c.cookies[path] = s.setup, s.cookie
		}
	}
	if d := w.devices; d != nil {
		c.away, c.vfio = maps.Clone(d.away), maps.Clone(d.vfio)
	}
	if a := w.audience; a != nil {
		a.mu.Lock()
		c.shown = maps.Clone(a.shown)
		a.mu.Unlock()
	}
	return c
}

// restore makes a new world, with the same namespaces, what the other one was.
func (c crash) restore(w *world) {
	maps.Copy(w.records, c.records)
	maps.Copy(w.server.held, c.held)
	for path, setup := range c.setup {
		w.spaces[path].setup = setup
		if w.spaces[path].cookie != c.cookies[path] {
			w.t.Errorf("namespace %s is another one", path)
		}
	}
	if d := w.devices; d != nil {
		d.away, d.vfio = maps.Clone(c.away), maps.Clone(c.vfio)
		if d.away == nil {
			d.away = map[string]bool{}
		}
		d.lent = map[string]bool{}
		for address := range d.away { // its namespace stays too
			w.space("vf/"+address, 1)
		}
	}
	if w.audience != nil {
		w.audience.shown = maps.Clone(c.shown)
	}
}

// The engine dies at each visible step of an ADD that publishes, and comes back:
// what had no answer yet is given back or, once it is the pod's, kept and published;
// after the DEL nothing is left of it anywhere.
func TestKilledInAnAddThatPublishes(t *testing.T) {
	for _, workload := range []Workload{Container, VM} {
		set := func(w *world) {
			ovnWorld(w)
			w.workload = workload
		}
		for _, at := range crashes(t, set, request("c1", "c1")) {
			t.Run(fmt.Sprintf("%d/%s", workload, at.after), func(t *testing.T) {
				simulate(t, func(t *testing.T, w *world) {
					set(w)
					at.restore(w)
					e, _ := w.start()
					synctest.Wait()
					switch rec, ok := w.records[net1("c1")]; {
					case ok && rec.Phase != Leased:
						t.Errorf("record %+v", rec)
					case ok && w.audience.seen(net1("c1")) != rec.Lease.Addr:
						t.Errorf("published %s of %s", w.audience.seen(net1("c1")), rec.Lease.Addr)
					case !ok && (len(w.server.held) > 0 || w.audience.seen(net1("c1")).IsValid()):
						t.Errorf("server holds %v, published %v", w.server.held, w.audience.shown)
					}
					mustDetach(t, e, "c1")
					if workload == VM {
						clear(w.server.held) // its guest may have it
					}
					nothingLeft(t, w)
					if got := w.audience.seen(net1("c1")); got.IsValid() {
						t.Errorf("published %s", got)
					}
				})
			})
		}
	}
}
