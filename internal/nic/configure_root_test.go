package nic

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine"
	"github.com/dhcp-meta/dhcp-meta/pkg/engine/dhcp4"
)

// lines returns what ip prints, one trimmed line each, without the words that
// differ from run to run.
func lines(out string) []string {
	var all []string
	for line := range strings.Lines(out) {
		if line = strings.Join(strings.Fields(line), " "); line != "" {
			all = append(all, line)
		}
	}
	return all
}

// routes and addresses are what the pod's tools say.
func (r *rig) routes() []string    { return lines(r.inPod("-4", "route", "show", "dev", "net1")) }
func (r *rig) addresses() []string { return lines(r.inPod("-4", "-o", "addr", "show", "dev", "net1")) }

func (r *rig) wantRoutes(want ...string) {
	r.t.Helper()
	if diff := cmp.Diff(want, r.routes()); diff != "" {
		r.t.Errorf("routes (-want +got):\n%s", diff)
	}
}

// hasAddress tells whether one of the address lines has all words.
func (r *rig) wantAddress(words ...string) {
	r.t.Helper()
	for _, line := range r.addresses() {
		found := true
		for _, w := range words {
			found = found && strings.Contains(line, w)
		}
		if found {
			return
		}
	}
	r.t.Errorf("no address with %q in %q", words, r.addresses())
}

func TestConfigure(t *testing.T) {
	eachKind(t, func(t *testing.T, r *rig) {
		want := setup(t, "10.77.0.50/24; default via 10.77.0.1 metric 100; 169.254.169.254/32; 10.9.0.0/16 via 10.77.0.2; 10.8.0.0/16 via 192.0.2.1")
		if err := r.links.Verify(t.Context(), r.target, want); err == nil {
			t.Fatal("Verify: nil before anything was done")
		}
		r.configure(engine.Setup{}, want, time.Hour)
		r.verify(want)
		r.wantAddress("10.77.0.50/24", "brd 10.77.0.255", "valid_lft 3", "preferred_lft 3")
		all := []string{
			"default via 10.77.0.1 proto dhcp src 10.77.0.50 metric 100",
			"10.8.0.0/16 via 192.0.2.1 proto dhcp src 10.77.0.50 onlink",
			"10.9.0.0/16 via 10.77.0.2 proto dhcp src 10.77.0.50",
			"10.77.0.0/24 proto kernel scope link src 10.77.0.50",
			"169.254.169.254 proto dhcp scope link src 10.77.0.50",
		}
		r.wantRoutes(all...)

		// Again, as after a crash whose record was written.
		r.configure(want, want, dhcp4.Infinite)
		r.verify(want)
		r.wantAddress("10.77.0.50/24", "valid_lft forever preferred_lft forever")
		r.wantRoutes(all...)

		// After a crash half way.
		r.inPod("route", "del", "10.9.0.0/16")
		if err := r.links.Verify(t.Context(), r.target, want); err == nil || !strings.Contains(err.Error(), "route 10.9.0.0/16 via 10.77.0.2") {
			t.Errorf("Verify: %v, want the missing route", err)
		}
		r.configure(want, want, time.Hour)
		r.wantRoutes(all...)

		for range 2 {
			if err := r.links.Clear(t.Context(), r.target, want); err != nil {
				t.Fatalf("Clear: %v", err)
			}
			r.wantRoutes()
			if got := r.addresses(); got != nil {
				t.Errorf("addresses left: %q", got)
			}
		}
	})
}

// A renewal refreshes the lifetime; nothing goes away for a moment.
func TestRenewalHasNoGap(t *testing.T) {
	r := newRig(t)
	want := setup(t, "10.77.0.50/24; default via 10.77.0.1")
	r.configure(engine.Setup{}, want, time.Minute)
	m := r.monitor(r.pod)
	r.configure(want, want, time.Hour)
	r.inPod("link", "set", "net1", "down") // to have an end of the events
	for _, e := range m.until("link down", func(e event) bool { return e.kind == unix.RTM_NEWLINK && !e.up }) {
		if e.kind == unix.RTM_DELADDR || e.kind == unix.RTM_DELROUTE {
			t.Errorf("event %+v during a renewal", e)
		}
	}
}

func TestChangeOfAddress(t *testing.T) {
	old := "10.77.0.50/24; default via 10.77.0.1"
	for _, tt := range []struct {
		name, want string
		routes     []string
	}{
		{"OK in the subnet", "10.77.0.51/24; default via 10.77.0.1", []string{
			"default via 10.77.0.1 proto dhcp src 10.77.0.51",
			"10.77.0.0/24 proto kernel scope link src 10.77.0.51",
		}},
		{"OK to another subnet", "10.78.0.50/24; default via 10.78.0.1", []string{
			"default via 10.78.0.1 proto dhcp src 10.78.0.50",
			"10.78.0.0/24 proto kernel scope link src 10.78.0.50",
		}},
		{"OK another mask", "10.77.0.50/16; default via 10.77.0.1", []string{
			"default via 10.77.0.1 proto dhcp src 10.77.0.50",
			"10.77.0.0/16 proto kernel scope link src 10.77.0.50",
		}},
		{"OK another router", "10.77.0.50/24; default via 10.77.0.9", []string{
			"default via 10.77.0.9 proto dhcp src 10.77.0.50",
			"10.77.0.0/24 proto kernel scope link src 10.77.0.50",
		}},
		{"OK cloud", "10.77.0.50/32; default via 10.77.0.1; 10.77.0.1/32", []string{
			"default via 10.77.0.1 proto dhcp src 10.77.0.50",
			"10.77.0.1 proto dhcp scope link src 10.77.0.50",
		}},
		{"OK router out of reach", "10.77.0.50/31; default via 10.77.0.1", []string{
			"default via 10.77.0.1 proto dhcp src 10.77.0.50 onlink",
			"10.77.0.50/31 proto kernel scope link src 10.77.0.50",
		}},
	} {
		for promote, value := range map[string]string{"": "0", ", promote_secondaries": "1"} {
			t.Run(tt.name+promote, func(t *testing.T) {
				r := newRig(t)
				r.sysctl("net/ipv4/conf/all/promote_secondaries", value)
				have, want := setup(t, old), setup(t, tt.want)
				r.configure(engine.Setup{}, have, time.Hour)
				r.configure(have, want, time.Hour)
				r.verify(want)
				r.wantRoutes(tt.routes...)
				if got := len(r.addresses()); got != 1 {
					t.Errorf("addresses: %q", r.addresses())
				}
				if err := r.links.Clear(t.Context(), r.target, want); err != nil {
					t.Fatal(err)
				}
				r.wantRoutes()
			})
		}
	}
}

// Addresses and routes of others stay through all that is done with ours.
func TestOthersStay(t *testing.T) {
	for promote, value := range map[string]string{"no promotion": "0", "promotion": "1"} {
		t.Run(promote, func(t *testing.T) {
			r := newRig(t)
			r.sysctl("net/ipv4/conf/all/promote_secondaries", value)
			first, second := setup(t, "10.77.0.50/24; default via 10.77.0.1 metric 50"), setup(t, "10.77.0.51/24")
			r.configure(engine.Setup{}, first, time.Hour)
			r.inPod("addr", "add", "10.77.0.99/24", "dev", "net1", "valid_lft", "5500", "preferred_lft", "4500")
			r.inPod("addr", "add", "192.0.2.9/24", "brd", "192.0.2.255", "dev", "net1")
			r.inPod("route", "add", "default", "via", "192.0.2.1")
			r.configure(first, second, time.Hour)
			r.verify(second)
			r.wantAddress("10.77.0.99/24 scope", "valid_lft 5", "preferred_lft 4")
			if err := r.links.Clear(t.Context(), r.target, second); err != nil {
				t.Fatal(err)
			}
			r.wantRoutes(
				"default via 192.0.2.1",
				"10.77.0.0/24 proto kernel scope link src 10.77.0.99",
				"192.0.2.0/24 proto kernel scope link src 192.0.2.9",
			)
			r.wantAddress("192.0.2.9/24 brd 192.0.2.255", "valid_lft forever")
		})
	}
}

// Field case B46: the route of the cluster is not displaced.
func TestForeignRouteStaysB46(t *testing.T) {
	r := newRig(t)
	r.inPod("link", "add", "eth0", "type", "veth", "peer", "name", "other")
	r.inPod("link", "set", "eth0", "up")
	r.inPod("link", "set", "other", "up")
	r.inPod("addr", "add", "192.0.2.9/24", "dev", "eth0")
	r.inPod("route", "add", "default", "via", "192.0.2.1", "proto", "static")
	want := setup(t, "10.77.0.50/24; default via 10.77.0.1; 10.9.0.0/16 via 10.77.0.1")

	err := r.links.Configure(t.Context(), r.target, engine.Setup{}, want, time.Hour)
	if err == nil || !strings.Contains(err.Error(), "default via 192.0.2.1 dev eth0 exists and is not ours (protocol static)") {
		t.Fatalf("err = %v, want one that names the route", err)
	}
	if errors.Is(err, engine.ErrGone) {
		t.Errorf("err = %v says that the interface is gone", err)
	}
	if got := lines(r.inPod("-4", "route", "show", "default")); len(got) != 1 || !strings.Contains(got[0], "192.0.2.1") {
		t.Errorf("default routes: %q", got)
	}
	// All the rest is there, and goes again.
	r.wantRoutes("10.9.0.0/16 via 10.77.0.1 proto dhcp src 10.77.0.50", "10.77.0.0/24 proto kernel scope link src 10.77.0.50")
	if err := r.links.Clear(t.Context(), r.target, want); err != nil {
		t.Fatal(err)
	}
	if got := lines(r.inPod("-4", "route", "show", "default")); len(got) != 1 || !strings.Contains(got[0], "192.0.2.1") {
		t.Errorf("default routes after Clear: %q", got)
	}
	want.Routes[0].Metric = 50
	r.configure(engine.Setup{}, want, time.Hour)
	r.verify(want)
}

// Field case B46, the other way round: a route that came between plan and
// change is seen by the kernel's answer.
func TestRouteTakenMeanwhile(t *testing.T) {
	r := newRig(t)
	r.up()
	r.inPod("addr", "add", "10.77.0.50/24", "dev", "net1")
	r.inPod("route", "add", "default", "via", "10.77.0.2")
	k, err := r.links.dial(t.Context(), r.target)
	if err != nil {
		t.Fatal(err)
	}
	defer k.Close()
	now, err := k.snapshot()
	if err != nil {
		t.Fatal(err)
	}
	w := routesOf(setup(t, "10.77.0.50/24; default via 10.77.0.1; 10.77.0.0/24"), now.link)
	if err := k.addRoute(w[0]); err != nil {
		t.Errorf("identical route: %v", err)
	}
	if err := k.addRoute(w[1]); err == nil || !strings.Contains(err.Error(), "default via 10.77.0.2 dev net1") {
		t.Errorf("other route: %v", err)
	}
}

// Invariant 7: an address and its routes go when the lease ends, with nobody
// there to take them away.
func TestExpiryTakesAllAlong(t *testing.T) {
	eachKind(t, func(t *testing.T, r *rig) {
		want := setup(t, "10.77.0.50/24; default via 10.77.0.1; 10.9.0.0/16 via 192.0.2.1; 169.254.169.254/32")
		m := r.monitor(r.pod)
		r.configure(engine.Setup{}, want, 1999*time.Millisecond)
		events := m.until("end of the address", func(e event) bool {
			return e.kind == unix.RTM_DELADDR && e.addr == want.Addr.Addr()
		})
		for _, was := range []event{
			{kind: unix.RTM_NEWADDR, addr: want.Addr.Addr()},
			{kind: unix.RTM_NEWROUTE, dst: "?/0"},
			{kind: unix.RTM_NEWROUTE, dst: "10.9.0.0/16"},
			{kind: unix.RTM_NEWROUTE, dst: "169.254.169.254/32"},
		} {
			if !slices.ContainsFunc(events, func(e event) bool {
				return e.kind == was.kind && e.addr == was.addr && e.dst == was.dst
			}) {
				t.Errorf("%+v was never there", was)
			}
		}
		r.wantRoutes()
		if err := r.links.Verify(t.Context(), r.target, want); err == nil || !strings.Contains(err.Error(), "address 10.77.0.50/24 is missing") {
			t.Errorf("Verify: %v", err)
		}
		if err := r.links.Clear(t.Context(), r.target, want); err != nil {
			t.Errorf("Clear: %v", err)
		}
	})
}

func TestMTU(t *testing.T) {
	r := newRig(t)
	mtu := func() int {
		link, err := r.links.Inspect(t.Context(), r.target)
		if err != nil {
			t.Fatal(err)
		}
		return link.MTU
	}
	with := func(mtu int) engine.Setup {
		return engine.Setup{Addr: netip.MustParsePrefix("10.77.0.50/24"), MTU: mtu, PriorMTU: 1500}
	}
	have := engine.Setup{}
	for _, step := range []struct {
		name  string
		want  engine.Setup
		after int
	}{
		{"lowered", with(1400), 1400},
		{"raised within the prior one", with(1450), 1450},
		{"never above the prior one", with(9000), 1500},
		{"lowered again", with(1300), 1300},
		{"no longer told", with(0), 1500},
		{"once more", with(1400), 1400},
	} {
		r.configure(have, step.want, time.Hour)
		r.verify(step.want)
		if got := mtu(); got != step.after {
			t.Fatalf("%s: mtu %d, want %d", step.name, got, step.after)
		}
		have = step.want
	}
	if err := r.links.Clear(t.Context(), r.target, have); err != nil {
		t.Fatal(err)
	}
	if got := mtu(); got != 1500 {
		t.Fatalf("after Clear: mtu %d, want 1500", got)
	}
	r.configure(engine.Setup{}, with(1400), time.Hour)
	r.inPod("link", "set", "net1", "mtu", "1350")
	if err := r.links.Clear(t.Context(), r.target, with(1400)); err != nil {
		t.Fatal(err)
	}
	if got := mtu(); got != 1350 {
		t.Fatalf("the mtu of somebody else became %d", got)
	}
}
