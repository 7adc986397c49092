package nic

import (
	"context"
	"fmt"
	"net"
	"time"

	"github.com/mdlayher/packet"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine"
)

// writeTimeout bounds a write that the device's queue holds up, for a ctx
// without a deadline.
const writeTimeout = time.Second

// listen opens a packet socket in the namespace of the calling thread. What it
// gives and takes begins behind the Ethernet header.
func listen(ifi *net.Interface, protocol int, program []bpf.Instruction) (*packet.Conn, error) {
	filter, err := assemble(program)
	if err != nil {
		return nil, err
	}
	c, err := packet.Listen(ifi, packet.Datagram, protocol, &packet.Config{Filter: filter})
	return c, lacking(unix.CAP_NET_RAW, err)
}

// listenOn opens a packet socket for a protocol on the interface of t, which it
// leaves as it is, with the filter that there is for its hardware address.
func (l *Links) listenOn(ctx context.Context, t engine.Target, protocol int, filter func(net.HardwareAddr) []bpf.Instruction) (s *packet.Conn, ifi *net.Interface, err error) {
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
		if s, err = listen(ifi, protocol, filter(attrs.HardwareAddr)); err != nil {
			return k.wrap("open packet socket on", err)
		}
		return nil
	})
	return s, ifi, err
}

// write sends a packet. It waits for no longer than writeTimeout, or ctx.
func write(ctx context.Context, c *packet.Conn, b []byte, to *packet.Addr) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	limit := time.Now().Add(writeTimeout)
	if d, ok := ctx.Deadline(); ok && d.Before(limit) {
		limit = d
	}
	if err := c.SetWriteDeadline(limit); err != nil {
		return err
	}
	_, err := c.WriteTo(b, to)
	return err
}

// assemble returns the program for a socket, which it keeps from what is for
// another host.
func assemble(program []bpf.Instruction) ([]bpf.RawInstruction, error) {
	filter, err := bpf.Assemble(forHost(program))
	if err != nil {
		return nil, fmt.Errorf("assemble filter: %w", err)
	}
	return filter, nil
}

// setFilter changes what the socket hears.
func setFilter(c *packet.Conn, program []bpf.Instruction) error {
	filter, err := assemble(program)
	if err != nil {
		return err
	}
	return c.SetBPF(filter)
}
