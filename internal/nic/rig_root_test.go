package nic

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/mdlayher/packet"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine"
	"github.com/dhcp-meta/dhcp-meta/pkg/engine/dhcp4"
)

// patience bounds a wait for an event that must come. It only matters when a
// test fails.
const patience = 20 * time.Second

// needRoot ends the test where it cannot be run; where it has to run, that is a
// failure.
func needRoot(t testing.TB) {
	t.Helper()
	if os.Getuid() == 0 {
		return
	}
	if os.Getenv("CI") != "" || os.Getenv("DHCP_META_REQUIRE_ROOT") != "" {
		t.Fatal("must run as root: it makes network namespaces")
	}
	t.Skip("needs root to make network namespaces")
}

var rigs atomic.Int32

// A rig is a pod and the rest of the world: two namespaces with a veth pair, v0
// in the world and net1 in the pod. v0 is up and is 10.77.0.1/24, net1 is down.
type rig struct {
	t          testing.TB
	links      *Links
	pod, world engine.Netns
	target     engine.Target
	podName    string
	worldName  string
}

func newRig(t testing.TB) *rig {
	t.Helper()
	needRoot(t)
	name := fmt.Sprintf("dm-nic-%d-%d", os.Getpid(), rigs.Add(1))
	r := &rig{t: t, links: openLinks(t, "/run/netns", "/proc"), podName: name + "-pod", worldName: name + "-srv"}
	r.pod.Path = addNetns(t, r.podName)
	r.world.Path = addNetns(t, r.worldName)
	r.target = engine.Target{Netns: r.pod, IfName: "net1"}
	r.inWorld("link", "add", "v0", "type", "veth", "peer", "name", "net1", "netns", r.podName)
	r.inWorld("addr", "add", "10.77.0.1/24", "dev", "v0")
	r.inWorld("link", "set", "v0", "up")
	return r
}

// newMacvlanRig is a rig whose net1 is a macvlan on the veth.
func newMacvlanRig(t testing.TB) *rig {
	t.Helper()
	r := newRig(t)
	r.addMacvlan()
	return r
}

func (r *rig) addMacvlan() {
	r.t.Helper()
	r.inPod("link", "set", "net1", "name", "parent")
	r.inPod("link", "set", "parent", "up")
	r.inPod("link", "add", "net1", "link", "parent", "type", "macvlan", "mode", "bridge")
}

// eachKind runs a test on each kind of interface.
func eachKind(t *testing.T, test func(*testing.T, *rig)) {
	t.Run("veth", func(t *testing.T) { test(t, newRig(t)) })
	t.Run("macvlan", func(t *testing.T) { test(t, newMacvlanRig(t)) })
}

func addNetns(t testing.TB, name string) string {
	t.Helper()
	ip(t, "netns", "add", name)
	t.Cleanup(func() {
		if _, err := os.Stat("/run/netns/" + name); err == nil {
			ip(t, "netns", "del", name)
		}
	})
	return filepath.Join("/run/netns", name)
}

func ip(t testing.TB, args ...string) string {
	t.Helper()
	out, err := exec.Command("ip", args...).CombinedOutput()
	if err != nil {
		t.Fatalf("ip %s: %v: %s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

func (r *rig) inPod(args ...string) string {
	r.t.Helper()
	return ip(r.t, append([]string{"-n", r.podName}, args...)...)
}

func (r *rig) inWorld(args ...string) string {
	r.t.Helper()
	return ip(r.t, append([]string{"-n", r.worldName}, args...)...)
}

// sysctl sets a sysctl of the pod.
func (r *rig) sysctl(name, value string) {
	r.t.Helper()
	r.sysctlIn(r.pod, name, value)
}

func (r *rig) sysctlIn(ns engine.Netns, name, value string) {
	r.t.Helper()
	r.visit(ns, func() error { return os.WriteFile(filepath.Join("/proc/sys", name), []byte(value), 0) })
}

// visit runs do inside a namespace of the rig.
func (r *rig) visit(ns engine.Netns, do func() error) {
	r.t.Helper()
	if err := r.links.visit(r.t.Context(), ns, func(engine.Netns) error { return do() }); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) up() {
	r.t.Helper()
	r.inPod("link", "set", "net1", "up")
}

func (r *rig) configure(have, want engine.Setup, lifetime time.Duration) {
	r.t.Helper()
	if err := r.links.Configure(r.t.Context(), r.target, have, want, lifetime); err != nil {
		r.t.Fatalf("Configure: %v", err)
	}
}

func (r *rig) verify(want engine.Setup) {
	r.t.Helper()
	if err := r.links.Verify(r.t.Context(), r.target, want); err != nil {
		r.t.Fatalf("Verify: %v", err)
	}
}

// open opens a port that is closed at the end of the test.
func (r *rig) open() engine.Port {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), patience)
	defer cancel()
	p, err := r.links.Open(ctx, r.target)
	if err != nil {
		r.t.Fatalf("Open: %v", err)
	}
	r.t.Cleanup(func() { p.Close() })
	r.answering()
	return p
}

// answering waits until v0 can send, which it can a moment after net1: until then
// the kernel drops without a word what a test sends.
func (r *rig) answering() {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), patience)
	defer cancel()
	p, err := r.links.Open(ctx, engine.Target{Netns: r.world, IfName: "v0"})
	if err != nil {
		r.t.Fatalf("open v0: %v", err)
	}
	p.Close()
}

func (r *rig) podMAC() net.HardwareAddr {
	r.t.Helper()
	link, err := r.links.Inspect(r.t.Context(), r.target)
	if err != nil {
		r.t.Fatal(err)
	}
	return link.HardwareAddr
}

func (r *rig) worldMAC() net.HardwareAddr {
	r.t.Helper()
	link, err := r.links.Inspect(r.t.Context(), engine.Target{Netns: r.world, IfName: "v0"})
	if err != nil {
		r.t.Fatal(err)
	}
	return link.HardwareAddr
}

// A monitor is a subscription to the kernel's events in one namespace.
type monitor struct {
	t testing.TB
	s *nl.NetlinkSocket
}

// event is one message of the kernel.
type event struct {
	kind uint16 // RTM_*
	link int
	name string     // of a link
	up   bool       // of a link
	dst  string     // of a route
	addr netip.Addr // of an address
}

func (r *rig) monitor(ns engine.Netns) *monitor {
	r.t.Helper()
	m := &monitor{t: r.t}
	r.visit(ns, func() (err error) {
		m.s, err = nl.Subscribe(unix.NETLINK_ROUTE, unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV4_ROUTE)
		return err
	})
	timeout := unix.NsecToTimeval(patience.Nanoseconds())
	if err := m.s.SetReceiveTimeout(&timeout); err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(m.s.Close)
	return m
}

// until waits for an event that ok takes, and returns all up to it.
func (m *monitor) until(what string, ok func(event) bool) []event {
	m.t.Helper()
	var all []event
	for {
		msgs, _, err := m.s.Receive()
		if err != nil {
			m.t.Fatalf("wait for %s: %v", what, err)
		}
		for i, msg := range msgs {
			all = append(all, parseEvent(m.t, msg.Header.Type, msg.Data))
			if ok(all[len(all)-1]) {
				if i != len(msgs)-1 {
					m.t.Logf("%d events after %s left out", len(msgs)-1-i, what)
				}
				return all
			}
		}
	}
}

func parseEvent(t testing.TB, kind uint16, data []byte) event {
	e := event{kind: kind}
	switch kind {
	case unix.RTM_NEWLINK, unix.RTM_DELLINK:
		link, err := netlink.LinkDeserialize(nil, data)
		if err != nil {
			t.Fatal(err)
		}
		e.link, e.name = link.Attrs().Index, link.Attrs().Name
		e.up = link.Attrs().RawFlags&unix.IFF_UP != 0
	case unix.RTM_NEWADDR, unix.RTM_DELADDR:
		msg := nl.DeserializeIfAddrmsg(data)
		e.link = int(msg.Index)
		attrs, err := nl.ParseRouteAttr(data[msg.Len():])
		if err != nil {
			t.Fatal(err)
		}
		for _, a := range attrs {
			if a.Attr.Type == unix.IFA_LOCAL {
				e.addr = addrOf(a.Value)
			}
		}
	case unix.RTM_NEWROUTE, unix.RTM_DELROUTE:
		msg := nl.DeserializeRtMsg(data)
		e.dst = fmt.Sprintf("?/%d", msg.Dst_len)
		attrs, err := nl.ParseRouteAttr(data[msg.Len():])
		if err != nil {
			t.Fatal(err)
		}
		for _, a := range attrs {
			if a.Attr.Type == unix.RTA_DST {
				e.dst = fmt.Sprintf("%s/%d", addrOf(a.Value), msg.Dst_len)
			}
		}
	}
	return e
}

// A tap reads and writes whole frames on v0, as a server with raw sockets does.
type tap struct {
	t testing.TB
	c *packet.Conn
}

func (r *rig) tap() *tap {
	r.t.Helper()
	w := &tap{t: r.t}
	r.visit(r.world, func() error {
		ifi, err := net.InterfaceByName("v0")
		if err != nil {
			return err
		}
		w.c, err = packet.Listen(ifi, packet.Raw, unix.ETH_P_ALL, nil)
		return err
	})
	if err := w.c.SetDeadline(time.Now().Add(patience)); err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { w.c.Close() })
	return w
}

// send sends a frame with the given EtherType.
func (w *tap) send(dst, src net.HardwareAddr, etherType uint16, payload []byte) {
	w.t.Helper()
	b := append(append(append([]byte{}, dst...), src...), byte(etherType>>8), byte(etherType))
	b = append(b, payload...)
	if _, err := w.c.WriteTo(b, &packet.Addr{HardwareAddr: dst}); err != nil {
		w.t.Fatal(err)
	}
}

// until returns the next frame that ok takes.
func (w *tap) until(what string, ok func(frame []byte) bool) []byte {
	w.t.Helper()
	buf := make([]byte, 2048)
	for {
		n, _, err := w.c.ReadFrom(buf)
		if err != nil {
			w.t.Fatalf("wait for %s: %v", what, err)
		}
		if ok(buf[:n]) {
			return bytes.Clone(buf[:n])
		}
	}
}

// dhcpFrom tells whether the frame is an IPv4 datagram from mac with 68 and 67
// as ports.
func dhcpFrom(mac net.HardwareAddr) func([]byte) bool {
	return func(f []byte) bool {
		return len(f) >= 42 && bytes.Equal(f[6:12], mac) && bytes.Equal(f[12:14], []byte{8, 0}) &&
			f[23] == unix.IPPROTO_UDP && bytes.Equal(f[34:38], []byte{0, clientPort, 0, serverPort})
	}
}

// message returns a message as the machine sends it.
func message(t testing.TB, kind dhcpv4.MessageType, mac net.HardwareAddr, ciaddr netip.Addr) *dhcpv4.DHCPv4 {
	t.Helper()
	m, err := dhcpv4.New(dhcpv4.WithMessageType(kind), dhcpv4.WithHwAddr(mac), dhcpv4.WithClientIP(ciaddr.AsSlice()))
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// receive returns the next reply.
func receive(t testing.TB, p engine.Port) dhcp4.Received {
	t.Helper()
	select {
	case r, open := <-p.Received():
		if !open {
			t.Fatal("port has ended")
		}
		return r
	case <-time.After(patience):
		t.Fatal("no reply comes")
	}
	panic("unreachable")
}

// ended waits until the port says that its interface has gone.
func ended(t testing.TB, p engine.Port) {
	t.Helper()
	for {
		select {
		case _, open := <-p.Received():
			if !open {
				return
			}
		case <-time.After(patience):
			t.Fatal("port does not end")
		}
	}
}

func wantGone(t testing.TB, err error) {
	t.Helper()
	if !errors.Is(err, engine.ErrGone) {
		t.Fatalf("err = %v, want ErrGone", err)
	}
}
