package engine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine/dhcp4"
	"github.com/dhcp-meta/dhcp-meta/pkg/engine/network"
)

// announceInterval is the time between the two announcements of an address
// (RFC 5227, 1.1, ANNOUNCE_INTERVAL).
const announceInterval = 2 * time.Second

// AddressConflict says that another host uses an address (RFC 5227).
type AddressConflict struct {
	Addr  netip.Addr
	Owner net.HardwareAddr
}

func (c *AddressConflict) Error() string {
	return fmt.Sprintf("%s is in use by another host, %s", c.Addr, c.Owner)
}

// probe looks whether another host uses an address that a server has just given,
// and returns what the machine is to know of it. Where it cannot look, the
// address counts as free: the server gave it, and the pod waits.
func (s *session) probe(ctx context.Context, w *wire, p dhcp4.Probe) (dhcp4.Event, error) {
	if w.port == nil {
		return dhcp4.Probed{}, nil
	}
	addr := p.Lease.Addr.Addr()
	owner, err := w.port.Probe(ctx, addr, s.settings.ConflictDetection == network.ConflictDetectionFull)
	if cause := context.Cause(ctx); cause != nil {
		return nil, cause
	}
	if err != nil {
		s.trouble("address is not probed", err)
	}
	if len(owner) > 0 && s.isGhost(owner) {
		s.log.Debug("an older sandbox still answers for the address", "address", addr, "owner", owner.String())
		owner = nil
	}
	if len(owner) > 0 {
		s.conflicted(&AddressConflict{addr, owner}, p.Lease.Server)
	}
	return dhcp4.Probed{Owner: owner}, nil
}

// isGhost tells whether a hardware address is that of a sandbox of ours that has
// ended. When a namespace goes, the kernel ends its interfaces some time later, and
// until then they answer (B84).
func (s *session) isGhost(owner net.HardwareAddr) bool {
	if bytes.Equal(owner, s.before) {
		return true
	}
	return slices.ContainsFunc(s.engine.all(), func(o *session) bool {
		v := o.look()
		switch v.phase {
		case Orphaned, Superseded, Releasing:
			return o.att.Network == s.att.Network && bytes.Equal(v.hardwareAddr, owner)
		}
		return false
	})
}

// conflicted tells people of a conflict.
func (s *session) conflicted(c *AddressConflict, server netip.Addr) {
	s.cfg.Metrics.conflicts.Inc()
	s.tally.conflict = c
	s.log.Warn("address is in use by another host, declining it", "address", c.Addr, "owner", c.Owner.String(), "server", server)
	s.report(ConflictFound, fmt.Sprintf("%s; the DHCP server %s gave it all the same", c, server))
}

// announceAddr tells the neighbours whose the address is now, so that they forget
// who had it before (RFC 5227, 2.3). Nothing hangs on it.
func (s *session) announceAddr(ctx context.Context, w *wire) {
	if w.port == nil || !s.rec.placed() || !s.rec.Setup.Addr.IsValid() {
		return
	}
	if err := w.port.Announce(ctx, s.rec.Setup.Addr.Addr()); err != nil {
		s.log.Debug("address is not announced", "error", err)
	}
	s.announceAt = time.Time{}
	if s.settings.ConflictDetection == network.ConflictDetectionFull {
		s.announceAt = s.cfg.Now().Add(announceInterval)
	}
}

// announceAgain is the second announcement.
func (s *session) announceAgain(ctx context.Context) error {
	s.announceAt = time.Time{}
	ctx, cancel := context.WithTimeout(ctx, announceInterval)
	defer cancel()
	w := s.newWire()
	defer w.close()
	if err := w.openNow(ctx); err != nil {
		if errors.Is(err, ErrGone) {
			return err
		}
		return nil // no carrier: whoever comes up will ask
	}
	if err := w.port.Announce(ctx, s.rec.Setup.Addr.Addr()); err != nil {
		s.log.Debug("address is not announced again", "error", err)
	}
	return nil
}

// defend watches over the address of a network that asks for it, until ctx ends.
// What comes on the channel is how that ended.
func (s *session) defend(ctx context.Context) <-chan error {
	if !s.rec.Setup.Addr.IsValid() {
		return nil
	}
	target, addr := s.rec.Target(), s.rec.Setup.Addr.Addr()
	endC := make(chan error, 1)
	go func() { endC <- s.cfg.Links.Defend(ctx, target, addr) }()
	return endC
}
