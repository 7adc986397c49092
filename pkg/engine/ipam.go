package engine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine/api"
	"github.com/dhcp-meta/dhcp-meta/pkg/engine/network"
)

// An attachment with IPAM is one whose caller asked for an address, as a CNI plugin
// asks its IPAM plugin, and puts it on the interface itself when it has the answer.
// The engine leaves the interface alone until then: an address that is there already
// is an error to the caller. It looks for the address from the answer on, and once
// it is there the engine adopts it: it gets the lifetimes of the lease, its routes
// get it as their preferred source, and both are kept as if the engine had put them
// there. An address that never comes is leased, renewed and given back all the
// same: DHCP here needs none on the interface.

// The looks for the address: the first one soon after the answer, but late enough for
// a caller on a busy node, each further one after twice the wait, up to the last, which
// comes a minute later. From then on
// each renewal looks.
const (
	firstLook = 200 * time.Millisecond
	lastLooks = 9
	// secondLook comes after the address was found, for routes that were on their
	// way then.
	secondLook = time.Second
)

// placed tells whether what the lease says is on the interface by the engine's doing.
func (r Record) placed() bool { return !r.IPAM || r.Adopted }

// sameIdentity tells whether a server takes two records for one client. Where nobody
// tells pods, that is how a new sandbox is known: a plugin that keeps a pod's MAC
// keeps it over all of them.
func (r Record) sameIdentity(o Record) bool {
	return len(r.HardwareAddr) > 0 && bytes.Equal(r.HardwareAddr, o.HardwareAddr) && bytes.Equal(r.ClientID, o.ClientID)
}

// owned is an attachment with the pod whose interface it is, where its caller named
// none and the cluster can tell. OVN-Kubernetes asks so in its own DHCP mode
// (OKEP-6224): by a configuration that has the network's name and no more.
func (e *Engine) owned(ctx context.Context, a Attachment) (Attachment, error) {
	if e.cfg.Cluster == nil || !a.IPAM || a.Pod.Name != "" {
		return a, nil
	}
	if s := e.session(a.AttachmentID); s != nil && s.att.IPAM && s.att.Network == a.Network && s.att.Pod.Name != "" {
		a.Pod, a.NAD = s.att.Pod, s.att.NAD // the sandbox is the same
		return a, nil
	}
	link, err := e.cfg.Links.Inspect(ctx, a.Target())
	if err != nil {
		return a, api.WithCode(codeOfLook(ctx), err)
	}
	pod, nad, err := e.cfg.Cluster.Owner(ctx, a, link.HardwareAddr)
	switch {
	case errors.Is(err, ErrNoPod):
		return a, nil // its network's name is all that counts
	case err != nil:
		return a, api.WithCode(api.CodeTryAgain, err)
	}
	a.Pod, a.NAD = pod, nad
	return a, nil
}

// inheritSetup hands what prior has on its interface to the record of a new session
// there. Where a caller is going to put the address there, it goes first.
func (e *Engine) inheritSetup(ctx context.Context, rec *Record, prior Record) error {
	switch {
	case !prior.Setup.Addr.IsValid():
		return nil
	case !rec.IPAM:
		rec.Setup = prior.Setup // it may be on the interface still
		return nil
	}
	if err := e.cfg.Links.Clear(ctx, prior.Target(), prior.Setup); err != nil {
		return fmt.Errorf("take %s off before it comes again: %w", prior.Setup.Addr, err)
	}
	return nil
}

// sharedMACID is the policy for option 61 on an interface that shares its MAC, where
// the network names none: networks that ask for an IPAM plugin could not know that
// one is needed. It tells sandboxes apart.
const sharedMACID = "{container}/{network}/{interface}"

// forIPAM are the settings of an attachment with IPAM on its interface.
func forIPAM(s network.Settings, l Link) network.Settings {
	if sharesMAC(l) && !s.ClientIDSet {
		s.ClientID = sharedMACID
	}
	return s
}

// adoptPlaced tells whether the session is the one who configures the interface. For
// one with IPAM that becomes true when its address is found there, and is durable
// before anything is done.
func (s *session) adoptPlaced(ctx context.Context, fresh bool) (placed bool, err error) {
	if s.rec.placed() {
		return true, nil
	}
	if fresh && s.adding { // the caller has no answer yet
		s.looks = 0
		s.lookAt = s.cfg.Now().Add(firstLook)
		return false, nil
	}
	err = s.cfg.Links.Verify(ctx, s.rec.Target(), Setup{Addr: s.rec.Setup.Addr})
	switch {
	case errors.Is(err, ErrGone), context.Cause(ctx) != nil:
		return false, err
	case err != nil:
		return false, nil // not there yet
	}
	rec := s.rec
	rec.Adopted = true
	if err := s.put(rec); err != nil {
		s.trouble("address of the caller is not adopted", err)
		return false, nil
	}
	s.lookAt = s.cfg.Now().Add(secondLook)
	s.show()
	s.log.Info("address of the caller is adopted", "address", rec.Setup.Addr)
	return true, nil
}

// takeFromCaller looks for an address that is about to go, since its lease is over: a
// caller that was slow may have put it there since the last look, and it would stay
// for ever. What came with it is taken over first, so that all of it can be cleared.
func (s *session) takeFromCaller(ctx context.Context) (taken bool) {
	if s.adding { // the caller had no answer: what is there is not from it
		return false
	}
	if placed, _ := s.adoptPlaced(ctx, false); !placed {
		return false
	}
	setup := s.rec.Setup
	if err := s.cfg.Links.Configure(ctx, s.rec.Target(), setup, setup, lifetimeAt(s.rec.Lease, s.cfg.Now())); err != nil {
		s.trouble("interface is not configured as the lease says", err)
	}
	return true
}

// lookForAddress looks whether the caller has put the address on the interface; of
// one that was found before, whether something came after it.
func (s *session) lookForAddress(ctx context.Context) error {
	s.lookAt = time.Time{}
	if !s.rec.placed() {
		if s.looks++; s.looks < lastLooks {
			s.lookAt = s.cfg.Now().Add(firstLook << s.looks)
		}
	}
	return s.configure(ctx, s.rec.Setup, false)
}

// lookAgain looks soon, since the caller has asked again.
func (s *session) lookAgain() {
	if s.rec.IPAM && s.lookAt.IsZero() {
		s.looks = 0
		s.lookAt = s.cfg.Now().Add(firstLook)
	}
}
