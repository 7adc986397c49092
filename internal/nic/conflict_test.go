package nic

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// U18: the times between probes, at the ends of what chance gives.
func TestProbeWaitsU18(t *testing.T) {
	least := func(time.Duration) time.Duration { return 0 }
	most := func(d time.Duration) time.Duration { return d - 1 }
	const s = time.Second
	for _, tt := range []struct {
		name   string
		full   bool
		random func(time.Duration) time.Duration
		want   []time.Duration
	}{
		{"OK fast", false, most, []time.Duration{0, s / 4}},
		{"OK full, least", true, least, []time.Duration{0, s, s, 2 * s}},
		{"OK full, most", true, most, []time.Duration{s - 1, 2*s - 1, 2*s - 1, 2 * s}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, rfc5227().waits(tt.full, tt.random)); diff != "" {
				t.Errorf("waits (-want +got):\n%s", diff)
			}
		})
	}
}

// RFC 5227, 2.4 (b): two claims within DEFEND_INTERVAL are one too many.
func TestDefence(t *testing.T) {
	const s = time.Second
	for _, tt := range []struct {
		name string
		at   []time.Duration // the claims
		want []bool
	}{
		{"OK one", []time.Duration{0}, []bool{false}},
		{"OK every ten seconds", []time.Duration{0, 10 * s, 20 * s}, []bool{false, false, false}},
		{"bad at once", []time.Duration{0, 0}, []bool{false, true}},
		{"bad within ten seconds", []time.Duration{0, 10*s - 1}, []bool{false, true}},
		{"bad within ten seconds, later", []time.Duration{0, 15 * s, 20 * s}, []bool{false, false, true}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d := defence{interval: rfc5227().defendInterval}
			start := time.Now()
			var got []bool
			for _, at := range tt.at {
				got = append(got, d.lost(start.Add(at)))
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("lost (-want +got):\n%s", diff)
			}
		})
	}
}
