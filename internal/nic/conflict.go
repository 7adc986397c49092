package nic

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"time"

	"github.com/mdlayher/arp"
)

// acdTimes are the times of address conflict detection, by their names in
// RFC 5227, 1.1.
type acdTimes struct {
	probeWait      time.Duration // PROBE_WAIT, at most, before the first probe
	probeNum       int           // PROBE_NUM
	probeMin       time.Duration // PROBE_MIN, from one probe to the next
	probeMax       time.Duration // PROBE_MAX
	announceWait   time.Duration // ANNOUNCE_WAIT, after the last probe
	defendInterval time.Duration // DEFEND_INTERVAL
	// fastWait is the wait after the one probe of the fast way, which the RFC
	// does not know.
	fastWait time.Duration
}

// rfc5227 returns the RFC's times. The fast wait is 250 ms because an ADD, in
// which somebody waits for a pod, may be delayed by 300 ms for it, and the rest
// is for sending and for a machine that starts sixty pods at once. A host on the
// same link answers within a few of these milliseconds; the RFC's seconds are
// for lost frames and for links that take a while to forward.
func rfc5227() acdTimes {
	return acdTimes{
		probeWait:      time.Second,
		probeNum:       3,
		probeMin:       time.Second,
		probeMax:       2 * time.Second,
		announceWait:   2 * time.Second,
		defendInterval: 10 * time.Second,
		fastWait:       250 * time.Millisecond,
	}
}

// waits returns how long to wait before each probe and, at last, for an answer.
// random returns a duration from 0 to below its argument.
func (t acdTimes) waits(full bool, random func(time.Duration) time.Duration) []time.Duration {
	if !full {
		return []time.Duration{0, t.fastWait}
	}
	w := []time.Duration{random(t.probeWait)}
	for range t.probeNum - 1 {
		w = append(w, t.probeMin+random(t.probeMax-t.probeMin))
	}
	return append(w, t.announceWait)
}

// Probe implements engine.Port. It returns as soon as another host is known, with
// the hardware address that this says it has, which need not be a station's.
// Full takes the RFC's 4 to 7 seconds, otherwise one probe is sent and answers
// are awaited for 250 ms. An error tells nothing of addr.
//
// What carries this interface's own hardware address is no conflict: fabrics
// that answer ARP in the place of their ports answer so for an address that was
// this port's before. Of a proxy that answers with its own for every address
// nothing can be known but that it claims addr.
//
// An ipvlan interface shares its parent's MAC, and its driver hands an answer on
// by the address that it is for, which in the answer to a probe is 0.0.0.0. So
// none arrives there, and addr always looks free.
func (p *port) Probe(ctx context.Context, addr netip.Addr, full bool) (owner net.HardwareAddr, err error) {
	owner, err = p.probe(ctx, addr, p.acd.waits(full, rand.N[time.Duration]))
	if err != nil {
		return nil, fmt.Errorf("probe %s on %s: %w", addr, p.ifName, err)
	}
	return owner, nil
}

func (p *port) probe(ctx context.Context, addr netip.Addr, waits []time.Duration) (net.HardwareAddr, error) {
	if p.closed {
		return nil, net.ErrClosed
	}
	request, err := arpRequest(p.mac, netip.IPv4Unspecified(), addr)
	if err != nil {
		return nil, err
	}
	contested := func(a arp.Packet) bool { return uses(a, p.mac, addr) || probes(a, p.mac, addr) }
	if err := setFilter(p.arp, probeFilter(p.mac, addr)); err != nil {
		return nil, err
	}
	owner, err := p.ask(ctx, request, waits, contested)
	if back := setFilter(p.arp, arpFilter(p.mac)); err == nil {
		err = back
	}
	return owner, err
}

// ask sends the request after each of waits but the last, and returns the sender
// of the first packet that ok takes, or nil after the last.
func (p *port) ask(ctx context.Context, request []byte, waits []time.Duration, ok func(arp.Packet) bool) (net.HardwareAddr, error) {
	timer := time.NewTimer(waits[0])
	defer timer.Stop()
	for _, next := range waits[1:] {
		if owner, err := p.await(ctx, timer.C, ok); owner != nil || err != nil {
			return owner, err
		}
		if err := write(ctx, p.arp, request, broadcast()); err != nil {
			return nil, err
		}
		timer.Reset(next)
	}
	return p.await(ctx, timer.C, ok)
}

// Announce implements engine.Port.
func (p *port) Announce(ctx context.Context, addr netip.Addr) error {
	if p.closed {
		return fmt.Errorf("announce %s on %s: %w", addr, p.ifName, net.ErrClosed)
	}
	announcement, err := arpRequest(p.mac, addr, addr)
	if err == nil {
		err = write(ctx, p.arp, announcement, broadcast())
	}
	if err != nil {
		return fmt.Errorf("announce %s on %s: %w", addr, p.ifName, err)
	}
	return nil
}

// uses tells whether the sender of a, which is not mac, says that it has addr:
// the conflict of RFC 5227, 2.1.1 and 2.4.
func uses(a arp.Packet, mac net.HardwareAddr, addr netip.Addr) bool {
	return isQuestionOrAnswer(a) && a.SenderIP == addr && !bytes.Equal(a.SenderHardwareAddr, mac)
}

// probes tells whether the sender of a, which is not mac, is about to use addr
// as well: the second conflict of RFC 5227, 2.1.1.
func probes(a arp.Packet, mac net.HardwareAddr, addr netip.Addr) bool {
	return a.Operation == arp.OperationRequest && a.SenderIP.IsUnspecified() && a.TargetIP == addr &&
		!bytes.Equal(a.SenderHardwareAddr, mac)
}

// isQuestionOrAnswer leaves out what only looks like ARP: RARP and InARP.
func isQuestionOrAnswer(a arp.Packet) bool {
	return a.Operation == arp.OperationRequest || a.Operation == arp.OperationReply
}
