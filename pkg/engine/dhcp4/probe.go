package dhcp4

import (
	"fmt"
	"net"
	"net/netip"
	"time"
)

// granted takes a lease that a server has acknowledged. It is used at once when its
// address is in use already, or when nobody checks addresses.
func (m *Machine) granted(l Lease, remarks []string) []Action {
	if m.held || !m.cfg.Probe {
		return m.toBound(l, remarks)
	}
	m.enter(Probing)
	// Until the answer the lease is given and not in use, like a claim.
	m.claim, m.remarks = l, remarks
	m.deadline = l.ExpireAt()
	return []Action{Probe{Lease: l}}
}

// stepProbing waits for Probed, no longer than the lease lasts. vet lets no reply
// through: what comes now is a copy, or of a server that was not chosen.
func (m *Machine) stepProbing(now time.Time, ev Event) []Action {
	l := m.claim
	if l.Expired(now) {
		m.wish, m.claim, m.remarks = l.Addr.Addr(), Lease{}, nil
		return m.toSelecting(now)
	}
	probed, ok := ev.(Probed)
	switch {
	case !ok:
		return nil
	case len(probed.Owner) > 0:
		return m.yield(now, l, inUse(probed.Owner))
	}
	return m.toBound(l, m.remarks)
}

// conflicted takes a Conflict: the address of the lease belongs to another host now.
func (m *Machine) conflicted(now time.Time, owner net.HardwareAddr) []Action {
	if acts := m.catchUp(now); acts != nil || !m.held {
		return acts
	}
	l, text := m.lease, inUse(owner)
	return append(m.drop(now, Conflicted, text), m.yield(now, l, text)...)
}

// yield leaves an address to the host that uses it, and begins again after a wait
// without a wish for it (RFC 2131, 3.1 number 5).
func (m *Machine) yield(now time.Time, l Lease, text string) []Action {
	m.claim, m.remarks, m.wish, m.avoid = Lease{}, nil, netip.Addr{}, l.Addr.Addr()
	m.conflicts++
	acts := []Action{m.decline(l, text)}
	return append(acts, m.restart(now, conflictWait(m.conflicts))...)
}

// inUse is a conflict in words, for people and for option 56.
func inUse(owner net.HardwareAddr) string {
	if len(owner) == 0 {
		return "in use by another host"
	}
	return fmt.Sprintf("in use by %s", owner)
}
