package nic

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/mdlayher/arp"
	"github.com/mdlayher/packet"
)

const (
	// arpTries requests, arpInterval apart, make up the second for which Send
	// waits. A neighbour on the link answers in well under a millisecond; the
	// repetition is for one request that gets lost.
	arpTries    = 3
	arpInterval = 350 * time.Millisecond
)

// A neighbour is what an ARP reply says of its sender.
type neighbour struct {
	ip  netip.Addr
	mac net.HardwareAddr
}

// resolve asks who on the link has via. The kernel is not asked: with rp_filter
// or without a route it would not send the request, and it would ask with a
// source address of its choice, where only src tells the neighbour the address
// that it will answer to.
func (p *port) resolve(ctx context.Context, src, via netip.Addr) (net.HardwareAddr, error) {
	request, err := arp.NewPacket(arp.OperationRequest, p.mac, src, make(net.HardwareAddr, etherLen), via)
	if err != nil {
		return nil, fmt.Errorf("arp for %s on %s: %w", via, p.ifName, err)
	}
	b, err := request.MarshalBinary()
	if err != nil {
		return nil, fmt.Errorf("arp for %s on %s: %w", via, p.ifName, err)
	}
	timer := time.NewTicker(arpInterval)
	defer timer.Stop()
	for range arpTries {
		if err := p.write(ctx, p.arp, b, broadcast()); err != nil {
			return nil, fmt.Errorf("arp for %s on %s: %w", via, p.ifName, err)
		}
		mac, err := p.await(ctx, via, timer.C)
		if mac != nil || err != nil {
			return mac, err
		}
	}
	return nil, fmt.Errorf("arp: nobody answers for %s on %s", via, p.ifName)
}

// await returns the first answer for via, or nil when nextC comes before it.
func (p *port) await(ctx context.Context, via netip.Addr, nextC <-chan time.Time) (net.HardwareAddr, error) {
	for {
		select {
		case n, open := <-p.neighbourC:
			if !open {
				return nil, fmt.Errorf("arp for %s on %s: %w", via, p.ifName, net.ErrClosed)
			}
			if n.ip == via {
				return n.mac, nil
			}
		case <-nextC:
			return nil, nil
		case <-ctx.Done():
			return nil, fmt.Errorf("arp for %s on %s: %w", via, p.ifName, context.Cause(ctx))
		}
	}
}

// readARP hands on what neighbours answer, until the socket is closed or the
// interface goes. Answers that nobody waits for are dropped.
func (p *port) readARP() {
	defer close(p.neighbourC)
	buf := make([]byte, 128)
	for {
		n, _, err := p.arp.ReadFrom(buf)
		if err != nil {
			return
		}
		answer, ok := parseARP(buf[:n], p.mac)
		if !ok {
			continue
		}
		select {
		case p.neighbourC <- answer:
		default:
		}
	}
}

// parseARP takes an answer to mac out of an ARP packet, which may have padding
// behind it.
func parseARP(b []byte, mac net.HardwareAddr) (neighbour, bool) {
	var a arp.Packet
	if err := a.UnmarshalBinary(b); err != nil {
		return neighbour{}, false
	}
	ok := a.Operation == arp.OperationReply &&
		a.HardwareAddrLength == etherLen && a.IPLength == net.IPv4len &&
		bytes.Equal(a.TargetHardwareAddr, mac) && isStation(a.SenderHardwareAddr)
	return neighbour{ip: a.SenderIP, mac: a.SenderHardwareAddr}, ok
}

// isStation tells whether mac is the Ethernet address of one station.
func isStation(mac net.HardwareAddr) bool {
	return len(mac) == etherLen && mac[0]&1 == 0 && !bytes.Equal(mac, make([]byte, etherLen))
}

func broadcast() *packet.Addr {
	return &packet.Addr{HardwareAddr: bytes.Repeat([]byte{0xff}, etherLen)}
}
