package nic

import (
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine"
)

// adopting is a setup that takes over what a CNI plugin configured.
func adopting(t *testing.T, text string) engine.Setup {
	t.Helper()
	s := setup(t, text)
	s.Adopt = true
	return s
}

// placed does what the plugins macvlan, bridge and host-device do with a result: the
// address for ever, and routes without a preferred source.
func (r *rig) placed(addr string, routes ...[]string) {
	r.t.Helper()
	r.up()
	r.inPod("addr", "add", addr, "dev", "net1")
	for _, route := range routes {
		r.inPod(append([]string{"route", "add"}, route...)...)
	}
}

func TestAdoptTakesOverWhatAPluginPut(t *testing.T) {
	eachKind(t, func(t *testing.T, r *rig) {
		r.placed("10.77.0.50/24",
			[]string{"default", "via", "10.77.0.1", "dev", "net1"},
			[]string{"10.9.0.0/16", "via", "10.77.0.2", "dev", "net1"},
			[]string{"169.254.169.254/32", "dev", "net1", "scope", "link"})
		want := adopting(t, "10.77.0.50/24; default via 10.77.0.1; 10.9.0.0/16 via 10.77.0.2; 169.254.169.254/32")
		m := r.monitor(r.pod)
		for range 2 {
			r.configure(want, want, time.Hour)
			r.verify(want)
			r.wantAddress("10.77.0.50/24", "valid_lft 3", "preferred_lft 3")
			r.wantRoutes(
				"default via 10.77.0.1 proto dhcp src 10.77.0.50",
				"10.9.0.0/16 via 10.77.0.2 proto dhcp src 10.77.0.50",
				"10.77.0.0/24 proto kernel scope link src 10.77.0.50",
				"169.254.169.254 proto dhcp scope link src 10.77.0.50",
			)
		}
		r.inPod("link", "set", "net1", "down") // to have an end of the events
		for _, e := range m.until("link down", func(e event) bool { return e.kind == unix.RTM_NEWLINK && !e.up }) {
			if e.kind == unix.RTM_DELADDR || e.kind == unix.RTM_DELROUTE {
				t.Errorf("event %+v: the pod has had nothing for a moment", e)
			}
		}
	})
}

// Without the take-over the address would go at its end and leave the plugin's routes.
func TestAdoptedRoutesEndWithTheLease(t *testing.T) {
	eachKind(t, func(t *testing.T, r *rig) {
		r.placed("10.77.0.50/24",
			[]string{"default", "via", "10.77.0.1", "dev", "net1"},
			[]string{"10.9.0.0/16", "via", "10.77.0.1", "dev", "net1"})
		want := adopting(t, "10.77.0.50/24; default via 10.77.0.1; 10.9.0.0/16 via 10.77.0.1")
		m := r.monitor(r.pod)
		r.configure(want, want, 1999*time.Millisecond)
		m.until("end of the address", func(e event) bool {
			return e.kind == unix.RTM_DELADDR && e.addr == want.Addr.Addr()
		})
		r.wantRoutes()
	})
}

func TestAdoptedIsClearedWhole(t *testing.T) {
	eachKind(t, func(t *testing.T, r *rig) {
		r.placed("10.77.0.50/24", []string{"default", "via", "10.77.0.1", "dev", "net1"})
		want := adopting(t, "10.77.0.50/24; default via 10.77.0.1")
		r.configure(want, want, time.Hour)
		if err := r.links.Clear(t.Context(), r.target, want); err != nil {
			t.Fatal(err)
		}
		r.wantRoutes()
		if got := r.addresses(); got != nil {
			t.Errorf("addresses left: %q", got)
		}
	})
}

// The engine died between two steps, or the plugin put its route there when ours was
// there already: of twins one is left, with the source.
func TestAdoptLeavesOneOfTwoTwins(t *testing.T) {
	for name, order := range map[string][]string{
		"ours first":         {"append", "default", "via", "10.77.0.1", "dev", "net1"},
		"the plugin's first": {"prepend", "default", "via", "10.77.0.1", "dev", "net1"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			want := adopting(t, "10.77.0.50/24; default via 10.77.0.1")
			r.configure(engine.Setup{}, want, time.Hour)
			r.inPod(append([]string{"route"}, order...)...)
			if got := lines(r.inPod("-4", "route", "show", "default")); len(got) != 2 {
				t.Fatalf("the kernel did not take the twin: %q", got)
			}
			r.configure(want, want, time.Hour)
			r.wantRoutes("default via 10.77.0.1 proto dhcp src 10.77.0.50", "10.77.0.0/24 proto kernel scope link src 10.77.0.50")
		})
	}
}

// The kernel replaces the first route of a slot, which may be somebody else's.
func TestAdoptDoesNotReplaceAnotherRoute(t *testing.T) {
	r := newRig(t)
	r.placed("10.77.0.50/24", []string{"default", "via", "10.77.0.9", "dev", "net1"})
	r.inPod("route", "append", "default", "via", "10.77.0.1", "dev", "net1")
	want := adopting(t, "10.77.0.50/24; default via 10.77.0.1")
	if err := r.links.Configure(t.Context(), r.target, want, want, time.Hour); err == nil {
		t.Error("Configure: no word of the route in the place of ours")
	}
	if got := lines(r.inPod("-4", "route", "show", "default")); !slices.Contains(got, "default via 10.77.0.9 dev net1") {
		t.Errorf("default routes: %q", got)
	}
}

// Only what the plugin made of the lease is taken over.
func TestAdoptLeavesOthersAlone(t *testing.T) {
	for name, route := range map[string][]string{
		"another gateway":          {"default", "via", "10.77.0.9", "dev", "net1"},
		"a source of its own":      {"default", "via", "10.77.0.1", "dev", "net1", "src", "10.78.0.99"},
		"another protocol":         {"default", "via", "10.77.0.1", "dev", "net1", "proto", "static"},
		"over another interface":   {"default", "via", "192.0.2.1", "dev", "eth0"},
		"another metric, no twin":  {"default", "via", "10.77.0.1", "dev", "net1", "metric", "50"},
		"another place altogether": {"10.9.0.0/16", "via", "10.77.0.1", "dev", "net1"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.inPod("link", "add", "eth0", "type", "veth", "peer", "name", "other")
			r.inPod("link", "set", "eth0", "up")
			r.inPod("link", "set", "other", "up")
			r.inPod("addr", "add", "192.0.2.9/24", "dev", "eth0")
			r.placed("10.77.0.50/24")
			// The kernel takes all routes with the last address.
			r.inPod("addr", "add", "10.78.0.99/24", "dev", "net1")
			before := lines(r.inPod("-4", "route", "show"))
			r.inPod(append([]string{"route", "add"}, route...)...)
			added := slices.DeleteFunc(lines(r.inPod("-4", "route", "show")), func(l string) bool { return slices.Contains(before, l) })
			want := adopting(t, "10.77.0.50/24; default via 10.77.0.1")
			_ = r.links.Configure(t.Context(), r.target, want, want, time.Hour) // that the place is taken is an error
			if got := lines(r.inPod("-4", "route", "show")); len(added) != 1 || !slices.Contains(got, added[0]) {
				t.Errorf("%q is not there any more: %q", added, got)
			}
			if err := r.links.Clear(t.Context(), r.target, want); err != nil {
				t.Fatal(err)
			}
			if got := lines(r.inPod("-4", "route", "show")); !slices.Contains(got, added[0]) {
				t.Errorf("%q went with Clear: %q", added, got)
			}
		})
	}
}

// A setup that is not adopted takes nothing over: B46 holds as before.
func TestWithoutAdoptATwinStays(t *testing.T) {
	r := newRig(t)
	r.placed("10.77.0.50/24", []string{"default", "via", "10.77.0.1", "dev", "net1"})
	want := setup(t, "10.77.0.50/24; default via 10.77.0.1")
	if err := r.links.Configure(t.Context(), r.target, want, want, time.Hour); err == nil {
		t.Error("Configure: no word of the route in the place of ours")
	}
	r.wantRoutes("default via 10.77.0.1", "10.77.0.0/24 proto kernel scope link src 10.77.0.50")
}

// The lease gives another router: the adopted route goes as one of our own.
func TestAdoptedRouteChanges(t *testing.T) {
	r := newRig(t)
	r.placed("10.77.0.50/24", []string{"default", "via", "10.77.0.1", "dev", "net1"})
	have, want := adopting(t, "10.77.0.50/24; default via 10.77.0.1"), adopting(t, "10.77.0.51/24; default via 10.77.0.9")
	r.configure(have, have, time.Hour)
	r.configure(have, want, time.Hour)
	r.verify(want)
	r.wantRoutes("default via 10.77.0.9 proto dhcp src 10.77.0.51", "10.77.0.0/24 proto kernel scope link src 10.77.0.51")
}
