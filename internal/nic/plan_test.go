package nic

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine"
	"github.com/dhcp-meta/dhcp-meta/pkg/engine/dhcp4"
)

const testLink = 5

// setup reads "10.0.0.5/24 mtu 1400/1500; default via 10.0.0.1 metric 100; ...".
func setup(t *testing.T, text string) engine.Setup {
	t.Helper()
	var s engine.Setup
	for i, part := range strings.Split(text, ";") {
		f := strings.Fields(part)
		if len(f) == 0 {
			continue
		}
		if i > 0 {
			r := readRoute(t, f)
			s.Routes = append(s.Routes, engine.Route{Dst: r.dst, Gateway: r.gw, Metric: r.metric})
			continue
		}
		s.Addr = netip.MustParsePrefix(f[0])
		if len(f) > 1 {
			s.MTU, s.PriorMTU = number(t, f[2]), number(t, f[3])
		}
	}
	return s
}

// readRoute reads a route as String writes it, with "proto N" and "dev N"
// besides; protocol and interface are ours by default.
func readRoute(t *testing.T, f []string) route {
	t.Helper()
	r := route{link: testLink, proto: unix.RTPROT_DHCP}
	if f[0] == "default" {
		f[0] = "0.0.0.0/0"
	}
	r.dst = netip.MustParsePrefix(f[0])
	for i := 1; i+1 < len(f); i += 2 {
		switch f[i] {
		case "via":
			r.gw = netip.MustParseAddr(f[i+1])
		case "src":
			r.src = netip.MustParseAddr(f[i+1])
		case "metric":
			r.metric = number(t, f[i+1])
		case "proto":
			r.proto = number(t, f[i+1])
		case "dev":
			r.link = number(t, f[i+1])
		default:
			t.Fatalf("unknown word %q", f[i])
		}
	}
	return r
}

func number(t *testing.T, s string) int {
	t.Helper()
	n := 0
	for _, c := range s {
		if c < '0' || c > '9' {
			t.Fatalf("no number: %q", s)
		}
		n = n*10 + int(c-'0')
	}
	return n
}

// held reads what the kernel holds: addresses ("10.0.0.5/24", "secondary
// 10.0.0.9/24") and routes.
func held(t *testing.T, mtu int, lines ...string) state {
	t.Helper()
	s := state{link: testLink, up: true, mtu: mtu}
	for _, line := range lines {
		f := strings.Fields(line)
		switch {
		case f[0] == "down":
			s.up = false
		case f[0] == "secondary":
			s.addresses = append(s.addresses, address{netip.MustParsePrefix(f[1]), true})
		case len(f) == 1:
			s.addresses = append(s.addresses, address{netip.MustParsePrefix(f[0]), false})
		default:
			s.routes = append(s.routes, readRoute(t, f))
		}
	}
	return s
}

func TestPlan(t *testing.T) {
	const (
		kernel  = " proto 2"
		lease   = "10.0.0.5/24; default via 10.0.0.1"
		onWire  = "default via 10.0.0.1 src 10.0.0.5"
		subnet  = "10.0.0.0/24 src 10.0.0.5" + kernel
		foreign = "default via 192.168.9.1 dev 2 proto 3"
	)
	tests := []struct {
		name       string
		have, want string
		mtu        int
		now        []string
		steps      []string
		conflicts  []string
	}{
		{
			name: "OK first lease", want: lease,
			steps: []string{"put address 10.0.0.5/24", "add route default via 10.0.0.1 src 10.0.0.5"},
		},
		{
			name: "OK link down", want: "10.0.0.5/24", now: []string{"down"},
			steps: []string{"link up", "put address 10.0.0.5/24"},
		},
		{
			name: "OK renewal only refreshes", have: lease, want: lease,
			now:   []string{"10.0.0.5/24", subnet, onWire},
			steps: []string{"put address 10.0.0.5/24"},
		},
		{
			name: "OK crash before the routes", have: lease, want: lease,
			now:   []string{"10.0.0.5/24", subnet},
			steps: []string{"put address 10.0.0.5/24", "add route default via 10.0.0.1 src 10.0.0.5"},
		},
		{
			name: "OK crash before the address", have: lease, want: lease,
			steps: []string{"put address 10.0.0.5/24", "add route default via 10.0.0.1 src 10.0.0.5"},
		},
		{
			name: "OK another address in the subnet", have: lease, want: "10.0.0.6/24; default via 10.0.0.1",
			now: []string{"10.0.0.5/24", subnet, onWire},
			steps: []string{
				"delete route default via 10.0.0.1 src 10.0.0.5",
				"delete address 10.0.0.5/24",
				"put address 10.0.0.6/24",
				"add route default via 10.0.0.1 src 10.0.0.6",
			},
		},
		{
			name: "OK another mask takes all routes along", have: lease, want: "10.0.0.5/16; default via 10.0.0.1",
			now: []string{"10.0.0.5/24", subnet, onWire},
			steps: []string{
				"delete address 10.0.0.5/24",
				"put address 10.0.0.5/16",
				"add route default via 10.0.0.1 src 10.0.0.5",
			},
		},
		{
			name: "OK another router, address stays", have: lease, want: "10.0.0.5/24; default via 10.0.0.2",
			now: []string{"10.0.0.5/24", subnet, onWire},
			steps: []string{
				"delete route default via 10.0.0.1 src 10.0.0.5",
				"put address 10.0.0.5/24",
				"add route default via 10.0.0.2 src 10.0.0.5",
			},
		},
		{
			name: "OK another metric", have: lease, want: lease + " metric 50",
			now: []string{"10.0.0.5/24", subnet, onWire},
			steps: []string{
				"delete route default via 10.0.0.1 src 10.0.0.5",
				"put address 10.0.0.5/24",
				"add route default via 10.0.0.1 src 10.0.0.5 metric 50",
			},
		},
		{
			name: "OK route of ours that no record knows", want: "10.0.0.5/24; default via 10.0.0.2",
			now: []string{"10.0.0.5/24", subnet, onWire},
			steps: []string{
				"delete route default via 10.0.0.1 src 10.0.0.5",
				"put address 10.0.0.5/24",
				"add route default via 10.0.0.2 src 10.0.0.5",
			},
		},
		{
			name: "OK on-link routes first, their gateways need no onlink",
			want: "10.0.0.5/32; default via 10.0.0.1; 10.0.0.1/32; 10.9.0.0/16 via 10.8.0.1",
			steps: []string{
				"put address 10.0.0.5/32",
				"add route 10.0.0.1/32 src 10.0.0.5",
				"add route default via 10.0.0.1 src 10.0.0.5",
				"add route 10.9.0.0/16 via 10.8.0.1 onlink src 10.0.0.5",
			},
		},
		{
			name: "OK host bits and repeated routes",
			want: "10.0.0.5/24; 10.9.1.2/16 via 10.0.0.1; 10.9.0.0/16 via 10.0.0.2",
			steps: []string{
				"put address 10.0.0.5/24",
				"add route 10.9.0.0/16 via 10.0.0.1 src 10.0.0.5",
			},
		},
		{
			name: "OK route that the address brings by itself", want: "10.0.0.5/24; 10.0.0.0/24",
			steps: []string{"put address 10.0.0.5/24"},
		},
		{
			name: "OK identical route of another", want: lease,
			now:   []string{onWire + " proto 3"},
			steps: []string{"put address 10.0.0.5/24"},
		},
		{
			name: "OK same destination with another metric", want: lease + " metric 50", now: []string{foreign},
			steps: []string{"put address 10.0.0.5/24", "add route default via 10.0.0.1 src 10.0.0.5 metric 50"},
		},
		{
			name: "bad route of another interface", want: lease, now: []string{foreign},
			steps:     []string{"put address 10.0.0.5/24"},
			conflicts: []string{"default via 10.0.0.1 src 10.0.0.5 / default via 192.168.9.1"},
		},
		{
			name: "bad route without our source", have: lease, want: lease,
			now:       []string{"10.0.0.5/24", subnet, "default via 10.0.0.1"},
			steps:     []string{"put address 10.0.0.5/24"},
			conflicts: []string{"default via 10.0.0.1 src 10.0.0.5 / default via 10.0.0.1"},
		},
		{
			name: "OK clear", have: lease, now: []string{"10.0.0.5/24", subnet, onWire, foreign},
			steps: []string{"delete route default via 10.0.0.1 src 10.0.0.5", "delete address 10.0.0.5/24"},
		},
		{name: "OK clear nothing", have: lease, now: []string{foreign}},
		{
			name: "OK clear leaves what only looks like ours", have: lease,
			now: []string{
				"10.0.0.5/16", "default via 10.0.0.1 src 10.0.0.5 proto 3",
				"default via 10.0.0.1 src 10.0.0.5 dev 2", "default via 10.0.0.1 src 10.0.0.7",
			},
		},
		{
			name: "OK addresses of others come back", have: "10.0.0.5/24", want: "10.0.0.6/24",
			now:   []string{"10.0.0.5/24", "secondary 10.0.0.9/24", "10.0.0.8/32", "10.1.0.9/24"},
			steps: []string{"delete address 10.0.0.5/24", "put address 10.0.0.6/24", "keep address 10.0.0.9/24"},
		},
		{
			name: "OK new address was there as secondary", have: "10.0.0.5/24", want: "10.0.0.6/24; default via 10.0.0.1",
			now: []string{"10.0.0.5/24", "secondary 10.0.0.6/24", "default via 10.0.0.1 src 10.0.0.6"},
			steps: []string{
				"delete address 10.0.0.5/24",
				"put address 10.0.0.6/24",
				"add route default via 10.0.0.1 src 10.0.0.6",
			},
		},
		{
			name: "OK a secondary of ours takes nothing along", have: "10.0.0.5/24",
			now:   []string{"10.0.0.2/24", "secondary 10.0.0.5/24", "secondary 10.0.0.9/24"},
			steps: []string{"delete address 10.0.0.5/24"},
		},
		{
			name: "OK mtu lowered", want: "10.0.0.5/24 mtu 1400 1500",
			steps: []string{"set mtu 1400", "put address 10.0.0.5/24"},
		},
		{
			name: "OK mtu never raised", want: "10.0.0.5/24 mtu 9000 1500",
			steps: []string{"put address 10.0.0.5/24"},
		},
		{
			name: "OK mtu raised up to the prior one", mtu: 1400,
			have: "10.0.0.5/24 mtu 1400 1500", want: "10.0.0.5/24 mtu 9000 1500", now: []string{"10.0.0.5/24"},
			steps: []string{"set mtu 1500", "put address 10.0.0.5/24"},
		},
		{
			name: "OK mtu put back", mtu: 1400,
			have: "10.0.0.5/24 mtu 1400 1500", want: "10.0.0.5/24", now: []string{"10.0.0.5/24"},
			steps: []string{"set mtu 1500", "put address 10.0.0.5/24"},
		},
		{
			name: "OK mtu of somebody else not put back", mtu: 1300,
			have: "10.0.0.5/24 mtu 1400 1500", now: []string{"10.0.0.5/24"},
			steps: []string{"delete address 10.0.0.5/24"},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if tt.mtu == 0 {
				tt.mtu = 1500
			}
			steps, conflicts := plan(setup(t, tt.have), setup(t, tt.want), held(t, tt.mtu, tt.now...))
			var got, gotConflicts []string
			for _, s := range steps {
				got = append(got, s.String())
			}
			for _, c := range conflicts {
				gotConflicts = append(gotConflicts, c.want.String()+" / "+c.found.String())
			}
			if diff := cmp.Diff(tt.steps, got); diff != "" {
				t.Errorf("steps (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tt.conflicts, gotConflicts); diff != "" {
				t.Errorf("conflicts (-want +got):\n%s", diff)
			}
		})
	}
}

func TestMissing(t *testing.T) {
	want := setup(t, "10.0.0.5/24 mtu 1400 1500; default via 10.0.0.1 metric 7")
	all := []string{"10.0.0.5/24", "default via 10.0.0.1 src 10.0.0.5 metric 7"}
	tests := []struct {
		name string
		mtu  int
		now  []string
		want []string
	}{
		{name: "OK", mtu: 1400, now: all},
		{name: "OK lower mtu", mtu: 1300, now: all},
		{name: "bad link down", mtu: 1400, now: append([]string{"down"}, all...), want: []string{"the link is down"}},
		{name: "bad mtu", mtu: 1500, now: all, want: []string{"the mtu is 1500 instead of 1400"}},
		{name: "bad prefix", mtu: 1400, now: []string{"10.0.0.5/16", all[1]}, want: []string{"address 10.0.0.5/24 is missing"}},
		{
			name: "bad metric", mtu: 1400, now: []string{all[0], "default via 10.0.0.1 src 10.0.0.5"},
			want: []string{"route default via 10.0.0.1 src 10.0.0.5 metric 7 is missing"},
		},
		{
			name: "bad source", mtu: 1400, now: []string{all[0], "default via 10.0.0.1 src 10.0.0.9 metric 7"},
			want: []string{"route default via 10.0.0.1 src 10.0.0.5 metric 7 is missing"},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := missing(want, held(t, tt.mtu, tt.now...))
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("missing (-want +got):\n%s", diff)
			}
		})
	}
}

func TestLifetimeOf(t *testing.T) {
	for _, tt := range []struct {
		name string
		d    time.Duration
		want int
	}{
		{"OK infinite", dhcp4.Infinite, 0},
		{"OK rounds down", 90*time.Second + 999*time.Millisecond, 90},
		{"OK under a second", 300 * time.Millisecond, 1},
		{"OK already over", -time.Hour, 1},
		{"OK longest finite", 0xfffffffe * time.Second, 0xfffffffe},
		{"OK beyond the wire", 0xffffffff * time.Second, 0xfffffffe},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := lifetimeOf(tt.d); got != tt.want {
				t.Fatalf("got %d, want %d", got, tt.want)
			}
		})
	}
}
