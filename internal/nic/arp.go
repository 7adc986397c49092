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
	"golang.org/x/sys/unix"
)

const (
	// arpTries requests, arpInterval apart, make up the second for which Send
	// waits. A neighbour on the link answers in well under a millisecond; the
	// repetition is for one request that gets lost.
	arpTries    = 3
	arpInterval = 350 * time.Millisecond
	// arpRoom is more than the 28 bytes of an ARP packet, and its padding.
	arpRoom = 128
)

// arpRequest returns a request from mac, with sender as the address that is said
// to be there, for target. The target's hardware address is left 0 (RFC 5227,
// 2.1.1, asks for it in a probe).
func arpRequest(mac net.HardwareAddr, sender, target netip.Addr) ([]byte, error) {
	request, err := arp.NewPacket(arp.OperationRequest, mac, sender, make(net.HardwareAddr, etherLen), target)
	if err != nil {
		return nil, err
	}
	return request.MarshalBinary()
}

// resolve asks who on the link has via. The kernel is not asked: with rp_filter
// or without a route it would not send the request, and it would ask with a
// source address of its choice, where only src tells the neighbour the address
// that it will answer to.
func (p *port) resolve(ctx context.Context, src, via netip.Addr) (net.HardwareAddr, error) {
	request, err := arpRequest(p.mac, src, via)
	if err != nil {
		return nil, fmt.Errorf("arp for %s on %s: %w", via, p.ifName, err)
	}
	timer := time.NewTicker(arpInterval)
	defer timer.Stop()
	for range arpTries {
		if err := write(ctx, p.arp, request, broadcast()); err != nil {
			return nil, fmt.Errorf("arp for %s on %s: %w", via, p.ifName, err)
		}
		mac, err := p.await(ctx, timer.C, func(a arp.Packet) bool { return answers(a, p.mac, via) })
		if err != nil {
			return nil, fmt.Errorf("arp for %s on %s: %w", via, p.ifName, err)
		}
		if mac != nil {
			return mac, nil
		}
	}
	return nil, fmt.Errorf("arp: nobody answers for %s on %s", via, p.ifName)
}

// await returns the sender of the first packet that ok takes, or nil when
// untilC comes before it.
func (p *port) await(ctx context.Context, untilC <-chan time.Time, ok func(arp.Packet) bool) (net.HardwareAddr, error) {
	for {
		select {
		case a, open := <-p.arpC:
			if !open {
				return nil, net.ErrClosed
			}
			if ok(a) {
				return a.SenderHardwareAddr, nil
			}
		case <-untilC:
			return p.waiting(ok), nil
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// waiting returns the sender of the first packet that ok takes of those that
// have arrived already, or nil. On a busy machine they may have been there
// before the end of the time for them.
func (p *port) waiting(ok func(arp.Packet) bool) net.HardwareAddr {
	for {
		select {
		case a, open := <-p.arpC:
			if !open {
				return nil
			}
			if ok(a) {
				return a.SenderHardwareAddr
			}
		default:
			return nil
		}
	}
}

// readARP hands on the ARP packets that the socket's filter passes, until the
// socket is closed or the interface goes. Those that nobody waits for are
// dropped.
func (p *port) readARP() {
	defer close(p.arpC)
	buf := make([]byte, arpRoom)
	for {
		n, _, err := p.arp.ReadFrom(buf)
		if err != nil {
			return
		}
		a, ok := parseARP(buf[:n])
		if !ok {
			continue
		}
		select {
		case p.arpC <- a:
		default:
		}
	}
}

// parseARP takes an ARP packet for IPv4 over Ethernet, which may have padding
// behind it. It keeps nothing of b.
func parseARP(b []byte) (arp.Packet, bool) {
	var a arp.Packet
	if err := a.UnmarshalBinary(b); err != nil {
		return arp.Packet{}, false
	}
	ok := a.ProtocolType == unix.ETH_P_IP && a.HardwareAddrLength == etherLen && a.IPLength == net.IPv4len
	return a, ok
}

// answers tells whether a tells mac where via is.
func answers(a arp.Packet, mac net.HardwareAddr, via netip.Addr) bool {
	return a.Operation == arp.OperationReply && a.SenderIP == via &&
		bytes.Equal(a.TargetHardwareAddr, mac) && isStation(a.SenderHardwareAddr)
}

// isStation tells whether mac is the Ethernet address of one station.
func isStation(mac net.HardwareAddr) bool {
	return len(mac) == etherLen && mac[0]&1 == 0 && !bytes.Equal(mac, make([]byte, etherLen))
}

func broadcast() *packet.Addr {
	return &packet.Addr{HardwareAddr: bytes.Repeat([]byte{0xff}, etherLen)}
}
