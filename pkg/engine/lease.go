package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine/dhcp4"
)

// use makes a lease the interface's: persisted first, then configured, then
// published.
func (s *session) use(ctx context.Context, w *wire, u dhcp4.Use) error {
	s.remark(u)
	have, old, troubles := s.rec.Setup, s.rec.Lease, s.troubles
	fresh := s.rec.Phase != Leased
	if err := s.adopt(ctx, u.Lease, fresh); err != nil {
		return err
	}
	if fresh || have.Addr != s.rec.Setup.Addr {
		s.announceAddr(ctx, w)
	}
	if err := s.tell(ctx, old, fresh); err != nil {
		return err
	}
	if s.troubles == troubles {
		s.wellAgain()
	}
	return nil
}

// adopt persists a lease and makes the interface carry it.
func (s *session) adopt(ctx context.Context, l dhcp4.Lease, fresh bool) error {
	have := s.rec.Setup
	setup, err := s.setupOf(ctx, s.rec.Lease, l)
	if err != nil {
		return err
	}
	rec := s.rec
	rec.Phase, rec.Lease, rec.Setup = Leased, l, setup
	if err := s.putChanged(rec); err != nil {
		if fresh || have.Addr.Addr() != setup.Addr.Addr() {
			return err
		}
		// The record that is there names the address, and can undo all that is on
		// the interface: so the pod keeps that, for the time that was granted. What
		// is new waits until it can be persisted.
		s.trouble("renewed lease is not persisted", err)
		s.rec.Lease, s.judged = l, false
		err := s.configure(ctx, have, false)
		s.mendAt = s.cfg.Now().Add(mendAfter)
		return err
	}
	return s.configure(ctx, have, fresh)
}

// remark tells of what is left out of a lease, once until that changes.
func (s *session) remark(u dhcp4.Use) {
	if slices.Equal(u.Remarks, s.remarks) {
		return
	}
	s.remarks = u.Remarks
	for _, r := range u.Remarks {
		s.log.Warn("part of the lease is left out", "remark", r, "server", u.Lease.Server)
	}
}

// mendAfter is how long a lease rests whose interface could not be configured
// whole, before that is tried again.
const mendAfter = 30 * time.Second

// configure makes the interface carry the record's setup.
func (s *session) configure(ctx context.Context, have Setup, fresh bool) error {
	want, l := s.rec.Setup, s.rec.Lease
	if !want.Addr.IsValid() && !have.Addr.IsValid() {
		return nil
	}
	s.mendAt = time.Time{}
	if placed, err := s.adoptPlaced(ctx, fresh); !placed {
		return err
	}
	err := s.cfg.Links.Configure(ctx, s.rec.Target(), have, want, lifetimeAt(l, s.cfg.Now()))
	switch {
	case err == nil:
	case fresh, errors.Is(err, ErrGone), context.Cause(ctx) != nil:
		return fmt.Errorf("configure %s: %w", l.Addr, err)
	default: // part of it may be there; the rest is tried again
		s.trouble("interface is not configured as the lease says", err)
		s.mendAt = s.cfg.Now().Add(mendAfter)
	}
	return nil
}

// tell says what is new in the session's lease: the log, whoever reads
// events, and the publisher. Renewals are a metric, not a line.
func (s *session) tell(ctx context.Context, old dhcp4.Lease, fresh bool) error {
	l := s.rec.Lease
	if !s.answered.Addr.IsValid() {
		s.answered = s.rec.Setup
	}
	if s.kept != nil {
		s.trouble("interface does not follow the lease", s.kept)
	}
	if fresh {
		s.log.Info("leased", "address", l.Addr, "server", l.Server, "lifetime", lifetimeText(l.Lifetime))
		if err := s.publish(ctx, l); err != nil {
			return err
		}
		if !s.adding { // an ADD may still fail
			s.reportLeased()
		}
		return nil
	}
	if old.Server != l.Server {
		s.log.Info("another server keeps the lease now", "address", l.Addr, "from", old.Server, "to", l.Server)
	}
	found := changes(old, l)
	if len(found) == 0 {
		s.log.Debug("renewed", "address", l.Addr, "server", l.Server, "lifetime", lifetimeText(l.Lifetime))
		if s.restored {
			return s.publish(ctx, l)
		}
		return nil
	}
	var words []string
	for _, c := range found {
		words = append(words, c.String())
		s.cfg.Metrics.changed.WithLabelValues(c.what).Inc()
	}
	text := strings.Join(words, "; ")
	s.log.Warn("lease has changed", "address", l.Addr, "changes", text, "policy", string(s.settings.OnChange))
	s.report(LeaseChanged, "DHCP server "+l.Server.String()+" has changed the lease: "+text)
	return s.publish(ctx, l)
}

func lifetimeText(d time.Duration) string {
	if d == dhcp4.Infinite {
		return "infinite"
	}
	return d.String()
}

// drop takes a lease off the interface that may not be used any longer, and
// remembers that the attachment looks for another.
func (s *session) drop(ctx context.Context, w *wire, d dhcp4.Drop) error {
	s.cfg.Metrics.dropped.WithLabelValues(string(d.Reason)).Inc()
	word := fmt.Sprintf("lease of %s is lost: %s", d.Lease.Addr.Addr(), d.Reason)
	if d.Reason == dhcp4.Expired {
		if d.Detail = s.unheard(w); d.Detail == "" {
			d.Detail = "its time was over before a server could be asked"
		}
		word += ": " + d.Detail
	}
	s.log.Warn("address is given up", "address", d.Lease.Addr, "reason", string(d.Reason), "detail", d.Detail)
	s.report(LeaseLost, word)
	s.unconfigure(ctx)
	s.withdraw(ctx)
	rec := s.rec
	rec.Phase, rec.Lease = Seeking, dhcp4.Lease{}
	if err := s.put(rec); err != nil {
		// The old record claims more than there is, which restore can bear.
		s.trouble("lost lease is not persisted", err)
		s.rec = rec
	}
	return nil
}
