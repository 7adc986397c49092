package ovn

import (
	"fmt"
	"os/exec"
	"testing"

	"github.com/dhcp-meta/dhcp-meta/tests/rig"
)

// Provider joins a namespace to the provider bridge, as a machine on the site's
// network is, with the usual address of a server, and a capture on its end. The
// LAN's Node is the stack's.
func (s *Stack) Provider(t testing.TB) *rig.LAN {
	t.Helper()
	return s.ProviderVLAN(t, 0)
}

// ProviderVLAN is Provider in a VLAN, where nothing of other VLANs arrives; the
// namespace sees no tags. 0 is none.
func (s *Stack) ProviderVLAN(t testing.TB, vlan int) *rig.LAN {
	t.Helper()
	lan := &rig.LAN{Server: rig.NewNetns(t, "srv"), Node: s.Node}
	s.join(t, lan.Server, rig.ServerIface, vlan)
	lan.Server.IP(t, "addr", "add", rig.ServerAddr.String(), "dev", rig.ServerIface)
	lan.Capture = rig.StartCapture(t, lan.Server, rig.ServerIface)
	return lan
}

// join plugs an interface of the namespace into the provider bridge.
func (s *Stack) join(t testing.TB, n *rig.Netns, ifName string, vlan int) {
	t.Helper()
	host := fmt.Sprintf("x%d", plugs.Add(1))
	n.IP(t, "link", "add", ifName, "type", "veth", "peer", "name", host, "netns", s.Node.Name)
	n.IP(t, "link", "set", ifName, "up")
	NoOffload(t, n, ifName)
	s.Node.IP(t, "link", "set", host, "up")
	args := []string{"add-port", ProviderBridge, host}
	if vlan != 0 {
		args = append(args, fmt.Sprintf("tag=%d", vlan))
	}
	s.VSwitch(t, args...)
}

// NoOffload has the kernel fill in all checksums of what an interface sends.
func NoOffload(t testing.TB, n *rig.Netns, ifName string) {
	t.Helper()
	var out []byte
	err := n.Do(func() (err error) {
		out, err = exec.Command("ethtool", "-K", ifName, "tx", "off").CombinedOutput()
		return err
	})
	if err != nil {
		t.Fatalf("ethtool -K %s in %s: %v\n%s", ifName, n.Name, err, out)
	}
}

// Busybox runs an applet in a namespace, which must succeed, and returns what it
// printed.
func Busybox(t testing.TB, n *rig.Netns, args ...string) string {
	t.Helper()
	out, err := TryBusybox(n, args...)
	if err != nil {
		t.Fatalf("busybox %v in %s: %v\n%s", args, n.Name, err, out)
	}
	return out
}

// TryBusybox is Busybox for an applet that may fail.
func TryBusybox(n *rig.Netns, args ...string) (string, error) {
	var out []byte
	err := n.Do(func() (err error) {
		out, err = exec.Command("busybox", args...).CombinedOutput()
		return err
	})
	return string(out), err
}
