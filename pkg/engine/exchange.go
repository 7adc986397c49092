package engine

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine/dhcp4"
)

// exchange gives the machine ev and runs it until it is BOUND. An error is the
// end of ctx, an interface that is gone, or a record that could not be written.
func (s *session) exchange(ctx context.Context, w *wire, ev dhcp4.Event) error {
	defer s.leave()
	for {
		s.leave() // what was asked is answered, or given up
		for _, a := range s.machine.Step(s.cfg.Now(), ev) {
			if err := s.perform(ctx, w, a); err != nil {
				return err
			}
		}
		s.show()
		if s.machine.State() == dhcp4.Bound {
			return nil
		}
		var err error
		if ev, err = s.await(ctx, w); err != nil {
			return err
		}
	}
}

// await waits for the machine's next event.
func (s *session) await(ctx context.Context, w *wire) (dhcp4.Event, error) {
	timer := s.cfg.timer(s.machine.Deadline())
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-timer.C:
			return dhcp4.Elapsed{}, nil
		case r, ok := <-w.receivedC():
			if !ok {
				w.lost(ctx)
				continue
			}
			s.cfg.Metrics.received(r.Msg.MessageType())
			if r.Msg.MessageType() == dhcpv4.MessageTypeNak {
				s.tally.naks++
			}
			return r, nil
		case <-s.goneC:
			if err := s.present(ctx); err != nil {
				return nil, err
			}
		case o := <-w.openedC:
			if err := s.opened(ctx, w, o); err != nil {
				return nil, err
			}
		}
	}
}

// opened goes on with a port that has opened while the machine's time ran on.
func (s *session) opened(ctx context.Context, w *wire, o openResult) error {
	err := w.opened(o)
	switch {
	case errors.Is(err, ErrGone):
		return err
	case err != nil: // the machine sends again in its own time
		s.trouble("link is not ready", err)
		return context.Cause(ctx)
	}
	if m, ok := w.waiting(); ok {
		return s.send(ctx, w, m)
	}
	return nil
}

// perform carries out one action.
func (s *session) perform(ctx context.Context, w *wire, a dhcp4.Action) error {
	switch a := a.(type) {
	case dhcp4.Claim:
		s.tally.offered = a.Lease.Addr.Addr()
		return s.claim(a.Lease)
	case dhcp4.Send:
		return s.send(ctx, w, a)
	case dhcp4.Use:
		return s.use(ctx, a)
	case dhcp4.Drop:
		return s.drop(ctx, a)
	case dhcp4.Ignore:
		s.ignore(a)
		return nil
	}
	panic(fmt.Sprintf("engine: unknown action %T", a))
}

// send puts a message on the wire. A message that could not be sent is no error
// of the exchange: to the machine it is as good as lost, and it sends again.
func (s *session) send(ctx context.Context, w *wire, a dhcp4.Send) error {
	err := s.pass(ctx)
	if err == nil {
		err = w.send(ctx, a)
	}
	switch {
	case err == nil:
		s.count(a.Msg.MessageType())
		s.log.Debug("sent", "type", a.Msg.MessageType(), "to", a.To, "xid", a.Msg.TransactionID)
	case errors.Is(err, ErrGone):
		return err
	case !errors.Is(err, errNotOpen):
		s.trouble("message is not sent", err)
	}
	return context.Cause(ctx)
}

func (s *session) count(t dhcpv4.MessageType) {
	s.cfg.Metrics.sent(t)
	switch t {
	case dhcpv4.MessageTypeDiscover:
		s.tally.discovers++
	case dhcpv4.MessageTypeRequest:
		s.tally.requests++
	}
}

// use makes a lease the interface's: persisted first, then configured.
func (s *session) use(ctx context.Context, u dhcp4.Use) error {
	for _, r := range u.Remarks {
		s.log.Warn("part of the lease is left out", "remark", r, "server", u.Lease.Server)
	}
	have, old := s.rec.Setup, s.rec.Lease
	fresh := s.rec.Phase != Leased
	rec := s.rec
	rec.Phase, rec.Lease = Leased, u.Lease
	if s.plan.Configure {
		rec.Setup = setupFor(s.settings, u.Lease, s.linkMTU())
	}
	s.wellAgain()
	if err := s.putChanged(rec); err != nil {
		// A renewal that changes nothing needs no new record to be undone: the
		// old one only knows an earlier end.
		if fresh || !reflect.DeepEqual(have, rec.Setup) {
			return err
		}
		s.trouble("renewed lease is not persisted", err)
		s.rec.Lease = u.Lease
	}
	if s.plan.Configure {
		err := s.cfg.Links.Configure(ctx, s.rec.Target(), have, s.rec.Setup, lifetimeAt(u.Lease, s.cfg.Now()))
		switch {
		case err == nil:
		case fresh, errors.Is(err, ErrGone), context.Cause(ctx) != nil:
			return fmt.Errorf("configure %s: %w", u.Lease.Addr, err)
		default: // the address may be there all the same; the next renewal tries again
			s.trouble("interface is not configured as the lease says", err)
		}
	}
	s.announce(old, u.Lease, fresh)
	return nil
}

// announce logs what is new. Renewals are a metric, not a line.
func (s *session) announce(old, l dhcp4.Lease, fresh bool) {
	switch {
	case fresh:
		s.log.Info("leased", "address", l.Addr, "server", l.Server, "lifetime", lifetimeText(l.Lifetime))
	case old.Addr != l.Addr:
		s.log.Info("address has changed", "from", old.Addr, "to", l.Addr, "server", l.Server)
	case old.Server != l.Server:
		s.log.Info("another server keeps the lease now", "address", l.Addr, "from", old.Server, "to", l.Server)
	default:
		s.log.Debug("renewed", "address", l.Addr, "server", l.Server, "lifetime", lifetimeText(l.Lifetime))
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
	s.unconfigure(ctx)
	rec := s.rec
	rec.Phase, rec.Lease, rec.Setup = Seeking, dhcp4.Lease{}, Setup{}
	if err := s.put(rec); err != nil {
		// The old record claims more than there is, which restore can bear.
		s.trouble("lost lease is not persisted", err)
		s.rec = rec
	}
	return nil
}

func (s *session) ignore(i dhcp4.Ignore) {
	s.tally.ignored = i.Reason
	if i.From.IsValid() {
		s.tally.ignored = fmt.Sprintf("%s (from %s)", i.Reason, i.From)
	}
	s.cfg.Metrics.ignored.Inc()
	s.log.Debug("reply left aside", "reason", i.Reason, "from", i.From)
}

// linkMTU is the MTU that the link has without us.
func (s *session) linkMTU() int {
	if s.rec.Setup.MTU > 0 {
		return s.rec.Setup.PriorMTU
	}
	return s.link.MTU
}
