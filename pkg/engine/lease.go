package engine

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"time"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine/dhcp4"
	"github.com/dhcp-meta/dhcp-meta/pkg/engine/network"
)

// use makes a lease the interface's: persisted first, then configured, then
// published.
func (s *session) use(ctx context.Context, u dhcp4.Use) error {
	for _, r := range u.Remarks {
		s.log.Warn("part of the lease is left out", "remark", r, "server", u.Lease.Server)
	}
	have, old, troubles := s.rec.Setup, s.rec.Lease, s.troubles
	fresh := s.rec.Phase != Leased
	rec := s.rec
	rec.Phase, rec.Lease, rec.Setup = Leased, u.Lease, s.setupOf(u.Lease)
	if err := s.putChanged(rec); err != nil {
		// A renewal that changes nothing needs no new record to be undone: the
		// old one only knows an earlier end.
		if fresh || !reflect.DeepEqual(have, rec.Setup) {
			return err
		}
		s.trouble("renewed lease is not persisted", err)
		s.rec.Lease = u.Lease
	}
	if err := s.configure(ctx, have, fresh); err != nil {
		return err
	}
	s.announce(ctx, old, fresh)
	if s.troubles == troubles {
		s.wellAgain()
	}
	return nil
}

// setupOf is what the interface is to carry while l lasts. With keep-and-report
// that is what ADD answered, or nothing once the address is another one.
func (s *session) setupOf(l dhcp4.Lease) Setup {
	switch first := s.answered; {
	case !s.plan.Configure:
		return Setup{}
	case s.settings.OnChange != network.OnChangeKeep || !first.Addr.IsValid():
		return setupFor(s.settings, l, s.linkMTU())
	case first.Addr.Addr() == l.Addr.Addr():
		return first
	default:
		return Setup{}
	}
}

// configure makes the interface carry the record's setup.
func (s *session) configure(ctx context.Context, have Setup, fresh bool) error {
	want, l := s.rec.Setup, s.rec.Lease
	if !want.Addr.IsValid() && !have.Addr.IsValid() {
		return nil
	}
	err := s.cfg.Links.Configure(ctx, s.rec.Target(), have, want, lifetimeAt(l, s.cfg.Now()))
	switch {
	case err == nil:
	case fresh, errors.Is(err, ErrGone), context.Cause(ctx) != nil:
		return fmt.Errorf("configure %s: %w", l.Addr, err)
	default: // the address may be there all the same; the next renewal tries again
		s.trouble("interface is not configured as the lease says", err)
	}
	return nil
}

// announce tells of what is new in the session's lease: the log, whoever reads
// events, and the publisher. Renewals are a metric, not a line.
func (s *session) announce(ctx context.Context, old dhcp4.Lease, fresh bool) {
	l := s.rec.Lease
	if !s.answered.Addr.IsValid() {
		s.answered = s.rec.Setup
	}
	s.reportKept()
	if fresh {
		s.log.Info("leased", "address", l.Addr, "server", l.Server, "lifetime", lifetimeText(l.Lifetime))
		s.publish(ctx, l)
		return
	}
	if old.Server != l.Server {
		s.log.Info("another server keeps the lease now", "address", l.Addr, "from", old.Server, "to", l.Server)
	}
	found := changes(old, l)
	if len(found) == 0 {
		s.log.Debug("renewed", "address", l.Addr, "server", l.Server, "lifetime", lifetimeText(l.Lifetime))
		return
	}
	var words []string
	for _, c := range found {
		words = append(words, c.String())
		s.cfg.Metrics.changed.WithLabelValues(c.what).Inc()
	}
	text := strings.Join(words, "; ")
	s.log.Warn("lease has changed", "address", l.Addr, "changes", text, "policy", string(s.settings.OnChange))
	s.report(LeaseChanged, "DHCP server "+l.Server.String()+" has changed the lease: "+text)
	s.publish(ctx, l)
}

// reportKept says that the interface is not what the lease says, as
// keep-and-report wants it.
func (s *session) reportKept() {
	if s.settings.OnChange != network.OnChangeKeep || !s.plan.Configure {
		return
	}
	if says := setupFor(s.settings, s.rec.Lease, s.linkMTU()); !reflect.DeepEqual(says, s.rec.Setup) {
		s.trouble("interface is kept as it was at ADD",
			fmt.Errorf("the lease says %s, the interface has %s (onChange: keep-and-report)", says, s.rec.Setup))
	}
}

func lifetimeText(d time.Duration) string {
	if d == dhcp4.Infinite {
		return "infinite"
	}
	return d.String()
}

// drop takes a lease off the interface that may not be used any longer, and
// remembers that the attachment looks for another.
func (s *session) drop(ctx context.Context, d dhcp4.Drop) error {
	s.cfg.Metrics.dropped.WithLabelValues(string(d.Reason)).Inc()
	s.log.Warn("address is given up", "address", d.Lease.Addr, "reason", string(d.Reason), "detail", d.Detail)
	s.report(LeaseLost, fmt.Sprintf("lease of %s is lost: %s", d.Lease.Addr.Addr(), d.Reason))
	s.unconfigure(ctx)
	s.withdraw(ctx)
	rec := s.rec
	rec.Phase, rec.Lease, rec.Setup = Seeking, dhcp4.Lease{}, Setup{}
	if err := s.put(rec); err != nil {
		// The old record claims more than there is, which restore can bear.
		s.trouble("lost lease is not persisted", err)
		s.rec = rec
	}
	return nil
}
