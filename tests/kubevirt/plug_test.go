package kubevirt

import (
	"context"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/dhcp-meta/dhcp-meta/tests/rig"
	"github.com/dhcp-meta/dhcp-meta/tests/rig/kube"
)

type podObject = corev1.Pod

// plugged is a pod's interface with KubeVirt's bridge binding on it.
type plugged struct {
	// MAC is the guest's.
	MAC net.HardwareAddr
	// OwnServer tells whether KubeVirt would have started the DHCP server of its own:
	// it does exactly when the interface has an IPv4 address of global unicast at this
	// moment (discoverbridge.go).
	OwnServer bool
	// Tap is the device that a hypervisor opens.
	Tap *os.File
}

// plug does to an interface what KubeVirt does after ADD for a bridge binding: the
// interface becomes a port of a bridge, under another name and with the bridge's MAC; the
// hypervisor gets a tap device on that bridge, and the guest's NIC the MAC that the
// interface had. A dummy keeps the name and the MAC; where the kernel has no dummies,
// as here, a second tap device nobody opens is as good.
func plug(t *testing.T, s *kube.Sandbox, ifName string) plugged {
	t.Helper()
	p := plugged{MAC: s.HardwareAddr(t, ifName)}
	for _, a := range s.Addresses(t, ifName) {
		p.OwnServer = p.OwnServer || globalUnicast(a.Addr.Addr())
	}
	hash := strings.TrimPrefix(ifName, "pod")
	bridge, nic, tap := "k6t-"+hash, hash+"-nic", "tap"+hash
	s.IP(t, "link", "add", bridge, "type", "bridge")
	s.IP(t, "link", "set", bridge, "up")
	s.IP(t, "link", "set", ifName, "down")
	s.IP(t, "link", "set", ifName, "name", nic)
	s.IP(t, "link", "set", nic, "address", s.HardwareAddr(t, bridge).String())
	s.IP(t, "link", "set", nic, "master", bridge)
	s.IP(t, "link", "set", nic, "type", "bridge_slave", "learning", "off")
	s.IP(t, "link", "set", nic, "up")
	s.IP(t, "tuntap", "add", "mode", "tap", "name", ifName)
	s.IP(t, "link", "set", ifName, "address", p.MAC.String())
	p.Tap = openTap(t, s.Netns, tap)
	s.IP(t, "link", "set", tap, "master", bridge, "up")
	return p
}

func globalUnicast(a netip.Addr) bool { return a.Is4() && a.IsGlobalUnicast() }

// openTap makes a tap device that lives as long as the file.
func openTap(t *testing.T, n *rig.Netns, name string) *os.File {
	t.Helper()
	request, err := unix.NewIfreq(name)
	if err != nil {
		t.Fatal(err)
	}
	request.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI)
	var fd int
	err = n.Do(func() error {
		// The device is made where the file was opened.
		fd, err = unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
		return err
	})
	if err != nil {
		t.Fatalf("open /dev/net/tun: %v", err)
	}
	if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, request); err != nil {
		unix.Close(fd)
		t.Fatalf("make tap device %s: %v", name, err)
	}
	f := os.NewFile(uintptr(fd), name)
	t.Cleanup(func() { f.Close() })
	return f
}

// watched are the changes of addresses in a namespace, in their order.
type watched struct {
	rig.Stream[netlink.AddrUpdate]
	space *rig.Netns
	// lostC has an error when changes may have been missed.
	lostC chan error
}

// watchAddresses listens until the test ends.
func watchAddresses(t *testing.T, n *rig.Netns) *watched {
	t.Helper()
	ns, err := netns.GetFromPath(n.Path)
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	changesC, doneC := make(chan netlink.AddrUpdate), make(chan struct{})
	w := &watched{space: n, lostC: make(chan error, 1)}
	if err := netlink.AddrSubscribeWithOptions(changesC, doneC, netlink.AddrSubscribeOptions{
		Namespace: &ns, ReceiveBufferSize: 1 << 20,
		ErrorCallback: func(err error) {
			select {
			case w.lostC <- err:
			default:
			}
		},
	}); err != nil {
		t.Fatalf("listen for addresses in %s: %v", n.Name, err)
	}
	go func() {
		defer w.End()
		for c := range changesC {
			w.Add(c)
		}
	}()
	t.Cleanup(func() { close(doneC) })
	return w
}

// marker is an address that only settled puts anywhere.
var marker = netip.MustParsePrefix("192.0.2.99/32")

// settled waits until all changes before this moment are in, and returns the IPv4
// addresses that ever came to interfaces other than eth0 and lo.
func (w *watched) settled(t *testing.T) []netip.Prefix {
	t.Helper()
	w.space.IP(t, "addr", "add", marker.String(), "dev", "lo")
	ctx, cancel := context.WithTimeout(t.Context(), rig.Patience)
	defer cancel()
	if _, _, err := w.Next(ctx, 0, func(c netlink.AddrUpdate) bool { return prefixOf(c) == marker }); err != nil {
		t.Fatalf("the change that was made to be seen is not: %v", err)
	}
	select {
	case err := <-w.lostC:
		t.Fatalf("changes of addresses may have been missed: %v", err)
	default:
	}
	w.space.IP(t, "addr", "del", marker.String(), "dev", "lo")
	var came []netip.Prefix
	for _, c := range w.Since(0) {
		if p := prefixOf(c); c.NewAddr && p.Addr().Is4() && p != marker && !elsewhere.Contains(p.Addr()) && !slices.Contains(came, p) {
			came = append(came, p)
		}
	}
	return came
}

// elsewhere is the network of eth0.
var elsewhere = netip.MustParsePrefix("10.244.0.0/16")

func prefixOf(c netlink.AddrUpdate) netip.Prefix {
	addr, _ := netip.AddrFromSlice(c.LinkAddress.IP)
	bits, _ := c.LinkAddress.Mask.Size()
	return netip.PrefixFrom(addr.Unmap(), bits)
}
