package dhcp4

import (
	"math/rand/v2"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
)

// chooser makes random choices; a fuzzer gives them as bytes, the property test
// as random numbers.
type chooser interface{ IntN(n int) int }

// wander takes a machine through events at random, plausible ones and others, and
// checks after each step what always holds.
func wander(t *testing.T, c chooser, steps int) {
	t.Helper()
	cfg := fullConfig()
	cfg.Probe = c.IntN(2) == 1
	m := New(cfg)
	now := epoch
	var used Lease // by Use, until Drop
	for range steps {
		ev := nextEvent(c, m, &now)
		before, late := m.Deadline(), false
		if _, ok := ev.(Elapsed); ok {
			late = !before.IsZero() && !now.Before(before)
			if !late {
				if acts := m.Step(now, ev); acts != nil || !m.Deadline().Equal(before) {
					t.Fatalf("Elapsed at %s, before the deadline %s: %v, next %s", now, before, acts, m.Deadline())
				}
				continue
			}
		}
		for _, a := range m.Step(now, ev) {
			checkAction(t, a, &used)
		}
		if late && !m.Deadline().IsZero() && !m.Deadline().After(now) {
			t.Fatalf("in %s after Elapsed at %s the deadline is %s", m.State(), now, m.Deadline())
		}
		if l, held := m.Lease(); held != used.Addr.IsValid() && m.State() != Stopped {
			t.Fatalf("in %s the lease is %v (%v), Use and Drop say %v", m.State(), l.Addr, held, used.Addr)
		} else if held && l.Expired(now) && (late || m.Deadline().IsZero()) {
			t.Fatalf("in %s at %s a lease is held that ended at %s", m.State(), now, l.ExpireAt())
		}
		if claim, ok := m.Claim(); ok && m.State() == Bound {
			t.Fatalf("in BOUND %v is claimed besides", claim.Addr)
		}
		asleep := m.State() == Bound && used.Lifetime == Infinite || m.State() == Probing && m.claim.Lifetime == Infinite
		waits := m.State() != Stopped && !asleep && !m.fresh()
		if waits == m.Deadline().IsZero() {
			t.Fatalf("in %s the deadline is %v", m.State(), m.Deadline())
		}
	}
}

var kinds = []Kind{
	KindDenied, KindServer, KindState, KindType, KindHardwareAddr, KindTransaction, KindClientID, KindOptions, KindRefusal,
}

// checkAction checks an action for itself, and that Use and Drop alternate.
func checkAction(t *testing.T, a Action, used *Lease) {
	t.Helper()
	switch a := a.(type) {
	case Claim:
		checkLease(t, a.Lease)
	case Probe:
		checkLease(t, a.Lease)
		if used.Addr.IsValid() {
			t.Fatalf("%v is to be checked while %v is in use", a.Lease.Addr, used.Addr)
		}
	case Use:
		checkLease(t, a.Lease)
		*used = a.Lease
	case Drop:
		if used.Addr.IsValid() && used.Addr != a.Lease.Addr {
			t.Fatalf("dropped %v while %v was in use", a.Lease.Addr, used.Addr)
		}
		*used = Lease{}
	case Send:
		if _, err := dhcpv4.FromBytes(a.Msg.ToBytes()); err != nil {
			t.Fatalf("message that is none: %v", err)
		}
		if a.To.IsValid() != a.Via.IsValid() {
			t.Fatalf("message to %v via %v", a.To, a.Via)
		}
	case Ignore:
		if a.Reason == "" {
			t.Fatal("message ignored without a reason")
		}
		if !slices.Contains(kinds, a.Kind) {
			t.Fatalf("message ignored with kind %q", a.Kind)
		}
	}
}

func checkLease(t *testing.T, l Lease) {
	t.Helper()
	if l.Lifetime == Infinite && l.T1 == Infinite && l.T2 == Infinite {
		return
	}
	if !(0 < l.T1 && l.T1 <= l.T2 && l.T2 <= l.Lifetime) || l.Lifetime == Infinite {
		t.Fatalf("T1 %s, T2 %s, lifetime %s", l.T1, l.T2, l.Lifetime)
	}
	if !l.Addr.Addr().Is4() || !l.Addr.IsValid() {
		t.Fatalf("address %v", l.Addr)
	}
}

// nextEvent chooses an event, and how much later it comes.
func nextEvent(c chooser, m *Machine, now *time.Time) Event {
	switch c.IntN(4) {
	case 0:
		*now = now.Add(time.Duration(c.IntN(5000)) * time.Millisecond)
	case 1:
		*now = now.Add(time.Duration(c.IntN(100)) * time.Hour)
	case 2:
		if d := m.Deadline(); d.After(*now) {
			*now = d
		}
	}
	switch c.IntN(15) {
	case 0:
		return Start{}
	case 1:
		l := randomLease(c, *now)
		return Start{Previous: &l}
	case 2:
		return Resume{randomLease(c, *now)}
	case 3:
		return Renew{Rebind: c.IntN(2) == 1}
	case 4:
		if c.IntN(20) == 0 {
			return Stop{Release: c.IntN(2) == 0}
		}
		return Elapsed{}
	case 5, 6, 7:
		return Elapsed{}
	case 8, 9:
		return Probed{Owner: owner(c)}
	case 10:
		if c.IntN(4) == 0 {
			return Conflict{Owner: owner(c)}
		}
	}
	return received(randomReply(c, m.xid))
}

// owner is nobody, three times out of four.
func owner(c chooser) net.HardwareAddr {
	if c.IntN(4) == 0 {
		return otherMAC
	}
	return nil
}

func randomLease(c chooser, now time.Time) Lease {
	l := testLease
	l.Start = now.Add(-time.Duration(c.IntN(7200)) * time.Second)
	switch c.IntN(4) {
	case 0:
		l.T1, l.T2 = 0, 0
	case 1:
		l.T1, l.T2, l.Lifetime = Infinite, Infinite, Infinite
	case 2:
		l = Lease{Start: now}
	}
	return l
}

func randomReply(c chooser, xid dhcpv4.TransactionID) *dhcpv4.DHCPv4 {
	kinds := []dhcpv4.MessageType{offerType, offerType, ackType, ackType, ackType, nakType, dhcpv4.MessageTypeInform}
	lifetimes := []int{1, 10, 120, 3600, 1 << 20, infiniteSeconds - 1, infiniteSeconds, 0}
	msg := answer(kinds[c.IntN(len(kinds))], xid, "10.0.0.5", grant(optLeaseTime, lifetimes[c.IntN(len(lifetimes))])...)
	switch c.IntN(10) {
	case 0:
		msg.YourIPAddr = []byte{10, 0, 0, byte(c.IntN(256))}
	case 1:
		msg.Options[optServerID] = []byte{10, 0, 0, 2}
	case 2:
		delete(msg.Options, optSubnetMask)
	case 3:
		msg.Options[optT1], msg.Options[optT2] = wireValue(c.IntN(200)), wireValue(c.IntN(200))
	case 4:
		msg.TransactionID[0]++
	case 5, 6:
		msg.Options[optRapidCommit] = nil
	case 7:
		delete(msg.Options, optServerID)
	}
	return msg
}

// TestAlways walks at random for some ten thousand steps.
func TestAlways(t *testing.T) {
	for seed := range uint64(200) {
		wander(t, rand.New(rand.NewPCG(seed, 0)), 100)
	}
}

// TestTimersAlways: T1 < T2 < lifetime for every lease time and whatever the server
// says of T1 and T2.
func TestTimersAlways(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for range 100_000 {
		lifetime := time.Duration(1+r.Uint32()>>r.IntN(32)) * time.Second
		t1 := time.Duration(r.Uint32()>>r.IntN(33)) * time.Second
		t2 := time.Duration(r.Uint32()>>r.IntN(33)) * time.Second
		if got1, got2, _ := timers(lifetime, t1, t2); !(0 < got1 && got1 < got2 && got2 < lifetime) {
			t.Fatalf("lifetime %s, T1 %s, T2 %s gives %s and %s", lifetime, t1, t2, got1, got2)
		}
	}
}
