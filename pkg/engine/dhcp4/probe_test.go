package dhcp4

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/insomniacslk/dhcp/dhcpv4"
)

// probingMachine returns a machine that checks 10.0.0.5/24, which it got at the
// epoch.
func probingMachine(cfg Config, more ...any) *Machine {
	cfg.Probe = true
	m := New(cfg)
	m.Step(epoch, Start{})
	m.Step(epoch, received(answer(offerType, m.xid, "10.0.0.5", grant(more...)...)))
	m.Step(epoch, received(answer(ackType, m.xid, "10.0.0.5", grant(more...)...)))
	return m
}

// TestProbingHoldsNothing: an address that is being checked may not be used, and is
// not forgotten: it is a claim, with all that the ACK said.
func TestProbingHoldsNothing(t *testing.T) {
	m := probingMachine(testConfig(), optRouter, "10.0.0.254", optMTU, []byte{0, 1})
	wantState(t, m, Probing)
	if l, held := m.Lease(); held {
		t.Errorf("lease %v may be used", l.Addr)
	}
	claim, ok := m.Claim()
	if !ok || claim.Addr != testLease.Addr || claim.Server != testLease.Server {
		t.Errorf("claim %v of %v (%v)", claim.Addr, claim.Server, ok)
	}
	acts := m.Step(at(3*time.Second), Probed{})
	want := []Action{Use{Lease: claim, Remarks: []string{"option 26 (mtu) is 0001, not two bytes of 68 or more: not used"}}}
	if diff := cmp.Diff(want, acts, equalAddrs); diff != "" {
		t.Errorf("actions (-want +got):\n%s", diff)
	}
	if !claim.Start.Equal(epoch) {
		t.Errorf("the lease counts from %s, not from its REQUEST", claim.Start)
	}
	if claim, ok := m.Claim(); ok {
		t.Errorf("%v is in use and claimed still", claim.Addr)
	}
}

// TestClaim: what a server may hold for the client, step by step. It is what Stop
// with Release gives back.
func TestClaim(t *testing.T) {
	claims := func(m *Machine, want bool) {
		t.Helper()
		_, ok := m.Claim()
		if ok != want {
			t.Errorf("in %s there is a claim: %v, want %v", m.State(), ok, want)
		}
		stopped := *m
		_, held := m.Lease()
		if n := len(sends(stopped.Step(entered, Stop{Release: true}))); (n == 1) != (ok || held) {
			t.Errorf("in %s Stop sends %d messages", m.State(), n)
		}
	}
	m := New(testConfig())
	claims(m, false)
	m.Step(epoch, Start{})
	claims(m, false)
	m.Step(epoch, received(answer(offerType, m.xid, "10.0.0.5", grant()...)))
	claims(m, true)
	m.Step(epoch, received(answer(nakType, m.xid, "0.0.0.0", optServerID, "10.0.0.1")))
	claims(m, false)

	m = probingMachine(testConfig())
	claims(m, true)
	m.Step(epoch, Probed{Owner: otherMAC})
	wantState(t, m, Init)
	claims(m, false) // it is declined, and not ours to release

	m = probingMachine(testConfig())
	m.Step(epoch, Probed{})
	wantState(t, m, Bound)
	claims(m, false)
	m.Step(epoch, Conflict{Owner: otherMAC})
	claims(m, false)
}

// TestDeclinedAddressIsNotWishedFor: neither what was lost nor what the operator
// wants, until there is another lease.
func TestDeclinedAddressIsNotWishedFor(t *testing.T) {
	cfg := testConfig()
	cfg.Address = testLease.Addr.Addr()
	m := probingMachine(cfg)
	m.Step(epoch, Probed{Owner: otherMAC})
	if wait := m.Deadline().Sub(epoch); wait < 10*time.Second {
		t.Errorf("waits for %s", wait)
	}
	s := sends(m.Step(m.Deadline(), Elapsed{}))
	if len(s) != 1 || s[0].Msg.MessageType() != dhcpv4.MessageTypeDiscover {
		t.Fatalf("sent %+v, want a DISCOVER", s)
	}
	if wish, ok := s[0].Msg.Options[optRequestedAddr]; ok {
		t.Errorf("wishes for %v", wish)
	}
}

// TestConflictOfAnExpiredLease: it ends as any lease does; there is nothing to
// decline.
func TestConflictOfAnExpiredLease(t *testing.T) {
	m, l := boundMachine(testConfig())
	acts := m.Step(l.ExpireAt(), Conflict{Owner: otherMAC})
	if diff := cmp.Diff(Action(Drop{Lease: l, Reason: Expired}), acts[0], equalAddrs); diff != "" {
		t.Errorf("first action (-want +got):\n%s", diff)
	}
	if s := sends(acts); len(s) != 1 || s[0].Msg.MessageType() != dhcpv4.MessageTypeDiscover {
		t.Errorf("sent %+v, want a DISCOVER", s)
	}
}

func TestInUse(t *testing.T) {
	if got := inUse(nil) + ", " + inUse(otherMAC); got != "in use by another host, in use by 02:00:00:00:00:09" {
		t.Errorf("got %q", got)
	}
}
