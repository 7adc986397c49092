package engine

import (
	"encoding/json"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine/api"
)

// ownMode has net1 in c1, for which OVN-Kubernetes asks an address in its own DHCP
// mode: it names no pod, and the cluster knows whose it is.
func ownMode(w *world) {
	ovnWorld(w)
	w.cluster.owners = map[string]Pod{"02:00:00:00:00:01": {Namespace: "shop", Name: "web-0", UID: "uid-1"}}
}

// The pod is found by the interface's MAC, and with it the settings of network and
// pod. OVN-Kubernetes makes the first address known itself; what becomes of the lease
// later is made known by us.
func TestK80OwnModeIsServedForItsPod(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		ownMode(w)
		w.cluster.dhcp = json.RawMessage(`{"hostname":"{pod}","clientID":"duid"}`)
		e, _ := w.start()
		mustAsk(t, e, "c1")
		w.place("c1", "10.77.0.50/24")
		time.Sleep(time.Minute)
		synctest.Wait()
		if w.server.sawHostname != "web-0" || !w.server.sawBroadcast {
			t.Errorf("the server knows %q, BROADCAST flag %t", w.server.sawHostname, w.server.sawBroadcast)
		}
		rec := w.records[net1("c1")]
		if rec.Pod.Name != "web-0" || rec.NAD != "shop/lan" || !rec.OVN || rec.Workload != Container || !rec.Adopted {
			t.Errorf("record %+v", rec)
		}
		if p := w.audience.last; !p.ByCaller || !p.OVN || p.Pod.UID != "uid-1" {
			t.Errorf("published in the ADD: %+v", p)
		}
		if s, _ := settingsFor(rec); s.Publish != "eventual" {
			t.Errorf("publish is %q: the ADD would wait for what OVN-Kubernetes writes after it", s.Publish)
		}
		w.audience.since()

		w.change(func() {
			w.server.held = map[string]netip.Addr{}
			w.server.first = netip.MustParseAddr("10.77.0.100")
		})
		time.Sleep(30 * time.Minute)
		synctest.Wait()
		want := []string{"LeaseLost c1", "withdraw c1", "publish c1 10.77.0.100/24", "AddressLeased c1"}
		if diff := cmp.Diff(want, w.audience.since()); diff != "" {
			t.Errorf("told of the other address (-want +got):\n%s", diff)
		}
		if p := w.audience.last; p.ByCaller {
			t.Error("nobody but us makes the other address known")
		}
		mustDetach(t, e, "c1")
		if diff := cmp.Diff([]string{"withdraw c1"}, w.audience.since()); diff != "" {
			t.Errorf("told at DEL (-want +got):\n%s", diff)
		}
		nothingLeft(t, w)
	})
}

// An interface of which nobody can tell whose it is, is served by its network's name; a
// cluster that cannot be asked is asked again by the runtime.
func TestOwnModeWithoutAPod(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		ownMode(w)
		w.cluster.owners = nil
		e, _ := w.start()
		mustAsk(t, e, "c1")
		if rec := w.records[net1("c1")]; rec.Pod.Name != "" || rec.OVN || w.cluster.asked != 0 {
			t.Errorf("record %+v", rec)
		}
		w.change(func() { w.cluster.away = true })
		w.space("c2", 2)
		if _, err := e.Attach(t.Context(), ipamRequest("c2")); api.CodeOf(err) != api.CodeTryAgain {
			t.Errorf("with the API away: %v", err)
		}
		mustDetach(t, e, "c3") // never served, as a VM's pod: no look at anything
	})
}

// Whose interface it is, is asked once: the reference's plugin asks at CHECK as at ADD.
func TestOwnModeAsksOnce(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		ownMode(w)
		e, _ := w.start()
		mustAsk(t, e, "c1")
		w.change(func() { w.cluster.owners = nil })
		w.since()
		mustAsk(t, e, "c1")
		wantNotes(t, w)
		if rec := w.records[net1("c1")]; rec.Pod.Name != "web-0" || rec.NAD != "shop/lan" {
			t.Errorf("record %+v", rec)
		}
	})
}

// Its pod's next sandbox takes the lease over, which is known by the pod here.
func TestOwnModeNewSandboxTakesOver(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		ownMode(w)
		e, _ := w.start()
		mustAsk(t, e, "c1")
		w.place("c1", "10.77.0.50/24")
		time.Sleep(time.Minute)
		w.space("c2", 1)
		if l := mustAsk(t, e, "c2"); l.Address != "10.77.0.50/24" || len(w.server.held) != 1 {
			t.Errorf("the next sandbox has %s, the server holds %v", l.Address, w.server.held)
		}
		if rec := w.records[net1("c1")]; rec.Phase != Superseded {
			t.Errorf("the older sandbox is %s", rec.Phase)
		}
	})
}

// A pod that is deleted without a DEL ends its lease.
func TestOwnModePodIsGone(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		ownMode(w)
		e, _ := w.start()
		mustAsk(t, e, "c1")
		w.place("c1", "10.77.0.50/24")
		time.Sleep(time.Minute)
		w.deletePod(w.cluster.owners["02:00:00:00:00:01"], true)
		time.Sleep(time.Second)
		synctest.Wait()
		if len(w.server.held) != 0 {
			t.Errorf("the server holds %v", w.server.held)
		}
		_, err := e.Check(t.Context(), ipamRequest("c1"))
		if err == nil {
			t.Error("CHECK passes for a pod that is gone")
		}
	})
}

// CHECK of an address that its caller has put nowhere yet wants to see the interface.
func TestCheckBeforeAdoption(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		w.space("c1", 1)
		e, _ := w.start()
		mustAsk(t, e, "c1")
		if _, err := e.Check(t.Context(), ipamRequest("c1")); err != nil {
			t.Errorf("Check: %v", err)
		}
		w.change(func() { w.spaces["c1"].noLink = true })
		if _, err := e.Check(t.Context(), ipamRequest("c1")); err == nil {
			t.Error("Check passes without the interface")
		}
	})
}

// The default route of a lease is left out where the namespace has one, whoever asks
// for it later; a network that names a metric has both.
func TestIPAMDefaultRoute(t *testing.T) {
	for _, tt := range []struct {
		name   string
		routes []string
		dhcp   string
		want   int
	}{
		{"none yet", nil, `{"defaultRoute":"always"}`, 1},
		{"the pod has one", []string{"0.0.0.0/0"}, `{"defaultRoute":"always"}`, 0},
		{"with a metric", []string{"0.0.0.0/0"}, `{"defaultRoute":"always","routeMetric":200}`, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			simulate(t, func(t *testing.T, w *world) {
				s := w.space("c1", 1)
				for _, r := range tt.routes {
					s.routes = append(s.routes, netip.MustParsePrefix(r))
				}
				e, _ := w.start()
				r := ipamRequest("c1")
				r.DHCP = json.RawMessage(tt.dhcp)
				l, err := e.Attach(t.Context(), r)
				if err != nil || len(l.Routes) != tt.want {
					t.Fatalf("routes %+v, %v", l.Routes, err)
				}
				w.place("c1", "10.77.0.50/24")
				// Its own is no other's: it stays at renewals.
				w.change(func() { s.routes = append(s.routes, netip.MustParsePrefix("0.0.0.0/0")) })
				time.Sleep(31 * time.Minute)
				synctest.Wait()
				if got := w.records[net1("c1")].Setup.Routes; len(got) != tt.want {
					t.Errorf("after a renewal: %v", got)
				}
			})
		})
	}
}
