package integration

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	"github.com/dhcp-meta/dhcp-meta/tests/rig"
)

// A LAN with router advertisements and DHCPv6: the pod's lease is that of IPv4, over
// renewals too, and the address that its kernel makes of the advertisement is the
// kernel's; neither is told of, nor touched at CHECK, renewal and DEL.
func TestB94DualStackLAN(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	l.Server.IP(t, "-6", "address", "add", "fd77::1/64", "dev", rig.ServerIface, "nodad")
	cfg := rig.Pool(seconds(3), seconds(60))
	cfg.Dnsmasq = []string{"--enable-ra", "--ra-param=" + rig.ServerIface + ",10", "--dhcp-range=fd77::10,fd77::50,slaac,64,2m"}
	server := rig.RunDnsmasq(t, l.Server, cfg)
	pod := newSandbox(t)
	call := pod.Call("net1", l.Macvlan(object{}))
	o := pod.mustAdd(t, l, call)
	addr := leased(t, o)
	if !addr.Addr().Is4() || slices.ContainsFunc(o.Result.Routes, func(r *types.Route) bool { return r.Dst.IP.To4() == nil }) {
		t.Errorf("the result speaks of IPv6: %s", o.Stdout)
	}
	own := pod.awaitIPv6(t, "net1")

	mac := pod.HardwareAddr(t, "net1")
	mark := l.Capture.Len()
	for range 2 { // renewals
		f, next := l.Capture.AwaitType(t, mark, rig.Patience, dhcpv4.MessageTypeAck, mac)
		if got := f.Msg.YourIPAddr.String(); got != addr.Addr().String() {
			t.Errorf("renewed to %s, was %s", got, addr)
		}
		mark = next
	}
	l.Node.Check(t, call, o.Result)
	if st := l.status(t, pod, "net1"); st.Address != addr.String() {
		t.Errorf("the engine says %q, want %s", st.Address, addr)
	}
	if now := pod.awaitIPv6(t, "net1"); now != own {
		t.Errorf("the kernel's address was %s and is %s", own, now)
	}
	l.Node.Del(t, call)
	server.AwaitHeld(t, "no IPv4 lease", func(held []rig.Held) bool {
		return !slices.ContainsFunc(held, func(h rig.Held) bool { return h.Addr.Is4() })
	})
	l.expectNothingLeft(t)
}

// awaitIPv6 waits for the interface's address of the site's prefix.
func (s *sandbox) awaitIPv6(t *testing.T, ifName string) string {
	t.Helper()
	ns, err := netns.GetFromPath(s.Path)
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	changes, done := make(chan netlink.AddrUpdate, 64), make(chan struct{})
	defer close(done)
	if err := netlink.AddrSubscribeAt(ns, changes, done); err != nil {
		t.Fatal(err)
	}
	for deadline := time.After(rig.Patience); ; {
		for _, word := range strings.Fields(s.IP(t, "-6", "-o", "address", "show", "dev", ifName, "scope", "global")) {
			if strings.HasPrefix(word, "fd77:") {
				return word
			}
		}
		select {
		case <-changes:
		case <-deadline:
			t.Fatalf("%s gets no IPv6 address from the site's advertisements", ifName)
		}
	}
}
