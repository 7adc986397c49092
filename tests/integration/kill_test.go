package integration

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dhcp-meta/dhcp-meta/tests/rig"
)

var (
	killPoints = flag.Int("kill-points", 208, "how often TestKillPoints kills the engine")
	killSeed   = flag.Uint64("kill-seed", 0, "seed of TestKillPoints; 0 takes one from the clock")
)

// The engine is killed at random moments of ADD, renewal and DEL, and started
// again after each. Whatever the moment: every pod that the runtime believes to
// have an address has one, it is the one that the server holds for it, and when
// all pods are deleted the server's table is empty, no record is left, and no
// interface.
//
// Some lanes run side by side, each with a lab of its own; a round of a lane is
// one ADD, one T1 or one DEL with a kill in it.
func TestKillPoints(t *testing.T) {
	t.Parallel()
	seed := *killSeed
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}
	t.Logf("seed: -kill-seed=%d", seed)
	const lanes = 4
	for lane := range lanes {
		t.Run(fmt.Sprintf("lane %d", lane), func(t *testing.T) {
			t.Parallel()
			k := newKillLane(t, rand.New(rand.NewPCG(seed, uint64(lane))))
			for round := range (*killPoints + lanes - 1) / lanes {
				k.round(t, round)
			}
			k.finish(t)
		})
	}
}

type killLane struct {
	*lab
	rng    *rand.Rand
	server rig.Server
	// alive are sandboxes whose ADD succeeded and that were not deleted.
	alive []*sandbox
	// all are all sandboxes.
	all []*sandbox
}

func newKillLane(t *testing.T, rng *rand.Rand) *killLane {
	l := newLab(t)
	cfg := rig.Pool(seconds(3), seconds(60))
	cfg.Last = netip.MustParseAddr("10.77.0.250")
	return &killLane{lab: l, rng: rng, server: rig.StartDnsmasq(t, l.Server, cfg)}
}

func (k *killLane) round(t *testing.T, round int) {
	const most = 4
	switch {
	case len(k.alive) == 0 || len(k.alive) < most && k.rng.IntN(2) == 0:
		k.killInAdd(t, round)
	case k.rng.IntN(3) == 0:
		k.killInRenewal(t, round)
	default:
		k.killInDel(t, round)
	}
	k.Engine.Start(t)
	for _, pod := range k.alive {
		k.expectSame(t, round, pod)
	}
	if t.Failed() {
		t.FailNow()
	}
}

// killAfter kills the engine at a random moment within about the time that a verb
// takes. The moment itself is what is random here; there is no event to wait for.
func (k *killLane) killAfter(t *testing.T, longest time.Duration) {
	t.Helper()
	<-time.After(time.Duration(k.rng.Int64N(int64(longest))))
	k.Engine.Kill(t)
}

func (k *killLane) killInAdd(t *testing.T, round int) {
	pod := newSandbox(t)
	k.all = append(k.all, pod)
	call := pod.Call("net1", k.Macvlan(object{"timeout": "10s"}))
	add := k.background("ADD", call)
	k.killAfter(t, 400*time.Millisecond)
	o := add.wait(t)
	switch {
	case o.Err == nil:
		k.alive = append(k.alive, pod)
	case o.Err.Code != 11:
		t.Errorf("round %d: ADD: code %d, want 11: %v", round, o.Err.Code, o.Err)
	default:
		// The runtime sends a DEL after a failed ADD, and the engine may be back
		// by then or not.
		if k.rng.IntN(2) == 0 {
			k.Engine.Start(t)
			defer k.Engine.Kill(t)
		}
		k.Node.Del(t, call)
		pod.Delete(t)
	}
}

func (k *killLane) killInRenewal(t *testing.T, round int) {
	mark := k.Capture.Len()
	k.Capture.Await(t, fmt.Sprintf("renewal in round %d", round), mark, rig.Patience, rig.Frame.FromClient)
	k.killAfter(t, 5*time.Millisecond)
}

func (k *killLane) killInDel(t *testing.T, round int) {
	i := k.rng.IntN(len(k.alive))
	pod := k.alive[i]
	k.alive = slices.Delete(k.alive, i, i+1)
	call := pod.Call("net1", k.Macvlan(nil))
	del := k.background("DEL", call)
	k.killAfter(t, 60*time.Millisecond)
	if o := del.wait(t); o.Err != nil {
		t.Errorf("round %d: DEL: %v", round, o.Err)
	}
	if have := pod.Addresses(t, "net1"); have != nil {
		t.Errorf("round %d: net1 carries %v after DEL", round, have)
	}
	pod.Delete(t)
}

// expectSame checks that pod, engine and server agree on the address of a pod.
func (k *killLane) expectSame(t *testing.T, round int, pod *sandbox) {
	t.Helper()
	have := pod.Addresses(t, "net1")
	if len(have) != 1 {
		t.Errorf("round %d: net1 carries %v, want its lease", round, have)
		return
	}
	if st := k.status(t, pod, "net1"); st.Address != have[0].Addr.String() {
		t.Errorf("round %d: the engine lists %q, net1 carries %v", round, st.Address, have[0].Addr)
	}
	mac := pod.HardwareAddr(t, "net1")
	what := fmt.Sprintf("%v for %s in round %d", have[0].Addr, mac, round)
	k.server.AwaitHeld(t, what, func(held []rig.Held) bool {
		return slices.ContainsFunc(held, func(h rig.Held) bool {
			return rig.Holds(mac, have[0].Addr.Addr())([]rig.Held{h})
		})
	})
}

func (k *killLane) finish(t *testing.T) {
	for _, pod := range k.alive {
		k.Node.Del(t, pod.Call("net1", k.Macvlan(nil)))
		if out, err := pod.TryIP("link", "show", "dev", "net1"); err == nil {
			t.Errorf("left after DEL: %s", out)
		}
	}
	// A DEL that found no engine could not give its lease back. The engine knows
	// these leases, and says so, until the runtime's next DEL or their end.
	for _, st := range k.Engine.Leases(t) {
		if st.State != "ORPHANED" && st.State != "RELEASING" {
			t.Errorf("the engine still keeps %s in %s", st.AttachmentID, st.State)
		}
	}
	log := k.Engine.Log()
	for _, h := range k.server.Held(t) {
		lost := func(line string) bool { return strings.Contains(line, h.Addr.String()) && k.explains(line) }
		if !slices.ContainsFunc(log, lost) {
			t.Errorf("the server holds %v for %s, and the engine does not say why", h.Addr, h.MAC)
		}
	}
	for _, pod := range k.all {
		k.Node.Del(t, pod.Call("net1", k.Macvlan(nil)))
	}
	k.expectNothingLeft(t)
	t.Logf("%d sandboxes, %d leases lost to DELs without an engine", len(k.all), len(k.server.Held(t)))
}

// explains tells whether a log line says that a lease could not be given back.
func (k *killLane) explains(line string) bool {
	return strings.Contains(line, "interface is gone") || strings.Contains(line, "cut off by the end of the engine")
}
