package nic

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/mdlayher/packet"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine"
)

// Conflict is the error of an address that another host uses.
type Conflict struct {
	Addr netip.Addr
	// Owner is the hardware address that the other host says it has.
	Owner net.HardwareAddr
}

func (e *Conflict) Error() string {
	return fmt.Sprintf("address %s is used by another host (%s)", e.Addr, e.Owner)
}

// Defend holds addr, which the interface carries, against other hosts by the
// rules of RFC 5227, 2.4 (b): the first that claims it is told by an
// announcement that it is taken, and at another claim within ten seconds the
// address is lost. It blocks until then, and returns a *Conflict; or until ctx
// is done, and returns nil.
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
	s, ifi, err := l.listenARP(ctx, t, func(mac net.HardwareAddr) []bpf.Instruction { return useFilter(mac, addr) })
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
			return &Conflict{Addr: addr, Owner: a.SenderHardwareAddr}
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

// listenARP opens a socket on the interface of t with the filter that there is
// for its hardware address. Nothing on the interface is changed.
func (l *Links) listenARP(ctx context.Context, t engine.Target, filter func(net.HardwareAddr) []bpf.Instruction) (s *packet.Conn, ifi *net.Interface, err error) {
	err = l.visit(ctx, t.Netns, func(ns engine.Netns) error {
		k, err := openRTNL(engine.Target{Netns: ns, IfName: t.IfName})
		if err != nil {
			return err
		}
		defer k.Close()
		link, err := k.link()
		if err != nil {
			return err
		}
		attrs := link.Attrs()
		if err := k.checkEthernet(attrs); err != nil {
			return err
		}
		ifi = &net.Interface{Index: attrs.Index, Name: attrs.Name, HardwareAddr: attrs.HardwareAddr}
		if s, err = listen(ifi, unix.ETH_P_ARP, filter(attrs.HardwareAddr)); err != nil {
			return k.wrap("open arp socket on", err)
		}
		return nil
	})
	return s, ifi, err
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
