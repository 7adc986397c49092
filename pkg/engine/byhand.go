package engine

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine/api"
	"github.com/dhcp-meta/dhcp-meta/pkg/engine/dhcp4"
)

// byHandTime is how long somebody who asks for a renewal waits for its outcome.
// The machine's own patience may be hours (RFC 2131, 4.4.5).
const byHandTime = 30 * time.Second

// Renew asks for the lease now, for somebody who waits for the outcome.
func (e *Engine) Renew(ctx context.Context, id api.AttachmentID, rebind bool) (api.Status, error) {
	if err := e.awaitRestored(ctx); err != nil {
		return api.Status{}, api.WithCode(api.CodeTryAgain, err)
	}
	ctx, cancel := context.WithTimeout(ctx, byHandTime)
	defer cancel()
	ctx, done, err := e.turns.take(ctx, id)
	if err != nil {
		return api.Status{}, api.WithCode(api.CodeTryAgain, fmt.Errorf("wait for an earlier call for %s: %w", id, err))
	}
	defer done()
	s := e.session(id)
	if err := renewable(id, s); err != nil {
		return api.Status{}, err
	}
	s.stop()
	err = s.askByHand(ctx, rebind)
	if kept := e.keep(s); kept != nil {
		err = both(err, kept)
	}
	return s.status(s.look()), api.WithCode(api.CodeTryAgain, err)
}

// renewable tells why the session has no lease that could be asked for; nil when
// it has one. The attachment's turn is the caller's.
func renewable(id AttachmentID, s *session) error {
	if s == nil {
		return unknown(id)
	}
	v := s.look()
	switch {
	case v.phase == Superseded:
		return superseded(s)
	case v.phase == Orphaned:
		return api.WithCode(api.CodeEnv, fmt.Errorf("interface of %s is gone, its lease waits for a new sandbox of pod %s/%s",
			id, s.att.Pod.Namespace, s.att.Pod.Name))
	case v.phase == Releasing:
		return ended(id)
	case !s.plan.Keep:
		return api.WithCode(api.CodeEnv, fmt.Errorf("lease of %s is not kept by the engine: it is its guest's to renew", id))
	case v.phase != Leased, !v.lease.Addr.IsValid():
		return api.WithCode(api.CodeTryAgain, fmt.Errorf("%s has no lease to renew (%s); last error: %s", id, v.state, orNone(v.lastErr)))
	}
	return nil
}

func unknown(id AttachmentID) error {
	return api.WithCode(api.CodeUnknown, fmt.Errorf("no attachment %s: dhcp-engine leases lists those that there are", id))
}

func ended(id AttachmentID) error {
	return api.WithCode(api.CodeEnv, fmt.Errorf("%s has ended, its DHCPRELEASE waits until it can be sent", id))
}

func superseded(s *session) error {
	return api.WithCode(api.CodeEnv, fmt.Errorf("%s is superseded: a newer sandbox of pod %s/%s has its lease",
		s.att.AttachmentID, s.att.Pod.Namespace, s.att.Pod.Name))
}

// askByHand runs one exchange of a session whose keeper has stopped, and leaves
// it so that a keeper can go on with it, whatever the outcome.
func (s *session) askByHand(ctx context.Context, rebind bool) error {
	known := s.rec.Lease
	if err := s.begin(ctx); err != nil {
		s.machine = nil
		return fmt.Errorf("go on with the lease of %s: %w", s.att.AttachmentID, err)
	}
	before, held := s.machine.Lease()
	if held && before.Start.After(known.Start) {
		return nil // it was past T1, and is renewed by that
	}
	if !held { // it was lost between look and the end of the keeper
		s.machine = nil
		return fmt.Errorf("%s has just lost its lease", s.att.AttachmentID)
	}
	begun := s.cfg.Now()
	s.tally = tally{begun: begun}
	w := s.newWire()
	defer w.close()
	err := s.exchange(ctx, w, dhcp4.Renew{Rebind: rebind})
	outcome := s.outcome(before, begun, err)
	if _, held := s.machine.Lease(); !held || err != nil && ctx.Err() == nil {
		// It is in search of another address, or what it got could not be made
		// durable: its record says from where a keeper begins again.
		s.machine = nil
	}
	return outcome
}

// begin does what the keeper of a restored session does first, when that has not
// come to it yet: it may still wait for its part of the startup spread.
func (s *session) begin(ctx context.Context) error {
	if s.machine != nil && s.machine.State() != dhcp4.Init {
		return nil
	}
	s.spread = 0
	ev, err := s.resume(ctx)
	if err != nil {
		return err
	}
	return s.renewal(ctx, ev)
}

// outcome says how an exchange that was asked for has ended; nil: with a lease
// that was granted in it.
func (s *session) outcome(before dhcp4.Lease, begun time.Time, err error) error {
	now, held := s.machine.Lease()
	took := s.cfg.Now().Sub(begun).Round(100 * time.Millisecond)
	end := "it is valid without end"
	if !now.ExpireAt().IsZero() {
		end = "it is valid for another " + lifetimeAt(now, s.cfg.Now()).Round(time.Second).String()
	}
	switch {
	case err == nil && held && now.Start.After(before.Start):
		return nil
	case errors.Is(err, errDetached):
		return fmt.Errorf("lease of %s was ended by a DEL meanwhile", before.Addr.Addr())
	case err != nil && !errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("renew %s: %w", before.Addr.Addr(), err)
	case !held:
		return fmt.Errorf("%s was taken back by a server, and no other address was given within %s: dhcp-engine leases shows how the search goes on",
			before.Addr.Addr(), took)
	case s.tally.requests == 0:
		return fmt.Errorf("nothing was sent for %s within %s (%s), %s; last error: %s",
			before.Addr.Addr(), took, s.machine.State(), end, orNone(s.look().lastErr))
	case s.tally.ignored != "":
		return fmt.Errorf("%s was not renewed within %s (%d DHCPREQUEST sent), %s; last reply left aside: %s",
			before.Addr.Addr(), took, s.tally.requests, end, s.tally.ignored)
	}
	return fmt.Errorf("no server has answered for %s within %s (%d DHCPREQUEST sent), %s and goes on to be asked for; does server %s run, and is it reachable from this interface",
		before.Addr.Addr(), took, s.tally.requests, end, before.Server)
}

// Release ends the attachment of a pod that goes on to run.
func (e *Engine) Release(ctx context.Context, id api.AttachmentID) error {
	if err := e.awaitRestored(ctx); err != nil {
		return api.WithCode(api.CodeTryAgain, err)
	}
	s := e.session(id)
	if s == nil {
		return unknown(id)
	}
	v := s.look()
	switch v.phase {
	case Superseded:
		return superseded(s)
	case Releasing:
		return ended(id)
	}
	s.log.Info("attachment is ended by hand", "address", v.held)
	if err := e.Detach(ctx, id); err != nil {
		return err
	}
	switch {
	case v.phase == "", v.phase == Claimed: // the ADD that was ended by it has an error
	case !v.held.IsValid():
	case !s.plan.Keep:
		s.report(LeaseReleased, fmt.Sprintf("address %s was withdrawn by hand: it is not reported until the pod is made again, and its guest goes on with it", v.held))
	case s.look().phase == Releasing:
		s.report(LeaseReleased, fmt.Sprintf("lease of %s was ended by hand, and its DHCPRELEASE waits until it can be sent: the pod has no address until it is made again", v.held))
	default:
		s.report(LeaseReleased, fmt.Sprintf("lease of %s was ended by hand: the pod has no address until it is made again", v.held))
	}
	return nil
}
