package kubevirt

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/insomniacslk/dhcp/dhcpv4"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"

	"github.com/dhcp-meta/dhcp-meta/internal/kube/podnetworks"
	"github.com/dhcp-meta/dhcp-meta/tests/rig"
)

// The address of a virtual machine is found out during ADD, by one exchange in the
// pod's namespace with the MAC that the guest will have, and told in the CNI result, in
// network status, in the annotation and in an event.
func TestK04K46K75AddressIsReported(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	server := rig.StartDnsmasq(t, m.server, rig.Pool(0, 0))
	m.network(t, "lan", nil, nil)
	mac := newMAC(t)
	s := m.launcher(t, "vm1", "lan", mac)
	s.Add(t)

	addr := m.reported(t, s, "lan")
	server.AwaitHeld(t, "the lease of the guest's MAC", rig.Holds(mac, addr))
	want := []dhcpv4.MessageType{dhcpv4.MessageTypeDiscover, dhcpv4.MessageTypeRequest}
	if sent := m.messages(0, mac); !slices.Equal(sent, want) {
		t.Errorf("sent for the guest: %v, want %v", sent, want)
	}
	for _, f := range m.capture.Since(0) {
		if !f.FromClient() {
			continue
		}
		if id := f.Msg.GetOneOption(dhcpv4.OptionClientIdentifier); id != nil {
			t.Errorf("%v carries the client identifier %x, which a guest may not have", f, id)
		}
		if name := f.Msg.HostName(); name != "vm1" {
			t.Errorf("%v has the host name %q, want the guest's", f, name)
		}
	}
	if status := s.StatusOf(t, lanIface); status.Mac != mac.String() {
		t.Errorf("network status %+v, want MAC %v", status, mac)
	}
	entries, err := podnetworks.Parse(m.kube.GetPod(t, m.ns, s.Pod).Annotations[podnetworks.OwnKey])
	if err != nil {
		t.Fatal(err)
	}
	e, _, err := entries.Entry(m.ns + "/lan")
	if err != nil || !slices.Equal(e.Gateways, []netip.Addr{rig.ServerAddr.Addr()}) || e.HardwareAddr.String() != mac.String() {
		t.Errorf("entry %+v, %v; want gateway %v and MAC %v", e, err, rig.ServerAddr.Addr(), mac)
	}
	if now := s.HardwareAddr(t, lanIface); now.String() != mac.String() {
		t.Errorf("the interface has MAC %v, KubeVirt asked for %v", now, mac)
	}
	message := m.event(t, s.Object, "AddressReported")
	for _, word := range []string{addr.String(), rig.ServerAddr.Addr().String()} {
		if !strings.Contains(message, word) {
			t.Errorf("event AddressReported does not say %s: %q", word, message)
		}
	}
	if leases := m.engine.Leases(t); len(leases) != 1 || leases[0].State != "REPORTED" || leases[0].Address != addr.String()+"/24" {
		t.Errorf("the engine says %+v, want REPORTED %v/24", leases, addr)
	}
	s.Del(t)
	m.kube.AwaitPod(t, m.ns, s.Pod, "no annotation of ours", func(p *corev1.Pod) bool { return p.Annotations[podnetworks.OwnKey] == "" })
}

// event waits for an event on a pod and returns its message.
func (s *site) event(t *testing.T, pod *corev1.Pod, reason string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), rig.Patience)
	defer cancel()
	selector := fields.Set{"involvedObject.uid": string(pod.UID), "reason": reason}.String()
	w, err := s.kube.Client.CoreV1().Events(s.ns).Watch(ctx, metav1.ListOptions{FieldSelector: selector})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	for got := range w.ResultChan() {
		if e, ok := got.Object.(*corev1.Event); ok {
			return e.Message
		}
	}
	t.Fatalf("no event %s on pod %s within %v", reason, pod.Name, rig.Patience)
	return ""
}

// The address is never on the pod's interface, from before ADD until after DEL; that a
// container's address is seen by the same eyes shows that they are open.
func TestK65AddressIsNeverOnTheInterface(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	rig.StartDnsmasq(t, m.server, rig.Pool(0, 0))
	m.network(t, "lan", nil, nil)

	s := m.launcher(t, "vm1", "lan", newMAC(t))
	seen := watchAddresses(t, s.Netns)
	s.Add(t)
	m.reported(t, s, "lan")
	plug(t, s, lanIface)
	s.Del(t)
	if came := seen.settled(t); len(came) != 0 {
		t.Errorf("addresses that came to a virtual machine's pod: %v", came)
	}

	c := m.labelled(t, nil, "lan", newMAC(t))
	seen = watchAddresses(t, c.Netns)
	c.Add(t)
	addr := netip.MustParseAddr(c.StatusOf(t, lanIface).IPs[0])
	if came := seen.settled(t); !slices.Equal(came, []netip.Prefix{netip.PrefixFrom(addr, 24)}) {
		t.Errorf("addresses that came to a container: %v, want %v/24", came, addr)
	}
}

// An address that the wrapped plugin has put on the interface is gone before anybody
// else looks, and is nowhere reported.
func TestB63WrappedPluginConfigures(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	rig.StartDnsmasq(t, m.server, rig.Pool(0, 0))
	m.network(t, "lan", nil, object{"ipam": object{"type": "static", "addresses": []object{{"address": "10.77.0.9/24"}}}})
	s := m.launcher(t, "vm1", "lan", newMAC(t))
	seen := watchAddresses(t, s.Netns)
	s.Add(t)
	addr := m.reported(t, s, "lan")
	if addr == netip.MustParseAddr("10.77.0.9") {
		t.Errorf("what the wrapped plugin had is reported: %v", addr)
	}
	if p := plug(t, s, lanIface); p.OwnServer {
		t.Error("KubeVirt would start a DHCP server of its own")
	}
	if came := seen.settled(t); !slices.Equal(came, []netip.Prefix{netip.MustParsePrefix("10.77.0.9/24")}) {
		t.Errorf("addresses that came: %v, want the wrapped plugin's alone", came)
	}
}

// By KubeVirt's own rule no DHCP server is started in the pod: the guest hears the
// site's server and no other.
func TestK66KubeVirtStartsNoServer(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	rig.StartDnsmasq(t, m.server, rig.Pool(0, 0))
	m.network(t, "lan", nil, nil)
	s := m.launcher(t, "vm1", "lan", newMAC(t))
	s.Add(t)
	p := plug(t, s, lanIface)
	if p.OwnServer {
		t.Fatal("the interface has an address: KubeVirt would start a DHCP server of its own")
	}
	g := boot(t, p)
	g.udhcpc(t, identities[0]).bound(t, g)
	offers := 0
	for _, f := range g.capture.Since(0) {
		if f.FromClient() {
			continue
		}
		offers++
		if f.Src.Addr() != rig.ServerAddr.Addr() {
			t.Errorf("the guest heard %v", f)
		}
	}
	if offers == 0 {
		t.Error("the guest's NIC has seen no server")
	}
	g.ping(t)
}

// What is reported is IPv4 alone, also where the wrapped plugin gives the interface an
// IPv6 address, which stays: KubeVirt's rule asks for IPv4.
func TestK31OnlyIPv4IsReported(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	rig.StartDnsmasq(t, m.server, rig.Pool(0, 0))
	m.network(t, "lan", nil, object{"ipam": object{"type": "static", "addresses": []object{{"address": "fd00:77::9/64"}}}})
	s := m.launcher(t, "vm1", "lan", newMAC(t))
	s.Add(t)
	pod := m.kube.AwaitPod(t, m.ns, s.Pod, "its annotation", func(p *corev1.Pod) bool {
		return strings.Contains(p.Annotations[podnetworks.OwnKey], "ip_addresses")
	})
	entries, err := podnetworks.Parse(pod.Annotations[podnetworks.OwnKey])
	if err != nil {
		t.Fatal(err)
	}
	if e, _, err := entries.Entry(m.ns + "/lan"); err != nil || len(e.Addrs) != 1 || !e.Addrs[0].Addr().Is4() {
		t.Errorf("entry %+v, %v; want one IPv4 address", e, err)
	}
	if p := plug(t, s, lanIface); p.OwnServer {
		t.Error("KubeVirt would start a DHCP server of its own")
	}
}

// In front of macvlan the address is reported all the same. A guest behind KubeVirt's
// bridge cannot use it: macvlan hands out frames by MAC, and the guest's is not the
// interface's any longer. docs/kubevirt.md says so.
func TestK75MacvlanReportsAndCarriesNoGuest(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	rig.StartDnsmasq(t, m.server, rig.Pool(0, 0))
	m.network(t, "lan", nil, object{"type": "macvlan", "bridge": nil, "master": "br-site", "mode": "bridge"})
	s := m.launcher(t, "vm1", "lan", newMAC(t))
	s.Add(t)
	addr := m.reported(t, s, "lan")
	if have := s.Addresses(t, lanIface); len(have) != 0 {
		t.Errorf("the interface carries %v", have)
	}
	g := boot(t, plug(t, s, lanIface))
	// What is broadcast comes through, so the guest gets its lease if it asks for that.
	broadcast := identity{"broadcast", func(net.HardwareAddr) []string { return []string{"-B"} }}
	if got := g.udhcpc(t, broadcast).bound(t, g); got != addr {
		t.Errorf("reported %v, the guest got %v", addr, got)
	}
	if err := g.tryPing(2); err == nil {
		t.Error("the guest reaches the site: macvlan carries guests by now, and docs/kubevirt.md is wrong")
	}
}
