package cluster

import (
	"encoding/json"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/dhcp-meta/dhcp-meta/tests/rig"
	"github.com/dhcp-meta/dhcp-meta/tests/rig/kube"
	"github.com/dhcp-meta/dhcp-meta/tests/rig/node"
)

type object = rig.Object

// ovnPlugin is the plugin of OVN-Kubernetes. Here the reference macvlan does its
// work, behind a recorder: these tests are about who calls whom with what.
// tests/ovnkdouble is about OVN-Kubernetes.
const ovnPlugin = "ovn-k8s-cni-overlay"

// lab is a node of the package's cluster, on a LAN, with Multus and an engine.
type lab struct {
	*rig.LAN
	kube    *kube.Cluster
	ns      string
	node    *node.Node
	engine  *rig.Engine
	runtime *kube.Runtime
	// calls records macvlan, bridge and ovnPlugin.
	calls *rig.Recorder
}

// newLab makes a node with dhcp-meta among its plugins, and under the names of
// others where Multus finds these first if it is interposed.
func newLab(t *testing.T, m kube.Multus) *lab {
	t.Helper()
	return newLabIn(t, kube.Shared(t), m)
}

// newLabIn is newLab in a cluster of the test's choice.
func newLabIn(t *testing.T, c *kube.Cluster, m kube.Multus) *lab {
	t.Helper()
	lan := rig.NewLAN(t)
	l := &lab{LAN: lan, kube: c, ns: c.Namespace(t), node: node.New(t, lan.Node)}
	l.node.InstallPlugins(t)
	l.calls = rig.NewRecorder(t, []string{"macvlan", "bridge"})
	l.calls.Play(t, ovnPlugin, "macvlan")
	l.node.InstallRecorder(t, l.calls)
	if m.Interposed {
		l.node.Interpose(t, ovnPlugin, "macvlan", "bridge")
	}
	c.Join(t, l.node)
	l.runtime = c.StartMultus(t, l.node, m)
	l.engine = c.Engine(t, l.node)
	l.engine.Start(t)
	return l
}

// network makes a NAD and returns its name.
func (l *lab) network(t *testing.T, name string, config any, annotations map[string]string) string {
	t.Helper()
	l.kube.NAD(t, l.ns, name, config, annotations)
	return name
}

// pod makes a pod of the node with nothing but the annotation that asks for networks.
func (l *lab) pod(t *testing.T, networks string) *kube.Sandbox {
	t.Helper()
	return l.sandbox(t, kube.PodSpec{Networks: networks})
}

func (l *lab) sandbox(t *testing.T, spec kube.PodSpec) *kube.Sandbox {
	t.Helper()
	spec.Node = l.node.Name
	return l.runtime.Sandbox(t, l.kube.Pod(t, l.ns, spec))
}

// wire is the object of a plugin that makes a macvlan interface on the uplink and
// gives it no address.
func wire(plugin string, more object) object {
	o := object{"type": plugin, "master": rig.Uplink, "mode": "bridge"}
	maps.Copy(o, more)
	return o
}

// localnet is the network of a localnet as OVN-Kubernetes writes it, as far as the
// tests need it.
func localnet(nad string, more object) object {
	o := wire(ovnPlugin, object{
		"cniVersion": "1.0.0", "name": "site", "netAttachDefName": nad,
		"topology": "localnet", "role": "secondary", "physicalNetworkName": "site",
	})
	maps.Copy(o, more)
	return o
}

// leased is the address of an interface, which pod, network status and server agree
// on.
func (l *lab) leased(t *testing.T, s *kube.Sandbox, ifName string, server rig.Server) netip.Addr {
	t.Helper()
	ips := s.StatusOf(t, ifName).IPs
	if len(ips) != 1 {
		t.Fatalf("network status gives %s the addresses %v, want one", ifName, ips)
	}
	addr := netip.MustParseAddr(ips[0])
	have := s.Addresses(t, ifName)
	if len(have) != 1 || have[0].Addr.Addr() != addr {
		t.Errorf("%s carries %v, network status says %v", ifName, have, addr)
	}
	mac := s.HardwareAddr(t, ifName).String()
	server.AwaitHeld(t, "the lease of "+mac, func(held []rig.Held) bool {
		return slices.ContainsFunc(held, func(h rig.Held) bool { return h.Addr == addr && h.MAC == mac })
	})
	return addr
}

// noDHCP checks that nothing of DHCP was on the wire since mark.
func (l *lab) noDHCP(t *testing.T, mark int) {
	t.Helper()
	for _, f := range l.Capture.Since(mark) {
		t.Errorf("on the wire: %v", f)
	}
}

// called are the recorder's calls of a plugin for an interface of a sandbox.
func (l *lab) called(t *testing.T, s *kube.Sandbox, plugin, ifName string, verbs ...string) []rig.Recorded {
	t.Helper()
	return slices.DeleteFunc(l.calls.Calls(t, verbs...), func(r rig.Recorded) bool {
		return r.ContainerID != s.ID || r.Plugin != plugin || r.IfName != ifName
	})
}

// keys are the names in a JSON object.
func keys(t *testing.T, raw json.RawMessage) map[string]json.RawMessage {
	t.Helper()
	var o map[string]json.RawMessage
	if err := json.Unmarshal(raw, &o); err != nil {
		t.Fatalf("%v in %s", err, raw)
	}
	return o
}

// entry is the annotation of OVN-Kubernetes's controller for an interface without an
// address, as it stands before the runtime calls.
func entry(ns, nad, mac string) string {
	return `{"` + ns + `/` + nad + `":{"ip_addresses":null,"mac_address":"` + mac + `","role":"secondary"}}`
}

const podNetworks = "k8s.ovn.org/pod-networks"

// ovnPod is a pod whose interface on the network has its entry already.
func (l *lab) ovnPod(t *testing.T, nad, mac string) *kube.Sandbox {
	t.Helper()
	return l.sandbox(t, kube.PodSpec{
		Networks:    nad,
		Annotations: map[string]string{podNetworks: entry(l.ns, nad, mac)},
	})
}

func annotation(p *corev1.Pod, key string) string { return strings.TrimSpace(p.Annotations[key]) }
