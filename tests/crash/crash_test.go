package crash

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine/api"
	"github.com/dhcp-meta/dhcp-meta/tests/rig"
)

// back says when the engine comes back after it was killed.
type back string

const (
	// soon is while the plugin still waits for it.
	soon back = "back soon"
	// late is after the runtime's DEL. The interface is gone by then, and what the
	// server holds is given back over that of another pod.
	late back = "back late"
)

// everyStep runs round for 0, 1, 2... steps that pass before the engine is killed,
// until a verb is through before that. Some lanes, each with a lab of its own, take
// turns: more where a round has to wait long.
func everyStep(t *testing.T, round func(t *testing.T, c *lane, steps int) (killed bool), backs ...back) {
	t.Parallel()
	for _, when := range backs {
		lanes := map[back]int{soon: 3, late: 8}[when]
		for i := range lanes {
			t.Run(fmt.Sprintf("%s, lane %d", when, i), func(t *testing.T) {
				t.Parallel()
				c := newLane(t, when)
				for steps := i; round(t, c, steps); steps += lanes {
					if t.Failed() {
						t.FailNow()
					}
				}
			})
		}
	}
}

// lane is a lab without a running engine.
type lane struct {
	*rig.Lab
	server rig.Server
	conf   rig.Object
	back   back
	// others are pods that keep their leases all the time.
	others []*rig.Sandbox
}

func newLane(t *testing.T, when back) *lane {
	t.Helper()
	lan := rig.NewLAN(t)
	l := &rig.Lab{LAN: lan, Engine: rig.NewEngine(t, lan.Node)}
	cfg := rig.Pool(0, 0)
	cfg.Last = netip.MustParseAddr("10.77.0.250")
	c := &lane{
		Lab: l, server: rig.StartDnsmasq(t, lan.Server, cfg), back: when,
		// Nothing is written or sent while conflict detection waits.
		conf: l.Macvlan(rig.Object{"timeout": "20s", "conflictDetection": "off"}),
	}
	if when == late {
		other := rig.NewSandbox(t)
		c.Engine.Start(t)
		c.Node.Add(t, other.Call("net1", c.conf))
		c.Engine.Stop(t)
		c.others = append(c.others, other)
	}
	return c
}

// result is how a verb of the plugin ended.
type result struct {
	rig.Outcome
	err error
}

// underKill runs a verb while the engine is killed after a number of steps. An
// engine that is back soon is started again while the plugin still runs.
func (c *lane) underKill(t *testing.T, tr *tracer, verb string, call rig.Call, steps int) (o rig.Outcome, killed bool) {
	t.Helper()
	doneC := make(chan result, 1)
	tr.arm(steps)
	go func() {
		o, err := c.Node.CNI(verb, call)
		doneC <- result{o, err}
	}()
	select {
	case <-tr.Killed():
	case r := <-doneC:
		doneC <- r
	}
	if killed = tr.disarm(); killed {
		tr.awaitEnd(t, c.Engine)
		c.expectWholeFiles(t)
		if c.back == soon {
			c.Engine.Start(t)
		}
	}
	r := <-doneC
	if r.err != nil {
		t.Fatalf("%s: %v", verb, r.err)
	}
	return r.Outcome, killed
}

// expectWholeFiles checks that every record and every entry of the ledger is there
// whole.
func (c *lane) expectWholeFiles(t *testing.T) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(c.Engine.StateDir, "*", "[^.]*.json"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if b, err := os.ReadFile(file); err != nil || !json.Valid(b) {
			t.Errorf("%s is half a file: %v: %q", file, err, b)
		}
	}
}

// expectNothing checks that nothing is left of a pod anywhere: at the server, at
// the engine, on disk and in its namespace.
func (c *lane) expectNothing(t *testing.T, pod *rig.Sandbox) {
	t.Helper()
	c.server.AwaitHeld(t, "the leases of other pods alone", func(held []rig.Held) bool {
		return !slices.ContainsFunc(held, func(h rig.Held) bool { return h.Hostname == pod.Pod }) && len(held) == len(c.others)
	})
	c.awaitForgotten(t, pod)
	if out, err := pod.TryIP("link", "show", "dev", "net1"); err == nil {
		t.Errorf("left in the pod: %s", out)
	}
	c.expectTidy(t)
	left, err := filepath.Glob(filepath.Join(c.Engine.StateDir, "*", pod.ID+"*"))
	if err != nil || len(left) != 0 {
		t.Errorf("left in the state folder: %v, %v", left, err)
	}
}

// awaitForgotten waits until the engine knows nothing of a pod: its server has
// freed the lease before the engine has written that down.
func (c *lane) awaitForgotten(t *testing.T, pod *rig.Sandbox) {
	t.Helper()
	again := time.NewTicker(5 * time.Millisecond) // there is no event of it outside
	defer again.Stop()
	deadline := time.After(rig.Patience)
	for {
		known := slices.DeleteFunc(c.Engine.Leases(t), func(st api.Status) bool { return st.ContainerID != pod.ID })
		if len(known) == 0 {
			return
		}
		select {
		case <-again.C:
		case <-deadline:
			t.Fatalf("the engine still knows %+v", known)
		}
	}
}

// expectTidy checks that no restart has met a broken record or left a temporary
// file.
func (c *lane) expectTidy(t *testing.T) {
	t.Helper()
	for _, pattern := range []string{"*/.tmp-*", "*/*.corrupt"} {
		left, err := filepath.Glob(filepath.Join(c.Engine.StateDir, pattern))
		if err != nil || len(left) != 0 {
			t.Errorf("left in the state folder: %v, %v", left, err)
		}
	}
	for _, line := range c.Engine.Log() {
		if strings.Contains(line, "corrupt record") {
			t.Errorf("a record was broken: %s", line)
		}
	}
}

// expectLease checks that interface, engine and server agree on one address of a
// pod, and returns it.
func (c *lane) expectLease(t *testing.T, pod *rig.Sandbox) netip.Addr {
	t.Helper()
	have := pod.Addresses(t, "net1")
	if len(have) != 1 {
		t.Fatalf("net1 carries %v, want its lease", have)
	}
	if st := c.Status(t, pod, "net1"); st.Address != have[0].Addr.String() {
		t.Errorf("the engine lists %q, net1 carries %v", st.Address, have[0].Addr)
	}
	addr := have[0].Addr.Addr()
	mac := pod.HardwareAddr(t, "net1")
	c.server.AwaitHeld(t, "one lease of the pod", func(held []rig.Held) bool {
		held = slices.DeleteFunc(held, func(h rig.Held) bool { return h.Hostname != pod.Pod })
		return rig.Holds(mac, addr)(held)
	})
	return addr
}

// say names the moment of a failure.
func say(t *testing.T, tr *tracer, verb string) {
	t.Helper()
	if steps := tr.taken(); len(steps) > 0 {
		t.Logf("%s: %d steps, the last one %q", verb, len(steps), steps[len(steps)-1])
	}
}

// Whenever the engine dies in an ADD, the ADD fails or the pod has its lease; after
// the runtime's DEL nothing is left anywhere.
func TestCrashInAdd(t *testing.T) {
	everyStep(t, func(t *testing.T, c *lane, steps int) bool {
		tr := startTraced(t, c.Lab)
		pod := rig.NewSandbox(t)
		call := pod.Call("net1", c.conf)
		o, killed := c.underKill(t, tr, "ADD", call, steps)
		say(t, tr, "ADD")
		switch {
		case o.Err == nil:
			if killed && c.back == late { // at something that it did after its answer
				c.Engine.Start(t)
			}
			c.expectLease(t, pod)
		case !killed || o.Err.Code != api.CodeTryAgain:
			t.Errorf("ADD: %v, want success, or code %d of one that was cut off", o.Err, api.CodeTryAgain)
		case c.back == late:
			c.Node.Del(t, call)
			c.Engine.Start(t)
		}
		if !killed {
			tr.mustHaveSeen(t, "create", "chmod", "write", "fsync", "rename", "unlink", "send", "answer")
		}
		c.Node.Del(t, call)
		c.expectNothing(t, pod)
		pod.Delete(t)
		c.Engine.Stop(t)
		return killed
	}, soon, late)
}

// Whenever the engine dies in a DEL, the DEL succeeds and nothing is left anywhere.
func TestCrashInDel(t *testing.T) {
	everyStep(t, func(t *testing.T, c *lane, steps int) bool {
		tr := startTraced(t, c.Lab)
		pod := rig.NewSandbox(t)
		call := pod.Call("net1", c.conf)
		c.Node.Add(t, call)
		c.expectLease(t, pod)
		o, killed := c.underKill(t, tr, "DEL", call, steps)
		say(t, tr, "DEL")
		if o.Err != nil {
			t.Errorf("DEL: %v", o.Err)
		}
		if killed && c.back == late {
			c.Engine.Start(t)
		}
		if !killed {
			tr.mustHaveSeen(t, "unlink", "send", "answer")
		}
		c.expectNothing(t, pod)
		pod.Delete(t)
		c.Engine.Stop(t)
		return killed
	}, soon, late)
}

// Whenever the engine dies in a renewal, its record is the one before or the one
// after, the pod keeps its address, and the next renewal goes as if nothing had
// been.
func TestCrashInRenewal(t *testing.T) {
	everyStep(t, func(t *testing.T, c *lane, steps int) bool {
		tr := startTraced(t, c.Lab)
		pod := rig.NewSandbox(t)
		call := pod.Call("net1", c.conf)
		c.Node.Add(t, call)
		addr := c.expectLease(t, pod)
		before := c.leaseOnDisk(t)
		id := c.Status(t, pod, "net1").AttachmentID

		tr.arm(steps)
		_, err := c.Engine.Client().Renew(t.Context(), id, false)
		killed := tr.disarm()
		say(t, tr, "renewal")
		if !killed {
			if err != nil {
				t.Errorf("renewal: %v", err)
			}
			tr.mustHaveSeen(t, "create", "chmod", "write", "fsync", "rename", "send", "answer")
			return false
		}
		tr.awaitEnd(t, c.Engine)
		c.expectWholeFiles(t)
		after := c.leaseOnDisk(t)
		if after.Address != before.Address || after.Start < before.Start {
			t.Errorf("the record was %+v and is %+v", before, after)
		}
		c.Engine.Start(t)
		if now := c.expectLease(t, pod); now != addr {
			t.Errorf("the pod had %v and has %v", addr, now)
		}
		c.awaitLooked(t, id)
		if again := c.leaseOnDisk(t); again.Start <= after.Start {
			t.Errorf("the record was %+v before the second renewal and is %+v", after, again)
		}
		c.expectLease(t, pod)
		c.Node.Del(t, call)
		c.expectNothing(t, pod)
		pod.Delete(t)
		c.Engine.Stop(t)
		return true
	}, soon)
}

// leaseOnDisk is the lease in the only record.
func (c *lane) leaseOnDisk(t *testing.T) (lease struct {
	Address string `json:"address"`
	Start   int64  `json:"startBootNanos"`
}) {
	t.Helper()
	names := c.Engine.Records(t)
	var found int
	for _, name := range names {
		if !strings.HasSuffix(name, ".json") {
			continue // a temporary file of the crash
		}
		b, err := os.ReadFile(filepath.Join(c.Engine.StateDir, "attachments", name))
		if err != nil {
			t.Fatal(err)
		}
		rec := struct{ Lease any }{&lease}
		if err := json.Unmarshal(b, &rec); err != nil {
			t.Errorf("record %s: %v: %s", name, err, b)
		}
		found++
	}
	if found != 1 {
		t.Errorf("%d records, want 1: %v", found, names)
	}
	return lease
}

// awaitLooked renews the lease, as soon as the restarted engine has looked at the
// interface: until then it has nothing to renew, and says so.
func (c *lane) awaitLooked(t *testing.T, id api.AttachmentID) {
	t.Helper()
	again := time.NewTicker(5 * time.Millisecond) // there is no event of it outside
	defer again.Stop()
	deadline := time.After(rig.Patience)
	for {
		_, err := c.Engine.Client().Renew(t.Context(), id, false)
		if err == nil {
			return
		}
		select {
		case <-again.C:
		case <-deadline:
			t.Fatalf("renewal after the restart: %v", err)
		}
	}
}
