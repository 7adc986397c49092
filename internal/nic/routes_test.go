package nic

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestDestinations(t *testing.T) {
	for _, tt := range []struct {
		name   string
		routes []string // dev 5 is the interface; protocol 2 is the kernel, 16 DHCP
		want   string
	}{
		{"OK none", nil, ""},
		{"OK connected, other interface", []string{"10.244.1.0/24 dev 3 proto 2"}, "10.244.1.0/24"},
		{"OK default", []string{"default via 10.244.1.1 dev 3 proto 3"}, "0.0.0.0/0"},
		{"OK lease of another interface", []string{"10.78.0.0/16 dev 3 proto 16"}, "10.78.0.0/16"},
		{"OK by somebody else on the interface", []string{"10.79.0.0/16 dev 5 proto 3"}, "10.79.0.0/16"},
		{"OK several next hops", []string{"10.96.0.0/12 dev 0 proto 3"}, "10.96.0.0/12"},
		{"OK in order, each once", []string{
			"10.96.0.0/16 dev 3", "10.96.0.0/12 dev 3 metric 1", "10.96.0.0/12 dev 3 metric 2", "default dev 3",
		}, "0.0.0.0/0 10.96.0.0/12 10.96.0.0/16"},
		{"bad connected, own", []string{"10.77.0.0/24 dev 5 proto 2"}, ""},
		{"bad own lease", []string{"default via 10.77.0.1 dev 5 proto 16"}, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var routes []route
			for _, text := range tt.routes {
				routes = append(routes, readRoute(t, strings.Fields(text)))
			}
			var got []string
			for _, p := range destinations(routes, testLink) {
				got = append(got, p.String())
			}
			if diff := cmp.Diff(tt.want, strings.Join(got, " ")); diff != "" {
				t.Errorf("destinations (-want +got):\n%s", diff)
			}
		})
	}
}
