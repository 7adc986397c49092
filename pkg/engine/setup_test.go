package engine

import (
	"net"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/insomniacslk/dhcp/dhcpv4"
)

func classless(dst string, gw net.IP) *dhcpv4.Route {
	_, n, _ := net.ParseCIDR(dst)
	return &dhcpv4.Route{Dest: n, Router: gw}
}

func installed(w *world, path string) []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	var got []string
	for _, r := range w.spaces[path].setup.Routes {
		got = append(got, r.Dst.String())
	}
	return got
}

// Whoever answers first is the DHCP server: its routes must not lead away the
// traffic that the pod sends elsewhere.
func TestUnsafeRoutesAreRefusedAndReportedOnce(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		s := w.space("c1", 1)
		s.routes = []netip.Prefix{netip.MustParsePrefix("10.244.0.0/24")}
		w.audience = &audience{}
		w.protected = []netip.Prefix{netip.MustParsePrefix("10.96.0.0/12")}
		router := net.IPv4(10, 77, 0, 1)
		w.server.routes = []*dhcpv4.Route{
			classless("10.9.0.0/16", router),                 // the one that is fine
			classless("0.0.0.0/0", router),                   // default
			classless("128.0.0.0/1", router),                 // half of it
			classless("10.96.0.10/32", router),               // a service
			classless("10.244.0.0/25", router),               // what the pod routes already
			classless("169.254.169.254/32", router),          // metadata
			classless("10.8.0.0/16", net.IPv4(10, 99, 0, 1)), // a router that is not on the link
		}
		e, _ := w.start()
		mustAttach(t, e, "c1")
		if diff := cmp.Diff([]string{"10.9.0.0/16"}, installed(w, "c1")); diff != "" {
			t.Errorf("installed (-want +got):\n%s", diff)
		}
		reported := func() (n int) {
			for _, told := range w.audience.since() {
				if strings.HasPrefix(told, "RouteRefused") {
					n++
				}
			}
			return n
		}
		if n := reported(); n != 5 { // that a default route is left out is no news
			t.Errorf("%d refusals reported, want 5", n)
		}
		time.Sleep(3 * time.Hour)
		synctest.Wait()
		if n := reported(); n != 0 {
			t.Errorf("%d refusals reported again at renewals", n)
		}
	})
}

func TestRoutesFollowARenewal(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		w.space("c1", 1)
		router := net.IPv4(10, 77, 0, 1)
		w.server.routes = []*dhcpv4.Route{classless("10.9.0.0/16", router)}
		e, _ := w.start()
		mustAttach(t, e, "c1")
		w.change(func() { w.server.routes = []*dhcpv4.Route{classless("10.8.0.0/16", router)} })
		time.Sleep(31 * time.Minute)
		synctest.Wait()
		if diff := cmp.Diff([]string{"10.8.0.0/16"}, installed(w, "c1")); diff != "" {
			t.Errorf("installed (-want +got):\n%s", diff)
		}
	})
}

func TestServerThatMayNotIsToldOfOnce(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		w.space("c1", 1)
		w.audience = &audience{}
		e, _ := w.start()
		_, err := attachWith(t, e, `{"denyServers":["10.77.0.1"]}`)
		if err == nil || !strings.Contains(err.Error(), "10.77.0.1") {
			t.Errorf("got %v", err)
		}
		if diff := cmp.Diff([]string{"ServerRefused c1", "WaitingForAddress c1"}, w.audience.since()); diff != "" {
			t.Errorf("told (-want +got):\n%s", diff)
		}
		nothingLeft(t, w)
	})
}

// A server chooses the mask as it chooses the routes.
func TestMaskThatSwallowsAProtectedNetworkIsRefused(t *testing.T) {
	tests := []struct {
		name string
		bits int
		ok   bool
	}{
		{"OK the protected network itself", 24, true},
		{"bad a network around it", 16, false},
		{"bad everything", 1, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			simulate(t, func(t *testing.T, w *world) {
				w.space("c1", 1)
				w.protected = []netip.Prefix{netip.MustParsePrefix("10.77.0.0/24")}
				w.server.bits = tt.bits
				e, _ := w.start()
				_, err := e.Attach(t.Context(), request("c1", "c1"))
				if tt.ok {
					if err != nil {
						t.Error(err)
					}
					return
				}
				if err == nil || !strings.Contains(err.Error(), "not safe here") {
					t.Errorf("got %v", err)
				}
				nothingLeft(t, w)
			})
		})
	}
}

func TestMaskThatGrowsOverAProtectedNetworkIsNotApplied(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		w.space("c1", 1)
		w.protected = []netip.Prefix{netip.MustParsePrefix("10.77.128.0/24")}
		e, _ := w.start()
		mustAttach(t, e, "c1")
		w.change(func() { w.server.bits = 16 })
		time.Sleep(3 * time.Hour)
		synctest.Wait()
		if got := w.carries("c1").String(); got != "10.77.0.50/24" {
			t.Errorf("interface carries %s", got)
		}
		if list, _ := e.List(t.Context()); !strings.Contains(list[0].LastError, "not safe here") {
			t.Errorf("List = %+v", list)
		}
	})
}
