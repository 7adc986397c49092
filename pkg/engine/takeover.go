package engine

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine/dhcp4"
)

// stands tells whether an ADD that comes again finds all that the one before it
// has made: the same lease for the same interface, which still carries it.
func (e *Engine) stands(ctx context.Context, old *session, v view, rec Record, link Link) bool {
	a := old.att
	switch {
	case a.IPAM != rec.IPAM, !v.lease.Addr.IsValid(), v.lease.Expired(e.cfg.Now()), a.Netns.Cookie != link.Netns.Cookie, a.Network != rec.Network, a.Pod != rec.Pod,
		old.plan != planFor(rec.Workload, rec.VFIO), a.DeviceID != rec.DeviceID, !sameJSON(old.effective, rec.effective()):
		return false
	case !bytes.Equal(v.hardwareAddr, link.HardwareAddr) && !(rec.VFIO && link.HardwareAddr == nil):
		return false
	}
	if rec.IPAM {
		// What is missing is for the caller to put there; the keeper looks after it.
		old.poke()
		return true
	}
	return !v.setup.Addr.IsValid() || e.cfg.Links.Verify(ctx, a.Target(), v.setup) == nil
}

// sameJSON compares two texts but for white space; text that is no JSON is equal
// to itself.
func sameJSON(a, b json.RawMessage) bool {
	var x, y bytes.Buffer
	if json.Compact(&x, a) != nil || json.Compact(&y, b) != nil {
		return bytes.Equal(a, b)
	}
	return bytes.Equal(x.Bytes(), y.Bytes())
}

// retire stops a session that stands in the way of a new one with the same id:
// its interface is another one now, or has lost what it had. What it still holds
// goes to the new session; but what was got on another network ends here.
func (e *Engine) retire(ctx context.Context, old *session, network string) *Record {
	old.stop()
	e.remove(old)
	if old.att.Network != network {
		old.end(ctx)
		return nil
	}
	old.observeEnd()
	rec := old.rec
	return &rec
}

// reinstate takes back what retire has done, for a new session that has failed before
// it took over anything: the DEL of the attachment finds all there.
func (e *Engine) reinstate(retired []*session) error {
	for _, old := range retired {
		e.mu.Lock()
		e.sessions[old.att.AttachmentID] = old
		e.mu.Unlock()
		old.observe()
	}
	return e.goOn(retired)
}

// older takes the turns of the earlier sessions of the same pod, network and
// interface: sandboxes that the runtime has given up. An ADD that still runs
// there is ended. free gives the turns back.
func (e *Engine) older(ctx context.Context, s *session) (older []*session, free func(), err error) {
	var turns []func()
	free = func() {
		for _, done := range turns {
			done()
		}
	}
	for _, o := range e.all() {
		if !o.sameClient(s) || o.seq >= s.seq || o.look().phase == Superseded {
			continue
		}
		e.turns.interrupt(o.att.AttachmentID, fmt.Errorf("canceled: sandbox %s takes its place: %w", s.att.ContainerID, ErrSuperseded))
		_, done, err := e.turns.take(ctx, o.att.AttachmentID)
		if err != nil {
			free()
			return nil, nil, fmt.Errorf("wait for the older sandbox %s: %w", o.att.ContainerID, err)
		}
		turns = append(turns, done)
		if e.session(o.att.AttachmentID) == o {
			older = append(older, o)
		}
	}
	return older, free, nil
}

// goOn lets the sessions go on that older has stopped: as they were, when the new
// sandbox did not come so far as to take their place.
func (e *Engine) goOn(older []*session) error {
	var err error
	for _, o := range older {
		switch o.rec.Phase {
		case Superseded:
		case "":
			e.remove(o)
		default:
			err = both(err, e.keep(o))
		}
	}
	return err
}

// sameClient tells whether two sessions serve the same interface and network of
// the same pod.
func (s *session) sameClient(o *session) bool {
	v, w := s.look(), o.look()
	return Record{Attachment: s.att, HardwareAddr: v.hardwareAddr, ClientID: v.clientID}.sameClient(
		Record{Attachment: o.att, HardwareAddr: w.hardwareAddr, ClientID: w.clientID})
}

// sameClient tells the same of two records.
func (r Record) sameClient(o Record) bool {
	switch {
	case r.Pod != o.Pod, r.Network != o.Network, r.IfName != o.IfName:
		return false
	case r.Pod.UID != "":
		return true
	}
	return r.IPAM && o.IPAM && r.sameIdentity(o)
}

// inherit takes over what an older sandbox of the pod held. Where the server
// takes both for one client, the lease is claimed, to be confirmed by
// INIT-REBOOT; otherwise it is given back first, so that the pod never holds two.
func (s *session) inherit(ctx context.Context, w *wire, prior Record) (_ *dhcp4.Lease, sent bool, _ error) {
	s.inherited = true
	if !prior.Lease.Addr.IsValid() {
		return nil, true, nil
	}
	s.before = prior.HardwareAddr
	if !s.knownAs(prior) {
		if !s.plan.Release { // the guest may have it
			return nil, true, nil
		}
		s.log.Info("lease of the older sandbox is given back: it was held under another identity",
			"address", prior.Lease.Addr.Addr(), "older", prior.ContainerID)
		sent = s.release(ctx, w, prior)
		return nil, sent, context.Cause(ctx)
	}
	return &prior.Lease, true, s.claim(prior.Lease)
}

// supersede ends the session in favour of a newer sandbox of its pod, which has
// taken over its lease or, when sent, given it back. Its record stays, so that its
// DEL is told from one of the new sandbox; where the lease could not be given back
// it waits in the outbox instead.
func (s *session) supersede(ctx context.Context, sent bool) {
	s.unconfigure(ctx)
	s.forgetPublished()
	switch {
	case !sent && (s.rec.Phase == Releasing || s.post(ctx)):
		return
	case s.rec.Phase == Releasing: // its DEL has come before
		s.forget()
		return
	}
	rec := s.rec
	rec.Phase, rec.Lease = Superseded, dhcp4.Lease{}
	if err := s.put(rec); err != nil {
		s.log.Warn("record of the older sandbox is not marked", "error", err)
		s.rec = rec
	}
	s.machine = nil
	s.show()
}

// knownAs tells whether a server takes this session's client for the one of
// rec: by option 61 where it is sent, otherwise by hardware address (RFC 2131,
// 4.2).
func (s *session) knownAs(rec Record) bool {
	if len(s.rec.ClientID) > 0 || len(rec.ClientID) > 0 {
		return bytes.Equal(s.rec.ClientID, rec.ClientID)
	}
	return bytes.Equal(s.rec.HardwareAddr, rec.HardwareAddr)
}
