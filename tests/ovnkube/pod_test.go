package ovnkube

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/insomniacslk/dhcp/dhcpv4"

	"github.com/dhcp-meta/dhcp-meta/tests/rig"
)

// A pod on a localnet network that is ours by one annotation has the site's address
// when ADD returns: on the interface, in the result that Multus reports, in the
// annotation, and on its logical port; and traffic passes. The first DISCOVER comes
// when the port has its flows. Its DEL gives the lease back first, then unplugs once.
func TestK01K03K06K16K51K58K60P19P28Pod(t *testing.T) {
	l := newLab(t)
	server := l.dnsmasq(t)
	l.marked(t, "office", "")
	s := l.pod(t, "office")
	mark := l.lan.Capture.Len()
	s.Add(t)

	addr, mac := address(t, s, "net1"), s.HardwareAddr(t, "net1").String()
	if !server.Config().Subnet.Contains(addr.Addr()) || addr.Bits() != rig.ServerAddr.Bits() { // K39
		t.Errorf("net1 has %s", addr)
	}
	// K06: it stood in the annotation before ADD returned, so no waiting here.
	e := entries(t, l.kube.GetPod(t, l.ns, s.Pod))[l.ns+"/office"]
	if !e.carries(addr) || e.MAC != mac || e.Role != "secondary" || !slices.Equal(e.Gateways, []string{rig.ServerAddr.Addr().String()}) {
		t.Errorf("entry %+v, want %s with MAC %s and its gateway", e, addr, mac)
	}
	l.awaitPort(t, s, "office", mac+" "+addr.Addr().String(), pinned(mac, addr))
	if p, ok := l.LSP(t, l.portName(s, "office")); !ok || !p.Up {
		t.Errorf("the logical port is not up: %+v", p)
	}
	if status := s.StatusOf(t, "net1"); !slices.Equal(status.IPs, []string{addr.Addr().String()}) || status.Mac != mac {
		t.Errorf("network status %+v", status)
	}
	l.ping(t, s, addr)
	// P19: no DISCOVER was lost to missing flows.
	if n := countFrames(l.lan.Capture.Since(mark), dhcpv4.MessageTypeDiscover); n != 1 {
		t.Errorf("%d DHCPDISCOVER were on the wire, want one", n)
	}
	// The default network is as if we were not there (K30).
	if eth0 := s.Addresses(t, "eth0"); len(eth0) != 1 || !strings.HasPrefix(eth0[0].Addr.String(), "10.244.0.") {
		t.Errorf("eth0 has %v", eth0)
	}

	s.Del(t)
	server.AwaitHeld(t, "empty", rig.Nothing)
	l.awaitEntry(t, s, "office", "MAC-only after DEL", netEntry.bare)
	l.awaitPort(t, s, "office", mac, mac)
	l.engine.AwaitNoRecords(t)
	if ports := l.VSwitch(t, "list-ports", "br-int"); strings.Contains(ports, s.ID[:10]) {
		t.Errorf("ports of the sandbox are left in OVS: %s", ports)
	}
}

func countFrames(frames []rig.Frame, kind dhcpv4.MessageType) int {
	n := 0
	for _, f := range frames {
		if f.Msg.MessageType() == kind {
			n++
		}
	}
	return n
}

// A network without a mark, and the default one, are as if we were not there, with
// the engine up and down.
func TestK30K96Unmarked(t *testing.T) {
	l := newLab(t)
	l.dnsmasq(t)
	l.kube.NAD(t, l.ns, "plain", l.localnet("plain", nil), nil)
	for _, engine := range []string{"up", "down"} {
		t.Run("engine "+engine, func(t *testing.T) {
			if engine == "down" {
				l.engine.Kill(t)
			}
			s := l.pod(t, "plain")
			mark := l.lan.Capture.Len()
			s.Add(t)
			mac := s.HardwareAddr(t, "net1").String()
			if e := entries(t, l.kube.GetPod(t, l.ns, s.Pod))[l.ns+"/plain"]; !e.bare() || e.Mode != "" || e.MAC != mac {
				t.Errorf("entry of an unmarked network: %+v", e)
			}
			l.awaitPort(t, s, "plain", mac, mac)
			if have := s.Addresses(t, "net1"); len(have) != 0 {
				t.Errorf("net1 has %v", have)
			}
			s.Del(t)
			l.noDHCP(t, mark)
		})
	}
}

// Two networks of one definition, and one of another namespace: each has an entry,
// a port and a lease of its own (Q25).
func TestQ25TwoInterfacesOfOneNetwork(t *testing.T) {
	l := newLab(t)
	l.dnsmasq(t)
	l.marked(t, "office", "")
	other := l.kube.Namespace(t)
	conf := l.localnet("shared", object{"netAttachDefName": other + "/shared", "name": other + "-shared"})
	l.kube.NAD(t, other, "shared", conf, map[string]string{"dhcp-meta.io/ipam": "dhcp"})
	s := l.pod(t, "office,office,"+other+"/shared")
	s.Add(t)
	all := entries(t, l.kube.GetPod(t, l.ns, s.Pod))
	seen := map[netip.Prefix]bool{}
	for ifName, key := range map[string]string{"net1": l.ns + "/office", "net2": l.ns + "/office/1", "net3": other + "/shared"} {
		addr, mac := address(t, s, ifName), s.HardwareAddr(t, ifName).String()
		if e := all[key]; !e.carries(addr) || e.MAC != mac {
			t.Errorf("entry %s is %+v; %s has %s and MAC %s", key, e, ifName, addr, mac)
		}
		if seen[addr] {
			t.Errorf("%s has %s, which another interface has too", ifName, addr)
		}
		seen[addr] = true
		port := strings.NewReplacer("-", ".", "/", ".").Replace(key) + "_" + l.ns + "_" + s.Pod
		l.AwaitLSP(t, port, "the lease of "+ifName, hasSecurity(pinned(mac, addr)))
	}
	s.Del(t)
}
