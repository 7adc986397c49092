package engine

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine/dhcp4"
	"github.com/dhcp-meta/dhcp-meta/pkg/engine/network"
)

// The time that telling a publisher may take. It goes on by itself with what it
// could not do, so that nobody has to wait long, but an ADD that requires it.
const (
	resetTime    = 20 * time.Second
	publishTime  = 5 * time.Second
	hastyTime    = 2 * time.Second // in an ADD that does not require it
	withdrawTime = time.Second     // the runtime waits for a DEL
	// undoReserve is what an ADD that requires publication keeps of its time for
	// giving the lease back.
	undoReserve = 3 * time.Second
)

// publishError says that a lease could not be made known in time.
type publishError struct {
	addr netip.Prefix
	took time.Duration
	err  error
}

func (p *publishError) Error() string {
	if errors.Is(p.err, ErrSuperseded) {
		return fmt.Sprintf("%s was leased for nobody: %v", p.addr.Addr(), p.err)
	}
	within := ""
	if took := p.took.Round(100 * time.Millisecond); took > 0 { // otherwise it was refused, not away
		within = " within " + took.String()
	}
	return fmt.Sprintf("%s was leased, and could not be made known outside the node%s: %v; look at the API server and at OVN's database; "+
		"networks that do not need it have \"publish\": \"eventual\"", p.addr.Addr(), within, p.err)
}

func (p *publishError) Unwrap() error { return p.err }

// resetPublished takes away what an earlier sandbox of the pod left published.
func (e *Engine) resetPublished(ctx context.Context, rec Record) error {
	ctx, cancel := context.WithTimeout(ctx, resetTime)
	defer cancel()
	if err := e.cfg.Publisher.Reset(ctx, rec.Attachment, rec.Workload); err != nil {
		return fmt.Errorf("take away what is published of an earlier sandbox of pod %s/%s: %w", rec.Pod.Namespace, rec.Pod.Name, err)
	}
	return nil
}

// resetEarly tells the publisher of a VM that its address is yet to come.
func (s *session) resetEarly(ctx context.Context) error {
	if s.cfg.Publisher == nil {
		return nil
	}
	err := s.engine.resetPublished(ctx, s.rec)
	if err != nil && s.settings.Publish != network.PublishRequire && context.Cause(ctx) == nil {
		s.trouble("lease to come is not announced", err)
		return nil
	}
	return err
}

// publish tells the publisher of a lease. What goes wrong does not take the lease
// from the pod, except from one whose ADD requires it.
func (s *session) publish(ctx context.Context, l dhcp4.Lease) error {
	if s.cfg.Publisher == nil {
		return nil
	}
	if err := context.Cause(ctx); err != nil && s.adding {
		return err // nobody waits for it any longer: it must not be seen
	}
	require := s.adding && s.settings.Publish == network.PublishRequire
	began := s.cfg.Now()
	within, cancel := context.WithTimeout(ctx, s.publishTime(ctx, require))
	defer cancel()
	s.published, s.restored = true, false
	err := s.cfg.Publisher.Publish(within, s.publication(l))
	switch {
	case err == nil:
		return nil
	case context.Cause(ctx) != nil && s.adding:
		return context.Cause(ctx)
	case context.Cause(ctx) != nil:
		return nil // it was told, and goes on by itself
	case s.adding && (require || errors.Is(err, ErrSuperseded)):
		return &publishError{l.Addr, s.cfg.Now().Sub(began), err}
	}
	s.trouble("lease is not published", err)
	return nil
}

// publishTime is how long the publisher may try.
func (s *session) publishTime(ctx context.Context, require bool) time.Duration {
	switch end, ends := ctx.Deadline(); {
	case !s.adding:
		return publishTime
	case !require:
		return hastyTime
	case ends:
		left := time.Until(end)
		return max(left-undoReserve, left/2)
	}
	return network.MaxTimeout
}

// publishAgain is for an ADD that finds its lease: Prepare has taken away what was
// published of it.
func (e *Engine) publishAgain(ctx context.Context, s *session, v view) error {
	if e.cfg.Publisher == nil {
		return nil
	}
	s.stop()
	s.adding = true
	var err error
	if s.rec.Phase == Leased && s.rec.Lease.Addr == v.lease.Addr {
		err = s.publish(ctx, s.rec.Lease)
	} else {
		err = fmt.Errorf("lease of %s has just been lost", v.lease.Addr.Addr())
	}
	s.adding = false
	if s.plan.Keep {
		err = both(err, e.keep(s))
	}
	return err
}

// publishRestored tells the publisher of leases from before a restart that have no
// keeper, one after the other.
func (e *Engine) publishRestored(ctx context.Context, sessions []*session) {
	for _, s := range sessions {
		ctx, done, err := e.turns.take(ctx, s.att.AttachmentID)
		if err != nil {
			return
		}
		if e.session(s.att.AttachmentID) == s && s.restored {
			_ = s.publish(ctx, s.rec.Lease) // fails in an ADD only
		}
		done()
	}
}

// publication is what is published of a lease of the session.
func (s *session) publication(l dhcp4.Lease) Publication {
	p := Publication{Attachment: s.rec.Attachment, Workload: s.rec.Workload, HardwareAddr: s.rec.HardwareAddr, Addr: l.Addr,
		OVN: s.rec.OVN, ByCaller: s.adding && s.rec.OVN && s.rec.IPAM, PortSecurity: s.settings.PortSecurity}
	if gw := gatewayOf(l); gw.IsValid() {
		p.Gateways = []netip.Addr{gw}
	}
	return p
}

// withdraw tells the publisher that the lease is gone, if it was told of one.
func (s *session) withdraw(ctx context.Context) {
	if p := s.cfg.Publisher; p != nil && s.published {
		s.published, s.restored = false, false
		ctx, cancel := context.WithTimeout(ctx, withdrawTime)
		defer cancel()
		if err := p.Withdraw(ctx, s.att); err != nil {
			s.trouble("lease is not withdrawn", err)
		}
	}
}

// forgetPublished leaves what is published to the newer sandbox of the pod.
func (s *session) forgetPublished() {
	if p := s.cfg.Publisher; p != nil && s.published {
		s.published, s.restored = false, false
		p.Forget(s.att)
	}
}
