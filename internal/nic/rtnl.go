package nic

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine"
)

const (
	// rtnlTimeout ends the wait for an answer of the kernel. It answers before
	// the request returns, unless the socket's buffer ran over.
	rtnlTimeout = 10 * time.Second
	// rtnlTries is how often a dump is repeated that something else changed
	// while it was read.
	rtnlTries = 10
)

// rtnl is a netlink handle in the namespace of a target.
type rtnl struct {
	*netlink.Handle
	target engine.Target
	done   func() // with the handle; nil: nothing to do
}

// Close ends the handle.
func (k *rtnl) Close() {
	k.Handle.Close()
	if k.done != nil {
		k.done()
	}
}

// openRTNL opens a handle in the namespace of the calling thread.
func openRTNL(t engine.Target) (*rtnl, error) {
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open netlink in %s: %w", t.Netns.Path, err)
	}
	if err := h.SetSocketTimeout(rtnlTimeout); err != nil {
		h.Close()
		return nil, fmt.Errorf("open netlink in %s: %w", t.Netns.Path, err)
	}
	return &rtnl{Handle: h, target: t}, nil
}

// dial opens a handle in the namespace of t for a call; the caller closes it.
func (l *Links) dial(ctx context.Context, t engine.Target) (k *rtnl, err error) {
	done, err := take(ctx, l.calls)
	if err != nil {
		return nil, fmt.Errorf("open netlink in %s: %w", t.Netns.Path, err)
	}
	err = l.visit(ctx, t.Netns, func(ns engine.Netns) error {
		k, err = openRTNL(engine.Target{Netns: ns, IfName: t.IfName})
		return err
	})
	if err != nil {
		done()
		return nil, err
	}
	k.done = done
	return k, nil
}

// link returns the target's interface.
func (k *rtnl) link() (netlink.Link, error) {
	var link netlink.Link
	err := retry(func() (err error) {
		link, err = k.LinkByName(k.target.IfName)
		return err
	})
	if err != nil {
		return nil, k.wrap("look up", err)
	}
	return link, nil
}

// checkEthernet refuses an interface that is not Ethernet.
func (k *rtnl) checkEthernet(attrs *netlink.LinkAttrs) error {
	if attrs.EncapType != "ether" || len(attrs.HardwareAddr) != etherLen {
		return k.wrap("open", fmt.Errorf("link type %s is not Ethernet", attrs.EncapType))
	}
	return nil
}

// wrap names the interface in err, and the reason when that is that it is no
// longer there.
func (k *rtnl) wrap(what string, err error) error {
	at := k.target.IfName + " in " + k.target.Netns.Path
	if errors.As(err, &netlink.LinkNotFoundError{}) || errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("%s %s: %w", what, at, engine.ErrGone)
	}
	return fmt.Errorf("%s %s: %w", what, at, lacking(unix.CAP_NET_ADMIN, err))
}

// retry repeats a request that a signal or a change beside it interrupted. Each
// request here may be repeated, also one that was carried out.
func retry(request func() error) error {
	var err error
	for range rtnlTries {
		err = request()
		if !errors.Is(err, unix.EINTR) && !errors.Is(err, netlink.ErrDumpInterrupted) {
			return err
		}
	}
	return err
}
