package engine

import (
	"errors"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine/api"
)

// ipamRequest is what the IPAM plugin dhcp asks for another plugin: nobody knows the
// pod.
func ipamRequest(container string) api.Request {
	r := request(container, container)
	r.Pod, r.IPAM = Pod{}, true
	return r
}

// mustAsk is the ADD of a plugin that has not put the address anywhere yet.
func mustAsk(t *testing.T, e *Engine, container string) api.Lease {
	t.Helper()
	l, err := e.Attach(t.Context(), ipamRequest(container))
	if err != nil {
		t.Fatalf("Attach(%s): %v", container, err)
	}
	synctest.Wait()
	return l
}

// place puts an address on the interface as a plugin does: for ever.
func (w *world) place(path, prefix string) {
	w.change(func() {
		s := w.spaces[path]
		s.setup, s.until = Setup{Addr: netip.MustParsePrefix(prefix)}, time.Time{}
	})
}

// adopted tells whether the address in the namespace has the lifetime of its lease.
func (w *world) adopted(path string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := w.spaces[path]
	return s.setup.Addr.IsValid() && s.setup.Adopt && !s.until.IsZero() && w.records[net1(path)].Adopted
}

func TestAdoptionOfTheCallersAddress(t *testing.T) {
	asked := []string{"DISCOVER to all", "put claimed 10.77.0.50/24", "REQUEST to all",
		"probe 10.77.0.50 full=false", "put leased 10.77.0.50/24"}
	adopted := []string{"put leased 10.77.0.50/24", "configure 10.77.0.50/24"} // persisted first
	tests := []struct {
		name    string
		put     string
		after   time.Duration
		adopted bool
	}{
		{"OK at once", "10.77.0.50/24", 0, true},
		{"OK late", "10.77.0.50/24", 20 * time.Second, true},
		{"OK a minute late", "10.77.0.50/24", time.Minute, true},
		{"never", "", 0, false},
		{"another mask", "10.77.0.50/16", 0, false},
		{"another address", "10.77.0.51/24", 0, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			simulate(t, func(t *testing.T, w *world) {
				w.space("c1", 1)
				e, _ := w.start()
				if l := mustAsk(t, e, "c1"); l.Address != "10.77.0.50/24" {
					t.Fatalf("answer %+v", l)
				}
				wantNotes(t, w, asked...) // nothing on the interface, which is the caller's
				time.Sleep(tt.after)
				if tt.put != "" {
					w.place("c1", tt.put)
				}
				time.Sleep(2 * time.Minute)
				synctest.Wait()
				if got := w.adopted("c1"); got != tt.adopted {
					t.Errorf("adopted: %t, want %t", got, tt.adopted)
				}
				if !tt.adopted {
					wantNotes(t, w)
				} else if got := w.since(); len(got) < 2 || cmp.Diff(adopted, got[:2]) != "" {
					t.Errorf("adoption: %v, want first %v", got, adopted)
				}
				if tt.put != "" && w.carries("c1") != netip.MustParsePrefix(tt.put) {
					t.Errorf("net1 carries %s, the caller put %s", w.carries("c1"), tt.put)
				}
				// Renewed all the same, and CHECK holds of an address what is the engine's.
				time.Sleep(2 * time.Hour)
				if _, err := e.Check(t.Context(), ipamRequest("c1")); err != nil {
					t.Errorf("Check: %v", err)
				}
				mustDetach(t, e, "c1")
				if w.server.releases != 1 {
					t.Errorf("%d releases", w.server.releases)
				}
				if !tt.adopted { // the caller takes away what it put there
					w.change(func() { w.spaces["c1"].setup = Setup{} })
				}
				nothingLeft(t, w)
			})
		})
	}
}

// After the looks each renewal looks.
func TestAdoptionAtARenewal(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		w.space("c1", 1)
		e, _ := w.start()
		mustAsk(t, e, "c1")
		time.Sleep(10 * time.Minute)
		w.place("c1", "10.77.0.50/24")
		time.Sleep(19 * time.Minute)
		if w.adopted("c1") {
			t.Error("adopted between the last look and the renewal")
		}
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		if !w.adopted("c1") {
			t.Errorf("not adopted at the renewal: %v", w.since())
		}
	})
}

// A route that comes just after the address is looked for once more.
func TestSecondLookAfterAdoption(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		w.space("c1", 1)
		e, _ := w.start()
		mustAsk(t, e, "c1")
		w.place("c1", "10.77.0.50/24")
		time.Sleep(firstLook)
		synctest.Wait()
		w.since()
		time.Sleep(secondLook - time.Millisecond)
		synctest.Wait()
		wantNotes(t, w)
		time.Sleep(time.Millisecond)
		synctest.Wait()
		wantNotes(t, w, "configure 10.77.0.50/24")
		time.Sleep(10 * time.Minute)
		wantNotes(t, w)
	})
}

// What is not persisted is not begun.
func TestAdoptionThatIsNotPersisted(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		w.space("c1", 1)
		e, _ := w.start()
		mustAsk(t, e, "c1")
		w.change(func() { w.putErr = func(Record) error { return errors.New("no space left on device") } })
		w.place("c1", "10.77.0.50/24")
		w.since()
		time.Sleep(5 * time.Second)
		for _, n := range w.since() {
			if n != "put leased fails" {
				t.Errorf("without a record: %s", n)
			}
		}
		w.change(func() { w.putErr = nil })
		time.Sleep(time.Minute)
		synctest.Wait()
		if !w.adopted("c1") {
			t.Error("not adopted when the disk has room again")
		}
	})
}

// Renewed by unicast at half its life; when the server cannot be reached so, by
// broadcast at seven eighths.
func TestK61RenewalAndRebindingOfAnAdoptedLease(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		s := w.space("c1", 1)
		e, _ := w.start()
		mustAsk(t, e, "c1")
		w.place("c1", "10.77.0.50/24")
		time.Sleep(5 * time.Minute)
		w.since()
		time.Sleep(25*time.Minute + time.Second)
		synctest.Wait()
		wantNotes(t, w, "REQUEST to 10.77.0.1", "put leased 10.77.0.50/24", "configure 10.77.0.50/24")
		w.change(func() {
			if left := time.Until(s.until); left < 59*time.Minute {
				t.Errorf("address ends in %s", left)
			}
			w.noAnswer = true
		})
		time.Sleep(52 * time.Minute)
		synctest.Wait()
		wantNotes(t, w)
		time.Sleep(time.Minute)
		synctest.Wait()
		wantNotes(t, w, "REQUEST to all", "put leased 10.77.0.50/24", "configure 10.77.0.50/24")
	})
}

// The lease changes its address: with a NAK at T1, or at its end. The interface
// follows.
func TestB20AdoptedAddressFollowsItsLease(t *testing.T) {
	elsewhere := func(w *world) {
		w.server.held = map[string]netip.Addr{}
		w.server.first = netip.MustParseAddr("10.77.0.100")
	}
	for name, put := range map[string]time.Duration{
		"adopted":                       time.Second,
		"put there after the last look": 5 * time.Minute,
	} {
		t.Run("NAK at T1, "+name, func(t *testing.T) {
			simulate(t, func(t *testing.T, w *world) {
				w.space("c1", 1)
				e, _ := w.start()
				mustAsk(t, e, "c1")
				time.Sleep(put)
				w.place("c1", "10.77.0.50/24")
				time.Sleep(6 * time.Minute)
				w.change(func() { elsewhere(w) })
				time.Sleep(31 * time.Minute)
				synctest.Wait()
				if got := w.carries("c1"); got != netip.MustParsePrefix("10.77.0.100/24") || !w.adopted("c1") {
					t.Errorf("net1 carries %s: %v", got, w.since())
				}
				mustDetach(t, e, "c1")
				nothingLeft(t, w)
			})
		})
		t.Run("expiry, "+name, func(t *testing.T) {
			simulate(t, func(t *testing.T, w *world) {
				w.space("c1", 1)
				e, _ := w.start()
				mustAsk(t, e, "c1")
				time.Sleep(put)
				w.place("c1", "10.77.0.50/24")
				w.change(func() { w.server.silent = true })
				time.Sleep(61 * time.Minute)
				synctest.Wait()
				if got := w.carries("c1"); got.IsValid() {
					t.Errorf("net1 carries %s, whose lease has expired", got)
				}
				if _, err := e.Check(t.Context(), ipamRequest("c1")); err == nil {
					t.Error("Check passes without a lease")
				}
				w.change(func() {
					elsewhere(w)
					w.server.silent = false
				})
				time.Sleep(5 * time.Minute)
				synctest.Wait()
				if got := w.carries("c1"); got != netip.MustParsePrefix("10.77.0.100/24") || !w.adopted("c1") {
					t.Errorf("after the recovery net1 carries %s", got)
				}
			})
		})
	}
}

// The address of the DHCPRELEASE is the leased one whether or not the interface has
// it: the kernel of a server drops one that comes from 0.0.0.0.
func TestK92DelBeforeAdoption(t *testing.T) {
	for name, put := range map[string]string{"nothing there yet": "", "just put there": "10.77.0.50/24"} {
		t.Run(name, func(t *testing.T) {
			simulate(t, func(t *testing.T, w *world) {
				w.space("c1", 1)
				e, _ := w.start()
				mustAsk(t, e, "c1")
				if put != "" {
					w.place("c1", put)
				}
				w.since()
				mustDetach(t, e, "c1")
				if got := w.since(); len(got) == 0 || got[0] != "RELEASE to 10.77.0.1" || got[len(got)-1] != "delete" {
					t.Errorf("DEL: %v", got)
				}
				nothingLeft(t, w)
			})
		})
	}
}

// What the reference leaves on the server: the ADD goes on, and nobody knows it.
func TestDelDuringAnAddForTheDHCPPlugin(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		w.space("c1", 1)
		e, _ := w.start()
		errC := make(chan error, 1)
		go func() {
			_, err := e.Attach(t.Context(), ipamRequest("c1"))
			errC <- err
		}()
		time.Sleep(100 * time.Millisecond) // the server has given it; it is being probed
		synctest.Wait()
		if len(w.server.held) != 1 {
			t.Fatalf("the server holds %v", w.server.held)
		}
		mustDetach(t, e, "c1")
		if err := <-errC; !errors.Is(err, errDetached) {
			t.Errorf("Attach: %v", err)
		}
		nothingLeft(t, w)
	})
}

// A runtime that lost the answer asks again: the address may be there by then.
func TestADDAgainForTheDHCPPlugin(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		w.space("c1", 1)
		e, _ := w.start()
		mustAsk(t, e, "c1")
		time.Sleep(5 * time.Minute)
		w.since()
		if l := mustAsk(t, e, "c1"); l.Address != "10.77.0.50/24" {
			t.Errorf("answer %+v", l)
		}
		wantNotes(t, w)
		w.place("c1", "10.77.0.50/24")
		time.Sleep(time.Second)
		synctest.Wait()
		if !w.adopted("c1") {
			t.Error("the second ADD is not looked after")
		}
	})
}

// The network has changed, so that nothing stands of the first ADD: the caller finds the
// interface empty.
func TestADDAgainWithOtherSettings(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		w.space("c1", 1)
		e, _ := w.start()
		mustAsk(t, e, "c1")
		w.place("c1", "10.77.0.50/24")
		time.Sleep(time.Minute)
		r := ipamRequest("c1")
		r.DHCP = []byte(`{"hostname":"other"}`)
		w.since()
		if _, err := e.Attach(t.Context(), r); err != nil {
			t.Fatal(err)
		}
		if got := w.carries("c1"); got.IsValid() {
			t.Errorf("net1 carries %s, which the caller is going to put there", got)
		}
		if len(w.server.held) != 1 {
			t.Errorf("the server holds %v", w.server.held)
		}
	})
}
