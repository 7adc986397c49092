package engine

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine/api"
)

func TestRenewByHand(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		s := w.space("c1", 1)
		e, _ := w.start()
		mustAttach(t, e, "c1")
		time.Sleep(10 * time.Minute)
		w.since()
		got, err := e.Renew(t.Context(), net1("c1"), false)
		if err != nil {
			t.Fatal(err)
		}
		if got.State != "BOUND" || got.Address != "10.77.0.50/24" || time.Until(*got.Expiry).Round(time.Minute) != time.Hour {
			t.Errorf("answer %+v", got)
		}
		if left := time.Until(s.until); left < 59*time.Minute {
			t.Errorf("kernel takes the address away in %s", left)
		}
		wantNotes(t, w, "REQUEST to 10.77.0.1", "put leased 10.77.0.50/24", "configure 10.77.0.50/24")

		// The keeper goes on: nothing before the new T1, then a renewal.
		time.Sleep(29 * time.Minute)
		wantNotes(t, w)
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		wantNotes(t, w, "REQUEST to 10.77.0.1", "put leased 10.77.0.50/24", "configure 10.77.0.50/24")
		if w.open != 0 {
			t.Errorf("%d ports are open", w.open)
		}
	})
}

// Nobody answers: the caller hears of it, the lease stays and is renewed when the
// server is back.
func TestRenewByHandWithoutAnswer(t *testing.T) {
	for name, rebind := range map[string]bool{"renew": false, "rebind": true} {
		t.Run(name, func(t *testing.T) {
			simulate(t, func(t *testing.T, w *world) {
				s := w.space("c1", 1)
				e, _ := w.start()
				mustAttach(t, e, "c1")
				w.change(func() { w.server.silent = true })
				begin := time.Now()
				got, err := e.Renew(t.Context(), net1("c1"), rebind)
				if took := time.Since(begin); took > byHandTime {
					t.Errorf("the caller waited %s", took)
				}
				for _, part := range []string{"no server has answered for 10.77.0.50 within", "3 DHCPREQUEST", "valid for another 59m", "server 10.77.0.1"} {
					if err == nil || !strings.Contains(err.Error(), part) {
						t.Errorf("error does not say %q: %v", part, err)
					}
				}
				if api.CodeOf(err) != api.CodeTryAgain || got.Address != "10.77.0.50/24" {
					t.Errorf("code %d, answer %+v", api.CodeOf(err), got)
				}
				w.change(func() { w.server.silent = false })
				time.Sleep(50 * time.Minute)
				synctest.Wait()
				if left := time.Until(s.until); left < 30*time.Minute || !s.setup.Addr.IsValid() {
					t.Errorf("%s is not renewed: %s left", s.setup.Addr, left)
				}
			})
		})
	}
}

// The server of the lease is gone and another one knows it: rebind asks all.
func TestRebindByHand(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		w.space("c1", 1)
		e, _ := w.start()
		mustAttach(t, e, "c1")
		time.Sleep(time.Minute)
		w.change(func() { w.server.id = netip.MustParseAddr("10.77.0.2") })
		w.since()
		got, err := e.Renew(t.Context(), net1("c1"), true)
		if err != nil || got.Server != "10.77.0.2" || got.State != "BOUND" || got.Address != "10.77.0.50/24" {
			t.Errorf("answer %+v, %v", got, err)
		}
		wantNotes(t, w, "REQUEST to all", "put leased 10.77.0.50/24", "configure 10.77.0.50/24")
	})
}

// A lease that is past T1 already, whose server was away and is back, need not
// wait for the machine's next try.
func TestByHandPastT1(t *testing.T) {
	for name, rebind := range map[string]bool{"renew": false, "rebind": true} {
		t.Run(name, func(t *testing.T) {
			simulate(t, func(t *testing.T, w *world) {
				w.space("c1", 1)
				e, _ := w.start()
				mustAttach(t, e, "c1")
				w.change(func() { w.server.silent = true })
				time.Sleep(31 * time.Minute)
				w.change(func() { w.server.silent = false })
				begin := time.Now()
				got, err := e.Renew(t.Context(), net1("c1"), rebind)
				if err != nil || got.State != "BOUND" || time.Since(begin) > 0 {
					t.Errorf("after %s: %+v, %v", time.Since(begin), got, err)
				}
			})
		})
	}
}

// An infinite lease has no T1: an unanswered question is no success.
func TestRenewByHandOfAnInfiniteLease(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		w.space("c1", 1)
		w.server.lifetime = 0xffffffff * time.Second
		e, _ := w.start()
		mustAttach(t, e, "c1")
		time.Sleep(time.Minute)
		if got, err := e.Renew(t.Context(), net1("c1"), false); err != nil || !got.Infinite {
			t.Errorf("answer %+v, %v", got, err)
		}
		w.change(func() { w.server.silent = true })
		_, err := e.Renew(t.Context(), net1("c1"), false)
		if err == nil || !strings.Contains(err.Error(), "no server has answered") || !strings.Contains(err.Error(), "without end") {
			t.Errorf("error is %v", err)
		}
	})
}

// The server takes the address back and gives another one: that is an outcome.
func TestRenewByHandChangesTheAddress(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		s := w.space("c1", 1)
		e, _ := w.start()
		mustAttach(t, e, "c1")
		time.Sleep(time.Minute)
		w.change(func() {
			w.server.held = map[string]netip.Addr{"another": netip.MustParseAddr("10.77.0.50")}
		})
		got, err := e.Renew(t.Context(), net1("c1"), false)
		if err != nil || got.Address != "10.77.0.51/24" || s.setup.Addr.String() != "10.77.0.51/24" {
			t.Errorf("answer %+v, %v; interface %s", got, err, s.setup.Addr)
		}
	})
}

// A server that refuses all leaves no lease; the search goes on by itself.
func TestRenewByHandRefused(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		s := w.space("c1", 1)
		e, _ := w.start()
		mustAttach(t, e, "c1")
		w.change(func() { w.server.nak = true })
		_, err := e.Renew(t.Context(), net1("c1"), false)
		if err == nil || !strings.Contains(err.Error(), "10.77.0.50 was taken back by a server") {
			t.Errorf("error is %v", err)
		}
		if s.setup.Addr.IsValid() {
			t.Errorf("interface still carries %s", s.setup.Addr)
		}
		if _, err := e.Renew(t.Context(), net1("c1"), false); err == nil || !strings.Contains(err.Error(), "no lease to renew") {
			t.Errorf("second Renew: %v", err)
		}
		w.change(func() { w.server.nak = false })
		time.Sleep(3 * time.Minute)
		synctest.Wait()
		if !s.setup.Addr.IsValid() {
			t.Error("the search has not gone on")
		}
	})
}

// Whatever fails on the way, a keeper has the session afterwards and gets a lease.
func TestKeeperGoesOnAfterAFailedRenew(t *testing.T) {
	moved := func(w *world) {
		w.server.held = map[string]netip.Addr{"another": netip.MustParseAddr("10.77.0.50")}
	}
	full := func(Record) error { return errors.New("no space left on device") }
	tests := map[string]struct{ break_, mend func(*world) }{
		"full disk at a change of address": {
			func(w *world) { moved(w); w.putErr = full }, func(w *world) { w.putErr = nil }},
		"new address cannot be configured": {
			func(w *world) { moved(w); w.cfgErr = errors.New("route exists") }, func(w *world) { w.cfgErr = nil }},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			simulate(t, func(t *testing.T, w *world) {
				s := w.space("c1", 1)
				e, _ := w.start()
				mustAttach(t, e, "c1")
				w.change(func() { tt.break_(w) })
				if got, err := e.Renew(t.Context(), net1("c1"), false); err == nil {
					t.Fatalf("Renew = %+v", got)
				}
				w.change(func() { tt.mend(w) })
				time.Sleep(2 * time.Minute)
				synctest.Wait()
				if s.setup.Addr.String() != "10.77.0.51/24" {
					t.Errorf("interface carries %q", s.setup.Addr)
				}
				list, err := e.List(t.Context())
				if err != nil || len(list) != 1 || list[0].Address != "10.77.0.51/24" || list[0].State != "BOUND" {
					t.Errorf("List = %+v, %v", list, err)
				}
			})
		})
	}
}

func TestRenewByHandFindsTheInterfaceGone(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		w.space("c1", 1)
		e, _ := w.start()
		mustAttach(t, e, "c1")
		w.change(func() { delete(w.spaces, "c1") })
		if _, err := e.Renew(t.Context(), net1("c1"), false); !errors.Is(err, ErrGone) {
			t.Errorf("error is %v, want %v", err, ErrGone)
		}
		synctest.Wait()
		if _, err := e.Renew(t.Context(), net1("c1"), false); err == nil || !strings.Contains(err.Error(), "waits for a new sandbox of pod shop/web-0") {
			t.Errorf("second Renew: %v", err)
		}
	})
}

// A DEL does not wait for somebody's renewal.
func TestDelDuringRenewByHand(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		w.space("c1", 1)
		e, _ := w.start()
		mustAttach(t, e, "c1")
		w.change(func() { w.server.silent = true })
		errC := make(chan error, 1)
		go func() {
			_, err := e.Renew(t.Context(), net1("c1"), false)
			errC <- err
		}()
		time.Sleep(time.Second)
		begin := time.Now()
		mustDetach(t, e, "c1")
		if took := time.Since(begin); took > 0 {
			t.Errorf("Detach waited %s", took)
		}
		if err := <-errC; err == nil || !strings.Contains(err.Error(), "ended by a DEL") {
			t.Errorf("Renew: %v", err)
		}
		nothingLeft(t, w)
	})
}

func TestRenewEndsWithItsCaller(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		s := w.space("c1", 1)
		e, _ := w.start()
		mustAttach(t, e, "c1")
		w.change(func() { w.server.silent = true })
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		begin := time.Now()
		if _, err := e.Renew(ctx, net1("c1"), false); !errors.Is(err, context.Canceled) || time.Since(begin) != time.Second {
			t.Errorf("Renew ended after %s with %v", time.Since(begin), err)
		}
		if w.open != 0 || !s.setup.Addr.IsValid() {
			t.Errorf("%d ports are open, interface carries %s", w.open, s.setup.Addr)
		}
	})
}

func TestByHandRefused(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		w.space("old", 1)
		w.space("new", 1)
		e, _ := w.start()
		mustAttach(t, e, "old")
		mustAttach(t, e, "new")
		w.workload = VM
		w.space("vm", 3)
		vm := request("vm", "vm")
		vm.Pod.UID = "uid-2"
		if _, err := e.Attach(t.Context(), vm); err != nil {
			t.Fatal(err)
		}
		w.since()
		for _, tt := range []struct {
			name, container string
			code            uint
			want            string
			release         bool // is refused too
		}{
			{"unknown", "never", api.CodeUnknown, "no attachment never:net1", true},
			{"superseded", "old", api.CodeEnv, "a newer sandbox of pod shop/web-0 has its lease", true},
			{"lease of a guest", "vm", api.CodeEnv, "its guest's to renew", false},
		} {
			_, renewErr := e.Renew(t.Context(), net1(tt.container), false)
			_, rebindErr := e.Renew(t.Context(), net1(tt.container), true)
			errs := map[string]error{"Renew": renewErr, "Rebind": rebindErr}
			if tt.release {
				errs["Release"] = e.Release(t.Context(), net1(tt.container))
			}
			for verb, err := range errs {
				if err == nil || api.CodeOf(err) != tt.code || !strings.Contains(err.Error(), tt.want) {
					t.Errorf("%s of %s: code %d, %v", verb, tt.name, api.CodeOf(err), err)
				}
			}
		}
		wantNotes(t, w)
	})
}

// The keeper of a restored session may still wait for its part of the spread.
func TestRenewByHandRightAfterTheStart(t *testing.T) {
	for name, away := range map[string]time.Duration{"OK before T1": 10 * time.Minute, "OK past T1": 40 * time.Minute} {
		t.Run(name, func(t *testing.T) {
			simulate(t, func(t *testing.T, w *world) {
				e, stop := w.start()
				attachMany(t, w, e, 60, "lan")
				stop()
				time.Sleep(away)
				e, _ = w.start()
				if _, err := e.Renew(t.Context(), net1("lan-7"), false); err != nil {
					t.Error(err)
				}
			})
		})
	}
}
