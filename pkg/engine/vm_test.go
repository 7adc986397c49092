package engine

import (
	"context"
	"encoding/json"
	"errors"
	"net/netip"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine/api"
)

// vmWorld has a VM's pod with net1 in c1, and somebody who listens.
func vmWorld(w *world) *space {
	w.workload, w.audience = VM, &audience{}
	return w.space("c1", 1)
}

// From the ACK on nothing leaves the node for a VM: not at T1, not at T2, not at the
// end of the lease, not at DEL, and not when the pod is gone before it.
func TestK10K77B62NothingIsSentForAVMAfterTheAck(t *testing.T) {
	for name, before := range map[string]func(*world){
		"OK":                    func(*world) {},
		"OK pod object is gone": func(w *world) { w.cluster.away, w.cluster.gone = false, map[Pod]bool{request("c1", "c1").Pod: true} },
		"OK API is away":        func(w *world) { w.cluster.away = true },
		"OK namespace is gone":  func(w *world) { delete(w.spaces, "c1") },
	} {
		t.Run(name, func(t *testing.T) {
			simulate(t, func(t *testing.T, w *world) {
				s := vmWorld(w)
				e, _ := w.start()
				mustAttach(t, e, "c1")
				wantNotes(t, w, "DISCOVER to all", "put claimed 10.77.0.50/24", "REQUEST to all", "probe 10.77.0.50 full=false", "put leased 10.77.0.50/24")
				time.Sleep(3 * time.Hour) // T1, T2 and the end are long past
				synctest.Wait()
				wantNotes(t, w)
				if s.setup.Addr.IsValid() || len(w.server.held) != 1 {
					t.Errorf("interface carries %s, server holds %v", s.setup.Addr, w.server.held)
				}
				w.change(func() { before(w) })
				mustDetach(t, e, "c1")
				wantNotes(t, w, "delete")
				if len(w.server.held) != 1 || w.open != 0 {
					t.Errorf("server holds %v, %d ports are open", w.server.held, w.open)
				}
			})
		})
	}
}

// goroutines counts those of the test's own bubble: others may be ending, of tests
// before it.
func goroutines() (int, string) {
	buf := make([]byte, 1<<20)
	stacks := string(buf[:runtime.Stack(buf, true)])
	own := regexp.MustCompile(`synctest bubble \d+`).FindString(stacks) // the caller comes first
	return strings.Count(stacks, own+"]:"), stacks
}

// K76: no goroutine, no timer, no socket; what is left is a record.
func TestK74K76NothingRunsForAVM(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		vmWorld(w)
		e, _ := w.start()
		synctest.Wait()
		before, _ := goroutines()
		mustAttach(t, e, "c1")
		synctest.Wait()
		if n, stacks := goroutines(); n != before {
			t.Errorf("%d goroutines, %d before:\n%s", n, before, stacks)
		}
		if s := e.session(net1("c1")); s.machine != nil || s.keeper.Load() != nil || s.leftOpen != nil || w.open != 0 {
			t.Errorf("machine %v, keeper %v, %d ports", s.machine, s.keeper.Load(), w.open)
		}
		if len(w.records) != 1 {
			t.Errorf("records %v", w.records)
		}
	})
}

// Whatever the wrapped plugin has put on a VM's interface goes first of all, and
// nothing comes in its place.
func TestB63NoAddressOnAVMsInterface(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		s := vmWorld(w)
		s.foreign = []netip.Prefix{netip.MustParsePrefix("10.77.0.9/24"), netip.MustParsePrefix("192.0.2.1/32")}
		e, _ := w.start()
		r := request("c1", "c1")
		r.Addresses = []string{"10.77.0.9/24", "2001:db8::9/64"}
		got, err := e.Attach(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		if notes := w.since(); !strings.HasPrefix(notes[0], "strip ") || notes[1] != "DISCOVER to all" {
			t.Errorf("begins with %q", notes[:2])
		}
		if diff := cmp.Diff([]string{"10.77.0.9/24"}, got.Stripped); diff != "" {
			t.Errorf("stripped (-want +got):\n%s", diff)
		}
		if len(s.foreign) > 0 || s.setup.Addr.IsValid() || got.Address != "10.77.0.50/24" || len(got.Routes) > 0 {
			t.Errorf("interface has %v and %s, answer %+v", s.foreign, s.setup, got)
		}
	})
	simulate(t, func(t *testing.T, w *world) {
		vmWorld(w)
		w.stripErr = errors.New("device or resource busy")
		e, _ := w.start()
		_, err := e.Attach(t.Context(), request("c1", "c1"))
		if api.CodeOf(err) != api.CodeTryAgain || !strings.Contains(err.Error(), "busy") {
			t.Errorf("Attach that cannot strip: code %d, %v", api.CodeOf(err), err)
		}
		wantNotes(t, w)
	})
}

// B65: another sandbox, or a restarted guest, with the same MAC has the same
// address, and where the server gives another one, that is the one published.
func TestB65VMRestartHasTheReportedAddress(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		vmWorld(w)
		e, _ := w.start()
		first := mustAttach(t, e, "c1")
		w.remove("c1")
		time.Sleep(2 * patrolEvery)
		w.space("c2", 1) // same MAC
		r := request("c2", "c2")
		r.Pod.UID = "uid-2"
		second, err := e.Attach(t.Context(), r)
		if err != nil || second.Address != first.Address {
			t.Errorf("first %s, then %s, %v", first.Address, second.Address, err)
		}
		w.change(func() {
			clear(w.server.held)
			w.server.first = netip.MustParseAddr("10.77.0.100")
		})
		w.space("c3", 1)
		r = request("c3", "c3")
		r.Pod.UID = "uid-3"
		if _, err := e.Attach(t.Context(), r); err != nil || w.audience.seen(net1("c3")).String() != "10.77.0.100/24" {
			t.Errorf("published %s, %v", w.audience.seen(net1("c3")), err)
		}
		// Nothing said who the guest is but its MAC.
		if w.server.sawClientID {
			t.Error("option 61 was sent")
		}
	})
}

// B68: the address found at ADD is reported for the life of the pod, over the end of
// the lease and over a restart of the engine.
func TestB68VMAddressStaysReported(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		vmWorld(w)
		e, stop := w.start()
		lease := mustAttach(t, e, "c1")
		for range 2 {
			time.Sleep(3 * time.Hour)
			got, err := e.Check(t.Context(), request("c1", "c1"))
			if err != nil || got.Address != lease.Address || w.audience.seen(net1("c1")).String() != lease.Address {
				t.Errorf("Check = %+v, %v; published %s", got, err, w.audience.seen(net1("c1")))
			}
			list, _ := e.List(t.Context())
			if len(list) != 1 || list[0].State != "REPORTED" || list[0].Address != lease.Address || list[0].Expiry != nil {
				t.Errorf("List = %+v", list)
			}
			stop()
			w.audience.show(net1("c1"), netip.Prefix{}) // somebody took it away meanwhile
			w.since()
			e, stop = w.start()
			synctest.Wait()
			wantNotes(t, w) // nothing is sent
		}
		if got := w.audience.seen(net1("c1")); got.String() != lease.Address {
			t.Errorf("after a restart published %s", got)
		}
		mustDetach(t, e, "c1")
		if got := w.audience.seen(net1("c1")); got.IsValid() || len(w.records) > 0 {
			t.Errorf("after DEL published %s, records %v", got, w.records)
		}
	})
}

// B69: that the guest's address comes by DHCP is to be seen before the address is.
func TestB69VMIsAnnouncedBeforeItsAddressIsKnown(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		vmWorld(w)
		e, _ := w.start()
		w.change(func() { w.server.silent = true })
		go func() {
			time.Sleep(3 * time.Second)
			if diff := cmp.Diff([]string{"reset c1 VM"}, w.audience.since()); diff != "" {
				t.Errorf("told before any answer (-want +got):\n%s", diff)
			}
			w.change(func() { w.server.silent = false })
		}()
		mustAttach(t, e, "c1")
		if diff := cmp.Diff([]string{"publish c1 10.77.0.50/24", "AddressReported c1"}, w.audience.since()); diff != "" {
			t.Errorf("told (-want +got):\n%s", diff)
		}
	})
}

// A VM's ADD that fails after the ACK gives the lease back, as all others do: no
// guest has it yet.
func TestVMWhoseADDFailsGivesBack(t *testing.T) {
	for _, moment := range []string{"put claimed 10.77.0.50/24", "REQUEST to all", "probe 10.77.0.50 full=false", "put leased 10.77.0.50/24"} {
		t.Run(moment, func(t *testing.T) {
			simulate(t, func(t *testing.T, w *world) {
				vmWorld(w)
				e, _ := w.start()
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				w.onNote = func(n string) {
					if n == moment {
						cancel()
					}
				}
				if _, err := e.Attach(ctx, request("c1", "c1")); err == nil {
					t.Error("Attach succeeds")
				}
				nothingLeft(t, w)
				if got := w.audience.seen(net1("c1")); got.IsValid() {
					t.Errorf("published %s", got)
				}
			})
		})
	}
}

// A pod holds one address; the sandbox before it had the same MAC or another one.
// What its guest may have is not given back behind its back.
func TestVMSandboxMadeAgain(t *testing.T) {
	for _, mac := range []byte{1, 2} {
		simulate(t, func(t *testing.T, w *world) {
			vmWorld(w)
			e, _ := w.start()
			mustAttach(t, e, "c1")
			w.space("c2", mac)
			mustAttach(t, e, "c2")
			if w.server.releases > 0 {
				t.Errorf("%d releases", w.server.releases)
			}
			w.audience.since()
			mustDetach(t, e, "c1") // late
			if told := w.audience.since(); told != nil {
				t.Errorf("DEL of the older sandbox told %q", told)
			}
			if _, err := e.Check(t.Context(), request("c2", "c2")); err != nil {
				t.Errorf("Check: %v", err)
			}
		})
	}
}

// An ADD that comes again finds its answer while that can still be right, and asks
// again later.
func TestVMRepeatedAdd(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		vmWorld(w)
		e, _ := w.start()
		first := mustAttach(t, e, "c1")
		w.since()
		if second := mustAttach(t, e, "c1"); second.Address != first.Address {
			t.Errorf("second answer %+v", second)
		}
		wantNotes(t, w)
		time.Sleep(2 * time.Hour)
		mustAttach(t, e, "c1")
		if notes := w.since(); !slices.Contains(notes, "REQUEST to all") {
			t.Errorf("long after its end: %q", notes)
		}
	})
}

// Nobody asks by hand for what is a guest's, and nobody sends over its interface.
func TestVMsInterfaceCarriesNothing(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		e, _ := w.start()
		w.space("c9", 9)
		r := request("c9", "c9")
		r.Pod.UID = "uid-9"
		if _, err := e.Attach(t.Context(), r); err != nil {
			t.Fatal(err)
		}
		vmWorld(w)
		mustAttach(t, e, "c1")
		if _, err := e.Renew(t.Context(), net1("c1"), false); err == nil || !strings.Contains(err.Error(), "guest") {
			t.Errorf("Renew: %v", err)
		}
		unsent(t, w, e, "c9")
		w.remove("c9")
		time.Sleep(firstDelivery + time.Second)
		synctest.Wait()
		if w.server.releases != 0 {
			t.Error("a RELEASE was sent over the interface of a VM")
		}
	})
}

// A record of the first release that knew VMs, with settings that are wrong by now.
func TestRestoredVMThatIsOfNoUse(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		vmWorld(w)
		e, stop := w.start()
		mustAttach(t, e, "c1")
		stop()
		rec := w.records[net1("c1")]
		rec.Phase = Seeking
		w.records[net1("c1")] = rec
		unusable := rec
		unusable.AttachmentID, unusable.Phase, unusable.Effective = net1("c2"), Leased, json.RawMessage(`{"a":1}`)
		w.records[net1("c2")] = unusable
		w.since()
		w.start()
		synctest.Wait()
		if len(w.records) > 0 {
			t.Errorf("left: %v", w.records)
		}
		wantNotes(t, w, "delete", "delete")
	})
}
