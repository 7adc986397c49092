package dhcp4

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
)

// State is a state of RFC 2131, figure 5.
type State uint8

// The states. REBOOTING stands for INIT-REBOOT too: the machine leaves
// INIT-REBOOT within the step that enters it. PROBING is the machine's own, for
// the check that RFC 2131, 4.4.1, puts between ACK and BOUND.
const (
	Init State = iota
	Selecting
	Requesting
	Probing
	Rebooting
	Bound
	Renewing
	Rebinding
	Stopped
)

// String returns the name that RFC 2131 gives the state, or would give it.
func (s State) String() string {
	names := [...]string{
		Init: "INIT", Selecting: "SELECTING", Requesting: "REQUESTING",
		Probing: "PROBING", Rebooting: "REBOOTING",
		Bound: "BOUND", Renewing: "RENEWING", Rebinding: "REBINDING", Stopped: "STOPPED",
	}
	if int(s) < len(names) {
		return names[s]
	}
	return fmt.Sprintf("State(%d)", uint8(s))
}

// step lets the state take an event: Elapsed when the deadline has come, Renew,
// Probed, or a reply that vet let through.
func (m *Machine) step(now time.Time, ev Event) []Action {
	switch m.state {
	case Init:
		return m.stepInit(now, ev)
	case Selecting:
		return m.stepSelecting(now, ev)
	case Requesting:
		return m.stepRequesting(now, ev)
	case Probing:
		return m.stepProbing(now, ev)
	case Rebooting:
		return m.stepRebooting(now, ev)
	case Bound:
		return m.stepBound(now, ev)
	case Renewing:
		return m.stepRenewing(now, ev)
	case Rebinding:
		return m.stepRebinding(now, ev)
	}
	return nil // STOPPED
}

// start leaves the fresh INIT, or INIT-REBOOT.
func (m *Machine) start(now time.Time, previous *Lease) []Action {
	m.begun = now
	if previous == nil || !previous.Addr.Addr().Is4() {
		return m.toSelecting(now)
	}
	m.claim = *previous
	return m.toRebooting(now)
}

// resume goes on with a lease whose address is in use.
func (m *Machine) resume(now time.Time, l Lease) []Action {
	m.begun = now
	if !l.Addr.Addr().Is4() {
		return m.toSelecting(now)
	}
	// The lease comes from a file.
	l.T1, l.T2, _ = timers(l.Lifetime, l.T1, l.T2)
	m.lease, m.held = l, true
	if l.Expired(now) {
		return m.expire(now)
	}
	if t1 := l.RenewAt(); t1.IsZero() || now.Before(t1) {
		return m.toBound(l, nil)
	}
	return append([]Action{Use{Lease: l}}, m.toRebooting(now)...)
}

// stop ends the machine.
func (m *Machine) stop(now time.Time, release bool) []Action {
	var acts []Action
	switch {
	case m.held && m.lease.Expired(now):
		acts = []Action{Drop{Lease: m.lease, Reason: Expired}}
	case m.held && release:
		acts = []Action{Release(m.cfg, m.lease), Drop{Lease: m.lease, Reason: Released}}
	case m.state == Probing && m.claim.Expired(now):
		// It ended while it was checked; the address may be somebody else's by now.
	case m.claim.Addr.IsValid() && release:
		// The server may have given it already, with the ACK still on its way.
		acts = []Action{Release(m.cfg, m.claim)}
	}
	*m = Machine{cfg: m.cfg, state: Stopped}
	return acts
}

// stepInit waits, after a refusal.
func (m *Machine) stepInit(now time.Time, ev Event) []Action {
	if _, ok := ev.(Elapsed); ok {
		return m.toSelecting(now)
	}
	return nil
}

// toSelecting begins a transaction with a DISCOVER.
func (m *Machine) toSelecting(now time.Time) []Action {
	m.enter(Selecting)
	m.xid = newXID(m.cfg.Rand)
	return m.sendDiscover(now)
}

// stepSelecting takes the first valid OFFER (RFC 2131, 4.4.1, leaves the choice
// to the client).
func (m *Machine) stepSelecting(now time.Time, ev Event) []Action {
	switch ev := ev.(type) {
	case Elapsed:
		return m.sendDiscover(now)
	case reply:
		switch {
		case ev.kind == dhcpv4.MessageTypeAck && m.cfg.RapidCommit:
			return m.takeRapidAck(now, ev)
		case ev.kind != dhcpv4.MessageTypeOffer:
			return m.unexpected(ev)
		}
		offer, _, err := parseLease(ev, netip.Prefix{})
		if err == nil {
			err = m.cfg.satisfied(ev)
		}
		if err != nil {
			return ignored(ev, KindOptions, "%v", err)
		}
		offer.Start = now
		return m.toRequesting(now, offer)
	}
	return nil
}

// toRequesting asks for what was offered, in the transaction of the DISCOVER.
func (m *Machine) toRequesting(now time.Time, offer Lease) []Action {
	acts := m.claimed(offer)
	m.enter(Requesting)
	return append(acts, m.sendRequest(now)...)
}

// claimed puts a claim in the place of an older one.
func (m *Machine) claimed(l Lease) []Action {
	var acts []Action
	if c := m.claim; c.Addr.IsValid() && (c.Addr.Addr() != l.Addr.Addr() || c.Server != l.Server) {
		// The ACK to an earlier REQUEST may have been lost. One client, one lease.
		acts = append(acts, Release(m.cfg, c))
	}
	m.claim = l
	return append(acts, Claim{Lease: l})
}

// stepRequesting listens to the chosen server alone (B12).
func (m *Machine) stepRequesting(now time.Time, ev Event) []Action {
	switch ev := ev.(type) {
	case Elapsed:
		if m.tries < requestTries {
			return m.sendRequest(now)
		}
		return m.toSelecting(now)
	case reply:
		if ev.server != m.claim.Server {
			return ignored(ev, KindServer, "%s of server %s; %s was chosen", ev.name(), ev.server, m.claim.Server)
		}
		return m.takeAnswer(now, ev)
	}
	return nil
}

// toRebooting asks for an address of an earlier life: that of the lease when it
// is in use, otherwise the claim's.
func (m *Machine) toRebooting(now time.Time) []Action {
	m.enter(Rebooting)
	m.xid = newXID(m.cfg.Rand)
	return m.sendRequest(now)
}

// stepRebooting listens to any server: each may know whether the address is
// right on this network (RFC 2131, 4.3.2).
func (m *Machine) stepRebooting(now time.Time, ev Event) []Action {
	switch ev := ev.(type) {
	case Elapsed:
		switch {
		case m.held && m.lease.Expired(now):
			return m.expire(now)
		case m.tries < rebootTries:
			return m.sendRequest(now)
		case m.held:
			return m.extend(now, Renewing) // RFC 2131, 3.2 number 4: the rest of the lease may be used
		}
		m.wish, m.claim = m.claim.Addr.Addr(), Lease{}
		return m.toSelecting(now)
	case reply:
		return m.takeAnswer(now, ev)
	}
	return nil
}

// toBound begins to use a lease.
func (m *Machine) toBound(l Lease, remarks []string) []Action {
	if m.held {
		m.conflicts = 0
	}
	m.enter(Bound)
	m.lease, m.held = l, true
	m.claim, m.remarks, m.avoid, m.refusals = Lease{}, nil, netip.Addr{}, 0
	m.deadline = l.RenewAt()
	return []Action{Use{Lease: l, Remarks: remarks}}
}

// stepBound waits for T1, or for a Renew; vet lets no reply through.
func (m *Machine) stepBound(now time.Time, ev Event) []Action {
	least := Renewing
	switch ev := ev.(type) {
	case Probed:
		return nil
	case Renew:
		if ev.Rebind {
			least = Rebinding
		}
	}
	m.begun = now
	return m.extend(now, least)
}

// extend goes on with a held lease as its times ask for, in the state least or
// the one after it, and sends what is due.
func (m *Machine) extend(now time.Time, least State) []Action {
	t1, t2 := m.lease.RenewAt(), m.lease.RebindAt()
	s, end := least, t2
	switch {
	case m.lease.Expired(now):
		return m.expire(now)
	case least == Rebinding, !t2.IsZero() && !now.Before(t2):
		s, end = Rebinding, m.lease.ExpireAt()
	}
	if m.state != s {
		m.enter(s)
		m.xid = newXID(m.cfg.Rand)
		m.whole = end.Sub(now) // without meaning, and not used, when there is no end
	}
	if m.early(now) && m.tries >= requestTries {
		// A Renew that nobody answered, of a lease that has time.
		m.enter(Bound)
		m.deadline = t1
		return nil
	}
	acts := m.sendRequest(now)
	switch {
	case !m.early(now):
		m.deadline = now.Add(renewDelay(end.Sub(now), m.whole))
	case !t1.IsZero() && t1.Before(m.deadline):
		m.deadline = t1
	}
	return acts
}

// early tells whether T1 of the lease is still to come.
func (m *Machine) early(now time.Time) bool {
	t1 := m.lease.RenewAt()
	return t1.IsZero() || now.Before(t1)
}

// stepRenewing listens to the server of the lease alone: it is the only one
// that was asked.
func (m *Machine) stepRenewing(now time.Time, ev Event) []Action {
	switch ev := ev.(type) {
	case Elapsed:
		return m.extend(now, Renewing)
	case Renew:
		if ev.Rebind {
			return m.extend(now, Rebinding)
		}
		return m.extend(now, Renewing)
	case reply:
		if ev.server != m.lease.Server {
			return ignored(ev, KindServer, "%s of server %s; %s was asked", ev.name(), ev.server, m.lease.Server)
		}
		return m.takeAnswer(now, ev)
	}
	return nil
}

// stepRebinding listens to any server (B28).
func (m *Machine) stepRebinding(now time.Time, ev Event) []Action {
	switch ev := ev.(type) {
	case Elapsed, Renew:
		return m.extend(now, Rebinding)
	case reply:
		return m.takeAnswer(now, ev)
	}
	return nil
}

// enter begins a state without a message sent and without a deadline.
func (m *Machine) enter(s State) { m.state, m.tries, m.deadline = s, 0, time.Time{} }

// unexpected leaves a reply aside that has no meaning in the state.
func (m *Machine) unexpected(r reply) []Action {
	return ignored(r, KindState, "%s is not awaited in %s", r.name(), m.state)
}
