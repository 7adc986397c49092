package engine

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
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
		before := s.machine.State()
		acts := s.machine.Step(s.cfg.Now(), ev)
		if _, ok := ev.(dhcp4.Elapsed); ok {
			s.silence(w, before)
		}
		s.measure(acts)
		next, err := s.performAll(ctx, w, acts)
		s.show()
		switch {
		case err != nil:
			return err
		case next != nil:
			ev = next
			continue
		case s.machine.State() == dhcp4.Bound:
			return nil
		}
		if ev, err = s.await(ctx, w); err != nil {
			return err
		}
	}
}

// silence remembers that nobody has answered, for whoever lists the leases. It is a
// line in the log only when it begins to matter.
func (s *session) silence(w *wire, before dhcp4.State) {
	text := s.unheard(w)
	if text == "" || exchangeKind(before) == "" {
		return
	}
	s.mu.Lock()
	s.seen.lastErr = text
	s.mu.Unlock()
	if before == dhcp4.Renewing && s.machine.State() == dhcp4.Rebinding {
		s.log.Warn("server is silent, asking all servers now", "server", s.rec.Lease.Server, "address", s.rec.Lease.Addr,
			"messages", s.tally.sent(), "left", lifetimeAt(s.rec.Lease, s.cfg.Now()).Round(time.Second), "detail", text)
	}
}

// unheard says what has come of an exchange that nobody has answered; empty: nothing
// was tried yet.
func (s *session) unheard(w *wire) string {
	n, took := s.tally.sent(), s.cfg.Now().Sub(s.tally.begun).Round(time.Second)
	switch {
	case n == 0 && w.why != nil:
		return fmt.Sprintf("nothing was sent in %s: %v", took, w.why)
	case n == 0 && s.tally.unsent != "":
		return fmt.Sprintf("nothing was sent in %s: %s", took, s.tally.unsent)
	case n == 0:
		return ""
	case w.why != nil:
		return fmt.Sprintf("no answer to %s in %s; by now %v", messages(n), took, w.why)
	}
	return fmt.Sprintf("no answer to %s in %s", messages(n), took)
}

func messages(n int) string {
	if n == 1 {
		return "1 message"
	}
	return fmt.Sprintf("%d messages", n)
}

// await waits for the machine's next event.
func (s *session) await(ctx context.Context, w *wire) (dhcp4.Event, error) {
	timer := s.cfg.timer(s.machine.Deadline())
	defer func() { timer.Stop() }()
	word := s.cfg.timer(s.wordAt)
	defer func() { word.Stop() }()
	for {
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-timer.C:
			return dhcp4.Elapsed{}, nil
		case <-word.C:
			s.lacking(w)
			word = s.cfg.timer(s.wordAt)
		case r, ok := <-w.receivedC():
			if !ok {
				w.lost(ctx)
				continue
			}
			s.received(r)
			return r, nil
		case <-s.goneC:
			if err := s.present(ctx); err != nil {
				return nil, err
			}
			timer.Stop() // the machine may have slept
			timer = s.cfg.timer(s.machine.Deadline())
		case o := <-w.openedC:
			if err := s.opened(ctx, w, o); err != nil {
				return nil, err
			}
		}
	}
}

// received counts and logs a reply.
func (s *session) received(r dhcp4.Received) {
	if r.Err != nil {
		return // counted as one that was left aside
	}
	s.cfg.Metrics.received(r.Msg.MessageType())
	s.log.Debug("received", "type", r.Msg.MessageType(), "from", r.From, "address", r.Msg.YourIPAddr, "xid", r.Msg.TransactionID)
	if r.Msg.MessageType() == dhcpv4.MessageTypeNak {
		s.tally.naks++
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
		if errors.Is(err, errNotYet) {
			w.open(ctx) // the message that waits leaves as soon as the link can carry it
		}
		return context.Cause(ctx)
	}
	if m, ok := w.waiting(); ok {
		return s.send(ctx, w, m)
	}
	return nil
}

// performAll carries out the actions of a step, in order. It returns what the
// machine is to be told of them at once; nil when there is nothing.
func (s *session) performAll(ctx context.Context, w *wire, acts []dhcp4.Action) (next dhcp4.Event, err error) {
	for _, a := range acts {
		if p, ok := a.(dhcp4.Probe); ok {
			next, err = s.probe(ctx, w, p)
		} else {
			err = s.perform(ctx, w, a)
		}
		if err != nil {
			return nil, err
		}
	}
	return next, nil
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
		return s.use(ctx, w, a)
	case dhcp4.Drop:
		return s.drop(ctx, w, a)
	case dhcp4.Ignore:
		s.ignore(a)
		if a.Kind == dhcp4.KindRefusal {
			s.disclaim()
		}
		return nil
	}
	panic(fmt.Sprintf("engine: unknown action %T", a))
}

// send puts a message on the wire. A message that could not be sent is no error
// of the exchange: to the machine it is as good as lost, and it sends again.
func (s *session) send(ctx context.Context, w *wire, a dhcp4.Send) error {
	if a.Msg.MessageType() == dhcpv4.MessageTypeDecline {
		s.disclaim()
	}
	err := s.pass(ctx)
	if err == nil {
		err = w.send(ctx, a)
	}
	switch {
	case err == nil:
		s.count(a.Msg.MessageType())
		s.log.Debug("sent", "type", a.Msg.MessageType(), "to", destination(a), "xid", a.Msg.TransactionID)
	case errors.Is(err, ErrGone):
		return err
	case !errors.Is(err, errNotOpen):
		s.tally.unsent = err.Error()
		s.trouble("message is not sent", err)
	}
	return context.Cause(ctx)
}

// destination is where a message goes, for the log.
func destination(a dhcp4.Send) string {
	if !a.To.IsValid() {
		return "broadcast"
	}
	return a.To.String()
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

func (s *session) ignore(i dhcp4.Ignore) {
	if i.Kind == dhcp4.KindDenied {
		s.refusedServer(i)
	}
	s.tally.ignored = i.Reason
	if i.From.IsValid() {
		s.tally.ignored = fmt.Sprintf("%s (from %s)", i.Reason, i.From)
	}
	s.cfg.Metrics.ignored.WithLabelValues(string(i.Kind)).Inc()
	s.log.Debug("reply left aside", "reason", i.Reason, "from", i.From)
}

// refusedServer tells people of a server that answered and may not, once for each
// server and session.
func (s *session) refusedServer(i dhcp4.Ignore) {
	if s.refused[i.Server] {
		return
	}
	if s.refused == nil {
		s.refused = make(map[netip.Addr]bool)
	}
	s.refused[i.Server] = true
	s.log.Warn("a DHCP server answered that may not be listened to", "server", i.Server, "from", i.From, "reason", i.Reason)
	s.report(ServerRefused, i.Reason)
}
