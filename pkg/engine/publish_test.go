package engine

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine/api"
	"github.com/dhcp-meta/dhcp-meta/pkg/engine/network"
)

// ovnWorld has a container's net1 in c1, plugged by OVN-Kubernetes.
func ovnWorld(w *world) *space {
	w.cluster.ovn, w.cluster.nad, w.audience = true, "shop/lan", &audience{}
	return w.space("c1", 1)
}

// Persist, configure, publish, answer; and one call for an ADD of a container.
func TestPublishedAfterItIsConfigured(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		ovnWorld(w)
		e, _ := w.start()
		if err := e.Prepare(t.Context(), request("c1", "c1")); err != nil {
			t.Fatal(err)
		}
		w.audience.waits = func(context.Context, string) { w.change(func() { w.note("published") }) }
		mustAttach(t, e, "c1")
		notes := w.since()
		at := slices.Index(notes, "published")
		if at < slices.Index(notes, "configure 10.77.0.50/24") || slices.Contains(notes[at+1:], "published") {
			t.Errorf("what happened: %q", notes)
		}
		want := Publication{HardwareAddr: []byte{2, 0, 0, 0, 0, 1}, Addr: netip.MustParsePrefix("10.77.0.50/24"),
			Gateways: []netip.Addr{netip.MustParseAddr("10.77.0.1")}, OVN: true, PortSecurity: network.PortSecurityAuto}
		got := w.audience.last
		if got.NAD != "shop/lan" || got.Netns.Cookie == 0 {
			t.Errorf("published for %+v", got.Attachment)
		}
		got.Attachment = Attachment{}
		if diff := cmp.Diff(want, got, cmp.Comparer(func(a, b netip.Addr) bool { return a == b }), cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })); diff != "" {
			t.Errorf("published (-want +got):\n%s", diff)
		}
		if e := w.audience.events; len(e) != 1 || e[0] != (Event{AddressLeased, "address 10.77.0.50/24 from DHCP server 10.77.0.1"}) {
			t.Errorf("events %+v", e)
		}
	})
}

// P23, P24: what cannot be made known in time fails the ADD with time to spare, and
// leaves no lease, no address and no record.
func TestP23P24PublicationThatIsRequired(t *testing.T) {
	errNo := errors.New("the server is currently unable to handle the request")
	tests := []struct {
		name string
		set  func(*audience)
		took time.Duration // at most
		want string
	}{
		{"bad refused", func(a *audience) {
			a.fails = func(what string) error { return map[string]error{"publish": errNo}[what] }
		}, time.Second, "currently unable"},
		{"bad hanging", func(a *audience) {
			a.waits = func(ctx context.Context, what string) {
				if what == "publish" {
					<-ctx.Done()
				}
			}
		}, 97 * time.Second, "could not be made known outside the node within 1m35."},
		{"bad all hangs, the withdrawal too", func(a *audience) {
			a.waits = func(ctx context.Context, what string) { <-ctx.Done() }
		}, 98 * time.Second, "could not be made known"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			simulate(t, func(t *testing.T, w *world) {
				ovnWorld(w)
				e, _ := w.start()
				tt.set(w.audience)
				begin := time.Now()
				_, err := e.Attach(t.Context(), request("c1", "c1"))
				if took := time.Since(begin); took > tt.took {
					t.Errorf("took %s", took)
				}
				if api.CodeOf(err) != api.CodeTryAgain || err == nil || !strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), "10.77.0.50") {
					t.Errorf("code %d, %v", api.CodeOf(err), err)
				}
				if w.server.releases != 1 {
					t.Errorf("%d releases", w.server.releases)
				}
				nothingLeft(t, w)
				if told := w.audience.since(); !slices.Equal(told, []string{"publish c1 10.77.0.50/24", "withdraw c1"}) {
					t.Errorf("told %q", told)
				}
				w.audience.fails, w.audience.waits = nil, nil
				mustAttach(t, e, "c1")
			})
		})
	}
}

// P25: a server without a free address: a clear error in bounded time, and the next
// ADD works.
func TestP25ServerWithoutAnAddress(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		ovnWorld(w)
		w.server.silent = true // as servers without an address are
		e, _ := w.start()
		_, err := e.Attach(t.Context(), request("c1", "c1"))
		if api.CodeOf(err) != api.CodeTryAgain || !strings.Contains(err.Error(), "no DHCP server answered within") {
			t.Errorf("code %d, %v", api.CodeOf(err), err)
		}
		nothingLeft(t, w)
		if told := w.audience.since(); !slices.Equal(told, []string{"WaitingForAddress c1", "NoDHCPServer c1"}) {
			t.Errorf("told %q", told)
		}
		w.change(func() { w.server.silent = false })
		mustAttach(t, e, "c1")
	})
}

// Where it need not be known at once, an ADD waits for a moment only.
func TestEventualPublication(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		w.space("c1", 1)
		w.audience = &audience{waits: func(ctx context.Context, what string) { <-ctx.Done() }}
		e, _ := w.start()
		begin := time.Now()
		mustAttach(t, e, "c1")
		if took := time.Since(begin); took > hastyTime+time.Second {
			t.Errorf("took %s", took)
		}
		begin = time.Now()
		mustDetach(t, e, "c1")
		if took := time.Since(begin); took > 2*time.Second {
			t.Errorf("DEL took %s", took)
		}
		nothingLeft(t, w)
	})
}

// B57: what an earlier sandbox left published goes before the wrapped plugin runs;
// when that cannot be, nothing runs.
func TestB57PrepareTakesAwayWhatIsPublished(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		ovnWorld(w)
		e, _ := w.start()
		resets := 0
		w.audience.fails = func(what string) error {
			if what == "reset" {
				resets++
				if resets == 1 {
					return errAway
				}
			}
			return nil
		}
		err := e.Prepare(t.Context(), request("c1", "c1"))
		if api.CodeOf(err) != api.CodeTryAgain || !strings.Contains(err.Error(), "connection refused") || !strings.Contains(err.Error(), "pod shop/web-0") {
			t.Errorf("code %d, %v", api.CodeOf(err), err)
		}
		if err := e.Prepare(t.Context(), request("c1", "c1")); err != nil || resets != 2 {
			t.Errorf("%d resets, %v", resets, err)
		}
		wantNotes(t, w)
	})
}

// An ADD that comes again finds its lease, and publishes it again: Prepare has taken
// it away.
func TestRepeatedAddPublishesAgain(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		ovnWorld(w)
		e, _ := w.start()
		mustAttach(t, e, "c1")
		w.audience.show(net1("c1"), netip.Prefix{})
		w.since()
		mustAttach(t, e, "c1")
		wantNotes(t, w)
		if got := w.audience.seen(net1("c1")); got.String() != "10.77.0.50/24" {
			t.Errorf("published %s", got)
		}
		w.audience.fails = func(string) error { return errAway }
		if _, err := e.Attach(t.Context(), request("c1", "c1")); api.CodeOf(err) != api.CodeTryAgain {
			t.Errorf("code %d, %v", api.CodeOf(err), err)
		}
		time.Sleep(31 * time.Minute) // its keeper goes on
		synctest.Wait()
		if notes := w.since(); !slices.Contains(notes, "REQUEST to 10.77.0.1") {
			t.Errorf("no renewal: %q", notes)
		}
	})
}

// A start publishes what is there, in the background.
func TestRestoredLeasesArePublished(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		ovnWorld(w)
		e, stop := w.start()
		mustAttach(t, e, "c1")
		w.change(func() { w.workload = VM })
		w.space("c2", 2)
		r := request("c2", "c2")
		r.Pod.UID = "uid-2"
		if _, err := e.Attach(t.Context(), r); err != nil {
			t.Fatal(err)
		}
		stop()
		w.audience.since()
		w.audience.waits = func(ctx context.Context, what string) { <-ctx.Done() } // the API is away
		e, _ = w.start()
		if err := e.Ready(); err != nil {
			t.Errorf("a start waits for the publisher: %v", err)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		told := w.audience.since()
		slices.Sort(told)
		if diff := cmp.Diff([]string{"publish c1 10.77.0.50/24", "publish c2 10.77.0.51/24"}, told); diff != "" {
			t.Errorf("told (-want +got):\n%s", diff)
		}
		if !w.audience.last.OVN {
			t.Errorf("published %+v", w.audience.last)
		}
		w.audience.waits = nil
		mustDetach(t, e, "c2")
		mustDetach(t, e, "c1")
		if diff := cmp.Diff([]string{"withdraw c2", "withdraw c1"}, w.audience.since()); diff != "" {
			t.Errorf("told at DEL (-want +got):\n%s", diff)
		}
	})
}

// An interface that is given another MAC loses its address until the server has
// answered, and what is published of it too.
func TestAddressOfAnotherMACIsWithdrawn(t *testing.T) {
	for name, happens := range map[string]func(*world, *space){
		"OK another MAC": func(_ *world, s *space) { s.link.HardwareAddr = []byte{2, 0, 0, 0, 0, 9} },
		"OK another MAC while the server is silent": func(w *world, s *space) {
			s.link.HardwareAddr, w.server.silent = []byte{2, 0, 0, 0, 0, 9}, true
		},
	} {
		t.Run(name, func(t *testing.T) {
			simulate(t, func(t *testing.T, w *world) {
				w.audience = &audience{}
				s := w.space("c1", 1)
				e, _ := w.start()
				mustAttach(t, e, "c1")
				w.audience.since()
				w.change(func() { happens(w, s) })
				time.Sleep(31 * time.Minute)
				synctest.Wait()
				if told := w.audience.since(); len(told) == 0 || told[0] != "withdraw c1" {
					t.Errorf("the publisher was told %q", told)
				}
				w.change(func() { w.server.silent = false })
				time.Sleep(20 * time.Minute)
				synctest.Wait()
				if seen := w.audience.seen(net1("c1")); !seen.IsValid() || seen != w.carries("c1") {
					t.Errorf("published is %s, the interface carries %s", seen, w.carries("c1"))
				}
			})
		})
	}
}

// A DEL of an older sandbox writes nothing: what is published is the newer one's.
func TestDelOfASupersededSandboxWritesNothing(t *testing.T) {
	for _, restart := range []bool{false, true} {
		simulate(t, func(t *testing.T, w *world) {
			ovnWorld(w)
			e, stop := w.start()
			mustAttach(t, e, "c1")
			w.space("c2", 1)
			mustAttach(t, e, "c2")
			if diff := cmp.Diff([]string{"publish c1 10.77.0.50/24", "AddressLeased c1", "forget c1", "publish c2 10.77.0.50/24", "AddressLeased c2"},
				w.audience.since()); diff != "" {
				t.Errorf("told (-want +got):\n%s", diff)
			}
			if restart {
				stop()
				e, _ = w.start()
				synctest.Wait()
				w.audience.since()
			}
			mustDetach(t, e, "c1")
			if told := w.audience.since(); told != nil {
				t.Errorf("restart %t: DEL told %q", restart, told)
			}
		})
	}
}

// An ADD that nobody waits for any longer, and finishes late, writes nothing and
// gives its lease back.
func TestAbandonedAddWritesNothing(t *testing.T) {
	t.Run("a newer sandbox takes its place while it publishes", func(t *testing.T) {
		simulate(t, func(t *testing.T, w *world) {
			ovnWorld(w)
			w.space("c2", 2)
			e, _ := w.start()
			publishing := make(chan struct{})
			w.audience.waits = func(ctx context.Context, what string) {
				if what == "publish" {
					close(publishing)
					<-ctx.Done()
				}
			}
			errC := attach(t, e, request("c1", "c1"))
			<-publishing
			w.audience.waits = nil
			mustAttach(t, e, "c2")
			if err := <-errC; !errors.Is(err, ErrSuperseded) {
				t.Errorf("the older ADD: %v", err)
			}
			told := w.audience.since()
			if slices.Contains(told, "withdraw c1") || !slices.Contains(told, "forget c1") || slices.Contains(told, "AddressLeased c1") {
				t.Errorf("told %q", told)
			}
			if w.carries("c1").IsValid() || len(w.server.held) != 1 {
				t.Errorf("c1 carries %s, server holds %v", w.carries("c1"), w.server.held)
			}
		})
	})
	t.Run("its pod has another UID by now", func(t *testing.T) {
		for _, publish := range []string{"require", "eventual"} {
			simulate(t, func(t *testing.T, w *world) {
				ovnWorld(w)
				e, _ := w.start()
				w.audience.fails = func(what string) error { return fmt.Errorf("pod shop/web-0: %w", ErrSuperseded) }
				r := request("c1", "c1")
				r.DHCP = []byte(`{"publish":"` + publish + `"}`)
				_, err := e.Attach(t.Context(), r)
				if !errors.Is(err, ErrSuperseded) || api.CodeOf(err) != api.CodeTryAgain || !strings.Contains(err.Error(), "leased for nobody") {
					t.Errorf("%s: %v", publish, err)
				}
				if diff := cmp.Diff([]string{"publish c1 10.77.0.50/24", "forget c1"}, w.audience.since()); diff != "" {
					t.Errorf("%s: told (-want +got):\n%s", publish, diff)
				}
				nothingLeft(t, w)
			})
		}
	})
	t.Run("its caller is gone while it publishes", func(t *testing.T) {
		simulate(t, func(t *testing.T, w *world) {
			ovnWorld(w)
			e, _ := w.start()
			ctx, cancel := context.WithCancel(t.Context())
			w.audience.waits = func(ctx context.Context, what string) {
				if what == "publish" {
					cancel()
					<-ctx.Done()
				}
			}
			if _, err := e.Attach(ctx, request("c1", "c1")); err == nil {
				t.Error("Attach succeeds")
			}
			nothingLeft(t, w)
			if diff := cmp.Diff([]string{"publish c1 10.77.0.50/24", "withdraw c1"}, w.audience.since()); diff != "" {
				t.Errorf("told (-want +got):\n%s", diff)
			}
		})
	})
	t.Run("its caller is gone before it publishes", func(t *testing.T) {
		simulate(t, func(t *testing.T, w *world) {
			ovnWorld(w)
			e, _ := w.start()
			ctx, cancel := context.WithCancel(t.Context())
			w.onNote = func(n string) {
				if strings.HasPrefix(n, "announce") {
					cancel()
				}
			}
			if _, err := e.Attach(ctx, request("c1", "c1")); err == nil {
				t.Error("Attach succeeds")
			}
			nothingLeft(t, w)
			if told := w.audience.since(); told != nil {
				t.Errorf("told %q", told)
			}
		})
	})
}
