// Package ovn has the tests of the engine on a real OVN: what a port with each kind
// of port security lets through, and what the engine makes of the ports.
package ovn

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/dhcp-meta/dhcp-meta/internal/nic"
	"github.com/dhcp-meta/dhcp-meta/pkg/engine"
	"github.com/dhcp-meta/dhcp-meta/tests/rig"
	"github.com/dhcp-meta/dhcp-meta/tests/rig/ovn"
)

func TestMain(m *testing.M) { rig.Main(m) }

const (
	ifName  = "net1"
	nad     = "shop/office-lan"
	netName = "office-lan"
)

// site is an OVN with a pod on a localnet network, and a site's router on the
// provider bridge.
type site struct {
	*ovn.Stack
	lan  *rig.LAN
	sw   string
	pod  *rig.Sandbox
	port ovn.PortSpec
	// host is the pod's interface on the node.
	host string
}

func newSite(t *testing.T) *site {
	t.Helper()
	return newSiteOn(t, ovn.Config{})
}

func newSiteOn(t *testing.T, cfg ovn.Config) *site {
	t.Helper()
	s := &site{Stack: ovn.Start(t, cfg)}
	s.lan = s.Provider(t)
	s.sw = s.NewLocalnet(t, netName)
	s.pod, s.port, s.host = s.addPod(t)
	return s
}

// addPod makes a pod with a port that holds nothing but its MAC, as OVN-Kubernetes
// leaves it.
func (s *site) addPod(t *testing.T) (*rig.Sandbox, ovn.PortSpec, string) {
	t.Helper()
	pod := rig.NewSandbox(t)
	p := ovn.PortSpec{
		Switch: s.sw, Network: netName, NAD: nad, Namespace: "shop", Pod: pod.Pod, UID: pod.UID, MAC: randomMAC(t),
	}
	return pod, p, s.AddPort(t, pod, ifName, p)
}

func randomMAC(t testing.TB) net.HardwareAddr {
	t.Helper()
	mac, err := net.ParseMAC("0a:58:" + rig.RandomHex(1) + ":" + rig.RandomHex(1) + ":" + rig.RandomHex(1) + ":" + rig.RandomHex(1))
	if err != nil {
		t.Fatal(err)
	}
	return mac
}

// set writes both columns of the pod's port, and waits until the flows follow.
func (s *site) set(t testing.TB, addresses, security string) {
	t.Helper()
	s.NB(t, "--wait=hv", "set", "logical_switch_port", s.port.Name(),
		fmt.Sprintf("addresses=%q", addresses), fmt.Sprintf("port_security=%q", security))
}

// pings tells whether the pod reaches an address from one of its own.
func pings(pod *rig.Sandbox, from, to string) bool {
	_, err := ovn.TryBusybox(pod.Netns, "ping", "-c", "3", "-A", "-w", "2", "-W", "1", "-I", from, to)
	return err == nil
}

// reaches waits until the pod reaches the router from an address.
func (s *site) reaches(t testing.TB, from string) {
	t.Helper()
	ovn.Await(t, "answers of the router to "+from, func() (bool, string) {
		return pings(s.pod, from, rig.ServerAddr.Addr().String()), "none came"
	})
}

// probe is the engine's own look whether an address is in use (RFC 5227).
func probe(t testing.TB, pod *rig.Sandbox, addr netip.Addr) net.HardwareAddr {
	t.Helper()
	port := openPort(t, pod)
	defer port.Close()
	ctx, cancel := context.WithTimeout(t.Context(), rig.Patience)
	defer cancel()
	owner, err := port.Probe(ctx, addr, false)
	if err != nil {
		t.Fatalf("probe %v: %v", addr, err)
	}
	return owner
}

// openPort opens the pod's interface as the engine does.
func openPort(t testing.TB, pod *rig.Sandbox) engine.Port {
	t.Helper()
	links, err := nic.Open(nic.Config{Roots: []string{"/run/netns"}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), rig.Patience)
	defer cancel()
	port, err := links.Open(ctx, engine.Target{Netns: engine.Netns{Path: pod.Path}, IfName: ifName})
	if err != nil {
		t.Fatalf("open %s: %v", ifName, err)
	}
	return port
}

// linkLocal is the interface's address of IPv6 that it makes by itself, without
// the zone.
func linkLocal(t testing.TB, n *rig.Netns, ifName string) string {
	t.Helper()
	var addr string
	ovn.Await(t, "link-local address of "+ifName, func() (bool, string) {
		out := n.IP(t, "-6", "-o", "addr", "show", "dev", ifName, "scope", "link")
		if strings.Contains(out, "tentative") || out == "" {
			return false, out
		}
		prefix, err := netip.ParsePrefix(strings.Fields(out)[3])
		if err != nil {
			return false, out
		}
		addr = prefix.Addr().String()
		return true, out
	})
	return addr
}

// takesTaken tells whether the pod takes an IPv6 address that the router has, which
// it does only when nobody hears its duplicate address detection.
func takesTaken(t testing.TB, s *site, addr string) bool {
	t.Helper()
	s.pod.IP(t, "addr", "add", addr+"/64", "dev", ifName)
	defer s.pod.IP(t, "addr", "del", addr+"/64", "dev", ifName)
	var failed bool
	ovn.Await(t, "end of duplicate address detection", func() (bool, string) {
		out := s.pod.IP(t, "-6", "-o", "addr", "show", "dev", ifName, "to", addr)
		failed = strings.Contains(out, "dadfailed")
		return failed || !strings.Contains(out, "tentative"), out
	})
	return !failed
}
