package dhcp4

import (
	"net/netip"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
)

// The tests of this file are named after the lines of the client checklist in
// docs/coverage.md: what a DHCP service in a cluster, reached over a relay and with
// a service address as its identifier, asks of a client.

var (
	serviceAddr = netip.MustParseAddr("172.31.255.1")
	router      = netip.MustParseAddr("10.0.0.254")
	relay       = netip.MustParseAddr("10.0.0.2")
)

// relayed is a message of the service that came over the relay.
func relayed(kind dhcpv4.MessageType, xid dhcpv4.TransactionID, more ...any) Received {
	options := append(grant(optServerID, serviceAddr.String(), optRouter, router.String()), more...)
	msg := answer(kind, xid, "10.0.0.5", options...)
	msg.HopCount, msg.GatewayIPAddr = 1, relay.AsSlice()
	return Received{Msg: msg, From: relay}
}

// behindRelay returns a machine that got its lease over the relay at the epoch.
func behindRelay(t *testing.T) (*Machine, Lease) {
	t.Helper()
	m := New(testConfig())
	m.Step(epoch, Start{})
	m.Step(epoch, relayed(offerType, m.xid))
	m.Step(epoch, relayed(ackType, m.xid))
	l, held := m.Lease()
	if !held {
		t.Fatalf("no lease, in %s", m.State())
	}
	return m, l
}

// TestU01ThroughRelay: the lease is the server's, whoever carried the messages, and
// giaddr, whatever it is, ends in none of ours.
func TestU01ThroughRelay(t *testing.T) {
	m, l := behindRelay(t)
	if l.Server != serviceAddr || l.Addr != testLease.Addr {
		t.Errorf("lease %v of %v", l.Addr, l.Server)
	}
	for _, s := range append(sends(m.Step(l.RenewAt(), Elapsed{})), Release(testConfig(), l)) {
		if addr4(s.Msg.GatewayIPAddr) != netip.IPv4Unspecified() || s.Msg.HopCount != 0 {
			t.Errorf("%s has giaddr %s and %d hops", s.Msg.MessageType(), s.Msg.GatewayIPAddr, s.Msg.HopCount)
		}
	}
}

// TestU02RenewOffLink: RENEW goes by unicast to option 54 over the router of the
// lease, from the leased address.
func TestU02RenewOffLink(t *testing.T) {
	m, l := behindRelay(t)
	s := sends(m.Step(l.RenewAt(), Elapsed{}))
	if len(s) != 1 || s[0].To != serviceAddr || s[0].Via != router || addr4(s[0].Msg.ClientIPAddr) != l.Addr.Addr() {
		t.Errorf("sent %+v, want one message from %s to %s via %s", s, l.Addr.Addr(), serviceAddr, router)
	}
}

// TestU03ReleaseOffLink: so does RELEASE, of a machine and of a record alone.
func TestU03ReleaseOffLink(t *testing.T) {
	m, l := behindRelay(t)
	for _, s := range append(sends(m.Step(at(time.Minute), Stop{Release: true})), Release(testConfig(), l)) {
		if s.To != serviceAddr || s.Via != router || addr4(s.Msg.ClientIPAddr) != l.Addr.Addr() {
			t.Errorf("sent from %s to %s via %s, want from %s to %s via %s",
				s.Msg.ClientIPAddr, s.To, s.Via, l.Addr.Addr(), serviceAddr, router)
		}
	}
}

// TestU04UnicastIsBlocked: nothing is dropped before the relay answers at T2.
func TestU04UnicastIsBlocked(t *testing.T) {
	m, l := behindRelay(t)
	var acts []Action
	for m.State() != Rebinding {
		acts = append(acts, m.Step(m.Deadline(), Elapsed{})...)
	}
	acts = append(acts, m.Step(l.RebindAt().Add(time.Second), relayed(ackType, m.xid))...)
	uses := 0
	for _, a := range acts {
		switch a := a.(type) {
		case Drop:
			t.Errorf("dropped: %s", a.Reason)
		case Use:
			uses++
		}
	}
	got, held := m.Lease()
	if uses != 1 || !held || got.Addr != l.Addr || !got.Start.Equal(l.RebindAt()) {
		t.Errorf("%d times Use, lease %v (%v) from %s", uses, got.Addr, held, got.Start)
	}
}

// TestU05ReplicaTakesOver: who answers is told by option 54, not by the source of
// the datagram.
func TestU05ReplicaTakesOver(t *testing.T) {
	m, l := behindRelay(t)
	m.Step(l.RenewAt(), Elapsed{})
	in := relayed(ackType, m.xid)
	in.From, in.Msg.GatewayIPAddr = netip.MustParseAddr("172.31.7.7"), nil
	m.Step(l.RenewAt(), in)
	wantState(t, m, Bound)
	if got, _ := m.Lease(); got.Server != serviceAddr {
		t.Errorf("server %s, want %s", got.Server, serviceAddr)
	}
}

// TestU17EditedScope: a lease that the server's new settings contradict. Told so, the
// client has another in the same moment; not told so, at the lease's end.
func TestU17EditedScope(t *testing.T) {
	for _, tt := range []struct {
		name   string
		lose   func(m *Machine, l Lease) []Action
		reason Reason
	}{
		{"nak", func(m *Machine, l Lease) []Action {
			m.Step(l.RenewAt(), Elapsed{})
			return m.Step(l.RenewAt(), received(answer(nakType, m.xid, "0.0.0.0", optServerID, "10.0.0.1")))
		}, Nak},
		{"silence", func(m *Machine, l Lease) (acts []Action) {
			for m.Deadline().Before(l.ExpireAt()) {
				m.Step(m.Deadline(), Elapsed{})
			}
			return m.Step(l.ExpireAt(), Elapsed{})
		}, Expired},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m, l := boundMachine(testConfig())
			acts := tt.lose(m, l)
			drop, ok := acts[0].(Drop)
			if s := sends(acts); !ok || drop.Reason != tt.reason || len(s) != 1 || s[0].Msg.MessageType() != dhcpv4.MessageTypeDiscover {
				t.Fatalf("got %+v, want Drop(%s) and a DISCOVER", acts, tt.reason)
			}
			now := l.ExpireAt()
			m.Step(now, received(answer(offerType, m.xid, "10.0.0.77", grant()...)))
			m.Step(now, received(answer(ackType, m.xid, "10.0.0.77", grant()...)))
			if got, held := m.Lease(); !held || got.Addr != netip.MustParsePrefix("10.0.0.77/24") {
				t.Errorf("lease %v (%v)", got.Addr, held)
			}
		})
	}
}

// TestU25CutOver: another server in the place of the old one, which keeps the
// client's address or refuses it.
func TestU25CutOver(t *testing.T) {
	other := []any{optServerID, "10.0.0.2"}
	m, l := boundMachine(testConfig())
	m.Step(l.RebindAt(), Elapsed{})
	m.Step(l.RebindAt(), received(answer(ackType, m.xid, "10.0.0.5", grant(other...)...)))
	kept, held := m.Lease()
	if !held || kept.Addr != l.Addr || kept.Server != netip.MustParseAddr("10.0.0.2") {
		t.Fatalf("lease %v of %v (%v)", kept.Addr, kept.Server, held)
	}

	m.Step(kept.RebindAt(), Elapsed{})
	acts := m.Step(kept.RebindAt(), received(answer(nakType, m.xid, "0.0.0.0", optServerID, "10.0.0.3")))
	if drop, ok := acts[0].(Drop); !ok || drop.Reason != Nak {
		t.Fatalf("got %+v, want Drop(nak)", acts)
	}
	wantState(t, m, Selecting)
}
