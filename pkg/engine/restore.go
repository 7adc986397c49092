package engine

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine/dhcp4"
)

// errEnded says that a restored session turned out to have nothing to go on with.
var errEnded = errors.New("attachment has ended")

// restored are the sessions that a start has found.
type restored struct {
	// keep need a keeper; rest are those of leases that nobody keeps.
	keep, rest []*session
}

// restore makes sessions of the records. It enters no namespace but those of
// records from another boot, and sends nothing.
func (e *Engine) restore(ctx context.Context) (restored, error) {
	recs, err := e.cfg.Store.Load()
	if err != nil {
		return restored{}, err
	}
	ended, err := e.cfg.Store.Ended()
	if err != nil { // their leases expire, as they would without the notes
		e.cfg.Log.Warn("cannot tell which attachments have ended meanwhile", "error", err)
	}
	var found restored
	for _, rec := range settleTakeovers(recs) {
		usable := true
		if rec.BootID != e.cfg.BootID {
			rec, usable = e.fromOtherBoot(ctx, rec)
		}
		s := e.newSession(rec)
		if !usable {
			e.lose(s, "other boot")
			continue
		}
		s.published = rec.Phase == Leased && e.cfg.Publisher != nil
		s.restored = s.published
		if s.settings, err = settingsFor(rec); err != nil {
			s.log.Warn("record cannot be used, its lease is left to expire", "error", err)
			e.lose(s, "unusable")
			continue
		}
		if s.rec.Phase == Superseded && s.rec.Setup.Addr.IsValid() {
			s.supersede(ctx, true)
		}
		if s.ended = slices.Contains(ended, rec.AttachmentID); s.ended && rec.Phase == Superseded {
			e.lose(s, "ended")
			continue
		}
		s.showRestored()
		e.cfg.Metrics.restored.WithLabelValues(string(s.rec.Phase)).Inc()
		switch {
		case s.rec.Phase == Superseded:
		case s.plan.Keep, s.ended, s.rec.Phase != Leased: // the last two have only to be ended
			found.keep = append(found.keep, s)
		default:
			found.rest = append(found.rest, s)
		}
	}
	for _, id := range ended {
		if e.session(id) == nil { // nothing is left of it but the note
			if err := e.cfg.Store.Delete(id); err != nil {
				e.cfg.Log.Warn("note of an ended attachment is not deleted", "attachment", id, "error", err)
			}
		}
	}
	e.observeRestored()
	for _, s := range found.keep {
		s.spread = min(e.cfg.StartupSpread, time.Duration(len(found.keep))*spreadEach)
	}
	return found, nil
}

// observeRestored tells the observer, if there is one, of all that was restored.
func (e *Engine) observeRestored() {
	if e.cfg.Observer == nil {
		return
	}
	for _, s := range e.all() {
		s.observe()
	}
	e.cfg.Observer.Restored()
}

// lose forgets a record that nothing can be made of.
func (e *Engine) lose(s *session, result string) {
	e.cfg.Metrics.restored.WithLabelValues(result).Inc()
	s.forget()
	e.remove(s)
}

// settleTakeovers finishes takeovers that a crash cut in two: the newer sandbox
// had claimed the lease of the older one, and that was not marked yet.
func settleTakeovers(recs []Record) []Record {
	for i, newer := range recs {
		if newer.Phase != Claimed {
			continue
		}
		for j, older := range recs {
			if j != i && older.sameClient(newer) && older.Lease.Addr == newer.Lease.Addr {
				recs[j].Phase, recs[j].Lease = Superseded, dhcp4.Lease{}
			}
		}
	}
	return recs
}

// fromOtherBoot makes what can be made of a record from another boot: nothing
// of ours is on any interface, times and cookies mean nothing now. Where an
// interface with the same name and MAC stands at the same path again, the lease
// is asked for again; otherwise it waits for the pod's next sandbox.
func (e *Engine) fromOtherBoot(ctx context.Context, rec Record) (_ Record, usable bool) {
	switch {
	case !rec.Lease.Addr.IsValid():
		return rec, false
	case rec.Phase != Leased && rec.Phase != Seeking && rec.Phase != Orphaned:
		return rec, false
	case !planFor(rec.Workload, rec.VFIO).Keep: // the guest has ended too
		return rec, false
	}
	rec.BootID, rec.Setup = e.cfg.BootID, Setup{}
	rec.Lease.Start = e.cfg.Now() // the latest that it can have been, as far as this boot can tell
	link, err := e.cfg.Links.Inspect(ctx, Target{Netns: Netns{Path: rec.Netns.Path}, IfName: rec.IfName})
	if err == nil && rec.Phase != Orphaned && bytes.Equal(link.HardwareAddr, rec.HardwareAddr) {
		rec.Phase, rec.Netns = Seeking, link.Netns
	} else {
		rec.Phase = Orphaned
	}
	return rec, true
}

// showRestored shows what the record says until the keeper has looked.
func (s *session) showRestored() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen = view{phase: s.rec.Phase, state: dhcp4.Rebooting, setup: s.rec.Setup, kept: s.plan.Keep, placed: s.rec.placed(),
		held: s.rec.Lease.Addr, heldUntil: s.rec.Lease.ExpireAt(),
		hardwareAddr: s.rec.HardwareAddr, clientID: s.rec.ClientID}
	if s.rec.Phase == Leased {
		s.seen.state, s.seen.lease = dhcp4.Bound, s.rec.Lease
	}
}

// resume looks what has become of a restored session's interface, and returns
// the event with which its machine goes on.
func (s *session) resume(ctx context.Context) (dhcp4.Event, error) {
	switch {
	case s.rec.Phase == Claimed:
		s.log.Info("ADD was cut off by the end of the engine, undoing it", "address", s.rec.Lease.Addr)
		s.endCutOff(ctx)
		return nil, errEnded
	case s.ended:
		s.log.Info("DEL came while the engine was away, ending the attachment", "address", s.rec.Lease.Addr)
		s.end(ctx)
		return nil, errEnded
	case !s.plan.Keep: // a guest's, in a phase that it never has
		s.end(ctx)
		return nil, errEnded
	case s.rec.Phase == Orphaned:
		return nil, ErrGone
	}
	link, err := s.cfg.Links.Inspect(ctx, s.rec.Target())
	if err != nil {
		return nil, err
	}
	s.link = link
	if !bytes.Equal(link.HardwareAddr, s.rec.HardwareAddr) {
		return s.newIdentity(ctx)
	}
	s.machine = s.newMachine()
	s.answered = s.rec.Setup
	s.lookAgain()
	switch {
	case s.rec.Phase == Leased:
		if t1 := s.rec.Lease.RenewAt(); !t1.IsZero() && !s.cfg.Now().Before(t1) {
			return dhcp4.Resume{Lease: s.rec.Lease}, s.waitSpread(ctx)
		}
		return dhcp4.Resume{Lease: s.rec.Lease}, nil
	case s.rec.Lease.Addr.IsValid():
		held := s.rec.Lease
		return dhcp4.Start{Previous: &held}, nil
	default:
		return dhcp4.Start{}, nil
	}
}

// spreadEach is the part of the startup spread that a session adds: a few leases
// need not wait for each other.
const spreadEach = 50 * time.Millisecond

// waitSpread waits a random part of the startup spread, but leaves the lease half
// of the time that it still has.
func (s *session) waitSpread(ctx context.Context) error {
	most := min(s.spread, lifetimeAt(s.rec.Lease, s.cfg.Now())/2)
	if most <= 0 {
		return nil
	}
	timer := time.NewTimer(rand.N(most))
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
