package engine

import (
	"bytes"
	"context"
	"errors"
	"time"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine/dhcp4"
)

// retryAfter is how long a kept session waits before it starts over when its
// record could not be written or its interface not be configured. RFC 2131, 3.1
// number 5 has a client wait ten seconds after an address that it cannot use.
const retryAfter = 10 * time.Second

// keeper is the goroutine that keeps a session's lease.
type keeper struct {
	cancel context.CancelCauseFunc
	doneC  chan struct{}
}

// revoke ends the keeper with a cause of its own and waits for it. A nil keeper
// has ended already.
func (k *keeper) revoke(cause error) {
	if k == nil {
		return
	}
	k.cancel(cause)
	<-k.doneC
}

// stop ends the keeper; from then on the caller, whose turn it is, runs the
// session.
func (s *session) stop() { s.keeper.Swap(nil).revoke(nil) }

// keep keeps the lease until ctx ends or the attachment is over; it then returns
// true. A session from the store first finds out what has become of its interface.
func (s *session) keep(ctx context.Context) (over bool) {
	s.closeLeft()
	var ev dhcp4.Event
	var err error
	if s.rec.Phase == Releasing {
		return s.deliver(ctx)
	}
	if s.machine == nil {
		ev, err = s.resume(ctx)
	}
	for {
		if err == nil && ev != nil {
			err = s.renewal(ctx, ev)
		}
		switch {
		case ctx.Err() != nil:
			return false
		case errors.Is(err, errEnded):
			return s.rec.Phase != Releasing || s.deliver(ctx)
		case errors.Is(err, ErrGone):
			s.withdraw(ctx)
			return s.orphan(ctx)
		case err != nil:
			s.trouble("lease is not kept as it should be, starting over", err)
			ev, err = s.startOver(ctx)
		default:
			ev, err = s.rest(ctx)
		}
	}
}

// renewal is one exchange of a kept session, from ev until it is BOUND again.
func (s *session) renewal(ctx context.Context, ev dhcp4.Event) error {
	link, err := s.cfg.Links.Inspect(ctx, s.rec.Target())
	switch {
	case errors.Is(err, ErrGone), context.Cause(ctx) != nil:
		return err
	case err != nil: // the port may open all the same
		s.trouble("interface is not looked at", err)
	case !bytes.Equal(link.HardwareAddr, s.rec.HardwareAddr):
		s.link = link
		if ev, err = s.newIdentity(ctx); err != nil {
			return err
		}
	}
	s.tally = tally{begun: s.cfg.Now()}
	w := s.newWire()
	defer w.close()
	return s.exchange(ctx, w, ev)
}

// newIdentity begins again on an interface that has another MAC than before, by
// somebody's doing. Where the server takes it for the same client all the same, the
// lease is asked for again; otherwise it is given back.
func (s *session) newIdentity(ctx context.Context) (dhcp4.Event, error) {
	old := s.rec
	s.log.Warn("MAC of the interface has changed", "from", old.HardwareAddr.String(), "to", s.link.HardwareAddr.String(), "address", old.Lease.Addr)
	s.unconfigure(ctx)
	s.withdraw(ctx)
	if err := s.identify(); err != nil {
		return nil, err
	}
	rec := s.rec
	rec.Phase, rec.Lease = Seeking, dhcp4.Lease{}
	start := dhcp4.Start{}
	if old.Lease.Addr.IsValid() {
		if s.knownAs(old) {
			rec.Lease = old.Lease
			start.Previous = &old.Lease
		} else {
			ctx, cancel := context.WithTimeout(ctx, releaseTime)
			w := s.newWire()
			s.release(ctx, w, old)
			w.close()
			cancel()
		}
	}
	if err := s.put(rec); err != nil {
		return nil, err
	}
	s.machine = s.newMachine()
	return start, nil
}

// rest waits in BOUND, without a socket, until the machine has something to do.
// What is left to do for the interface is done meanwhile.
func (s *session) rest(ctx context.Context) (dhcp4.Event, error) {
	var lostC <-chan error
	if s.settings.Defend {
		var cancel context.CancelFunc
		ctx, cancel = context.WithCancel(ctx)
		lostC = s.defend(ctx)
		defer func() {
			cancel()
			if lostC != nil {
				<-lostC // it holds a socket of the namespace until then
			}
		}()
	}
	for {
		ev, err := s.doze(ctx, &lostC)
		if ev != nil || err != nil {
			return ev, err
		}
	}
}

// doze waits for one thing to happen in BOUND, and returns the machine's event if
// it is one.
func (s *session) doze(ctx context.Context, lostC *<-chan error) (dhcp4.Event, error) {
	deadline := s.cfg.timer(s.machine.Deadline())
	defer deadline.Stop()
	chore := s.cfg.timer(s.choreAt())
	defer chore.Stop()
	select {
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	case <-deadline.C:
		return dhcp4.Elapsed{}, nil
	case <-chore.C:
		return nil, s.chore(ctx)
	case <-s.goneC:
		s.lookAgain()
		return nil, s.present(ctx)
	case err := <-*lostC:
		*lostC = nil
		if c := (*AddressConflict)(nil); errors.As(err, &c) {
			s.conflicted(c, s.rec.Lease.Server)
			return dhcp4.Conflict{Owner: c.Owner}, nil
		}
		return nil, s.undefended(err)
	}
}

// choreAt is when something is to be done for the interface of a lease that rests;
// the zero time means never.
func (s *session) choreAt() time.Time {
	var first time.Time
	for _, at := range []time.Time{s.announceAt, s.mendAt, s.lookAt} {
		if first.IsZero() || !at.IsZero() && at.Before(first) {
			first = at
		}
	}
	return first
}

// chore does what is due.
func (s *session) chore(ctx context.Context) error {
	now := s.cfg.Now()
	if at := s.announceAt; !at.IsZero() && !now.Before(at) {
		if err := s.announceAgain(ctx); err != nil {
			return err
		}
	}
	if at := s.lookAt; !at.IsZero() && !now.Before(at) {
		if err := s.lookForAddress(ctx); err != nil {
			return err
		}
	}
	if at := s.mendAt; !at.IsZero() && !now.Before(at) {
		return s.adopt(ctx, s.rec.Lease, false)
	}
	return nil
}

// undefended goes on without a defence that broke down, unless the interface is
// gone.
func (s *session) undefended(err error) error {
	if err == nil || errors.Is(err, ErrGone) {
		return err
	}
	s.trouble("address is not defended any longer", err)
	return nil
}

// present returns ErrGone when the interface is no longer there.
func (s *session) present(ctx context.Context) error {
	t := s.rec.Target()
	if !s.plan.Keep {
		t.IfName = "" // a guest's may have another name by now, or be nowhere
	}
	_, err := s.cfg.Links.Inspect(ctx, t)
	if errors.Is(err, ErrGone) {
		return err
	}
	return nil
}

// startOver waits, and begins again with a new machine: by INIT-REBOOT with what
// the old one last held, for the server holds it still.
func (s *session) startOver(ctx context.Context) (dhcp4.Event, error) {
	start := dhcp4.Start{}
	if s.machine != nil {
		if l, ok := s.machine.Lease(); ok {
			start.Previous = &l
		}
		s.unconfigure(ctx)
	}
	timer := time.NewTimer(retryAfter)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	case <-timer.C:
	}
	if s.machine == nil { // it could not even look at its interface
		return s.resume(ctx)
	}
	s.machine = s.newMachine()
	rec := s.rec
	rec.Phase = Seeking
	if err := s.putChanged(rec); err != nil {
		s.trouble("lost lease is not persisted", err)
		s.rec = rec
	}
	s.show()
	return start, nil
}

// orphan is the rest of a session whose interface is gone without a DEL. What it
// held can no longer be given back; until it expires, a new sandbox of the pod
// may take it over. It returns true when nothing is left to wait for.
func (s *session) orphan(ctx context.Context) (over bool) {
	s.machine = nil
	now := s.cfg.Now()
	if held := s.rec.Lease; s.rec.Pod.UID == "" || !held.Addr.IsValid() || held.Expired(now) {
		s.log.Info("interface is gone, attachment is forgotten", "address", held.Addr)
		s.forget()
		return true
	}
	rec := s.rec
	rec.Phase, rec.Setup = Orphaned, Setup{}
	if err := s.put(rec); err != nil {
		s.trouble("record of a gone interface is not marked", err)
		s.rec = rec
	}
	s.show()
	s.log.Info("interface is gone without DEL, its lease waits for a new sandbox of the pod",
		"address", rec.Lease.Addr, "lifetime", lifetimeText(lifetimeAt(rec.Lease, now)))
	timer := s.cfg.timer(rec.Lease.ExpireAt())
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		s.forget()
		return true
	}
}
