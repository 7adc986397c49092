package engine

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// unsent ends a container with its RELEASE unsent.
func unsent(t *testing.T, w *world, e *Engine, container string) {
	t.Helper()
	w.change(func() { w.noAnswer = true })
	mustDetach(t, e, container)
	w.change(func() {
		w.noAnswer = false
		if w.server.releases > 0 || len(w.server.held) == 0 {
			t.Fatalf("the server holds %v, want the lease of %s", w.server.held, container)
		}
	})
}

func TestOutboxDelivers(t *testing.T) {
	tests := []struct {
		name string
		then func(*testing.T, *world, *Engine) // after the DEL
	}{
		{"OK over its own interface", func(*testing.T, *world, *Engine) {}},
		{"OK over another attachment of the network", func(t *testing.T, w *world, e *Engine) {
			attachMany(t, w, e, 1, "lan")
			w.remove("c1")
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			simulate(t, func(t *testing.T, w *world) {
				w.space("c1", 200)
				e, _ := w.start()
				mustAttach(t, e, "c1")
				unsent(t, w, e, "c1")
				tt.then(t, w, e)
				time.Sleep(firstDelivery + time.Second)
				synctest.Wait()
				if w.server.releases != 1 {
					t.Errorf("%d releases", w.server.releases)
				}
				if _, ok := w.records[net1("c1")]; ok {
					t.Error("the record is left")
				}
			})
		})
	}
}

func TestOutboxSurvivesARestart(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		w.space("c1", 200)
		e, stop := w.start()
		mustAttach(t, e, "c1")
		unsent(t, w, e, "c1")
		stop()
		e, _ = w.start()
		if list, err := e.List(t.Context()); err != nil || len(list) != 1 || list[0].State != "RELEASING" || list[0].Address != "10.77.0.50/24" || list[0].Expiry == nil {
			t.Errorf("List = %+v, %v", list, err)
		}
		mustDetach(t, e, "c1") // the runtime may say it again
		time.Sleep(firstDelivery + time.Second)
		synctest.Wait()
		nothingLeft(t, w)
	})
}

// A late RELEASE would free the lease of whoever has the address or the
// identifier by then.
func TestOutboxDropsWhatIsInUseAgain(t *testing.T) {
	tests := []struct {
		name string
		mac  byte
	}{
		{"OK the same client is back", 200},
		{"OK another client got the address", 201},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			simulate(t, func(t *testing.T, w *world) {
				w.space("c1", 200)
				e, _ := w.start()
				mustAttach(t, e, "c1")
				unsent(t, w, e, "c1")
				w.remove("c1")
				w.change(func() {
					if tt.mac != 200 {
						clear(w.server.held) // the server has given it up by itself
					}
				})
				w.space("c2", tt.mac)
				r := request("c2", "c2")
				r.Pod.UID = "uid-2"
				if _, err := e.Attach(t.Context(), r); err != nil {
					t.Fatal(err)
				}
				w.since()
				time.Sleep(2 * lastDelivery)
				synctest.Wait()
				for _, n := range w.since() {
					if strings.HasPrefix(n, "RELEASE") {
						t.Errorf("%q although the address is in use", n)
					}
				}
				if len(w.server.held) != 1 || len(w.records) != 1 {
					t.Errorf("server holds %v, records %v", w.server.held, w.records)
				}
			})
		})
	}
}

func TestOutboxKeepsNoIdentityThatOutlivesTheSandbox(t *testing.T) {
	tests := []struct {
		dhcp  string
		waits bool
	}{
		{`{}`, true},
		{`{"clientID":"none"}`, true},
		{`{"clientID":"duid"}`, false},
		{`{"mac":"derive"}`, false},
		{`{"clientID":"{namespace}/{pod}"}`, false},
		{`{"clientID":"{pod}/{uid}"}`, true},
	}
	for _, tt := range tests {
		t.Run(tt.dhcp, func(t *testing.T) {
			simulate(t, func(t *testing.T, w *world) {
				w.space("c1", 200)
				e, _ := w.start()
				r := request("c1", "c1")
				r.DHCP = []byte(tt.dhcp)
				if _, err := e.Attach(t.Context(), r); err != nil {
					t.Fatal(err)
				}
				unsent(t, w, e, "c1")
				if waits := len(w.records) == 1; waits != tt.waits {
					t.Errorf("a release waits: %t, want %t", waits, tt.waits)
				}
				dropped := counted(t, e, metricReleases, "dropped: identity outlives the sandbox")
				if (dropped == 1) == tt.waits {
					t.Errorf("%v releases are counted as dropped", dropped)
				}
			})
		})
	}
}

func TestOutboxEndsWithTheLease(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		w.space("c1", 200)
		e, _ := w.start()
		mustAttach(t, e, "c1")
		unsent(t, w, e, "c1")
		w.change(func() { w.noAnswer = true })
		time.Sleep(61 * time.Minute)
		synctest.Wait()
		if len(w.records) > 0 {
			t.Errorf("left: %v", w.records)
		}
	})
}

// The older sandbox had another identity, and its lease could not be given back
// when the new one came: it is given back later.
func TestOutboxOfATakeover(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		w.space("c1", 200)
		e, _ := w.start()
		mustAttach(t, e, "c1")
		w.space("c2", 201)
		w.change(func() { w.noAnswer = true })
		mustAttach(t, e, "c2")
		w.change(func() { w.noAnswer = false })
		time.Sleep(firstDelivery + time.Second)
		synctest.Wait()
		if w.server.releases != 1 || len(w.server.held) != 1 {
			t.Errorf("%d releases, the server holds %v", w.server.releases, w.server.held)
		}
		mustDetach(t, e, "c1")
		mustDetach(t, e, "c2")
		nothingLeft(t, w)
	})
}

// The engine was away when the DEL came: it gives the lease back when it is back,
// over whatever interface of the network is left.
func TestB42DelWhileTheEngineWasAway(t *testing.T) {
	tests := []struct {
		name     string
		left     func(*world) // after the DEL
		releases int
	}{
		{"OK interface is still there", func(*world) {}, 1},
		{"OK another attachment of the network is there", func(w *world) { w.remove("c1") }, 1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			simulate(t, func(t *testing.T, w *world) {
				w.space("c1", 200)
				e, stop := w.start()
				mustAttach(t, e, "c1")
				attachMany(t, w, e, 1, "lan")
				stop()
				w.notesLeft = map[AttachmentID]bool{net1("c1"): true, net1("unknown"): true}
				tt.left(w)
				e, _ = w.start()
				time.Sleep(firstDelivery + time.Second)
				synctest.Wait()
				if w.server.releases != tt.releases || len(w.notesLeft) != 0 || len(w.records) != 1 {
					t.Errorf("%d releases, notes %v, records %v", w.server.releases, w.notesLeft, w.records)
				}
				if list, err := e.List(t.Context()); err != nil || len(list) != 1 {
					t.Errorf("List = %v, %v", list, err)
				}
			})
		})
	}
}

// What takes the RELEASE its time leaves enough for the interface.
func TestInterfaceIsClearedWhateverBecomesOfTheRelease(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		s := w.space("c1", 200)
		e, _ := w.start()
		mustAttach(t, e, "c1")
		w.change(func() { s.carrier = make(chan struct{}) })
		mustDetach(t, e, "c1")
		if got := w.carries("c1"); got.IsValid() {
			t.Errorf("interface carries %s", got)
		}
	})
}

// Whom the server gave the address then, would have it beside another host.
func TestOutboxSendsNothingWhileAnInterfaceHasTheAddress(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		w.space("c1", 200)
		e, _ := w.start()
		mustAttach(t, e, "c1")
		w.change(func() { w.clearErr = errors.New("netlink is out of sorts") })
		unsent(t, w, e, "c1")
		time.Sleep(time.Minute)
		synctest.Wait()
		w.change(func() {
			if w.server.releases != 0 {
				t.Errorf("%d releases of an address that is in use", w.server.releases)
			}
			w.clearErr = nil
		})
		time.Sleep(lastDelivery)
		synctest.Wait()
		if w.server.releases != 1 {
			t.Errorf("%d releases after the interface is cleared", w.server.releases)
		}
		nothingLeft(t, w)
	})
}

// An engine that hangs is as good as away to a DEL, but it does not start anew.
func TestB42NoteOfADelWhileTheEngineRuns(t *testing.T) {
	leave := func(w *world) {
		w.change(func() { w.notesLeft = map[AttachmentID]bool{net1("c1"): true} })
	}
	t.Run("OK ends the attachment", func(t *testing.T) {
		simulate(t, func(t *testing.T, w *world) {
			w.space("c1", 200)
			e, _ := w.start()
			mustAttach(t, e, "c1")
			leave(w)
			w.noteLeft(net1("c1"))
			synctest.Wait()
			if len(w.endedIDs()) > 0 {
				t.Error("the note is left")
			}
			nothingLeft(t, w)
		})
	})
	t.Run("OK a new ADD came first", func(t *testing.T) {
		simulate(t, func(t *testing.T, w *world) {
			w.space("c1", 200)
			e, _ := w.start()
			leave(w)
			mustAttach(t, e, "c1")
			w.noteLeft(net1("c1"))
			time.Sleep(time.Minute)
			synctest.Wait()
			if got := w.carries("c1").String(); got != "10.77.0.50/24" || len(w.endedIDs()) > 0 {
				t.Errorf("interface carries %s, notes %v", got, w.endedIDs())
			}
		})
	})
}
