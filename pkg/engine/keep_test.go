package engine

import (
	"errors"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestB38RestartKeepsTheLease(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		w.space("c1", 1)
		e, stop := w.start()
		mustAttach(t, e, "c1")
		stop()
		time.Sleep(10 * time.Minute)
		w.since()

		e, _ = w.start()
		synctest.Wait()
		wantNotes(t, w, "configure 10.77.0.50/24")
		time.Sleep(19 * time.Minute)
		wantNotes(t, w)
		time.Sleep(time.Minute + time.Second)
		synctest.Wait()
		wantNotes(t, w, "REQUEST to 10.77.0.1", "put leased 10.77.0.50/24", "configure 10.77.0.50/24")
		mustDetach(t, e, "c1")
		nothingLeft(t, w)
	})
}

func TestRestartPastT1AsksByInitReboot(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		w.space("c1", 1)
		e, stop := w.start()
		mustAttach(t, e, "c1")
		stop()
		w.since()
		time.Sleep(40 * time.Minute)
		w.start()
		time.Sleep(time.Second) // the startup spread
		synctest.Wait()
		wantNotes(t, w, "configure 10.77.0.50/24", "REQUEST to all", "put leased 10.77.0.50/24", "configure 10.77.0.50/24")
	})
}

func TestRestartInAnotherBoot(t *testing.T) {
	tests := []struct {
		name  string
		after func(*world) // what the boot brings
		want  []string
	}{
		{"OK same interface again", func(w *world) { w.space("c1", 1) },
			[]string{"REQUEST to all", "probe 10.77.0.50 full=false", "put leased 10.77.0.50/24", "configure 10.77.0.50/24", "announce 10.77.0.50"}},
		{"B41 another interface at the path", func(w *world) { w.space("c1", 9) },
			[]string{"put orphaned 10.77.0.50/24"}},
		{"B36 nothing at the path", func(*world) {}, []string{"put orphaned 10.77.0.50/24"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			simulate(t, func(t *testing.T, w *world) {
				w.space("c1", 1)
				e, stop := w.start()
				mustAttach(t, e, "c1")
				stop()
				delete(w.spaces, "c1")
				w.bootID = "boot-2"
				tt.after(w)
				w.since()
				w.start()
				time.Sleep(time.Second) // the probe
				synctest.Wait()
				wantNotes(t, w, tt.want...)
			})
		})
	}
}

// Another namespace under the old path in the same boot is told by its cookie.
func TestB41NamespaceReplacedWhileTheEngineWasAway(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		w.space("c1", 1)
		e, stop := w.start()
		mustAttach(t, e, "c1")
		stop()
		s := w.space("c1", 1)
		w.since()
		w.start()
		time.Sleep(2 * time.Hour)
		synctest.Wait()
		wantNotes(t, w, "put orphaned 10.77.0.50/24", "delete")
		if s.setup.Addr.IsValid() {
			t.Errorf("the new namespace carries %s", s.setup.Addr)
		}
	})
}

func TestFullDiskAtRenewalKeepsTheLease(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		s := w.space("c1", 1)
		e, _ := w.start()
		mustAttach(t, e, "c1")
		w.change(func() { w.putErr = func(Record) error { return errors.New("no space left on device") } })
		time.Sleep(3 * time.Hour)
		synctest.Wait()
		if s.setup.Addr != netip.MustParsePrefix("10.77.0.50/24") || time.Until(s.until) < 29*time.Minute {
			t.Errorf("interface carries %v until %s", s.setup, s.until)
		}
		list, err := e.List(t.Context())
		if err != nil || len(list) != 1 || !strings.Contains(list[0].LastError, "no space left") {
			t.Errorf("List = %+v, %v", list, err)
		}
	})
}

// A changed address that cannot be persisted is not used; it is asked for again
// until it can be.
func TestFullDiskAtAChangeOfAddress(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		s := w.space("c1", 1)
		e, _ := w.start()
		mustAttach(t, e, "c1")
		w.change(func() {
			w.server.held = map[string]netip.Addr{}
			w.server.first = netip.MustParseAddr("10.77.0.100")
		})
		w.change(func() { w.putErr = func(Record) error { return errors.New("no space left on device") } })
		time.Sleep(40 * time.Minute)
		synctest.Wait()
		if s.setup.Addr.IsValid() {
			t.Errorf("interface carries %s, which no record knows", s.setup.Addr)
		}
		w.change(func() { w.putErr = nil })
		time.Sleep(time.Minute)
		synctest.Wait()
		if want := netip.MustParsePrefix("10.77.0.100/24"); s.setup.Addr != want {
			t.Errorf("interface carries %s, want %s", s.setup.Addr, want)
		}
	})
}

func TestB20NakInRenewing(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		s := w.space("c1", 1)
		e, _ := w.start()
		mustAttach(t, e, "c1")
		w.change(func() {
			w.server.held = map[string]netip.Addr{}
			w.server.first = netip.MustParseAddr("10.77.0.100")
		})
		w.since()
		time.Sleep(30*time.Minute + time.Second)
		synctest.Wait()
		wantNotes(t, w, "REQUEST to 10.77.0.1", "clear 10.77.0.50/24", "put seeking invalid Prefix",
			"DISCOVER to all", "put seeking 10.77.0.100/24", "REQUEST to all", "probe 10.77.0.100 full=false",
			"put leased 10.77.0.100/24", "configure 10.77.0.100/24", "announce 10.77.0.100")
		if s.setup.Addr.Addr() != netip.MustParseAddr("10.77.0.100") {
			t.Errorf("interface carries %s", s.setup.Addr)
		}
	})
}

func TestExpiryAndRecovery(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		s := w.space("c1", 1)
		e, stop := w.start()
		mustAttach(t, e, "c1")
		w.change(func() { w.server.silent = true })
		time.Sleep(61 * time.Minute)
		synctest.Wait()
		if s.setup.Addr.IsValid() {
			t.Errorf("expired address %s is still there", s.setup.Addr)
		}
		if _, err := e.Check(t.Context(), request("c1", "c1")); err == nil {
			t.Error("Check passes without a lease")
		}
		// A restart while there is no lease must not end the search for one.
		stop()
		e, _ = w.start()
		time.Sleep(5 * time.Minute)
		w.change(func() { w.server.silent = false })
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		if _, err := e.Check(t.Context(), request("c1", "c1")); err != nil {
			t.Errorf("Check after the server is back: %v", err)
		}
	})
}

// An engine that died between the claim and the answer gives the address back.
func TestRestartUndoesACutOffAdd(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		w.space("c1", 1)
		e, stop := w.start()
		mustAttach(t, e, "c1")
		stop()
		rec := w.records[net1("c1")]
		rec.Phase = Claimed
		w.records[rec.AttachmentID] = rec
		w.start()
		synctest.Wait()
		nothingLeft(t, w)
	})
}

// Somebody gives the interface of a live pod another MAC: to the server that is
// another client, unless option 61 says otherwise.
func TestMACChanges(t *testing.T) {
	tests := []struct {
		name, settings string
		away           bool // the engine, when it happens
		releases       int
	}{
		{"OK while the engine was away", `{}`, true, 1},
		{"OK while the engine runs", `{}`, false, 1},
		{"OK the identifier stays", `{"clientID":"duid"}`, false, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			simulate(t, func(t *testing.T, w *world) {
				s := w.space("c1", 1)
				e, stop := w.start()
				if _, err := attachWith(t, e, tt.settings); err != nil {
					t.Fatal(err)
				}
				if tt.away {
					stop()
				}
				w.change(func() { s.link.HardwareAddr = []byte{2, 0, 0, 0, 0, 9} })
				if tt.away {
					w.start()
				}
				time.Sleep(31 * time.Minute)
				synctest.Wait()
				w.change(func() {
					if w.server.releases != tt.releases || len(w.server.held) != 1 || !s.setup.Addr.IsValid() {
						t.Errorf("%d releases, server holds %v, interface carries %s", w.server.releases, w.server.held, s.setup.Addr)
					}
				})
				time.Sleep(2 * time.Hour)
				synctest.Wait()
				if !w.carries("c1").IsValid() {
					t.Error("the lease is not kept")
				}
			})
		})
	}
}

// What keeps the interface from being configured need not be there for ever, and
// T1 may be hours away.
func TestInterfaceIsMendedBeforeT1(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		w.space("c1", 1)
		e, stop := w.start()
		mustAttach(t, e, "c1")
		stop()
		w.change(func() {
			w.spaces["c1"].setup = Setup{}
			w.cfgErr = errors.New("route exists")
		})
		w.start()
		time.Sleep(2 * mendAfter)
		w.change(func() { w.cfgErr = nil })
		time.Sleep(mendAfter + time.Second)
		synctest.Wait()
		if got := w.carries("c1").String(); got != "10.77.0.50/24" {
			t.Errorf("interface carries %s", got)
		}
	})
}

func TestSilentServerIsInTheList(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		w.space("c1", 1)
		e, _ := w.start()
		mustAttach(t, e, "c1")
		w.change(func() { w.server.silent = true })
		lastErr := func(state string) string {
			t.Helper()
			list, err := e.List(t.Context())
			if err != nil || list[0].State != state {
				t.Fatalf("List = %+v, %v; want it to be %s", list, err, state)
			}
			return list[0].LastError
		}
		time.Sleep(45 * time.Minute)
		if got := lastErr("RENEWING"); !strings.HasPrefix(got, "no answer to ") {
			t.Errorf("last error %q", got)
		}
		time.Sleep(30 * time.Minute)
		if got := lastErr("SELECTING"); !strings.HasPrefix(got, "no answer to ") {
			t.Errorf("last error %q", got)
		}
		w.change(func() { w.server.silent = false })
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		if got := lastErr("BOUND"); got != "" {
			t.Errorf("last error %q after all is well again", got)
		}
	})
}

// The server changes a route while the disk is full: nothing forces the address
// off the pod.
func TestFullDiskAtAChangeOfTheLeaseKeepsTheAddress(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		s := w.space("c1", 1)
		e, _ := w.start()
		mustAttach(t, e, "c1")
		w.change(func() {
			w.putErr = func(Record) error { return errors.New("no space left on device") }
			w.server.mtu = 1400
		})
		for range 40 {
			time.Sleep(time.Minute)
			synctest.Wait()
			if got := w.carries("c1").String(); got != "10.77.0.50/24" {
				t.Fatalf("interface carries %s", got)
			}
		}
		w.change(func() {
			if s.setup.MTU != 0 {
				t.Errorf("MTU %d is set, which no record knows", s.setup.MTU)
			}
			w.putErr = nil
		})
		time.Sleep(mendAfter + time.Second)
		synctest.Wait()
		w.change(func() {
			if s.setup.MTU != 1400 || w.records[net1("c1")].Setup.MTU != 1400 {
				t.Errorf("interface has %+v, record %+v", s.setup, w.records[net1("c1")].Setup)
			}
		})
	})
}

// Others on the node may have used up its inotify instances.
func TestWatchThatCannotBeMadeEndsNothing(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		w.space("c1", 1)
		w.watchErr = errors.New("too many open files")
		e, _ := w.start()
		mustAttach(t, e, "c1")
		w.change(func() { w.watchErr = nil })
		time.Sleep(2 * watchAgain)
		synctest.Wait()
		w.remove("c1")
		synctest.Wait()
		if list, err := e.List(t.Context()); err != nil || list[0].State != "ORPHANED" {
			t.Errorf("List = %+v, %v: the end of the namespace is not seen", list, err)
		}
	})
}
