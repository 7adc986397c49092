package nic

import (
	"bytes"
	"context"
	"errors"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/mdlayher/arp"
	"golang.org/x/sys/unix"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine/dhcp4"
)

// quick are times for tests in which nothing is to be found: the RFC's order
// without its seconds.
func quick() acdTimes {
	return acdTimes{
		probeWait: 2 * time.Millisecond, probeNum: 3, probeMin: time.Millisecond, probeMax: 2 * time.Millisecond,
		announceWait: 50 * time.Millisecond, defendInterval: time.Hour, fastWait: 50 * time.Millisecond,
	}
}

// endless are times for tests in which something is to be found: a probe that
// does not return with it does not return.
func endless() acdTimes {
	return acdTimes{
		probeWait: 2 * time.Millisecond, probeNum: 3, probeMin: time.Millisecond, probeMax: 2 * time.Millisecond,
		announceWait: time.Hour, defendInterval: time.Hour, fastWait: time.Hour,
	}
}

// acdPort opens a port with the given times.
func (r *rig) acdPort(times acdTimes) *port {
	r.t.Helper()
	r.links.acd = times
	p, ok := r.open().(*port)
	if !ok {
		r.t.Fatal("not a port of ours")
	}
	return p
}

// arpFrom tells whether the frame is ARP from mac.
func arpFrom(mac net.HardwareAddr) func([]byte) bool {
	return func(f []byte) bool {
		return len(f) >= 42 && bytes.Equal(f[6:12], mac) && bytes.Equal(f[12:14], []byte{8, 6})
	}
}

// answer answers the next ARP packet of mac with the given ones, from a host
// with their hardware address.
func (w *tap) answer(mac net.HardwareAddr, packets ...[]byte) {
	w.t.Helper()
	w.until("arp packet", arpFrom(mac))
	for _, b := range packets {
		w.send(allMAC, b[arpSenderHardware:arpSenderHardware+etherLen], unix.ETH_P_ARP, b)
	}
}

var allMAC = net.HardwareAddr{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}

func probe(t testing.TB, p *port, full bool) net.HardwareAddr {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	owner, err := p.Probe(ctx, clientIP, full)
	if err != nil {
		t.Fatalf("Probe: %v", err)
	}
	return owner
}

func wantOwner(t testing.TB, want, got net.HardwareAddr) {
	t.Helper()
	if got.String() != want.String() {
		t.Errorf("owner is %q, want %q", got, want)
	}
}

// eachWay runs a test on each kind of interface with each kind of probe.
func eachWay(t *testing.T, test func(t *testing.T, r *rig, full bool)) {
	for name, full := range map[string]bool{"fast": false, "full": true} {
		t.Run(name, func(t *testing.T) {
			eachKind(t, func(t *testing.T, r *rig) { test(t, r, full) })
		})
	}
}

// U18: a kernel that has the address answers, and the probe returns at once.
func TestProbeFindsOwnerU18(t *testing.T) {
	eachWay(t, func(t *testing.T, r *rig, full bool) {
		r.inWorld("addr", "add", clientIP.String()+"/24", "dev", "v0")
		p := r.acdPort(endless())
		wantOwner(t, r.worldMAC(), probe(t, p, full))
	})
}

// U18: nobody has the address. What is on the wire is what RFC 5227, 2.1.1, asks
// for, and no neighbour learns from it.
func TestProbeFindsNobodyU18(t *testing.T) {
	eachWay(t, func(t *testing.T, r *rig, full bool) {
		times := quick()
		if !full {
			times = rfc5227()
		}
		w := r.tap()
		p := r.acdPort(times)
		mac := r.podMAC()
		wantOwner(t, nil, probe(t, p, full))
		if err := p.Send(t.Context(), dhcp4.Send{Msg: message(t, dhcpv4.MessageTypeDiscover, mac, anyIP)}); err != nil {
			t.Fatal(err)
		}
		var got [][]byte
		w.until("DISCOVER", func(f []byte) bool {
			if arpFrom(mac)(f) {
				got = append(got, bytes.Clone(f[:42]))
			}
			return dhcpFrom(mac)(f)
		})
		want := bytes.Join([][]byte{
			allMAC, mac, {8, 6}, arpPacket(t, arp.OperationRequest, mac, anyIP, noMAC, clientIP),
		}, nil)
		wants := [][]byte{want}
		if full {
			wants = [][]byte{want, want, want}
		}
		if diff := cmp.Diff(wants, got); diff != "" {
			t.Errorf("probes (-want +got):\n%s", diff)
		}
	})
}

// U18: a router with proxy ARP for the whole network leaves probes alone.
func TestProbeProxyARPU18(t *testing.T) {
	r := newRig(t)
	r.inWorld("addr", "del", "10.77.0.1/24", "dev", "v0")
	r.inWorld("addr", "add", "10.77.0.1/32", "dev", "v0")
	r.inWorld("link", "add", "far", "type", "bridge")
	r.inWorld("link", "set", "far", "up")
	r.inWorld("route", "add", clientIP.String()+"/32", "dev", "far")
	r.inWorld("route", "add", "10.77.0.77/32", "dev", "v0")
	r.sysctlIn(r.world, "net/ipv4/conf/v0/proxy_arp", "1")
	r.sysctlIn(r.world, "net/ipv4/neigh/v0/proxy_delay", "0")
	r.sysctlIn(r.world, "net/ipv4/conf/all/forwarding", "1")
	p := r.acdPort(quick())
	// The proxy is there: it answers an ordinary question.
	mac, err := p.resolve(t.Context(), netip.MustParseAddr("10.77.0.77"), clientIP)
	if err != nil {
		t.Fatal(err)
	}
	wantOwner(t, r.worldMAC(), mac)
	wantOwner(t, nil, probe(t, p, true))
}

// U18: a fabric that answers in our place, with our own hardware address, has
// found nobody else. Another who answers after it is found.
func TestProbeARPSuppressionU18(t *testing.T) {
	eachKind(t, func(t *testing.T, r *rig) {
		w := r.tap()
		p := r.acdPort(quick())
		mac := r.podMAC()
		own := arpPacket(t, arp.OperationReply, mac, clientIP, mac, anyIP)
		other := arpPacket(t, arp.OperationReply, otherMAC, clientIP, mac, anyIP)
		suppress := func(packets ...[]byte) {
			w.until("probe", arpFrom(mac))
			for _, b := range packets {
				w.send(mac, otherMAC, unix.ETH_P_ARP, b)
			}
		}
		go suppress(own)
		wantOwner(t, nil, probe(t, p, true))
		p.acd = endless()
		go suppress(own, own, other)
		wantOwner(t, otherMAC, probe(t, p, true))
	})
}

// U18: each kind of conflict ends the probe, also one that comes before the
// first probe leaves; what is none does not.
func TestProbeConflictsU18(t *testing.T) {
	r := newRig(t)
	w := r.tap()
	p := r.acdPort(endless())
	mac, third := r.podMAC(), net.HardwareAddr{2, 0xaa, 0xbb, 0xcc, 0xdd, 3}
	noise := [][]byte{
		arpPacket(t, arp.OperationRequest, third, anyIP, noMAC, serverIP),
		arpPacket(t, arp.OperationRequest, third, serverIP, noMAC, clientIP),
		arpPacket(t, arp.OperationReply, third, serverIP, mac, anyIP),
	}
	for _, tt := range []struct {
		name   string
		packet []byte
	}{
		{"answer", arpPacket(t, arp.OperationReply, otherMAC, clientIP, mac, anyIP)},
		{"announcement", arpPacket(t, arp.OperationRequest, otherMAC, clientIP, noMAC, clientIP)},
		{"simultaneous probe", arpPacket(t, arp.OperationRequest, otherMAC, anyIP, noMAC, clientIP)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			go w.answer(mac, append(noise, tt.packet)...)
			wantOwner(t, otherMAC, probe(t, p, false))
		})
	}
	t.Run("before the first probe", func(t *testing.T) {
		p.acd.probeWait = 1000 * time.Hour
		var sender sync.WaitGroup
		defer sender.Wait()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		sender.Go(func() {
			// Again and again, since until the probe listens nobody hears it.
			for ctx.Err() == nil {
				w.send(allMAC, otherMAC, unix.ETH_P_ARP, arpPacket(t, arp.OperationRequest, otherMAC, clientIP, noMAC, clientIP))
			}
		})
		wantOwner(t, otherMAC, probe(t, p, true))
	})
}

func TestProbeEnds(t *testing.T) {
	t.Run("with the context", func(t *testing.T) {
		r := newRig(t)
		w := r.tap()
		p := r.acdPort(endless())
		ctx, cancel := context.WithCancel(t.Context())
		mac := r.podMAC()
		go func() {
			w.until("probe", arpFrom(mac))
			cancel()
		}()
		if owner, err := p.Probe(ctx, clientIP, false); !errors.Is(err, context.Canceled) || owner != nil {
			t.Fatalf("Probe: %v, %v", owner, err)
		}
	})
	t.Run("with the interface", func(t *testing.T) {
		r := newRig(t)
		w := r.tap()
		p := r.acdPort(endless())
		mac := r.podMAC()
		go func() {
			w.until("probe", arpFrom(mac))
			r.inPod("link", "del", "net1")
		}()
		if owner, err := p.Probe(t.Context(), clientIP, false); !errors.Is(err, net.ErrClosed) || owner != nil {
			t.Fatalf("Probe: %v, %v", owner, err)
		}
	})
	t.Run("when closed", func(t *testing.T) {
		p := newRig(t).acdPort(endless())
		p.Close()
		if _, err := p.Probe(t.Context(), clientIP, false); !errors.Is(err, net.ErrClosed) {
			t.Errorf("Probe: %v", err)
		}
		if err := p.Announce(t.Context(), clientIP); !errors.Is(err, net.ErrClosed) {
			t.Errorf("Announce: %v", err)
		}
	})
	t.Run("without an IPv4 address", func(t *testing.T) {
		p := newRig(t).acdPort(endless())
		if _, err := p.Probe(t.Context(), netip.IPv6Loopback(), false); err == nil {
			t.Error("Probe: no error")
		}
		if err := p.Announce(t.Context(), netip.IPv6Loopback()); err == nil {
			t.Error("Announce: no error")
		}
	})
}

// A port is as good after a probe as before: it still hears its next hop, and
// no conflict of then.
func TestSendAfterProbe(t *testing.T) {
	r := newRig(t)
	r.inWorld("addr", "add", clientIP.String()+"/24", "dev", "v0")
	w := r.tap()
	p := r.acdPort(endless())
	mac := r.podMAC()
	for range 2 {
		wantOwner(t, r.worldMAC(), probe(t, p, false))
		msg := message(t, dhcpv4.MessageTypeDecline, mac, anyIP)
		if err := p.Send(t.Context(), dhcp4.Send{Msg: msg, To: serverIP, Via: serverIP}); err != nil {
			t.Fatal(err)
		}
		w.until("DECLINE", dhcpFrom(mac))
	}
}

// RFC 5227, 2.3: an announcement is a request by broadcast for the own address.
func TestAnnounce(t *testing.T) {
	eachKind(t, func(t *testing.T, r *rig) {
		w := r.tap()
		p := r.acdPort(rfc5227())
		mac := r.podMAC()
		if err := p.Announce(t.Context(), clientIP); err != nil {
			t.Fatal(err)
		}
		want := bytes.Join([][]byte{
			allMAC, mac, {8, 6}, arpPacket(t, arp.OperationRequest, mac, clientIP, noMAC, clientIP),
		}, nil)
		if diff := cmp.Diff(want, w.until("announcement", arpFrom(mac))[:42]); diff != "" {
			t.Errorf("frame (-want +got):\n%s", diff)
		}
	})
}

// Field cases B85 and B87, for probes.
func TestProbesPileNothingUpB85B87(t *testing.T) {
	r := newRig(t)
	r.inWorld("addr", "add", clientIP.String()+"/24", "dev", "v0")
	want := r.worldMAC()
	p := r.acdPort(endless())
	once := func() {
		wantOwner(t, want, probe(t, p, true))
		if err := p.Announce(t.Context(), clientIP); err != nil {
			t.Fatal(err)
		}
	}
	once()
	goroutines, threads, descriptors := usage(t)
	for range 1000 {
		once()
	}
	const slack = 20
	g, th, d := usage(t)
	if g > goroutines+slack || th > threads+slack || d > descriptors+slack {
		t.Errorf("after 1000 probes: goroutines %d to %d, threads %d to %d, descriptors %d to %d",
			goroutines, g, threads, th, descriptors, d)
	}
}
