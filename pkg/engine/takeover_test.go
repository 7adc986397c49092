package engine

import (
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine/api"
)

func TestB84CrashingSandboxesHoldOneAddress(t *testing.T) {
	tests := []struct {
		name string
		mac  func(i int) byte
		gone bool // the older namespace has ended
	}{
		{"OK same MAC: the lease is taken over", func(int) byte { return 1 }, false},
		{"OK same MAC, older namespace gone", func(int) byte { return 1 }, true},
		{"OK another MAC each: the older lease is given back", func(i int) byte { return byte(i + 1) }, false},
		{"OK another MAC each, older namespace gone", func(i int) byte { return byte(i + 1) }, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			simulate(t, func(t *testing.T, w *world) {
				e, _ := w.start()
				for i := range 20 {
					c := fmt.Sprintf("c%d", i)
					w.space(c, tt.mac(i))
					mustAttach(t, e, c)
					synctest.Wait()
					if len(w.server.held) != 1 {
						t.Fatalf("after %d sandboxes the server holds %v", i+1, w.server.held)
					}
					if before := w.spaces[fmt.Sprintf("c%d", i-1)]; before != nil && before.setup.Addr.IsValid() {
						t.Fatalf("sandbox %d still carries its address", i-1)
					}
					if tt.gone {
						w.remove(c)
						synctest.Wait()
					}
				}
				w.since()
				for i := range 19 { // their DELs come late
					mustDetach(t, e, fmt.Sprintf("c%d", i))
				}
				if diff := cmp.Diff(slices.Repeat([]string{"delete"}, 19), w.since()); diff != "" {
					t.Errorf("DELs of superseded sandboxes (-want +got):\n%s", diff)
				}
				if len(w.server.held) != 1 {
					t.Errorf("the server holds %v", w.server.held)
				}
			})
		})
	}
}

func TestFailedTakeoverKeepsTheOlderLease(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		w.space("c1", 1)
		e, _ := w.start()
		mustAttach(t, e, "c1")
		w.space("c2", 1).carrier = make(chan struct{})
		if _, err := e.Attach(t.Context(), request("c2", "c2")); err == nil {
			t.Fatal("Attach without carrier succeeds")
		}
		time.Sleep(2 * time.Hour)
		synctest.Wait()
		if _, err := e.Check(t.Context(), request("c1", "c1")); err != nil {
			t.Errorf("Check of the older sandbox: %v", err)
		}
	})
}

func TestCrashInTakeoverIsSettled(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		w.space("c1", 1)
		e, stop := w.start()
		mustAttach(t, e, "c1")
		stop()
		w.space("c2", 1)
		claim := w.records[net1("c1")]
		claim.AttachmentID, claim.Phase, claim.Setup = net1("c2"), Claimed, Setup{}
		claim.Netns = w.spaces["c2"].link.Netns
		w.records[claim.AttachmentID] = claim

		w.start()
		time.Sleep(2 * time.Hour)
		synctest.Wait()
		if w.server.releases != 1 || len(w.server.held) != 0 {
			t.Errorf("%d releases, the server holds %v", w.server.releases, w.server.held)
		}
		if a := w.spaces["c1"].setup.Addr; a.IsValid() {
			t.Errorf("the older sandbox still carries %s", a)
		}
	})
}

func TestNewSandboxEndsTheOlderAdd(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		w.space("c1", 1)
		w.space("c2", 1)
		w.server.silent = true
		e, _ := w.start()
		errC := attach(t, e, request("c1", "c1"))
		time.Sleep(5 * time.Second)
		w.change(func() { w.server.silent = false })
		mustAttach(t, e, "c2")
		if err := <-errC; err == nil {
			t.Error("the older ADD succeeds")
		}
		if w.spaces["c1"].setup.Addr.IsValid() || len(w.server.held) != 1 {
			t.Errorf("older: %v, server holds %v", w.spaces["c1"].setup, w.server.held)
		}
	})
}

func TestB07TwoInterfacesOfOnePodHoldTwoLeases(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		w.space("c1", 1)
		w.space("c1b", 2)
		e, _ := w.start()
		mustAttach(t, e, "c1")
		r := request("c1b", "c1b")
		r.IfName = "net2"
		w.onNote = nil
		if _, err := e.Attach(t.Context(), r); err != nil {
			t.Fatal(err)
		}
		if len(w.server.held) != 2 {
			t.Errorf("the server holds %v", w.server.held)
		}
		mustDetach(t, e, "c1")
		if len(w.server.held) != 1 || !w.spaces["c1b"].setup.Addr.IsValid() {
			t.Errorf("after the DEL of net1 the server holds %v", w.server.held)
		}
	})
}

func TestSweepEndsWhatIsNotValid(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		e, _ := w.start()
		for i, network := range []string{"lan", "lan", "other"} {
			c := fmt.Sprintf("c%d", i)
			w.space(c, byte(i+1))
			r := request(c, c)
			r.Network, r.Pod.UID = network, c
			if _, err := e.Attach(t.Context(), r); err != nil {
				t.Fatal(err)
			}
		}
		if err := e.Sweep(t.Context(), api.Sweep{Network: "lan", Valid: []AttachmentID{net1("c1")}}); err != nil {
			t.Errorf("Sweep: %v", err)
		}
		var left []string
		list, _ := e.List(t.Context())
		for _, s := range list {
			left = append(left, s.ContainerID)
		}
		if diff := cmp.Diff([]string{"c1", "c2"}, left); diff != "" {
			t.Errorf("left (-want +got):\n%s", diff)
		}
		if w.server.releases != 1 {
			t.Errorf("%d releases", w.server.releases)
		}
	})
}

// The kernel ends the interfaces of a deleted namespace some time later; until then
// the old sandbox answers ARP for the address that the new one takes over.
func TestB84OldSandboxThatStillAnswersIsNoConflict(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		old := w.space("c1", 1)
		e, _ := w.start()
		r := request("c1", "c1")
		r.DHCP = []byte(`{"clientID":"duid"}`)
		if _, err := e.Attach(t.Context(), r); err != nil {
			t.Fatal(err)
		}
		w.remove("c1")
		synctest.Wait()
		w.change(func() {
			w.owners = map[netip.Addr]net.HardwareAddr{netip.MustParseAddr("10.77.0.50"): old.link.HardwareAddr}
		})
		w.space("c2", 2)
		r.AttachmentID, r.Netns = net1("c2"), "c2"
		got, err := e.Attach(t.Context(), r)
		if err != nil || got.Address != "10.77.0.50/24" {
			t.Errorf("Attach = %+v, %v", got, err)
		}
		if len(w.server.declined) > 0 {
			t.Errorf("declined %v", w.server.declined)
		}
	})
}

// An ADD of the same attachment that fails before it can take over anything leaves all
// as it was, for the DEL to find.
func TestAddAgainThatFailsBeforeItBegins(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		s := w.space("c1", 1)
		e, _ := w.start()
		mustAttach(t, e, "c1")
		w.change(func() { s.link.Kind = "ipvlan" })
		again := request("c1", "c1")
		again.DHCP = json.RawMessage(`{"clientID":"mac"}`)
		if _, err := e.Attach(t.Context(), again); api.CodeOf(err) != api.CodeConfig {
			t.Errorf("Attach: %v", err)
		}
		if list, err := e.List(t.Context()); err != nil || len(list) != 1 || list[0].State != "BOUND" {
			t.Errorf("List = %+v, %v", list, err)
		}
		w.since()
		time.Sleep(40 * time.Minute)
		synctest.Wait()
		wantNotes(t, w, "REQUEST to 10.77.0.1", "put leased 10.77.0.50/24", "configure 10.77.0.50/24")
		mustDetach(t, e, "c1")
		nothingLeft(t, w)
	})
}

// One that fails since the link is down gives back what the one before held, as soon
// as that can be sent.
func TestAddAgainWithoutCarrier(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		s := w.space("c1", 1)
		e, _ := w.start()
		mustAttach(t, e, "c1")
		up := make(chan struct{})
		w.change(func() { s.carrier = up })
		again := request("c1", "c1")
		again.DHCP = json.RawMessage(`{"hostname":"other"}`)
		if _, err := e.Attach(t.Context(), again); err == nil || !strings.Contains(err.Error(), "net1 has no carrier") {
			t.Errorf("Attach: %v", err)
		}
		if rec := w.records[net1("c1")]; rec.Phase != Releasing || s.setup.Addr.IsValid() {
			t.Errorf("record %+v, interface %+v", rec, s.setup)
		}
		close(up)
		time.Sleep(time.Minute)
		synctest.Wait()
		nothingLeft(t, w)
	})
}
