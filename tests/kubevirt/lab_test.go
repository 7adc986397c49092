package kubevirt

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"

	"github.com/dhcp-meta/dhcp-meta/internal/kube/podnetworks"
	"github.com/dhcp-meta/dhcp-meta/tests/rig"
	"github.com/dhcp-meta/dhcp-meta/tests/rig/kube"
	"github.com/dhcp-meta/dhcp-meta/tests/rig/node"
)

type object = rig.Object

// metricsAddress is the engine's in its node's namespace.
const metricsAddress = "127.0.0.1:9100"

// site is a server and a switch that nodes can be connected to.
type site struct {
	kube    *kube.Cluster
	ns      string
	server  *rig.Netns
	fabric  *rig.Netns
	capture *rig.Capture
	ports   int
}

func newSite(t *testing.T) *site {
	t.Helper()
	s := &site{kube: kube.Shared(t), server: rig.NewNetns(t, "srv"), fabric: rig.NewNetns(t, "switch")}
	s.ns = s.kube.Namespace(t)
	s.fabric.IP(t, "link", "add", "br0", "type", "bridge")
	s.fabric.IP(t, "link", "set", "br0", "up")
	s.connect(t, s.server, rig.ServerIface)
	s.server.IP(t, "addr", "add", rig.ServerAddr.String(), "dev", rig.ServerIface)
	s.capture = rig.StartCapture(t, s.server, rig.ServerIface)
	return s
}

// connect puts a cable between an interface of a namespace and the switch.
func (s *site) connect(t *testing.T, n *rig.Netns, ifName string) {
	t.Helper()
	s.ports++
	port := fmt.Sprintf("port%d", s.ports)
	rig.Veth(t, s.fabric, port, n, ifName)
	s.fabric.IP(t, "link", "set", port, "master", "br0")
}

// machine is a node of the site.
type machine struct {
	*site
	node    *node.Node
	engine  *rig.Engine
	runtime *kube.Runtime
}

// machine makes a node with Multus, an engine, and a bridge that its uplink is a port
// of, as virtual machines need it.
func (s *site) machine(t *testing.T) *machine {
	t.Helper()
	net := rig.NewNetns(t, "node")
	s.connect(t, net, rig.Uplink)
	net.IP(t, "link", "add", "br-site", "type", "bridge")
	net.IP(t, "link", "set", "br-site", "up")
	net.IP(t, "link", "set", rig.Uplink, "master", "br-site")
	m := &machine{site: s, node: node.New(t, net)}
	m.node.InstallPlugins(t)
	s.kube.Join(t, m.node)
	m.runtime = s.kube.StartMultus(t, m.node, kube.Multus{})
	m.engine = s.kube.Engine(t, m.node, "--metrics-address="+metricsAddress)
	m.engine.Start(t)
	return m
}

// newMachine makes a site with one node.
func newMachine(t *testing.T) *machine {
	t.Helper()
	return newSite(t).machine(t)
}

// network makes a NAD in front of the reference bridge plugin. That one makes a veth
// pair, behind which a guest may have a MAC of its own.
func (s *site) network(t *testing.T, name string, dhcp, delegate object) {
	t.Helper()
	plugin := object{"type": "bridge", "bridge": "br-site", "capabilities": object{"mac": true}}
	for k, v := range delegate {
		plugin[k] = v
	}
	conf := object{
		"cniVersion": "1.0.0", "name": name, "type": "dhcp-meta", "netAttachDefName": s.ns + "/" + name,
		"capabilities": object{"mac": true}, "delegate": plugin,
	}
	if dhcp != nil {
		conf["dhcp"] = dhcp
	}
	s.kube.NAD(t, s.ns, name, conf, nil)
}

// Labels of a virtual machine's pod.
func launcherLabels(vm string) map[string]string {
	return map[string]string{"kubevirt.io": "virt-launcher", "vm.kubevirt.io/name": vm}
}

// lanIface is what KubeVirt calls the pod's interface of the network that a virtual
// machine knows as "lan".
var lanIface = podIface("lan")

func podIface(network string) string {
	sum := sha256.Sum256([]byte(network))
	return "pod" + hex.EncodeToString(sum[:])[:11]
}

// selection is the annotation that KubeVirt asks Multus by.
func selection(t *testing.T, ns, nad string, mac net.HardwareAddr) string {
	t.Helper()
	element := object{"name": nad, "namespace": ns, "interface": lanIface}
	if mac != nil {
		element["mac"] = mac.String()
	}
	b, err := json.Marshal([]object{element})
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// launcher makes the pod of a virtual machine and its sandbox. ADD is the test's.
func (m *machine) launcher(t *testing.T, vm, nad string, mac net.HardwareAddr) *kube.Sandbox {
	t.Helper()
	return m.labelled(t, launcherLabels(vm), nad, mac)
}

func (m *machine) labelled(t *testing.T, labels map[string]string, nad string, mac net.HardwareAddr) *kube.Sandbox {
	t.Helper()
	spec := kube.PodSpec{Node: m.node.Name, Networks: selection(t, m.ns, nad, mac), Labels: labels}
	if vm := labels["vm.kubevirt.io/name"]; vm != "" {
		spec.Annotations = map[string]string{"kubevirt.io/domain": vm}
	}
	return m.runtime.Sandbox(t, m.kube.Pod(t, m.ns, spec))
}

// newMAC is a MAC that nobody has.
func newMAC(t *testing.T) net.HardwareAddr {
	t.Helper()
	mac, err := net.ParseMAC("02:00:5e:" + strings.Join(octets(rig.RandomHex(3)), ":"))
	if err != nil {
		t.Fatal(err)
	}
	return mac
}

func octets(digits string) []string {
	var parts []string
	for i := 0; i+1 < len(digits); i += 2 {
		parts = append(parts, digits[i:i+2])
	}
	return parts
}

// reported is the address that network status and annotation give for a virtual
// machine. They must agree.
func (s *site) reported(t *testing.T, sandbox *kube.Sandbox, nad string) netip.Addr {
	t.Helper()
	ips := sandbox.StatusOf(t, lanIface).IPs
	if len(ips) != 1 {
		t.Fatalf("network status has the addresses %v, want one", ips)
	}
	addr := netip.MustParseAddr(ips[0])
	// Where publication is not required, ADD does not wait for it long.
	pod := s.kube.AwaitPod(t, s.ns, sandbox.Pod, "its address in "+podnetworks.OwnKey, func(p *podObject) bool {
		return strings.Contains(p.Annotations[podnetworks.OwnKey], addr.String()+"/")
	})
	entries, err := podnetworks.Parse(pod.Annotations[podnetworks.OwnKey])
	if err != nil {
		t.Fatal(err)
	}
	e, found, err := entries.Entry(s.ns + "/" + nad)
	want := []netip.Prefix{netip.PrefixFrom(addr, rig.ServerAddr.Bits())}
	if err != nil || !found || !slices.Equal(e.Addrs, want) || e.Mode != podnetworks.ModeDHCP {
		t.Errorf("entry of the annotation: %+v, found %v, %v; want %v by DHCP", e, found, err, want)
	}
	return addr
}

// messages are the types of DHCP that a client has sent since mark.
func (s *site) messages(mark int, mac net.HardwareAddr) []dhcpv4.MessageType {
	var types []dhcpv4.MessageType
	for _, f := range s.capture.Since(mark) {
		if f.FromClient() && f.Msg.ClientHWAddr.String() == mac.String() {
			types = append(types, f.Type)
		}
	}
	return types
}

// expectSilence checks that nothing of DHCP was sent for a MAC since mark.
func (s *site) expectSilence(t *testing.T, what string, mark int, mac net.HardwareAddr) {
	t.Helper()
	if sent := s.messages(mark, mac); len(sent) != 0 {
		t.Errorf("%s: %v was sent for %v", what, sent, mac)
	}
}

// metric reads a metric without labels of the node's engine.
func (m *machine) metric(t *testing.T, name string) float64 {
	t.Helper()
	value, ok := m.node.Net.Metrics(t, metricsAddress)[name]
	if !ok {
		t.Fatalf("the engine has no metric %s", name)
	}
	return value
}

// eventually is for conditions that have no event.
func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), rig.Patience)
	defer cancel()
	again := time.NewTicker(20 * time.Millisecond)
	defer again.Stop()
	for !is() {
		select {
		case <-again.C:
		case <-ctx.Done():
			t.Fatalf("not within %s: %s", rig.Patience, what)
		}
	}
}
