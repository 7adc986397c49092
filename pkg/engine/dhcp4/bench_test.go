package dhcp4

import (
	"runtime"
	"testing"
	"time"
)

// BenchmarkStep is a renewal: Elapsed at T1, REQUEST, ACK, Use.
func BenchmarkStep(b *testing.B) {
	m, l := boundMachine(fullConfig(), optRouter, "10.0.0.1", optDNS, "10.0.0.3,10.0.0.4", optDomain, []byte("site.example"))
	ack := received(answer(ackType, m.xid, "10.0.0.5", grant(
		optRouter, "10.0.0.1", optDNS, "10.0.0.3,10.0.0.4", optDomain, []byte("site.example"))...))
	b.ReportAllocs()
	for b.Loop() {
		now := l.RenewAt()
		m.Step(now, Elapsed{})
		ack.Msg.TransactionID = m.xid
		m.Step(now.Add(time.Millisecond), ack)
		if l, _ = m.Lease(); !l.Start.Equal(now) {
			b.Fatalf("in %s, lease of %s", m.State(), l.Start)
		}
	}
}

// BenchmarkMemory reports the heap that a machine in BOUND takes, its lease
// included.
func BenchmarkMemory(b *testing.B) {
	const n = 1000
	var before, after runtime.MemStats
	for b.Loop() {
		machines := make([]*Machine, n)
		runtime.GC()
		runtime.ReadMemStats(&before)
		for i := range machines {
			machines[i], _ = boundMachine(testConfig(), optRouter, "10.0.0.1", optDNS, "10.0.0.3,10.0.0.4")
		}
		runtime.GC()
		runtime.ReadMemStats(&after)
		runtime.KeepAlive(machines)
	}
	b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/n, "B/machine")
}
