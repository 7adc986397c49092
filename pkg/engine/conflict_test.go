package engine

import (
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

var stranger = net.HardwareAddr{2, 0xbb, 0, 0, 0, 7}

// taken lets another host have an address of the pool.
func taken(w *world, addrs ...string) {
	w.owners = make(map[netip.Addr]net.HardwareAddr)
	for _, a := range addrs {
		w.owners[netip.MustParseAddr(a)] = stranger
	}
}

func attachWith(t *testing.T, e *Engine, settings string) (api.Lease, error) {
	t.Helper()
	r := request("c1", "c1")
	r.DHCP = []byte(settings)
	return e.Attach(t.Context(), r)
}

func TestConflictIsDeclinedAndAnotherAddressTaken(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		w.space("c1", 1)
		w.audience = &audience{}
		taken(w, "10.77.0.50")
		e, _ := w.start()
		begin := time.Now()
		got := mustAttach(t, e, "c1")
		if took := time.Since(begin); took < 10*time.Second {
			t.Errorf("asked again after %s; RFC 2131, 3.1 number 5, wants 10 s at least", took)
		}
		if got.Address != "10.77.0.51/24" {
			t.Errorf("got %s", got.Address)
		}
		notes := w.since()
		want := []string{"DISCOVER to all", "put claimed 10.77.0.50/24", "REQUEST to all", "probe 10.77.0.50 full=false", "put claimed invalid Prefix", "DECLINE to all",
			"DISCOVER to all", "put claimed 10.77.0.51/24", "REQUEST to all", "probe 10.77.0.51 full=false",
			"put leased 10.77.0.51/24", "configure 10.77.0.51/24", "announce 10.77.0.51"}
		if diff := cmp.Diff(want, notes); diff != "" {
			t.Errorf("what happened (-want +got):\n%s", diff)
		}
		if told := w.audience.since(); !slices.Contains(told, "AddressConflict c1") {
			t.Errorf("told %q", told)
		}
	})
}

func TestConflictErrorNamesTheOwner(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		w.space("c1", 1)
		var all []string
		for i := range 100 {
			all = append(all, fmt.Sprintf("10.77.0.%d", 50+i))
		}
		taken(w, all...)
		e, _ := w.start()
		_, err := e.Attach(t.Context(), request("c1", "c1"))
		if err == nil || !strings.Contains(err.Error(), stranger.String()) {
			t.Errorf("got %v, want it to name %s", err, stranger)
		}
		for _, n := range w.since() {
			if strings.HasPrefix(n, "RELEASE") {
				t.Errorf("%q of an address that was declined", n)
			}
		}
		nothingLeft(t, w)
	})
}

func TestConflictDetectionModes(t *testing.T) {
	tests := []struct {
		name, settings string
		want           []string // from the ACK on
		atMost         time.Duration
	}{
		{"OK off", `{"conflictDetection":"off"}`, []string{"put leased 10.77.0.50/24", "configure 10.77.0.50/24", "announce 10.77.0.50"}, 0},
		{"OK fast is the default", `{}`, []string{"probe 10.77.0.50 full=false",
			"put leased 10.77.0.50/24", "configure 10.77.0.50/24", "announce 10.77.0.50"}, 300 * time.Millisecond},
		{"OK full announces twice", `{"conflictDetection":"full"}`, []string{"probe 10.77.0.50 full=true",
			"put leased 10.77.0.50/24", "configure 10.77.0.50/24", "announce 10.77.0.50", "announce 10.77.0.50"}, 10 * time.Second},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			simulate(t, func(t *testing.T, w *world) {
				w.space("c1", 1)
				e, _ := w.start()
				begin := time.Now()
				if _, err := attachWith(t, e, tt.settings); err != nil {
					t.Fatal(err)
				}
				if took := time.Since(begin); took > tt.atMost {
					t.Errorf("ADD took %s, want at most %s", took, tt.atMost)
				}
				time.Sleep(10 * time.Second)
				synctest.Wait()
				notes := w.since()
				if diff := cmp.Diff(tt.want, notes[slices.Index(notes, "REQUEST to all")+1:]); diff != "" {
					t.Errorf("(-want +got):\n%s", diff)
				}
				if w.open != 0 {
					t.Errorf("%d ports are open", w.open)
				}
			})
		})
	}
}

func TestDefendedAddressIsGivenUpToAnother(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		s := w.space("c1", 1)
		w.audience = &audience{}
		e, _ := w.start()
		if _, err := attachWith(t, e, `{"defend":true}`); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if s.defended != 1 {
			t.Fatalf("%d defences", s.defended)
		}
		s.claimC <- stranger
		time.Sleep(20 * time.Second)
		synctest.Wait()
		if got := w.carries("c1").String(); got != "10.77.0.51/24" {
			t.Errorf("interface carries %s", got)
		}
		if diff := cmp.Diff([]string{"publish c1 10.77.0.50/24", "AddressLeased c1", "AddressConflict c1", "LeaseLost c1", "withdraw c1",
			"publish c1 10.77.0.51/24", "AddressLeased c1"}, w.audience.since()); diff != "" {
			t.Errorf("told (-want +got):\n%s", diff)
		}
		mustDetach(t, e, "c1")
		synctest.Wait()
		if s.defended != 0 {
			t.Errorf("%d defences go on", s.defended)
		}
	})
}

func TestSharedMACNeedsAnIdentifierOfItsOwn(t *testing.T) {
	tests := []struct {
		name, settings string
		code           uint
	}{
		{"bad mac", `{}`, api.CodeConfig},
		{"bad none", `{"clientID":"none"}`, api.CodeConfig},
		{"OK duid", `{"clientID":"duid"}`, 0},
		{"OK template", `{"clientID":"{namespace}/{pod}/{interface}"}`, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			simulate(t, func(t *testing.T, w *world) {
				w.space("c1", 1).link.Kind = "ipvlan"
				e, _ := w.start()
				_, err := attachWith(t, e, tt.settings)
				if tt.code == 0 && err != nil || tt.code != 0 && api.CodeOf(err) != tt.code {
					t.Errorf("got %v, want code %d", err, tt.code)
				}
				if tt.code == 0 && !w.server.sawBroadcast {
					t.Error("the BROADCAST flag is not set")
				}
			})
		})
	}
}
