package engine

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine/network"
)

// The outbox holds the DHCPRELEASEs that could not be sent when their attachment
// ended: the link was down, nobody answered ARP, the engine was away. Each is a
// session in phase Releasing, with a keeper that tries again as long as some
// interface on the node can carry it: the attachment's own, or that of another
// attachment on the same network. It is dropped when its time is over, when no
// interface is left, and at once when its identifier or its address is in use
// again, since a late RELEASE would then free the lease of the successor.

// The waits between two tries to deliver.
const (
	firstDelivery = 5 * time.Second
	lastDelivery  = 5 * time.Minute
)

// carriersTried bounds the interfaces over which one round tries.
const carriersTried = 3

// deliveryTime bounds one try: carrier and ARP.
const deliveryTime = 5 * time.Second

// errRevoked ends a delivery whose address or identifier is in use again.
var errRevoked = errors.New("its address or client identifier is in use again")

// errOutlives keeps a RELEASE from waiting; see mayWait.
var errOutlives = errors.New("the pod's next sandbox is the same client to the server, also on another node, and a late DHCPRELEASE would free its lease")

// mayWait tells whether a RELEASE of the session may be sent later than at its
// end. An identity that outlives the sandbox may be at work in another place by
// then, also on another node, and only the server would know.
func (s *session) mayWait() bool {
	id := s.settings.ClientID
	switch {
	case s.settings.DeriveMAC, id == network.ClientIDDUID:
		return false
	case id == network.ClientIDMAC, id == network.ClientIDNone:
		return true
	}
	return strings.Contains(id, "{uid}") || strings.Contains(id, "{container}")
}

// post turns a session that has ended with its RELEASE unsent into one that waits
// in the outbox. It tells whether it does; otherwise the lease is left to expire.
func (s *session) post(ctx context.Context) bool {
	switch {
	case !s.plan.Release, !s.rec.Lease.Addr.IsValid(), s.rec.Lease.Expired(s.cfg.Now()):
		return false
	case !s.mayWait():
		s.countDropped("identity outlives the sandbox", errOutlives)
		return false
	case len(s.engine.carriers(ctx, s)) == 0:
		s.countDropped("no interface", nil)
		return false
	}
	rec := s.rec
	rec.Phase = Releasing
	if err := s.put(rec); err != nil {
		s.log.Warn("unsent release is not kept", "error", err)
		return false
	}
	s.machine = nil
	s.show()
	return true
}

// deliver sends the RELEASE when it can be sent. It returns true when there is
// nothing to wait for any longer.
func (s *session) deliver(ctx context.Context) (over bool) {
	held := s.rec.Lease
	expiry := s.cfg.timer(held.ExpireAt())
	defer expiry.Stop()
	for wait := firstDelivery; ; wait = min(2*wait, lastDelivery) {
		retry := time.After(wait)
		select {
		case <-ctx.Done():
			if errors.Is(context.Cause(ctx), errRevoked) {
				s.dropRelease("in use again", errRevoked)
				return true
			}
			return false
		case <-expiry.C:
			s.dropRelease("expired", nil)
			return true
		case <-retry:
		}
		if s.engine.inUse(s) {
			s.dropRelease("in use again", errRevoked)
			return true
		}
		if s.unconfigure(ctx); s.rec.Setup.Addr.IsValid() {
			continue // nobody may get an address that an interface has
		}
		carriers := s.engine.carriers(ctx, s)
		if len(carriers) == 0 {
			s.dropRelease("no interface", nil)
			return true
		}
		if s.deliverOver(ctx, carriers) {
			s.forget()
			return true
		}
	}
}

// deliverOver tries some interfaces, as long as the lease lasts: the session's own
// if it is among them, which is the first then, and others by chance, so that the
// next round tries other ones.
func (s *session) deliverOver(ctx context.Context, carriers []Target) (sent bool) {
	if end := s.rec.Lease.ExpireAt(); !end.IsZero() {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, lifetimeAt(s.rec.Lease, s.cfg.Now()))
		defer cancel()
	}
	for _, t := range carriers[:min(len(carriers), carriersTried)] {
		try, cancel := context.WithTimeout(ctx, deliveryTime)
		w := &wire{links: s.cfg.Links, target: t}
		sent = s.release(try, w, s.rec)
		w.close()
		cancel()
		if sent || ctx.Err() != nil {
			return sent
		}
	}
	return false
}

// dropRelease gives up on a waiting RELEASE.
func (s *session) dropRelease(why string, err error) {
	s.countDropped(why, err)
	s.forget()
}

func (s *session) countDropped(why string, err error) {
	s.cfg.Metrics.released.WithLabelValues("dropped: " + why).Inc()
	attrs := []any{"address", s.rec.Lease.Addr.Addr(), "server", s.rec.Lease.Server, "why", why}
	if until := s.cfg.wall(s.rec.Lease.ExpireAt()); until != nil {
		attrs = append(attrs, "until", *until)
	}
	if err != nil {
		attrs = append(attrs, "error", err)
	}
	s.log.Warn("lease is not given back, it stays at the server until it expires", attrs...)
}

// carriers are the interfaces that can carry the RELEASE of a session: its own,
// where that is still there, then those of other attachments of the network.
func (e *Engine) carriers(ctx context.Context, s *session) []Target {
	var found []Target
	if s.present(ctx) == nil {
		found = append(found, s.att.Target())
	}
	own := len(found)
	for _, o := range e.all() {
		if o != s && o.att.Network == s.att.Network && o.carries() {
			found = append(found, o.att.Target())
		}
	}
	others := found[own:]
	rand.Shuffle(len(others), func(i, j int) { others[i], others[j] = others[j], others[i] })
	return found
}

// carries tells whether the interface of a session can carry messages: it has an
// address, and is no guest's.
func (s *session) carries() bool {
	v := s.look()
	return v.kept && v.lease.Addr.IsValid()
}

// revoke drops the waiting RELEASEs of a network that are for addr, or for the
// client of s. When it returns, none of them will be sent any more.
func (e *Engine) revoke(s *session, addr netip.Addr) {
	for _, o := range e.all() {
		if o == s || o.att.Network != s.att.Network {
			continue
		}
		v := o.look()
		if v.phase == Releasing && (v.held.Addr() == addr || s.knownAs(Record{HardwareAddr: v.hardwareAddr, ClientID: v.clientID})) {
			o.keeper.Load().revoke(errRevoked)
		}
	}
}

// inUse tells whether another session has the address of s or its client: for a
// RELEASE that was posted while that session looked for waiting ones.
func (e *Engine) inUse(s *session) bool {
	return slices.ContainsFunc(e.all(), func(o *session) bool {
		if o == s || o.att.Network != s.att.Network {
			return false
		}
		v := o.look()
		switch v.phase {
		case Releasing, Orphaned, Superseded:
			return false
		}
		return v.held.Addr() == s.rec.Lease.Addr.Addr() || s.knownAs(Record{HardwareAddr: v.hardwareAddr, ClientID: v.clientID})
	})
}
