package dhcp4

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
)

// takeAnswer takes an ACK or NAK of a server that counts in this state.
func (m *Machine) takeAnswer(now time.Time, r reply) []Action {
	switch r.kind {
	case dhcpv4.MessageTypeNak:
		return m.refused(now, r, r.nakText())
	case dhcpv4.MessageTypeAck:
	default:
		return m.unexpected(r)
	}
	l, remarks, err := m.acknowledged(now, r, m.knownMask())
	if l.Addr.IsValid() && l.Addr.Addr() != m.wanted().Addr.Addr() {
		// A server that acknowledges another address than it was asked for says that
		// this one is not ours. A DISCOVER gets the other one in due form.
		return m.refused(now, r, fmt.Sprintf("ack of %s from server %s in answer to a request for %s",
			l.Addr.Addr(), r.server, m.wanted().Addr.Addr()))
	}
	if err == nil {
		return m.granted(l, remarks)
	}
	acts := ignored(r, KindOptions, "%v", err)
	if m.state != Requesting {
		return acts // the held lease goes on, the next try may be answered better
	}
	// The server has given an address that cannot be used: back with it (B53).
	acts = append(acts, Release(m.cfg, m.claim))
	m.claim = Lease{}
	return append(acts, m.restart(now, refusedWait)...)
}

// takeRapidAck takes an ACK in answer to the DISCOVER (RFC 4039, 3.1). There was no
// claim before it: an address that is given while the caller crashes cannot be given
// back, which is the price of one round less.
func (m *Machine) takeRapidAck(now time.Time, r reply) []Action {
	given := addr4(r.Msg.YourIPAddr)
	if _, ok := r.Msg.Options[optRapidCommit]; !ok {
		return ignored(r, KindOptions, "ack of %s answers a discover without rapid commit (option 80)", given)
	}
	l, remarks, err := m.acknowledged(now, r, netip.Prefix{})
	if err == nil {
		return append(m.claimed(l), m.granted(l, remarks)...)
	}
	acts := ignored(r, KindOptions, "%v", err)
	if !isHost(given) {
		return acts // nothing was given
	}
	acts = append(acts, Release(m.cfg, Lease{Addr: netip.PrefixFrom(given, given.BitLen()), Server: r.server, Start: m.asked}))
	return append(acts, m.restart(now, refusedWait)...)
}

// acknowledged reads the lease of an ACK that came in time. A lease that is over
// already comes with the error that says so.
func (m *Machine) acknowledged(now time.Time, r reply, known netip.Prefix) (Lease, []string, error) {
	l, remarks, err := parseLease(r, known)
	if err != nil {
		return Lease{}, nil, err
	}
	switch m.state {
	case Renewing:
		l.fillFrom(m.lease, r.Msg.Options)
	case Selecting, Requesting:
		err = m.cfg.satisfied(r)
	}
	remarks = append(remarks, m.unanswered(r)...)
	l.Start = m.startOf(l, now)
	if l.Expired(now) {
		err = fmt.Errorf("ack of %s for %s came when that was over", l.Addr.Addr(), l.Lifetime)
	}
	return l, remarks, err
}

// satisfied holds a reply against what is required of one.
func (c Config) satisfied(r reply) error {
	for _, code := range c.Require {
		if _, ok := r.Msg.Options[code]; !ok {
			return fmt.Errorf("%s of %s lacks option %d, which the network requires", r.name(), addr4(r.Msg.YourIPAddr), code)
		}
	}
	return nil
}

// unanswered are remarks on options that the network asks for and the ACK lacks. One
// to a unicast renewal may be silent on them: see fillFrom.
func (m *Machine) unanswered(r reply) []string {
	var remarks []string
	if m.state == Renewing {
		return nil
	}
	for _, code := range m.cfg.Request {
		if _, ok := r.Msg.Options[code]; !ok {
			remarks = append(remarks, fmt.Sprintf("option %d was asked for and is not in the ack", code))
		}
	}
	return remarks
}

// wanted is what a REQUEST asks for.
func (m *Machine) wanted() Lease {
	if m.held {
		return m.lease
	}
	return m.claim
}

// knownMask is the mask that an ACK need not repeat: that of the lease which the
// ACK extends, for an address without its mask is no use.
func (m *Machine) knownMask() netip.Prefix {
	if m.state == Requesting {
		return netip.Prefix{}
	}
	return m.wanted().Addr
}

// startOf returns from when an acknowledged lease counts: from the first message
// that may have been answered, since nobody knows which of them was answered and a lease
// must not be used too long. When that would put T1 in the past (a REBINDING that
// was answered after hours), it counts from the latest one, otherwise it would
// have to be renewed in the moment in which it comes.
func (m *Machine) startOf(l Lease, now time.Time) time.Time {
	if l.T1 == Infinite || m.asked.Add(l.T1).After(now) {
		return m.asked
	}
	return m.last
}

// refused takes a NAK, or what counts as one: the address is given up at once.
func (m *Machine) refused(now time.Time, r reply, why string) []Action {
	m.wish, m.claim = netip.Addr{}, Lease{}
	if m.held {
		return append(m.drop(now, Nak, why), m.restart(now, 0)...)
	}
	return append(ignored(r, KindRefusal, "%s", why), m.restart(now, 0)...)
}

// expire takes the end of the lease.
func (m *Machine) expire(now time.Time) []Action {
	m.wish = m.lease.Addr.Addr()
	return append(m.drop(now, Expired, ""), m.toSelecting(now)...)
}

// drop ends the held lease. What comes then is a new acquisition.
func (m *Machine) drop(now time.Time, why Reason, detail string) []Action {
	l := m.lease
	m.lease, m.held, m.begun = Lease{}, false, now
	return []Action{Drop{Lease: l, Reason: why, Detail: detail}}
}

// restart goes to INIT after a refusal: on to the DISCOVER at once the first
// time, from the second refusal in a row on after a growing wait, so that a
// server that offers and then refuses is not asked for ever at full speed.
func (m *Machine) restart(now time.Time, wait time.Duration) []Action {
	m.refusals++
	if m.refusals > 1 {
		wait = max(wait, retransmitDelay(m.cfg.Rand, m.refusals-1))
	}
	if wait == 0 {
		return m.toSelecting(now)
	}
	m.enter(Init)
	m.deadline = now.Add(wait)
	return nil
}
