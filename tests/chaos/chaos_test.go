package chaos

import (
	"flag"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/dhcp-meta/dhcp-meta/tests/rig"
)

var (
	chaosSeed   = flag.Uint64("chaos-seed", 0, "seed of TestChaos; 0 takes one from the clock")
	chaosLength = flag.Duration("chaos-length", 40*time.Second, "how long TestChaos lets things go wrong")
)

// metricsAddress is the engine's in its node's namespace.
const metricsAddress = "127.0.0.1:9100"

// Sixty leases with a T1 of three seconds, while servers are stopped, replaced,
// emptied and lend leases to others, packets are lost and doubled, links go down,
// pods come and go, and the engine is killed. When all that has ended, server,
// engine and interfaces come to agree on every address by themselves; when all pods
// are deleted nothing is left, and for each lease that the server holds still it
// is known why.
func TestChaos(t *testing.T) {
	t.Parallel()
	seed := *chaosSeed
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}
	t.Logf("seed: -chaos-seed=%d", seed)
	for i, lane := range []struct {
		name     string
		start    rig.StartFunc
		lifetime time.Duration
		pods     int
	}{
		// dnsmasq lends nothing below two minutes.
		{"dnsmasq", rig.StartDnsmasq, 2 * time.Minute, 40},
		{"Kea", rig.StartKea, 20 * time.Second, 20},
	} {
		t.Run(lane.name, func(t *testing.T) {
			t.Parallel()
			s := newStorm(t, rand.New(rand.NewPCG(seed, uint64(i))), lane.start, lane.lifetime)
			s.target = lane.pods
			before := s.load(t)
			s.addAll(t)
			s.rage(t, *chaosLength)
			s.calm(t)
			s.awaitAgreement(t)
			s.delAll(t)
			s.awaitNothingLeft(t, before)
			s.accountForHeld(t)
		})
	}
}

func newStorm(t *testing.T, rng *rand.Rand, start rig.StartFunc, lifetime time.Duration) *storm {
	t.Helper()
	lan := rig.NewLAN(t)
	// Restarts are many and short here, and so is what they spread.
	engine := rig.StartEngine(t, lan.Node, "--metrics-address="+metricsAddress, "--startup-spread=1s")
	cfg := rig.Pool(3*time.Second, 6*time.Second)
	cfg.Last, cfg.Lifetime = netip.MustParseAddr("10.77.0.250"), lifetime
	s := &storm{
		Lab: &rig.Lab{LAN: lan, Engine: engine}, rng: rng, start: start, cfg: cfg,
		doneC: make(chan verbDone), happened: map[string]int{},
	}
	s.startServer(t)
	return s
}

// awaitAgreement waits until server, engine and interfaces say the same of every
// pod. A lease whose last question was lost is asked for again after half of what
// is left of it (RFC 2131, 4.4.5), so this may take most of its life; and as long a
// RELEASE may wait that cannot be sent, to a server that was replaced; a round over
// all interfaces that has begun by then is carried through.
func (s *storm) awaitAgreement(t *testing.T) {
	t.Helper()
	begin := time.Now()
	deadline := time.After(s.cfg.Lifetime + 2*rig.Patience)
	for again := range s.looks(t) {
		apart := s.disagreements(t)
		if len(apart) == 0 {
			t.Logf("%d pods agree after %v", len(s.live), time.Since(begin).Round(time.Second))
			return
		}
		select {
		case <-again:
		case <-deadline:
			t.Fatalf("no agreement after %v:\n%s", time.Since(begin), lines(apart))
		}
	}
}

// awaitNothingLeft waits until the engine has nothing left of the pods, and the
// kernel none of their namespaces.
func (s *storm) awaitNothingLeft(t *testing.T, before load) {
	t.Helper()
	begin := time.Now()
	deadline := time.After(rig.Patience)
	for again := range s.looks(t) {
		left := slices.Concat(s.unforgotten(t), s.grown(t, before))
		for _, id := range s.pinned(t) {
			left = append(left, "a namespace is pinned: "+id)
		}
		if len(left) == 0 {
			t.Logf("nothing is left after %v", time.Since(begin).Round(time.Second))
			return
		}
		select {
		case <-again:
		case <-deadline:
			t.Fatalf("left %v after the last DEL:\n%s", time.Since(begin), lines(left))
		}
	}
}
