package engine

import (
	"context"
	"fmt"
	"time"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine/dhcp4"
)

// releaseTime bounds what Detach and a failed Attach spend on giving a lease
// back: the runtime waits for them, and a DHCPRELEASE is a courtesy (CNI
// specification, DEL). clearTime is for what must be done all the same, and takes
// milliseconds.
const (
	releaseTime = 1800 * time.Millisecond
	clearTime   = 2 * time.Second
)

// releaseFor is the DHCPRELEASE for what a record holds, also where the machine
// that got it is gone.
func releaseFor(rec Record) dhcp4.Send {
	return dhcp4.Release(dhcp4.Config{HardwareAddr: rec.HardwareAddr, ClientID: rec.ClientID}, rec.Lease)
}

// undo leaves nothing of an attempt: no lease, no address, no record.
func (s *session) undo(ctx context.Context, w *wire) { s.finish(ctx, w, true) }

// end gives back all that the session holds and forgets it; a RELEASE that could
// not be sent waits in the outbox. An attachment always ends.
func (s *session) end(ctx context.Context) {
	w := s.newWire()
	defer s.engine.closeLater(w)
	s.finish(ctx, w, s.plan.Release && s.rec.Phase != Superseded)
}

// endCutOff is the end of an attachment whose ADD was cut off by the end of the
// engine. A server may hold the address for us, and while the interface is there it
// can be told. A device that was borrowed is back, and has none.
func (s *session) endCutOff(ctx context.Context) {
	w := s.newWire()
	defer s.engine.closeLater(w)
	s.finish(ctx, w, !s.plan.Borrow)
}

// finish has time of its own, since that of the caller may be over, and time
// apart for the interface: whatever became of the RELEASE, the address goes.
func (s *session) finish(ctx context.Context, w *wire, release bool) {
	ctx = context.WithoutCancel(ctx)
	sent := true
	if release {
		ctx, cancel := context.WithTimeout(ctx, releaseTime)
		sent = s.giveBack(ctx, w)
		cancel()
	}
	ctx, cancel := context.WithTimeout(ctx, clearTime)
	defer cancel()
	s.unconfigure(ctx)
	s.withdraw(ctx)
	s.bury(ctx, sent)
}

// bury is the end of a session from whose interface all has been taken: its
// record goes, or waits in the outbox.
func (s *session) bury(ctx context.Context, sent bool) {
	if !sent && s.post(ctx) {
		return
	}
	s.forget()
}

// giveBack sends the DHCPRELEASE for what the session's record holds. It is
// false when there is one that could not be sent.
func (s *session) giveBack(ctx context.Context, w *wire) (sent bool) {
	l := s.rec.Lease
	if !l.Addr.IsValid() {
		return true
	}
	if l.Expired(s.cfg.Now()) {
		// The server may hold it a little longer: for a renewal whose ACK was lost.
		s.log.Info("lease has ended, there is nothing to give back", "address", l.Addr.Addr(), "server", l.Server)
		return true
	}
	if s.rec.Phase == Orphaned {
		return false // there is nothing to send it over but the interfaces of others
	}
	return s.release(ctx, w, s.rec)
}

// release sends the DHCPRELEASE for what rec holds.
func (s *session) release(ctx context.Context, w *wire, rec Record) (sent bool) {
	err := w.openNow(ctx)
	if err == nil {
		err = w.send(ctx, releaseFor(rec))
	}
	if err != nil {
		s.cfg.Metrics.released.WithLabelValues("unsent").Inc()
		s.trouble("release is not sent", fmt.Errorf("release %s to %s: %w", rec.Lease.Addr.Addr(), rec.Lease.Server, err))
		return false
	}
	s.cfg.Metrics.released.WithLabelValues("sent").Inc()
	s.log.Info("lease given back", "address", rec.Lease.Addr.Addr(), "server", rec.Lease.Server)
	return true
}

// unconfigure takes off the interface what the record lists, and out of the record
// what is gone then. What could not be taken off stays listed, to be tried again.
func (s *session) unconfigure(ctx context.Context) {
	if !s.rec.Setup.Addr.IsValid() {
		return
	}
	if !s.rec.placed() && !s.takeFromCaller(ctx) {
		s.rec.Setup = Setup{}
		return
	}
	if err := s.cfg.Links.Clear(ctx, s.rec.Target(), s.rec.Setup); err != nil {
		s.trouble("interface is not cleared", err)
		return
	}
	s.rec.Setup = Setup{}
}

// forget deletes the record. A Delete that fails is carried on: what the record
// describes is gone, and restore prunes it.
func (s *session) forget() {
	if err := s.cfg.Store.Delete(s.rec.AttachmentID); err != nil {
		s.cfg.Metrics.storeErrors.Inc()
		s.log.Warn("record is not deleted", "error", err)
	}
	s.rec.Phase, s.rec.Lease, s.rec.Setup = "", dhcp4.Lease{}, Setup{}
	s.machine = nil
	s.show()
}
