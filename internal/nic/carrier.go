package nic

import (
	"context"
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine"
)

// minMTU is room for what a peer with a larger MTU than ours may send.
const minMTU = 1500

// Open implements engine.Links. The sockets are open before the carrier is
// there, so nothing that comes with it is missed.
func (l *Links) Open(ctx context.Context, t engine.Target) (engine.Port, error) {
	var o opening
	err := l.visit(ctx, t.Netns, func(ns engine.Netns) error {
		return o.open(engine.Target{Netns: ns, IfName: t.IfName})
	})
	defer o.close()
	if err != nil {
		return nil, err
	}
	if err := o.waitForCarrier(ctx); err != nil {
		return nil, err
	}
	p := o.port
	o.port = nil
	p.log = l.log.With("netns", t.Netns.Path, "interface", t.IfName)
	p.acd, p.calls = l.acd, l.calls
	p.start()
	return p, nil
}

// opening is what is open in a namespace until the port is ready.
type opening struct {
	k      *rtnl
	index  int
	events *nl.NetlinkSocket
	port   *port
}

// open brings the interface up and opens all sockets, in the namespace of the
// calling thread. What it has opened is for close, also after an error.
func (o *opening) open(t engine.Target) error {
	var err error
	if o.k, err = openRTNL(t); err != nil {
		return err
	}
	// Before the first look, so that no change falls between the two.
	if o.events, err = nl.Subscribe(unix.NETLINK_ROUTE, unix.RTNLGRP_LINK); err != nil {
		return o.k.wrap("watch", err)
	}
	link, err := o.k.link()
	if err != nil {
		return err
	}
	attrs := link.Attrs()
	if err := o.k.checkEthernet(attrs); err != nil {
		return err
	}
	o.index = attrs.Index
	if attrs.RawFlags&unix.IFF_UP == 0 {
		if err := retry(func() error { return o.k.LinkSetUp(link) }); err != nil {
			return o.k.wrap("set up", err)
		}
	}
	p := &port{ifName: t.IfName, mac: attrs.HardwareAddr, size: max(attrs.MTU, minMTU)}
	if err := p.listen(attrs.Index); err != nil {
		return o.k.wrap("open", err)
	}
	o.port = p
	return nil
}

func (o *opening) close() {
	if o.port != nil {
		o.port.ip.Close()
		o.port.arp.Close()
	}
	if o.events != nil {
		o.events.Close()
	}
	if o.k != nil {
		o.k.Close()
	}
}

// waitForCarrier returns when the interface can send, at once if it can
// already. Events only say when to look again; so none that is lost or for
// another interface does harm.
func (o *opening) waitForCarrier(ctx context.Context) error {
	stop := context.AfterFunc(ctx, o.events.Close)
	defer stop()
	for {
		var link netlink.Link
		err := retry(func() (err error) {
			link, err = o.k.LinkByIndex(o.index)
			return err
		})
		if err != nil {
			return o.k.wrap("look up", err)
		}
		if hasCarrier(link.Attrs().RawFlags) {
			return nil
		}
		_, _, err = o.events.Receive()
		switch {
		case ctx.Err() != nil:
			return &noCarrier{
				ifName: o.k.target.IfName,
				cause:  context.Cause(ctx),
			}
		case err == nil, errors.Is(err, unix.ENOBUFS), errors.Is(err, unix.EINTR):
		default:
			return o.k.wrap("watch", err)
		}
	}
}

// hasCarrier tells whether frames go out. LOWER_UP alone is too early: until
// the kernel has acted on it, which RUNNING tells, its queue drops all. RUNNING
// alone may be late to tell of a carrier that has just gone.
func hasCarrier(flags uint32) bool {
	const all = unix.IFF_UP | unix.IFF_LOWER_UP | unix.IFF_RUNNING
	return flags&all == all
}

// noCarrier is the error of an interface that did not come up in time.
type noCarrier struct {
	ifName string
	cause  error
}

func (e *noCarrier) Error() string {
	return fmt.Sprintf("%s has no carrier: is the other end of the link up?", e.ifName)
}

func (e *noCarrier) Unwrap() error { return e.cause }
