package engine

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine/api"
)

// passedWorld has a pod that was started without an engine, on a marked network.
func passedWorld(w *world) (*space, api.Request) {
	s := ovnWorld(w)
	w.cluster.marked = map[string]bool{"shop/lan": true}
	r := request("c1", "c1")
	r.NAD, r.Timeout = "shop/lan", 0
	w.passedBy = map[AttachmentID]api.Request{r.AttachmentID: r}
	return s, r
}

func TestLateLease(t *testing.T) {
	for name, begin := range map[string]func(*world, api.Request){
		"at start": func(w *world, r api.Request) { w.start() },
		"when the note comes": func(w *world, r api.Request) {
			w.passedBy = nil
			w.start()
			w.change(func() { w.passedBy = map[AttachmentID]api.Request{r.AttachmentID: r} })
			w.passedC(r.AttachmentID)
		},
		"when the mark comes": func(w *world, r api.Request) {
			w.cluster.marked = nil
			w.start()
			synctest.Wait()
			if notes := w.since(); notes != nil {
				w.t.Errorf("without a mark: %q", notes)
			}
			w.change(func() { w.cluster.marked = map[string]bool{"shop/lan": true} })
			w.cluster.tell(Pod{})
		},
	} {
		t.Run(name, func(t *testing.T) {
			simulate(t, func(t *testing.T, w *world) {
				s, r := passedWorld(w)
				s.foreign = []netip.Prefix{netip.MustParsePrefix("10.77.0.9/24")} // of an earlier sandbox
				begin(w, r)
				time.Sleep(time.Second)
				synctest.Wait()
				if got := w.carries("c1").String(); got != "10.77.0.50/24" || len(s.foreign) > 0 {
					t.Errorf("interface carries %s and %v", got, s.foreign)
				}
				if diff := cmp.Diff([]string{"publish c1 10.77.0.50/24", "AddressLeased c1", "LateLease c1"}, w.audience.since()); diff != "" {
					t.Errorf("told (-want +got):\n%s", diff)
				}
				if len(w.passedBy) != 1 {
					t.Error("the note is gone, by which the plugin knows that its DEL is ours")
				}
				w.since()
				time.Sleep(10 * time.Minute) // once is enough
				synctest.Wait()
				wantNotes(t, w)
			})
		})
	}
}

// A dummy in the place of the interface is what KubeVirt leaves when it has plugged
// a machine: nothing is sent into it.
func TestLateLeaseIsTooLateForAPluggedVM(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		s, _ := passedWorld(w)
		s.link.Kind = "dummy"
		w.start()
		time.Sleep(time.Hour)
		synctest.Wait()
		if notes := w.since(); notes != nil {
			t.Errorf("notes: %q", notes)
		}
		if told := w.audience.since(); told != nil {
			t.Errorf("told: %q", told)
		}
	})
}

func TestLateLeaseEndsWithItsDEL(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		passedWorld(w)
		_, stop := w.start()
		synctest.Wait()
		time.Sleep(time.Second)
		stop()
		e, _ := w.start() // over a restart too
		time.Sleep(time.Minute)
		w.since()
		mustDetach(t, e, "c1")
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		if len(w.passedBy) > 0 || w.server.releases != 1 {
			t.Errorf("notes %v, %d releases", w.passedBy, w.server.releases)
		}
		wantNotes(t, w, "RELEASE to 10.77.0.1", "clear 10.77.0.50/24", "delete")
		nothingLeft(t, w)
	})
}

// Without a server it goes on trying, less and less often, and says it once.
func TestLateLeaseIsTriedAgain(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		passedWorld(w)
		w.server.silent = true
		w.start()
		time.Sleep(30 * time.Minute)
		synctest.Wait()
		tries := 0
		for _, told := range w.audience.since() {
			if strings.HasPrefix(told, "NoDHCPServer") {
				tries++
			}
		}
		if tries < 5 || tries > 10 {
			t.Errorf("%d attempts in half an hour", tries)
		}
		w.change(func() { w.server.silent = false })
		time.Sleep(lastLate + lateTime)
		synctest.Wait()
		if got := w.carries("c1"); !got.IsValid() {
			t.Error("no lease although the server is back")
		}
	})
}

// A DEL in the middle of an attempt ends it for good.
func TestDelDuringALateLease(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		passedWorld(w)
		w.server.silent = true
		e, _ := w.start()
		time.Sleep(10 * time.Second)
		mustDetach(t, e, "c1")
		w.change(func() { w.server.silent = false })
		w.since()
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		wantNotes(t, w)
		nothingLeft(t, w)
	})
}

func TestNoteThatIsOfNoUse(t *testing.T) {
	tests := map[string]struct {
		set  func(*world, api.Request)
		left bool
	}{
		"OK not marked":     {func(w *world, _ api.Request) { w.cluster.marked = nil }, true},
		"OK API is away":    {func(w *world, _ api.Request) { w.cluster.away = true }, true},
		"OK without a NAD":  {func(w *world, r api.Request) { r.NAD = ""; w.passedBy[r.AttachmentID] = r }, true},
		"OK pod is gone":    {func(w *world, r api.Request) { w.cluster.gone = map[Pod]bool{r.Pod: true} }, false},
		"OK netns is gone":  {func(w *world, _ api.Request) { delete(w.spaces, "c1") }, false},
		"OK wrong settings": {func(w *world, _ api.Request) { w.cluster.dhcp = []byte(`{"a":1}`) }, true},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			simulate(t, func(t *testing.T, w *world) {
				_, r := passedWorld(w)
				tt.set(w, r)
				w.start()
				time.Sleep(20 * time.Minute)
				synctest.Wait()
				wantNotes(t, w)
				if left := len(w.passedBy) > 0; left != tt.left {
					t.Errorf("note is left: %t", left)
				}
			})
		})
	}
}

// Many at once, on a network whose server is slow: each has its own time.
func TestManyLateLeases(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		_, r := passedWorld(w)
		for i := range 20 {
			c := fmt.Sprintf("d%d", i)
			w.space(c, byte(10+i))
			n := r
			n.AttachmentID, n.Netns, n.Pod.UID = net1(c), c, c
			w.passedBy[n.AttachmentID] = n
		}
		e, _ := w.start()
		time.Sleep(time.Minute)
		synctest.Wait()
		list, _ := e.List(t.Context())
		if len(list) != 21 || slices.ContainsFunc(list, func(s api.Status) bool { return s.State != "BOUND" }) {
			t.Errorf("%d attachments: %+v", len(list), list)
		}
	})
}
