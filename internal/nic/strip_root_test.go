package nic

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
)

// What the wrapped plugin has configured goes with its routes; what nobody named
// stays, and so do IPv6 and addresses of the link alone.
func TestStripB63(t *testing.T) {
	eachKind(t, func(t *testing.T, r *rig) {
		r.up()
		stale, second, other := "10.77.0.9/24", "10.77.0.10/24", "192.0.2.1/24"
		for _, a := range []string{stale, second, other} {
			r.inPod("addr", "add", a, "dev", "net1")
		}
		r.inPod("addr", "add", "169.254.7.7/16", "dev", "net1", "scope", "link")
		r.inPod("-6", "addr", "add", "2001:db8::9/64", "dev", "net1", "nodad")
		for _, route := range []string{"10.9.0.0/16 via 10.77.0.1", "default via 10.77.0.1 metric 50", "10.8.0.0/16 via 192.0.2.9"} {
			r.inPod(append(append([]string{"route", "add"}, strings.Fields(route)...), "dev", "net1")...)
		}
		strip := func(want []string, addrs ...string) {
			t.Helper()
			var list []netip.Prefix
			for _, a := range addrs {
				list = append(list, netip.MustParsePrefix(a))
			}
			taken, err := r.links.Strip(t.Context(), r.target, list)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, p := range taken {
				got = append(got, p.String())
			}
			slices.Sort(got)
			if !slices.Equal(got, want) {
				t.Errorf("Strip(%v) took %v, want %v", addrs, got, want)
			}
		}
		strip(nil, "10.77.0.9/16", "203.0.113.1/24") // another mask, another address
		strip([]string{second, stale}, stale, second)
		r.wantAddress(other)
		r.wantRoutes("10.8.0.0/16 via 192.0.2.9", "169.254.0.0/16 proto kernel scope link src 169.254.7.7", "192.0.2.0/24 proto kernel scope link src 192.0.2.1")
		strip(nil, stale)

		r.inPod("addr", "add", stale, "dev", "net1")
		strip([]string{stale, other})
		strip(nil)
		if a := strings.Join(r.addresses(), "; "); !strings.Contains(a, "169.254.7.7") || strings.Contains(a, "global") {
			t.Errorf("addresses left: %s", a)
		}
		if six := r.inPod("-6", "-o", "addr", "show", "dev", "net1", "scope", "global"); !strings.Contains(six, "2001:db8::9/64") {
			t.Errorf("IPv6 addresses left: %q", six)
		}
	})
}

func TestStripOfNoInterface(t *testing.T) {
	r := newRig(t)
	target := r.target
	target.IfName = "net9"
	_, err := r.links.Strip(t.Context(), target, nil)
	wantGone(t, err)
}
