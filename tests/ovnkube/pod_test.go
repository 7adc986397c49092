package ovnkube

import (
	"encoding/json"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	corev1 "k8s.io/api/core/v1"

	"github.com/dhcp-meta/dhcp-meta/tests/rig"
	"github.com/dhcp-meta/dhcp-meta/tests/rig/kube"
	"github.com/dhcp-meta/dhcp-meta/tests/rig/ovnk"
)

// A pod on a localnet network that is ours by one annotation has the site's address
// when ADD returns: on the interface, in the result that Multus reports, in the
// annotation, and on its logical port; and traffic passes. The exchange has the MAC of
// the interface. Its DEL gives the lease back while the port still stands, then unplugs
// once.
func TestK01K03K06K16K37K51K58K60K63K87P20P28Pod(t *testing.T) {
	s := newSite(t)
	server := s.dnsmasq(t)
	s.marked(t, "office", "")
	pod := s.pod(t, "office")
	made := s.awaitMade(t, pod, "office")
	mark := s.lan.Capture.Len()
	pod.Add(t)

	addr, hw := address(t, pod, "net1"), pod.HardwareAddr(t, "net1")
	mac := hw.String()
	if !server.Config().Subnet.Contains(addr.Addr()) || addr.Bits() != rig.ServerAddr.Bits() { // K39
		t.Errorf("net1 has %s", addr)
	}
	// K06: it stood in the annotation before ADD returned, so no waiting here.
	e := s.entry(t, pod, "office")
	if !e.carries(addr) || e.MAC != mac || mac != made || e.Role != "secondary" || !slices.Equal(e.Gateways, []string{rig.ServerAddr.Addr().String()}) {
		t.Errorf("entry %+v, want %s with MAC %s and its gateway", e, addr, made)
	}
	s.awaitPort(t, pod, "office", both(mac, addr), pinned(mac, addr))
	if p, ok := s.LSP(t, s.portName(pod, "office")); !ok || !p.Up {
		t.Errorf("the logical port is not up: %+v", p)
	}
	if status := pod.StatusOf(t, "net1"); !slices.Equal(status.IPs, []string{addr.Addr().String()}) || status.Mac != mac {
		t.Errorf("network status %+v", status)
	}
	s.ping(t, pod, addr)
	s.awaitEvent(t, pod, "AddressLeased", addr.Addr().String())
	// How many there are is tests/ovn's business: OVS may drop the first over what it
	// still has in its cache.
	discovers := s.lan.Capture.Count(mark, rig.Type(dhcpv4.MessageTypeDiscover, nil))
	if own := s.lan.Capture.Count(mark, rig.Type(dhcpv4.MessageTypeDiscover, hw)); own == 0 || discovers != own {
		t.Errorf("%d DHCPDISCOVER were on the wire, %d of them of %s", discovers, own, mac)
	}
	s.expectInterface(t, pod.ID, "net1", map[string]string{ // P20
		"iface-id": s.portName(pod, "office"), "iface-id-ver": pod.UID, "sandbox": pod.ID, "attached_mac": mac,
	})

	pod.Del(t)
	release, _ := s.lan.Capture.AwaitType(t, mark, rig.Patience, dhcpv4.MessageTypeRelease, hw)
	if release.Src.Addr() != addr.Addr() {
		t.Errorf("DHCPRELEASE from %v, want the leased address", release.Src)
	}
	server.AwaitHeld(t, "empty", rig.Nothing)
	s.awaitEntry(t, pod, "office", "MAC-only after DEL", netEntry.bare)
	s.awaitPort(t, pod, "office", mac, mac)
	s.awaitNoRecord(t, pod)
	if left := s.inSwitch(t, pod); len(left) > 0 {
		t.Errorf("ports of the sandbox are left in OVS: %s", left)
	}
	for _, ifName := range []string{"eth0", "net1"} {
		if n := s.calls(t, pod, "DEL", ifName); n != 1 {
			t.Errorf("the wrapped plugin had %d DELs of %s, want one", n, ifName)
		}
	}
}

// expectInterface checks what OVN-Kubernetes wrote of an interface into OVS.
func (s *site) expectInterface(t *testing.T, container, ifName string, want map[string]string) {
	t.Helper()
	name := container[:13] + "_" + ifName[len(ifName)-1:]
	for key, value := range want {
		if got := strings.Trim(s.VSwitch(t, "get", "interface", name, "external_ids:"+key), `"`); got != value {
			t.Errorf("OVS has %s=%s of %s, want %s", key, got, ifName, value)
		}
	}
	if got := s.VSwitch(t, "--if-exists", "get", "interface", name, "external_ids:ip_addresses"); got != "" {
		t.Errorf("OVS has ip_addresses=%s of %s", got, ifName)
	}
}

// A network without a mark, and the default one, are as if we were not there, with
// the engine up and down.
func TestK30K96Unmarked(t *testing.T) {
	s := newSiteAlone(t)
	s.dnsmasq(t)
	s.kube.NAD(t, s.ns, "plain", s.localnet("plain", nil), nil)
	for _, engine := range []string{"up", "down"} {
		t.Run("engine "+engine, func(t *testing.T) {
			if engine == "down" {
				s.engine.Kill(t)
				defer s.engine.Start(s.tb)
			}
			pod := s.pod(t, "plain")
			mark := s.lan.Capture.Len()
			pod.Add(t)
			mac := pod.HardwareAddr(t, "net1").String()
			if e := s.entry(t, pod, "plain"); !e.bare() || e.Mode != "" || e.MAC != mac {
				t.Errorf("entry of an unmarked network: %+v", e)
			}
			s.awaitPort(t, pod, "plain", mac, mac)
			if have := pod.Addresses(t, "net1"); len(have) != 0 {
				t.Errorf("net1 has %v", have)
			}
			if eth0 := address(t, pod, "eth0"); !strings.HasPrefix(eth0.String(), "10.244.0.") {
				t.Errorf("eth0 has %v", eth0)
			}
			pod.Del(t)
			s.noDHCP(t, mark)
			if writes := s.annotations(t, pod, "dhcp-engine"); len(writes) > 0 {
				t.Errorf("the engine wrote %q", writes)
			}
		})
	}
}

// Two networks of one definition, and one of another namespace: each has an entry,
// a port and a lease of its own (Q25).
func TestQ25TwoInterfacesOfOneNetwork(t *testing.T) {
	s := newSite(t)
	s.dnsmasq(t)
	s.marked(t, "office", "")
	other := s.kube.Namespace(t)
	conf := s.localnet("shared", object{"netAttachDefName": other + "/shared", "name": other + "-shared"})
	s.kube.NAD(t, other, "shared", conf, marks(""))
	pod := s.pod(t, "office,office,"+other+"/shared")
	pod.Add(t)
	all := parseEntries(t, s.kube.GetPod(t, s.ns, pod.Pod).Annotations[podNetworks])
	seen := map[netip.Prefix]bool{}
	for ifName, key := range map[string]string{"net1": s.ns + "/office", "net2": s.ns + "/office/1", "net3": other + "/shared"} {
		addr, mac := address(t, pod, ifName), pod.HardwareAddr(t, ifName).String()
		if e := all[key]; !e.carries(addr) || e.MAC != mac {
			t.Errorf("entry %s is %+v; %s has %s and MAC %s", key, e, ifName, addr, mac)
		}
		if seen[addr] {
			t.Errorf("%s has %s, which another interface has too", ifName, addr)
		}
		seen[addr] = true
		s.AwaitLSP(t, ovnk.PortName(key, s.ns, pod.Pod), "the lease of "+ifName, hasSecurity(pinned(mac, addr)))
	}
	pod.Del(t)
}

// Both keys in one definition: OVN-Kubernetes takes it as its network, Multus as a
// plugin dhcp-meta, and nothing stands in front of anything.
func TestK49K50K52BothKeys(t *testing.T) {
	s := newSite(t)
	server := s.dnsmasq(t)
	s.kube.NAD(t, s.ns, "office", object{
		"cniVersion": "1.0.0", "name": s.ns + "-office", "type": "dhcp-meta", "netAttachDefName": s.ns + "/office",
		"plugins": []object{s.localnet("office", nil)}, "dhcp": object{},
	}, nil)
	pod := s.pod(t, "office")
	s.awaitMade(t, pod, "office")
	pod.Add(t)
	addr := s.leased(t, pod, "office")
	if status := pod.StatusOf(t, "net1"); !slices.Equal(status.IPs, []string{addr.Addr().String()}) {
		t.Errorf("network status %+v, want %v", status, addr)
	}
	s.ping(t, pod, addr)
	pod.Del(t)
	server.AwaitHeld(t, "empty", rig.Nothing)
	s.awaitEntry(t, pod, "office", "MAC-only after DEL", netEntry.bare)
	if n := s.calls(t, pod, "DEL", "net1"); n != 1 {
		t.Errorf("the wrapped plugin had %d DELs of net1, want one", n)
	}
}

// A pod with a network that is ours and one that is not: the ADD is one write of the
// engine's account, before it returns and after the port is there, which gives our
// entry its four keys and leaves all others as they were, byte for byte.
func TestK33K34K35K36Q36OneEntryOfThree(t *testing.T) {
	s := newSite(t)
	s.dnsmasq(t)
	s.marked(t, "office", "")
	s.kube.NAD(t, s.ns, "plain", s.localnet("plain", nil), nil)
	pod := s.pod(t, "plain,office")
	s.awaitMade(t, pod, "plain")
	mac := s.awaitMade(t, pod, "office")
	before := rawEntries(t, s.kube.GetPod(t, s.ns, pod.Pod))
	pod.Add(t)
	done := time.Now()
	after := rawEntries(t, s.kube.GetPod(t, s.ns, pod.Pod))
	ours, addr := s.ns+"/office", address(t, pod, "net2")
	for key, was := range before {
		if key != ours && string(after[key]) != string(was) {
			t.Errorf("entry %s was\n%s\nand is\n%s", key, was, after[key])
		}
	}
	var entry map[string]any
	if err := json.Unmarshal(after[ours], &entry); err != nil {
		t.Fatal(err)
	}
	want := map[string]any{
		"ip_addresses": []any{addr.String()}, "mac_address": mac, "gateway_ips": []any{rig.ServerAddr.Addr().String()},
		"role": "secondary", "ipam_mode": "dhcp",
	}
	if len(after) != len(before) || !reflect.DeepEqual(entry, want) {
		t.Errorf("entry %v, want %v; %d entries", entry, want, len(after))
	}
	writes := slices.DeleteFunc(s.kube.PodWrites(t, pod.Object), func(r kube.Request) bool { return !strings.HasPrefix(r.Agent, "dhcp-engine") })
	if len(writes) != 1 || writes[0].Subresource != "" || writes[0].At.After(done) ||
		writes[0].User != "system:serviceaccount:"+kube.EngineNamespace+":"+kube.EngineAccount {
		t.Errorf("writes of the engine: %v; the ADD was done at %v", writes, done)
	}
	if have := pod.Addresses(t, "net1"); len(have) > 0 {
		t.Errorf("the network that is not ours has %v", have)
	}
}

func rawEntries(t *testing.T, p *corev1.Pod) map[string]json.RawMessage {
	t.Helper()
	var all map[string]json.RawMessage
	if err := json.Unmarshal([]byte(p.Annotations[podNetworks]), &all); err != nil {
		t.Fatal(err)
	}
	return all
}
