package engine

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine/api"
)

// OVN-Kubernetes configures what it finds in the annotation; what is not the lease
// is taken off, and nothing else.
func TestStaleAddressesOfOVNAreTakenOff(t *testing.T) {
	stale, other := netip.MustParsePrefix("10.77.0.9/24"), netip.MustParsePrefix("192.0.2.1/32")
	for _, ovn := range []bool{true, false} {
		simulate(t, func(t *testing.T, w *world) {
			s := ovnWorld(w)
			w.cluster.ovn = ovn
			s.foreign = []netip.Prefix{stale, other}
			e, _ := w.start()
			r := request("c1", "c1")
			r.Addresses = []string{"10.77.0.9/24", "2001:db8::9/64"}
			got, err := e.Attach(t.Context(), r)
			if err != nil {
				t.Fatal(err)
			}
			left, stripped := []netip.Prefix{other}, []string{"10.77.0.9/24"}
			if !ovn {
				left, stripped = []netip.Prefix{stale, other}, nil
			}
			if !slices.Equal(s.foreign, left) || !slices.Equal(got.Stripped, stripped) {
				t.Errorf("OVN %t: left %v, answer %v", ovn, s.foreign, got.Stripped)
			}
			if s.setup.Addr.String() != "10.77.0.50/24" {
				t.Errorf("OVN %t: interface carries %s", ovn, s.setup.Addr)
			}
		})
	}
	simulate(t, func(t *testing.T, w *world) { // without any, nothing is taken, and least of all everything
		s := ovnWorld(w)
		s.foreign = []netip.Prefix{other}
		e, _ := w.start()
		got := mustAttach(t, e, "c1")
		if len(s.foreign) != 1 || got.Stripped != nil {
			t.Errorf("left %v, answer %v", s.foreign, got.Stripped)
		}
	})
}

// Q39: what is published comes from an ACK to a REQUEST of our own: not from an
// OFFER, and not from an ACK for somebody else.
func TestQ39OnlyAnAckIsPublished(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		ovnWorld(w)
		w.server.nak = true // offers, and refuses every REQUEST
		e, _ := w.start()
		if _, err := e.Attach(t.Context(), request("c1", "c1")); err == nil {
			t.Error("Attach succeeds")
		}
		if told := w.audience.since(); !slices.Equal(told, []string{"WaitingForAddress c1"}) {
			t.Errorf("told %q", told)
		}
	})
}

// K31: all that is known of a lease is IPv4.
func TestK31OnlyIPv4IsReported(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		s := ovnWorld(w)
		s.foreign = []netip.Prefix{netip.MustParsePrefix("2001:db8::9/64")}
		e, _ := w.start()
		r := request("c1", "c1")
		r.Addresses = []string{"2001:db8::9/64"}
		got, err := e.Attach(t.Context(), r)
		if err != nil || len(got.Stripped) > 0 || len(s.foreign) != 1 {
			t.Errorf("Attach = %+v, %v; left %v", got, err, s.foreign)
		}
		p := w.audience.last
		for _, a := range append(slices.Clone(p.Gateways), p.Addr.Addr()) {
			if !a.Is4() {
				t.Errorf("published %s", a)
			}
		}
		if a := netip.MustParsePrefix(got.Address); !a.Addr().Is4() {
			t.Errorf("answer %s", a)
		}
	})
}

// K30: a network that is not marked is none of ours, whatever else the cluster says.
func TestK30UnmarkedIsNotOurs(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		ovnWorld(w)
		w.cluster.marked = map[string]bool{"shop/lan": true}
		e, _ := w.start()
		for nad, want := range map[string]bool{"shop/lan": true, "shop/other": false, "": false} {
			r := request("c1", "c1")
			r.NAD = nad
			if got, err := e.Marked(t.Context(), r); got != want || err != nil {
				t.Errorf("Marked(%q) = %t, %v", nad, got, err)
			}
		}
		w.change(func() { w.cluster.away = true })
		r := request("c1", "c1")
		r.NAD = "shop/lan"
		if _, err := e.Marked(t.Context(), r); api.CodeOf(err) != api.CodeTryAgain {
			t.Errorf("while the API is away: code %d, %v", api.CodeOf(err), err)
		}
		wantNotes(t, w)
		if told := w.audience.since(); told != nil {
			t.Errorf("told %q", told)
		}
	})
	simulate(t, func(t *testing.T, w *world) {
		w.cluster.none = true
		e, _ := w.start()
		r := request("c1", "c1")
		r.NAD = "shop/lan"
		if got, err := e.Marked(t.Context(), r); got || err != nil {
			t.Errorf("without a cluster: %t, %v", got, err)
		}
	})
}
