package nic

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine"
)

// What a pod on a cluster network has beside its second interface, before and
// after the lease, is the same: a lease does not stand in its own way.
func TestRoutes(t *testing.T) {
	eachKind(t, func(t *testing.T, r *rig) {
		r.inPod("link", "add", "eth0", "type", "bridge")
		r.inPod("addr", "add", "10.244.1.7/24", "dev", "eth0")
		r.inPod("link", "set", "eth0", "up")
		r.up()
		r.inPod("route", "add", "default", "via", "10.244.1.1")
		r.inPod("route", "add", "10.244.0.0/16", "via", "10.244.1.1")
		r.inPod("route", "add", "10.96.0.0/12", "nexthop", "via", "10.244.1.1", "nexthop", "via", "10.244.1.2")
		r.inPod("route", "add", "blackhole", "169.254.169.254")
		r.inPod("route", "add", "172.31.0.0/16", "dev", "eth0", "table", "7")
		r.inPod("route", "add", "10.79.0.0/16", "dev", "net1")
		want := []string{"0.0.0.0/0", "10.79.0.0/16", "10.96.0.0/12", "10.244.0.0/16", "10.244.1.0/24", "169.254.169.254/32"}
		check := func() {
			t.Helper()
			routes, err := r.links.Routes(t.Context(), r.target)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, p := range routes {
				got = append(got, p.String())
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("routes (-want +got):\n%s", diff)
			}
		}
		check()
		r.configure(engine.Setup{}, setup(t, "10.77.0.50/24; 10.80.0.0/16 via 10.77.0.1; default via 10.77.0.1 metric 100"), 0)
		check()
	})
}

func TestRoutesOfWhatIsGone(t *testing.T) {
	r := newRig(t)
	routes, err := r.links.Routes(t.Context(), r.target)
	if err != nil || routes != nil {
		t.Errorf("without a route: %v, %v", routes, err)
	}
	r.target.IfName = "net9"
	_, err = r.links.Routes(t.Context(), r.target)
	wantGone(t, err)
	r.target.Netns = engine.Netns{Path: netip.Addr{}.String()}
	if _, err := r.links.Routes(t.Context(), r.target); err == nil {
		t.Error("no namespace: no error")
	}
}
