package engine

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine/dhcp4"
)

func TestChanges(t *testing.T) {
	base := dhcp4.Lease{
		Addr: netip.MustParsePrefix("10.77.0.50/24"), Server: netip.MustParseAddr("10.77.0.1"),
		Routers: []netip.Addr{netip.MustParseAddr("10.77.0.1")}, MTU: 1500, Lifetime: time.Hour,
	}
	tests := []struct {
		name   string
		change func(*dhcp4.Lease)
		want   []string
	}{
		{"OK nothing", func(*dhcp4.Lease) {}, nil},
		{"OK times and server are no change", func(l *dhcp4.Lease) {
			l.Lifetime, l.Server, l.Start = 2*time.Hour, netip.MustParseAddr("10.77.0.2"), time.Unix(9, 0)
		}, nil},
		{"OK address", func(l *dhcp4.Lease) { l.Addr = netip.MustParsePrefix("10.77.0.51/24") }, []string{"address"}},
		{"OK mask", func(l *dhcp4.Lease) { l.Addr = netip.MustParsePrefix("10.77.0.50/16") }, []string{"address"}},
		{"OK router and its route", func(l *dhcp4.Lease) {
			l.Routers = []netip.Addr{netip.MustParseAddr("10.77.0.9")}
			l.Routes = []dhcp4.Route{{Dst: netip.MustParsePrefix("0.0.0.0/0"), Gateway: l.Routers[0]}}
		}, []string{"routers", "routes"}},
		{"OK search list", func(l *dhcp4.Lease) { l.Search = []string{"site.example"} }, []string{"dns"}},
		{"OK time servers and MTU", func(l *dhcp4.Lease) { l.NTP, l.MTU = l.Routers, 1400 }, []string{"ntp", "mtu"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			l := base
			tt.change(&l)
			var got []string
			for _, c := range changes(base, l) {
				got = append(got, c.what)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("changes (-want +got):\n%s", diff)
			}
		})
	}
}

// What changes at a renewal reaches the interface, the record, the list, and
// whoever listens.
func TestChangedLeaseReachesEverything(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		s := w.space("c1", 1)
		w.audience = &audience{}
		e, _ := w.start()
		mustAttach(t, e, "c1")
		if diff := cmp.Diff([]string{"publish c1 10.77.0.50/24", "AddressLeased c1"}, w.audience.since()); diff != "" {
			t.Errorf("after ADD (-want +got):\n%s", diff)
		}
		time.Sleep(31 * time.Minute)
		synctest.Wait()
		if told := w.audience.since(); told != nil {
			t.Errorf("a renewal that changes nothing told %q", told)
		}
		w.change(func() { w.server.mtu, w.server.bits = 1400, 16 })
		time.Sleep(31 * time.Minute)
		synctest.Wait()
		if diff := cmp.Diff([]string{"LeaseChanged c1", "publish c1 10.77.0.50/16"}, w.audience.since()); diff != "" {
			t.Errorf("after the change (-want +got):\n%s", diff)
		}
		want := Setup{Addr: netip.MustParsePrefix("10.77.0.50/16"), MTU: 1400, PriorMTU: 1500}
		if !cmp.Equal(want, s.setup, cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })) {
			t.Errorf("interface has %+v, want %+v", s.setup, want)
		}
		if rec := w.records[net1("c1")]; rec.Setup.MTU != 1400 || rec.Lease.MTU != 1400 {
			t.Errorf("record %+v", rec)
		}
		if list, _ := e.List(t.Context()); list[0].Address != "10.77.0.50/16" {
			t.Errorf("List = %+v", list)
		}
		mustDetach(t, e, "c1")
		if diff := cmp.Diff([]string{"withdraw c1"}, w.audience.since()); diff != "" {
			t.Errorf("after DEL (-want +got):\n%s", diff)
		}
	})
}

func TestNakReachesEverything(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		w.space("c1", 1)
		w.audience = &audience{}
		e, _ := w.start()
		mustAttach(t, e, "c1")
		w.audience.since()
		w.change(func() {
			clear(w.server.held)
			w.server.first = netip.MustParseAddr("10.77.0.100")
		})
		time.Sleep(31 * time.Minute)
		synctest.Wait()
		if diff := cmp.Diff([]string{"LeaseLost c1", "withdraw c1", "publish c1 10.77.0.100/24", "AddressLeased c1"}, w.audience.since()); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
}

func TestPublisherThatFailsTakesNoLease(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		w.space("c1", 1)
		w.audience = &audience{err: errors.New("no API server")}
		e, _ := w.start()
		mustAttach(t, e, "c1")
		if list, _ := e.List(t.Context()); !strings.Contains(list[0].LastError, "no API server") {
			t.Errorf("List = %+v", list)
		}
	})
}

func TestKeepAndReport(t *testing.T) {
	tests := []struct {
		name   string
		change func(*world)
		want   string // on the interface
	}{
		{"OK another mask: the interface stays", func(w *world) { w.server.bits = 16 }, "10.77.0.50/24"},
		{"OK another address: the old one goes, the new one does not come", func(w *world) {
			clear(w.server.held)
			w.server.first = netip.MustParseAddr("10.77.0.100")
		}, "invalid Prefix"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			simulate(t, func(t *testing.T, w *world) {
				w.space("c1", 1)
				w.audience = &audience{}
				e, _ := w.start()
				r := request("c1", "c1")
				r.DHCP = []byte(`{"onChange":"keep-and-report"}`)
				if _, err := e.Attach(t.Context(), r); err != nil {
					t.Fatal(err)
				}
				w.change(func() { tt.change(w) })
				for range 3 { // it stays so
					time.Sleep(31 * time.Minute)
					synctest.Wait()
					if got := w.carries("c1").String(); got != tt.want {
						t.Fatalf("interface carries %s, want %s", got, tt.want)
					}
				}
				told := w.audience.since()
				if !slices.ContainsFunc(told, func(s string) bool { return strings.HasPrefix(s, "Lease") }) {
					t.Errorf("told %q", told)
				}
				list, _ := e.List(t.Context())
				if list[0].LastError == "" {
					t.Errorf("List = %+v, want the change as last error", list)
				}
			})
		})
	}
}
