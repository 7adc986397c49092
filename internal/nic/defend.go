package nic

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine"
)

// Defend implements engine.Links by the rules of RFC 5227, 2.4 (b): a claim of
// another host to addr is answered by an announcement, and at another one within
// ten seconds the address is lost. It blocks until then, and returns an
// *engine.AddressConflict; or until ctx is done, and returns nil.
//
// Any other error means that nobody defends the address any more: ErrGone when
// the interface is no longer there, another when it was set down or could not
// send. It may be called again when the interface is up.
//
// It holds a socket, which keeps the namespace alive after all else has left it:
// ctx must be done when the attachment ends. Its goroutine is the caller's, and
// there is no thread.
func (l *Links) Defend(ctx context.Context, t engine.Target, addr netip.Addr) error {
	err := l.defend(ctx, t, addr)
	if err == nil || ctx.Err() != nil {
		return nil
	}
	return fmt.Errorf("defend %s on %s: %w", addr, t.IfName, err)
}

func (l *Links) defend(ctx context.Context, t engine.Target, addr netip.Addr) error {
	if !addr.Is4() {
		return errors.New("not an IPv4 address")
	}
	s, ifi, err := l.listenOn(ctx, t, unix.ETH_P_ARP, func(mac net.HardwareAddr) []bpf.Instruction { return useFilter(mac, addr) })
	if err != nil {
		return err
	}
	defer s.Close()
	stop := context.AfterFunc(ctx, func() { s.Close() })
	defer stop()
	announcement, err := arpRequest(ifi.HardwareAddr, addr, addr)
	if err != nil {
		return err
	}
	d := defence{interval: l.acd.defendInterval}
	buf := make([]byte, arpRoom)
	for {
		n, _, err := s.ReadFrom(buf)
		if err != nil {
			return l.whyDeaf(ctx, t, ifi.Index, err)
		}
		a, ok := parseARP(buf[:n])
		if !ok || !uses(a, ifi.HardwareAddr, addr) {
			continue
		}
		if d.lost(time.Now()) {
			return &engine.AddressConflict{Addr: addr, Owner: a.SenderHardwareAddr}
		}
		l.log.Warn("another host claims our address, announced ours",
			"netns", t.Netns.Path, "interface", t.IfName, "addr", addr, "owner", a.SenderHardwareAddr.String())
		if err := write(ctx, s, announcement, broadcast()); err != nil {
			return err
		}
	}
}

// A defence counts the claims of others to an address.
type defence struct {
	interval time.Duration // DEFEND_INTERVAL
	last     time.Time     // of the last claim; zero: none
}

// lost takes in a claim, and tells whether it is one too many.
func (d *defence) lost(now time.Time) bool {
	lost := !d.last.IsZero() && now.Sub(d.last) < d.interval
	d.last = now
	return lost
}

// whyDeaf returns the reason for an error of a socket that was bound to the
// interface. The kernel gives the same one for an interface that is set down and
// for one that is deleted.
func (l *Links) whyDeaf(ctx context.Context, t engine.Target, index int, err error) error {
	k, gone := l.dial(ctx, t)
	if gone != nil {
		return gone
	}
	defer k.Close()
	gone = retry(func() error {
		_, err := k.LinkByIndex(index)
		return err
	})
	if gone != nil {
		return k.wrap("look up", gone)
	}
	return err
}
