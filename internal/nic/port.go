package nic

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"

	"github.com/mdlayher/arp"
	"github.com/mdlayher/packet"
	"golang.org/x/sys/unix"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine"
	"github.com/dhcp-meta/dhcp-meta/pkg/engine/dhcp4"
)

// receivedRoom is how many replies may wait for the session, and how many ARP
// packets. Each server sends one; more are a broken network's.
const receivedRoom = 16

// port is an open interface. Its goroutines are readDHCP and readARP.
type port struct {
	ifName string
	// mac is the address at the time of Open; a later one is not this client's.
	mac     net.HardwareAddr
	size    int // of the largest datagram
	ip, arp *packet.Conn
	log     *slog.Logger

	acd acdTimes

	receivedC chan dhcp4.Received
	arpC      chan arp.Packet
	readers   sync.WaitGroup
	calls     chan struct{} // of Links
	id        uint16        // of the next IP datagram
	closed    bool
}

var _ engine.Port = (*port)(nil)

// listen opens the sockets of a port in the namespace of the calling thread.
// The interface must be up: a packet socket is deaf otherwise.
func (p *port) listen(index int) error {
	ifi := &net.Interface{Index: index, Name: p.ifName, HardwareAddr: p.mac}
	var err error
	if p.ip, err = listen(ifi, unix.ETH_P_IP, replyFilter(p.mac)); err != nil {
		return fmt.Errorf("open packet socket on %s: %w", p.ifName, err)
	}
	if p.arp, err = listen(ifi, unix.ETH_P_ARP, arpFilter(p.mac)); err != nil {
		p.ip.Close()
		return fmt.Errorf("open arp socket on %s: %w", p.ifName, err)
	}
	return nil
}

// start begins to receive.
func (p *port) start() {
	// All clients without an address send from 0.0.0.0, so a count of each port's
	// own would give many datagrams of a link the same id (RFC 6864, 4.1).
	p.id = uint16(rand.Uint32())
	p.receivedC = make(chan dhcp4.Received, receivedRoom)
	p.arpC = make(chan arp.Packet, receivedRoom)
	p.readers.Go(p.readDHCP)
	p.readers.Go(p.readARP)
}

// Received implements engine.Port. An interface that is set down counts as
// gone; one that loses its carrier does not.
func (p *port) Received() <-chan dhcp4.Received { return p.receivedC }

// readDHCP hands on replies until the socket is closed or the interface goes,
// of which the kernel tells by ENETDOWN once.
func (p *port) readDHCP() {
	defer close(p.receivedC)
	dropped := 0
	buf := make([]byte, p.size)
	for {
		n, _, err := p.ip.ReadFrom(buf)
		if err != nil {
			p.log.Debug("port ends", "err", err, "dropped", dropped)
			return
		}
		r, err := parseReply(buf[:n], p.mac)
		if err != nil {
			// The filter has seen that it is a reply for this client: a server is
			// there, and people look for it.
			r = dhcp4.Received{From: r.From, Err: err}
		}
		select {
		case p.receivedC <- r:
		default:
			// The session is busy with the ones before. Servers answer again
			// when they are asked again.
			dropped++
		}
	}
}

// Send implements engine.Port.
func (p *port) Send(ctx context.Context, s dhcp4.Send) error {
	if p.closed {
		return fmt.Errorf("send %s on %s: %w", s.Msg.MessageType(), p.ifName, net.ErrClosed)
	}
	src := addrOf(s.Msg.ClientIPAddr)
	if !src.IsValid() {
		src = netip.IPv4Unspecified()
	}
	dst, hw := netip.AddrFrom4([4]byte{255, 255, 255, 255}), broadcast()
	if s.To.IsValid() {
		mac, err := p.resolve(ctx, src, s.Via)
		if err != nil {
			return err
		}
		dst, hw = s.To, &packet.Addr{HardwareAddr: mac}
	}
	p.id++
	// The codec pads to the 300 bytes that BOOTP relays expect.
	if err := write(ctx, p.ip, datagram(src, dst, p.id, dhcp4.Encode(s.Msg)), hw); err != nil {
		return fmt.Errorf("send %s to %s on %s: %w", s.Msg.MessageType(), dst, p.ifName, err)
	}
	return nil
}

// Close implements engine.Port. It returns when the goroutines have ended; a
// second call does nothing.
func (p *port) Close() error {
	if p.closed {
		return nil
	}
	p.closed = true
	p.calls <- struct{}{}
	defer func() { <-p.calls }()
	err := errors.Join(p.ip.Close(), p.arp.Close())
	p.readers.Wait()
	return err
}
