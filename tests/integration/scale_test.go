package integration

import (
	"net/netip"
	"sync"
	"testing"

	"github.com/dhcp-meta/dhcp-meta/tests/rig"
)

// Sixty leases, got all at once, hold no thread and no socket each. (500 and 1000
// are in the benchmarks.)
func TestB87SixtyLeasesAtOnce(t *testing.T) {
	const leases = 60
	l := newLab(t)
	cfg := rig.Pool(0, 0)
	cfg.Last = netip.MustParseAddr("10.77.0.250")
	server := rig.StartDnsmasq(t, l.Server, cfg)
	before := l.Engine.Load(t)
	conf := l.Macvlan(nil)
	pods := make([]*sandbox, leases)
	for i := range pods {
		pods[i] = newSandbox(t)
	}
	each := func(verb string) {
		var wg sync.WaitGroup
		for _, pod := range pods {
			wg.Go(func() {
				if o, err := l.Node.CNI(verb, pod.Call("net1", conf)); err != nil || o.Err != nil {
					t.Errorf("%s %s: %v, %v", verb, pod.ID, err, o.Err)
				}
			})
		}
		wg.Wait()
	}
	each("ADD")
	server.AwaitHeld(t, "sixty leases", func(held []rig.Held) bool { return len(held) == leases })
	after := l.Engine.Load(t)
	t.Logf("before %+v, with %d leases %+v", before, leases, after)
	if after.Threads > before.Threads+16 {
		t.Errorf("%d threads with %d leases, %d before", after.Threads, leases, before.Threads)
	}
	l.Engine.AwaitDescriptors(t, before.Descriptors+8)
	each("DEL")
	server.AwaitHeld(t, "empty", rig.Nothing)
	l.expectNothingLeft(t)
}
