package engine

import (
	"context"
	"time"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine/dhcp4"
)

// releaseTime bounds what Detach and a failed Attach spend on giving a lease
// back: the runtime waits for them, and a DHCPRELEASE is a courtesy (CNI
// specification, DEL).
const releaseTime = 1800 * time.Millisecond

// releaseFor is the DHCPRELEASE for what a record holds, also where the machine
// that got it is gone.
func releaseFor(rec Record) dhcp4.Send {
	return dhcp4.Release(dhcp4.Config{HardwareAddr: rec.HardwareAddr, ClientID: rec.ClientID}, rec.Lease)
}

// undo leaves nothing of an attempt: no lease, no address, no record. It has
// time of its own, since the caller's may be over.
func (s *session) undo(ctx context.Context, w *wire) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTime)
	defer cancel()
	sent := s.giveBack(ctx, w)
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
	if !s.rec.Lease.Addr.IsValid() || s.rec.Lease.Expired(s.cfg.Now()) {
		return true
	}
	return s.release(ctx, w, s.rec)
}

// release sends the DHCPRELEASE for what rec holds.
func (s *session) release(ctx context.Context, w *wire, rec Record) (sent bool) {
	err := w.openNow(ctx)
	if err == nil {
		err = w.send(ctx, releaseFor(rec))
	}
	log := s.log.With("address", rec.Lease.Addr.Addr(), "server", rec.Lease.Server)
	if err != nil {
		s.cfg.Metrics.released.WithLabelValues("unsent").Inc()
		log.Warn("release is not sent", "error", err)
		return false
	}
	s.cfg.Metrics.released.WithLabelValues("sent").Inc()
	log.Info("lease given back")
	return true
}

// unconfigure takes off the interface what the record lists.
func (s *session) unconfigure(ctx context.Context) {
	if !s.rec.Setup.Addr.IsValid() {
		return
	}
	if err := s.cfg.Links.Clear(ctx, s.rec.Target(), s.rec.Setup); err != nil {
		s.log.Warn("interface is not cleared", "address", s.rec.Setup.Addr, "error", err)
	}
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

// end gives back all that the session holds and forgets it; a RELEASE that could
// not be sent waits in the outbox. An attachment always ends.
func (s *session) end(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, releaseTime)
	defer cancel()
	w := s.newWire()
	defer w.close()
	sent := true
	if s.plan.Release && s.rec.Phase != Superseded {
		sent = s.giveBack(ctx, w)
	}
	s.unconfigure(ctx)
	s.withdraw(ctx)
	s.bury(ctx, sent)
}
