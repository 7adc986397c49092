package nic

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"regexp"
	"runtime"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/mdlayher/arp"
	"golang.org/x/sys/unix"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine"
	"github.com/dhcp-meta/dhcp-meta/pkg/engine/dhcp4"
)

// A guard is a Defend of addr that runs.
type guard struct {
	t      testing.TB
	tap    *tap
	mac    net.HardwareAddr // of the interface
	addr   netip.Addr
	cancel context.CancelFunc
	errC   chan error
}

// defend starts to defend clientIP on net1, which it sets up, and returns when
// a claim would be heard.
func (r *rig) defend(interval time.Duration) *guard {
	r.t.Helper()
	r.links.acd.defendInterval = interval
	r.up()
	r.answering()
	g := r.guard(r.tap(), clientIP)
	r.listening(1)
	return g
}

func (r *rig) guard(w *tap, addr netip.Addr) *guard {
	r.t.Helper()
	ctx, cancel := context.WithCancel(r.t.Context())
	g := &guard{t: r.t, tap: w, mac: r.podMAC(), addr: addr, cancel: cancel, errC: make(chan error, 1)}
	doneC := make(chan struct{})
	go func() {
		defer close(doneC)
		g.errC <- r.links.Defend(ctx, r.target, addr)
	}()
	r.t.Cleanup(func() {
		cancel()
		<-doneC
	})
	return g
}

// claim sends a packet of somebody else.
func (g *guard) claim(packet []byte) {
	g.t.Helper()
	g.tap.send(allMAC, otherMAC, unix.ETH_P_ARP, packet)
}

// announced waits for an announcement.
func (g *guard) announced() {
	g.t.Helper()
	f := g.tap.until("announcement", arpFrom(g.mac))
	if diff := cmp.Diff(arpPacket(g.t, arp.OperationRequest, g.mac, g.addr, noMAC, g.addr), f[14:42]); diff != "" {
		g.t.Errorf("announcement (-want +got):\n%s", diff)
	}
}

// listening waits until n ARP sockets run in the pod. Nothing tells of them but
// the list.
func (r *rig) listening(n int) {
	r.t.Helper()
	running := regexp.MustCompile(`(?m)^\w+ +\d+ +\d+ +0806 +\d+ +1 `)
	for deadline := time.Now().Add(patience); ; {
		var list []byte
		r.visit(r.pod, func() (err error) {
			list, err = os.ReadFile("/proc/thread-self/net/packet")
			return err
		})
		if len(running.FindAll(list, -1)) == n {
			return
		}
		if time.Now().After(deadline) {
			r.t.Fatalf("want %d arp sockets:\n%s", n, list)
		}
		runtime.Gosched()
	}
}

// end returns what Defend returned.
func (g *guard) end() error {
	g.t.Helper()
	select {
	case err := <-g.errC:
		return err
	case <-time.After(patience):
		g.t.Fatal("Defend does not return")
	}
	panic("unreachable")
}

func claims(t testing.TB) map[string][]byte {
	return map[string][]byte{
		"announcement": arpPacket(t, arp.OperationRequest, otherMAC, clientIP, noMAC, clientIP),
		"question":     arpPacket(t, arp.OperationRequest, otherMAC, clientIP, noMAC, serverIP),
		"answer":       arpPacket(t, arp.OperationReply, otherMAC, clientIP, otherMAC, serverIP),
	}
}

// RFC 5227, 2.4 (b): the second claim within DEFEND_INTERVAL takes the address.
func TestDefendGivesUp(t *testing.T) {
	for name, claim := range claims(t) {
		t.Run(name, func(t *testing.T) {
			eachKind(t, func(t *testing.T, r *rig) {
				g := r.defend(time.Hour)
				g.claim(claim)
				g.announced()
				g.claim(claim)
				err := g.end()
				var conflict *engine.AddressConflict
				if !errors.As(err, &conflict) {
					t.Fatalf("err = %v, want a conflict", err)
				}
				want := &engine.AddressConflict{Addr: clientIP, Owner: otherMAC}
				if diff := cmp.Diff(want, conflict, cmpopts.EquateComparable(netip.Addr{})); diff != "" {
					t.Errorf("conflict (-want +got):\n%s", diff)
				}
				if want := "defend 10.77.0.50 on net1: " + want.Error(); err.Error() != want {
					t.Errorf("err = %v, want %s", err, want)
				}
			})
		})
	}
}

// RFC 5227, 2.4 (b): claims that are far enough apart are each told off by an
// announcement.
func TestDefendGoesOn(t *testing.T) {
	eachKind(t, func(t *testing.T, r *rig) {
		g := r.defend(time.Nanosecond)
		for _, claim := range claims(t) {
			g.claim(claim)
			g.announced()
		}
		g.cancel()
		if err := g.end(); err != nil {
			t.Fatalf("err = %v, want nil", err)
		}
	})
}

// What is no claim, or carries our own hardware address, neither takes the
// address nor is told off.
func TestDefendLeavesOthersAlone(t *testing.T) {
	eachKind(t, func(t *testing.T, r *rig) {
		g := r.defend(time.Hour)
		for _, none := range [][]byte{
			arpPacket(t, arp.OperationRequest, otherMAC, anyIP, noMAC, clientIP),
			arpPacket(t, arp.OperationRequest, otherMAC, serverIP, noMAC, clientIP),
			arpPacket(t, arp.OperationReply, g.mac, clientIP, otherMAC, serverIP),
			edit(claims(t)["answer"], 7, 9),
		} {
			g.claim(none)
		}
		// Had one of them counted, this would be the second.
		claim := claims(t)["question"]
		g.claim(claim)
		g.announced()
		g.claim(claim)
		var conflict *engine.AddressConflict
		if err := g.end(); !errors.As(err, &conflict) {
			t.Fatalf("err = %v, want a conflict", err)
		}
		// And this the first.
		second := message(t, dhcpv4.MessageTypeDiscover, g.mac, anyIP)
		if err := r.open().Send(t.Context(), dhcp4.Send{Msg: second}); err != nil {
			t.Fatal(err)
		}
		g.tap.until("DISCOVER", func(f []byte) bool {
			if arpFrom(g.mac)(f) {
				t.Errorf("a second announcement: %x", f)
			}
			return dhcpFrom(g.mac)(f)
		})
	})
}

func TestDefendEndsWithInterface(t *testing.T) {
	claim := claims(t)["question"]
	for _, tt := range []struct {
		name string
		end  func(*rig)
		gone bool
	}{
		{"interface deleted", func(r *rig) { r.inPod("link", "del", "net1") }, true},
		{"interface made anew", func(r *rig) {
			r.inPod("link", "del", "net1")
			r.inPod("link", "add", "net1", "type", "bridge")
		}, true},
		{"set down", func(r *rig) { r.inPod("link", "set", "net1", "down") }, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			eachKind(t, func(t *testing.T, r *rig) {
				g := r.defend(time.Nanosecond)
				g.claim(claim)
				g.announced()
				tt.end(r)
				err := g.end()
				if errors.Is(err, engine.ErrGone) != tt.gone || !tt.gone && !errors.Is(err, unix.ENETDOWN) {
					t.Fatalf("err = %v", err)
				}
			})
		})
	}
}

func TestDefendCannotStart(t *testing.T) {
	r := newRig(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := r.links.Defend(ctx, r.target, clientIP); err != nil {
		t.Errorf("canceled: %v", err)
	}
	if err := r.links.Defend(t.Context(), r.target, clientIP); !errors.Is(err, unix.ENETDOWN) || errors.Is(err, engine.ErrGone) {
		t.Errorf("down: %v", err)
	}
	r.target.IfName = "net9"
	wantGone(t, r.links.Defend(t.Context(), r.target, clientIP))
	r.target.IfName = "lo"
	if err := r.links.Defend(t.Context(), r.target, clientIP); err == nil {
		t.Error("lo: no error")
	}
	r.target.Netns.Path += "-none"
	wantGone(t, r.links.Defend(t.Context(), r.target, clientIP))
}

// A defence that has ended lets go of the namespace.
func TestDefendLetsNamespaceEnd(t *testing.T) {
	r := newRig(t)
	g := r.defend(time.Nanosecond)
	g.claim(claims(t)["answer"])
	g.announced()
	m := r.monitor(r.world)
	ip(t, "netns", "del", r.podName)
	g.cancel()
	if err := g.end(); err != nil {
		t.Fatal(err)
	}
	m.until("end of v0", func(e event) bool { return e.kind == unix.RTM_DELLINK && e.name == "v0" })
}

// Field cases B85 and B87: a defence costs a socket and a goroutine while it
// lasts, no thread, and nothing after it.
func TestDefencesCostLittleB85B87(t *testing.T) {
	const number, slack = 100, 20
	r := newRig(t)
	w := r.tap()
	r.links.acd.defendInterval = time.Nanosecond
	r.up()
	r.answering()
	round := func() (goroutines, threads, descriptors int) {
		var guards []*guard
		for n := range number {
			addr := netip.AddrFrom4([4]byte{10, 77, 1, byte(n)})
			g := r.guard(w, addr)
			r.listening(n + 1)
			g.claim(arpPacket(t, arp.OperationRequest, otherMAC, addr, noMAC, addr))
			g.announced()
			guards = append(guards, g)
		}
		goroutines, threads, descriptors = usage(t)
		for _, g := range guards {
			g.cancel()
			if err := g.end(); err != nil {
				t.Error(err)
			}
		}
		return goroutines, threads, descriptors
	}
	round()
	goroutines, threads, descriptors := usage(t)
	g, th, d := round()
	if g > goroutines+number+slack || th > threads+slack || d > descriptors+number+slack {
		t.Errorf("with %d defences: goroutines %d to %d, threads %d to %d, descriptors %d to %d",
			number, goroutines, g, threads, th, descriptors, d)
	}
	g, th, d = usage(t)
	if g > goroutines+slack || th > threads+slack || d > descriptors+slack {
		t.Errorf("after the defences: goroutines %d to %d, threads %d to %d, descriptors %d to %d",
			goroutines, g, threads, th, descriptors, d)
	}
}
