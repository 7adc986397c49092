package kubevirt

import (
	"encoding/json"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"

	"github.com/dhcp-meta/dhcp-meta/tests/rig"
	"github.com/dhcp-meta/dhcp-meta/tests/rig/kube"
)

// From its ACK on the node sends nothing for a virtual machine: not at T1, not at T2,
// not at the end of the lease, not at DEL. A container on the same network is the
// clock: it renews meanwhile, and its RELEASE is the end.
func TestK10NothingIsSentAfterTheAck(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	cfg := rig.Pool(3*time.Second, 6*time.Second)
	cfg.Lifetime = 9 * time.Second
	server := rig.StartKea(t, m.server, cfg)
	m.network(t, "lan", nil, nil)
	mac, clock := newMAC(t), newMAC(t)
	vm := m.launcher(t, "vm1", "lan", mac)
	vm.Add(t)
	addr := m.reported(t, vm, "lan")
	ack, mark := m.capture.AwaitType(t, 0, rig.Patience, dhcpv4.MessageTypeAck, mac)

	c := m.labelled(t, nil, "lan", clock)
	c.Add(t)
	end := ack.At.Add(cfg.Lifetime + time.Second)
	m.capture.Await(t, "renewal of the container after the machine's lease has ended", mark, time.Minute, func(f rig.Frame) bool {
		return f.Type == dhcpv4.MessageTypeAck && f.Msg.ClientHWAddr.String() == clock.String() && f.At.After(end)
	})
	m.expectSilence(t, "over T1, T2 and the end", mark, mac)
	if got := m.reported(t, vm, "lan"); got != addr {
		t.Errorf("after the end of the lease %v is reported, want %v", got, addr)
	}

	vm.Del(t)
	c.Del(t)
	m.capture.AwaitType(t, mark, rig.Patience, dhcpv4.MessageTypeRelease, clock)
	m.expectSilence(t, "at DEL", mark, mac)
	server.AwaitHeld(t, "no lease of the container", func(held []rig.Held) bool {
		return !slices.ContainsFunc(held, func(h rig.Held) bool { return h.MAC == clock.String() })
	})
	m.engine.AwaitNoRecords(t)
}

// A virtual machine's attachment is a record and nothing that runs: no goroutine, no
// thread, no descriptor. Containers, which are kept, show that goroutines are counted.
func TestK76NothingRunsForAVM(t *testing.T) {
	t.Parallel()
	const many = 8
	m := newMachine(t)
	cfg := rig.Pool(0, 0)
	cfg.Lifetime = time.Hour
	rig.StartDnsmasq(t, m.server, cfg)
	m.network(t, "lan", nil, nil)
	goroutines := func() float64 { return m.metric(t, "go_goroutines") }

	// What the first pods have the engine open once is not a machine's.
	warm := []*kube.Sandbox{m.launcher(t, "warm", "lan", newMAC(t)), m.labelled(t, nil, "lan", newMAC(t))}
	for _, s := range warm {
		s.Add(t)
		s.Del(t)
	}
	m.engine.AwaitNoRecords(t)
	before, load := settledValue(t, goroutines), m.engine.Load(t)

	for i := range many {
		s := m.launcher(t, fmt.Sprintf("vm%d", i), "lan", newMAC(t))
		s.Add(t)
		m.reported(t, s, "lan")
	}
	if records := m.engine.Records(t); len(records) != many {
		t.Errorf("%d records for %d machines", len(records), many)
	}
	// Events and answers are on their way still, for a moment.
	eventually(t, fmt.Sprintf("no more goroutines than %v", before), func() bool { return goroutines() <= before+1 })
	m.engine.AwaitDescriptors(t, load.Descriptors+1)

	for range 2 {
		s := m.labelled(t, nil, "lan", newMAC(t))
		s.Add(t)
		m.reported(t, s, "lan")
	}
	eventually(t, "a goroutine for each container", func() bool { return goroutines() >= before+2 })
}

// settledValue asks for a number until it is the lowest of ten answers in a row.
func settledValue(t *testing.T, ask func() float64) float64 {
	t.Helper()
	lowest, same := ask(), 0
	eventually(t, "a number that stays", func() bool {
		if now := ask(); now < lowest {
			lowest, same = now, 0
		} else {
			same++
		}
		return same == 10
	})
	return lowest
}

// DEL of a virtual machine succeeds without an engine, with its pod deleted before,
// and twice; nothing is sent then, nor when the engine is back and finds the note.
func TestK77DelWithoutAnEngine(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	server := rig.StartDnsmasq(t, m.server, rig.Pool(0, 0))
	m.network(t, "lan", nil, nil)
	mac := newMAC(t)
	s := m.launcher(t, "vm1", "lan", mac)
	s.Add(t)
	addr := m.reported(t, s, "lan")
	plug(t, s, lanIface)
	_, mark := m.capture.AwaitType(t, 0, rig.Patience, dhcpv4.MessageTypeAck, mac)

	m.engine.Kill(t)
	m.kube.DeletePod(t, s.Object)
	begin := time.Now()
	s.Del(t)
	if took := time.Since(begin); took > rig.Patience {
		t.Errorf("DEL took %v", took)
	}
	s.Del(t)
	m.engine.Start(t)
	m.engine.AwaitNoRecords(t)

	// Another machine's exchange is behind all that might have been sent.
	other := newMAC(t)
	next := m.launcher(t, "vm2", "lan", other)
	next.Add(t)
	m.capture.AwaitType(t, mark, rig.Patience, dhcpv4.MessageTypeAck, other)
	m.expectSilence(t, "at DEL without an engine, and when it is back", mark, mac)
	server.AwaitHeld(t, "the lease, still", func(held []rig.Held) bool {
		return slices.ContainsFunc(held, func(h rig.Held) bool { return h.MAC == mac.String() && h.Addr == addr })
	})
}

// written are the paths that a JSON patch changes; a merge patch is told by its keys.
func written(t *testing.T, body json.RawMessage) []string {
	t.Helper()
	var ops []struct{ Op, Path string }
	if err := json.Unmarshal(body, &ops); err != nil {
		t.Fatalf("a write that is no JSON patch: %s", body)
	}
	var paths []string
	for _, o := range ops {
		if o.Op != "test" {
			paths = append(paths, o.Path)
		}
	}
	return paths
}
