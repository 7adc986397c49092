package integration

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	"github.com/dhcp-meta/dhcp-meta/tests/rig"
)

// farLab is a lab whose DHCP server is behind the LAN's router.
type farLab struct {
	*lab
	far *rig.Far
}

func newFarLab(t *testing.T) *farLab {
	t.Helper()
	l := newLab(t)
	return &farLab{lab: l, far: rig.NewFar(t, l.LAN)}
}

// onThreeServers is onBothServers with ISC dhcpd too.
func onThreeServers(t *testing.T, body func(t *testing.T, l *lab, start rig.StartFunc)) {
	onBothServers(t, body)
	t.Run("dhcpd", func(t *testing.T) {
		t.Parallel()
		body(t, newLab(t), rig.StartDhcpd)
	})
}

// neighbour is a host on the LAN beside the pods: a second server, or a host with
// an address of its own.
func (l *lab) neighbour(t testing.TB, addr string) *sandbox {
	t.Helper()
	n := newSandbox(t)
	l.Node.IP(t, "link", "add", "link", rig.Uplink, "name", rig.ServerIface, "netns", n.Name, "type", "macvlan", "mode", "bridge")
	n.IP(t, "addr", "add", addr, "dev", rig.ServerIface)
	n.IP(t, "link", "set", rig.ServerIface, "up")
	return n
}

// ends takes the sandbox away as a crash does: no DEL comes. The kernel takes its
// time over the rest, in which the interface still answers ARP.
func (s *sandbox) ends(t testing.TB, l *lab) {
	t.Helper()
	s.Delete(t)
	l.Engine.Lines.Await(t, "word of the gone interface", 0, rig.Patience, func(line string) bool {
		return contains("interface is gone")(line) && contains(s.ID)(line)
	})
}

// again is a new sandbox of the same pod.
func (s *sandbox) again(t testing.TB) *sandbox {
	t.Helper()
	next := newSandbox(t)
	next.Pod, next.UID = s.Pod, s.UID
	return next
}

// watchLosses collects the addresses that an interface of the pod loses from now
// on.
func (s *sandbox) watchLosses(t testing.TB) (lost func() []string) {
	t.Helper()
	ns, err := netns.GetFromPath(s.Path)
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	changes, done := make(chan netlink.AddrUpdate), make(chan struct{})
	if err := netlink.AddrSubscribeAt(ns, changes, done); err != nil {
		t.Fatalf("listen for addresses in %s: %v", s.Name, err)
	}
	t.Cleanup(func() { close(done) })
	var mu sync.Mutex
	var list []string
	go func() {
		for c := range changes {
			if !c.NewAddr {
				mu.Lock()
				list = append(list, c.LinkAddress.String())
				mu.Unlock()
			}
		}
	}()
	return func() []string {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(list)
	}
}

// carries checks that an interface of the pod has just this address.
func (s *sandbox) carries(t testing.TB, ifName string, addr netip.Prefix) {
	t.Helper()
	if have := s.Addresses(t, ifName); len(have) != 1 || have[0].Addr != addr {
		t.Errorf("%s carries %v, want %v", ifName, have, addr)
	}
}

// routeGet is what the kernel of the pod does with a packet to dst.
func (s *sandbox) routeGet(t testing.TB, dst string) string {
	t.Helper()
	out, err := s.TryIP("route", "get", dst)
	if err != nil {
		return "unreachable"
	}
	return strings.Join(strings.Fields(out), " ")
}

// id is the attachment as the commands of dhcp-engine name it.
func (s *sandbox) id() string { return s.ID + ":net1" }

// requests is a condition on frames: a client's REQUEST by unicast or broadcast.
func requests(mac net.HardwareAddr, broadcast bool) func(rig.Frame) bool {
	return func(f rig.Frame) bool {
		return rig.Type(dhcpv4.MessageTypeRequest, mac)(f) && (f.Dst.Addr().String() == "255.255.255.255") == broadcast
	}
}

// holdsToo is the condition that addr is lent to mac, whatever else is.
func holdsToo(mac net.HardwareAddr, addr netip.Addr) func([]rig.Held) bool {
	return func(held []rig.Held) bool {
		return slices.ContainsFunc(held, func(h rig.Held) bool { return rig.Holds(mac, addr)([]rig.Held{h}) })
	}
}

// messages are the types of what passed the wire since mark, of one client.
func (l *lab) messages(mark int, mac net.HardwareAddr) []string {
	var list []string
	for _, f := range l.Capture.Since(mark) {
		if f.Msg.ClientHWAddr.String() == mac.String() {
			list = append(list, fmt.Sprint(f.Type))
		}
	}
	return list
}

// yours is the address that a server's message is about.
func yours(f rig.Frame) netip.Addr {
	addr, _ := netip.AddrFromSlice(f.Msg.YourIPAddr.To4())
	return addr
}
