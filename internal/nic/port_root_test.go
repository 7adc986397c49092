package nic

import (
	"bytes"
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/mdlayher/arp"
	"golang.org/x/sys/unix"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine"
	"github.com/dhcp-meta/dhcp-meta/pkg/engine/dhcp4"
)

func TestSendBroadcast(t *testing.T) {
	eachKind(t, func(t *testing.T, r *rig) {
		w := r.tap()
		p := r.open()
		mac := r.podMAC()
		msg := message(t, dhcpv4.MessageTypeDiscover, mac, anyIP)
		if err := p.Send(t.Context(), dhcp4.Send{Msg: msg}); err != nil {
			t.Fatal(err)
		}
		f := w.until("DISCOVER", dhcpFrom(mac))
		if want := bytes.Repeat([]byte{0xff}, 6); !bytes.Equal(f[:6], want) {
			t.Errorf("sent to %x", f[:6])
		}
		// In the frame's order: source, destination.
		if diff := cmp.Diff([]byte{0, 0, 0, 0, 255, 255, 255, 255}, f[26:34]); diff != "" {
			t.Errorf("ip addresses (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff(dhcp4.Encode(msg), f[42:]); diff != "" {
			t.Errorf("message (-want +got):\n%s", diff)
		}
	})
}

// Field cases B16 and B30: a renewal and a release leave from the leased
// address, to the server by unicast, whatever the pod's routes and rp_filter
// say; here the address is on no interface and there is no route at all.
func TestSendUnicastB16B30(t *testing.T) {
	eachKind(t, func(t *testing.T, r *rig) {
		r.sysctl("net/ipv4/conf/all/rp_filter", "1")
		r.sysctl("net/ipv4/conf/net1/rp_filter", "1")
		w := r.tap()
		p := r.open()
		mac := r.podMAC()
		far := netip.MustParseAddr("172.31.255.1")
		for _, to := range []netip.Addr{serverIP, far} {
			msg := message(t, dhcpv4.MessageTypeRelease, mac, clientIP)
			if err := p.Send(t.Context(), dhcp4.Send{Msg: msg, To: to, Via: serverIP}); err != nil {
				t.Fatal(err)
			}
			f := w.until("RELEASE", dhcpFrom(mac))
			if got, want := net.HardwareAddr(f[:6]).String(), r.worldMAC().String(); got != want {
				t.Errorf("sent to %s, want %s", got, want)
			}
			if diff := cmp.Diff(append(clientIP.AsSlice(), to.AsSlice()...), f[26:34]); diff != "" {
				t.Errorf("ip addresses (-want +got):\n%s", diff)
			}
		}
	})
}

// Field case B30: a RELEASE that could not be sent in its time leaves over the
// interface of another sandbox later, which asks for the next hop with the
// address that is given back. Its answer may come by broadcast: an interface that
// shares its MAC with others gets no other.
func TestSendForAnotherClientB30(t *testing.T) {
	eachKind(t, func(t *testing.T, r *rig) {
		w := r.tap()
		p := r.open()
		mac := r.podMAC()
		hop, hopMAC := netip.MustParseAddr("10.77.0.9"), otherMAC
		earlierMAC := net.HardwareAddr{2, 0xaa, 0xbb, 0xcc, 0xdd, 3}
		go func() {
			f := w.until("arp request", arpFrom(mac))
			if diff := cmp.Diff(arpPacket(t, arp.OperationRequest, mac, clientIP, noMAC, hop), f[14:42]); diff != "" {
				t.Errorf("arp request (-want +got):\n%s", diff)
			}
			w.send(allMAC, hopMAC, unix.ETH_P_ARP, arpPacket(t, arp.OperationReply, hopMAC, hop, mac, clientIP))
		}()
		msg := message(t, dhcpv4.MessageTypeRelease, earlierMAC, clientIP)
		if err := p.Send(t.Context(), dhcp4.Send{Msg: msg, To: serverIP, Via: hop}); err != nil {
			t.Fatal(err)
		}
		f := w.until("RELEASE", dhcpFrom(mac))
		if diff := cmp.Diff([]byte(hopMAC), f[:6]); diff != "" {
			t.Errorf("next hop (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff(append(clientIP.AsSlice(), serverIP.AsSlice()...), f[26:34]); diff != "" {
			t.Errorf("ip addresses (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff(dhcp4.Encode(msg), f[42:]); diff != "" {
			t.Errorf("message (-want +got):\n%s", diff)
		}
	})
}

// Field case B32: a next hop that does not answer is an error after a second,
// or with the context.
func TestNobodyAnswersARPB32(t *testing.T) {
	r := newRig(t)
	w := r.tap()
	p := r.open()
	silent := netip.MustParseAddr("10.77.0.9")
	send := dhcp4.Send{Msg: message(t, dhcpv4.MessageTypeRelease, r.podMAC(), clientIP), To: silent, Via: silent}
	err := p.Send(t.Context(), send)
	if err == nil || err.Error() != "arp: nobody answers for 10.77.0.9 on net1" {
		t.Fatalf("err = %v", err)
	}
	mac := r.podMAC()
	for range arpTries {
		f := w.until("arp request", func(f []byte) bool { return bytes.Equal(f[12:14], []byte{8, 6}) && bytes.Equal(f[6:12], mac) })
		if diff := cmp.Diff(append(clientIP.AsSlice(), make([]byte, 6)...), f[28:38]); diff != "" {
			t.Errorf("sender ip, target mac (-want +got):\n%s", diff)
		}
	}

	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		w.until("arp request", func(f []byte) bool { return bytes.Equal(f[12:14], []byte{8, 6}) })
		cancel()
	}()
	if err := p.Send(ctx, send); !errors.Is(err, context.Canceled) {
		t.Fatalf("err = %v, want canceled", err)
	}
	if err := p.Send(ctx, dhcp4.Send{Msg: send.Msg}); !errors.Is(err, context.Canceled) {
		t.Fatalf("err = %v, want canceled", err)
	}
}

// Field case B01: a reply by unicast arrives before there is an address, and
// one by broadcast as well; frames that are not for us do not.
func TestReceiveB01(t *testing.T) {
	eachKind(t, func(t *testing.T, r *rig) {
		r.sysctl("net/ipv4/conf/all/rp_filter", "1")
		w := r.tap()
		p := r.open()
		mac, from := r.podMAC(), r.worldMAC()
		all := net.HardwareAddr(bytes.Repeat([]byte{0xff}, 6))
		numbered := func(n byte) []byte {
			return reply(t, mac, dhcpv4.WithTransactionID(dhcpv4.TransactionID{0, 0, 0, n}))
		}
		tagged := append([]byte{0, 7, 8, 0}, numbered(1)...) // VLAN 7, IPv4
		w.send(mac, from, unix.ETH_P_8021Q, tagged)
		w.send(all, from, unix.ETH_P_8021Q, tagged)
		w.send(mac, from, unix.ETH_P_IP, edit(numbered(2), 6, 0x20, 0))                    // fragment
		w.send(all, from, unix.ETH_P_IP, reply(t, otherMAC))                               // chaddr
		w.send(mac, from, unix.ETH_P_IP, edit(numbered(3), 28+236, 1))                     // magic cookie
		w.send(mac, from, unix.ETH_P_IP, edit(numbered(4), 26, 0xde, 0xad))                // checksum, B02
		w.send(all, from, unix.ETH_P_IP, withOptions(numbered(5), 8))                      // IP options
		w.send(mac, from, unix.ETH_P_8021Q, append([]byte{0xe0, 0, 8, 0}, numbered(6)...)) // priority, no VLAN
		var got []byte
		malformed := 0
		for range 4 {
			rcv := receive(t, p)
			if rcv.From != serverIP {
				t.Errorf("from %s", rcv.From)
			}
			if rcv.Err != nil {
				malformed++
				continue
			}
			got = append(got, rcv.Msg.TransactionID[3])
		}
		if malformed != 1 {
			t.Errorf("%d malformed replies, want the one without a magic cookie", malformed)
		}
		// A macvlan hands broadcasts on with a delay. What must not come was sent
		// before the last of its kind, so it would be among these.
		slices.Sort(got)
		if diff := cmp.Diff([]byte{4, 5, 6}, got); diff != "" {
			t.Errorf("replies (-want +got):\n%s", diff)
		}
	})
}

// A session that does not read for a while does not stop the port.
func TestReceiveDropsWhatNobodyTakes(t *testing.T) {
	r := newRig(t)
	w := r.tap()
	p := r.open()
	mac := r.podMAC()
	one := reply(t, mac)
	for len(p.Received()) < receivedRoom {
		w.send(mac, r.worldMAC(), unix.ETH_P_IP, one)
	}
	w.send(mac, r.worldMAC(), unix.ETH_P_IP, one)
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	n := 0
	for range p.Received() {
		n++
	}
	if n != receivedRoom {
		t.Errorf("%d replies kept, want %d", n, receivedRoom)
	}
	if err := p.Send(t.Context(), dhcp4.Send{Msg: message(t, dhcpv4.MessageTypeDiscover, mac, anyIP)}); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Send after Close: %v", err)
	}
}

func TestReceivedEndsWithInterface(t *testing.T) {
	for name, end := range map[string][]string{
		"deleted": {"link", "del", "net1"},
		"down":    {"link", "set", "net1", "down"},
	} {
		t.Run(name, func(t *testing.T) {
			eachKind(t, func(t *testing.T, r *rig) {
				p := r.open()
				r.inPod(end...)
				ended(t, p)
				if err := p.Send(t.Context(), dhcp4.Send{Msg: message(t, dhcpv4.MessageTypeDiscover, testMAC, anyIP)}); err == nil {
					t.Error("Send: nil without an interface")
				}
				if err := p.Close(); err != nil {
					t.Errorf("Close: %v", err)
				}
			})
		})
	}
}

// Field case B05: the carrier comes after Open was called, and Open returns
// with it.
func TestOpenWaitsForCarrierB05(t *testing.T) {
	test := func(t *testing.T, r *rig) {
		m := r.monitor(r.pod)
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		type result struct {
			p   engine.Port
			err error
		}
		doneC := make(chan result, 1)
		go func() {
			p, err := r.links.Open(ctx, r.target)
			doneC <- result{p, err}
		}()
		m.until("net1 up", func(e event) bool { return e.name == "net1" && e.up })
		select {
		case res := <-doneC:
			t.Fatalf("Open returned without a carrier: %v", res.err)
		default:
		}
		r.inWorld("link", "set", "v0", "up")
		w := r.tap()
		res := <-doneC
		if res.err != nil {
			t.Fatal(res.err)
		}
		defer res.p.Close()
		// The first message gets through.
		mac := r.podMAC()
		if err := res.p.Send(ctx, dhcp4.Send{Msg: message(t, dhcpv4.MessageTypeDiscover, mac, anyIP)}); err != nil {
			t.Fatal(err)
		}
		w.until("DISCOVER", dhcpFrom(mac))
	}
	t.Run("veth", func(t *testing.T) {
		r := newRig(t)
		r.inWorld("link", "set", "v0", "down")
		test(t, r)
	})
	t.Run("macvlan", func(t *testing.T) {
		r := newRig(t)
		r.inWorld("link", "set", "v0", "down")
		r.addMacvlan() // later it would learn of the lost carrier with a delay
		test(t, r)
	})
}

func TestOpenWithoutCarrierB05(t *testing.T) {
	r := newRig(t)
	r.inWorld("link", "set", "v0", "down")
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	_, err := r.links.Open(ctx, r.target)
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("err = %v, want the deadline", err)
	}
	for _, words := range []string{"net1 has no carrier: ", "is the other end of the link up?"} {
		if !strings.Contains(err.Error(), words) {
			t.Errorf("err = %v, want %q", err, words)
		}
	}
}

func TestOpenEndsWhenInterfaceGoes(t *testing.T) {
	r := newRig(t)
	r.inWorld("link", "set", "v0", "down")
	m := r.monitor(r.pod)
	errC := make(chan error, 1)
	go func() {
		_, err := r.links.Open(t.Context(), r.target)
		errC <- err
	}()
	m.until("net1 up", func(e event) bool { return e.name == "net1" && e.up })
	r.inPod("link", "del", "net1")
	wantGone(t, <-errC)
}

func TestOpenRefusesNonEthernet(t *testing.T) {
	r := newRig(t)
	r.target.IfName = "lo"
	if _, err := r.links.Open(t.Context(), r.target); err == nil || !strings.Contains(err.Error(), "loopback is not Ethernet") {
		t.Fatalf("err = %v", err)
	}
}

// A closed port, and all that was done besides, leaves the namespace free to
// end: the other end of the veth goes with it.
func TestClosedPortLetsNamespaceEnd(t *testing.T) {
	r := newRig(t)
	p := r.open()
	want := setup(t, "10.77.0.50/24; default via 10.77.0.1")
	r.configure(engine.Setup{}, want, time.Hour)
	if err := p.Send(t.Context(), dhcp4.Send{Msg: message(t, dhcpv4.MessageTypeRelease, r.podMAC(), clientIP), To: serverIP, Via: serverIP}); err != nil {
		t.Fatal(err)
	}
	m := r.monitor(r.world)
	ip(t, "netns", "del", r.podName)
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	m.until("end of v0", func(e event) bool { return e.kind == unix.RTM_DELLINK && e.name == "v0" })
}
