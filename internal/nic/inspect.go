package nic

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine"
)

// etherLen is the length of an Ethernet address. DHCP over anything else would
// need another chaddr (RFC 2131, table 1), and is not offered.
const etherLen = 6

// Inspect implements engine.Links. Without the name of an interface only the
// namespace is looked at, and only Netns is filled in.
func (l *Links) Inspect(ctx context.Context, t engine.Target) (engine.Link, error) {
	k, err := l.dial(ctx, t)
	if err != nil {
		return engine.Link{}, err
	}
	defer k.Close()
	if t.IfName == "" {
		return engine.Link{Netns: k.target.Netns}, nil
	}
	link, err := k.link()
	if err != nil {
		return engine.Link{}, err
	}
	attrs := link.Attrs()
	return engine.Link{
		Netns:        k.target.Netns,
		HardwareAddr: attrs.HardwareAddr,
		MTU:          attrs.MTU,
		Kind:         link.Type(),
	}, nil
}

// Routes implements engine.Links: in order and each destination once, 0.0.0.0/0
// for a default route. They are those of the main table, blackholes too, without
// those that are there for the interface's own address or by DHCP on it.
func (l *Links) Routes(ctx context.Context, t engine.Target) ([]netip.Prefix, error) {
	k, err := l.dial(ctx, t)
	if err != nil {
		return nil, err
	}
	defer k.Close()
	link, err := k.link()
	if err != nil {
		return nil, err
	}
	routes, err := k.routes()
	if err != nil {
		return nil, err
	}
	return destinations(routes, link.Attrs().Index), nil
}

// destinations returns those of the routes that are not the own ones of the
// interface with the index link.
func destinations(routes []route, link int) []netip.Prefix {
	var all []netip.Prefix
	for _, r := range routes {
		own := r.link == link && (r.proto == unix.RTPROT_DHCP || r.proto == unix.RTPROT_KERNEL)
		if !own {
			all = append(all, r.dst)
		}
	}
	slices.SortFunc(all, netip.Prefix.Compare)
	return slices.Compact(all)
}

// The wait for an address that an older interface of the same parent still has.
// When a namespace goes, the kernel ends its interfaces some time later, and tells
// nobody in another one.
const (
	busyPoll  = 50 * time.Millisecond
	busyLimit = 5 * time.Second
)

// SetHardwareAddr implements engine.Links. The interface may be up if its
// driver changes the address of a running interface, as veth and macvlan do. An
// address that another interface has is waited for, for some seconds.
func (l *Links) SetHardwareAddr(ctx context.Context, t engine.Target, mac net.HardwareAddr) error {
	if !isStation(mac) {
		return fmt.Errorf("set address of %s: %q is no Ethernet address of one station", t.IfName, mac)
	}
	limit := time.After(busyLimit)
	for {
		err := l.setHardwareAddr(ctx, t, mac)
		if !errors.Is(err, unix.EADDRINUSE) {
			return err
		}
		select {
		case <-limit:
			return err
		case <-ctx.Done():
			return err
		case <-time.After(busyPoll):
			if ctx.Err() != nil {
				return err
			}
		}
	}
}

func (l *Links) setHardwareAddr(ctx context.Context, t engine.Target, mac net.HardwareAddr) error {
	k, err := l.dial(ctx, t)
	if err != nil {
		return err
	}
	defer k.Close()
	link, err := k.link()
	if err != nil {
		return err
	}
	if bytes.Equal(link.Attrs().HardwareAddr, mac) {
		return nil
	}
	err = retry(func() error { return k.LinkSetHardwareAddr(link, mac) })
	switch {
	case errors.Is(err, unix.EBUSY):
		// Taking it down for the change would lose routes that are not ours.
		return k.wrap("set address "+mac.String(), fmt.Errorf("the driver changes it only while the interface is down: %w", err))
	case errors.Is(err, unix.EADDRINUSE):
		return k.wrap("set address "+mac.String(), fmt.Errorf("another interface on the same parent has it: %w", err))
	case err != nil:
		return k.wrap("set address "+mac.String(), err)
	}
	return nil
}
