package onenode

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/dhcp-meta/dhcp-meta/tests/rig"
	"github.com/dhcp-meta/dhcp-meta/tests/rig/ovn"
	"github.com/dhcp-meta/dhcp-meta/tests/rig/ovnk"
)

// In front of OVN-Kubernetes as it is installed on a node with a zone of its own: one
// apply, Multus told, a network with a mark. A pod that the kubelet starts has its
// address wherever it is to be read, and is reached by it; when the pod goes, its lease
// is given back and its port is gone.
func TestK01K03K06K16K37K58K60K87PodInFrontOfOVNKubernetes(t *testing.T) {
	s, stack, lan := onOVN(t)
	s.install(t, searchPath)
	s.tellMultus(t)
	ns := s.namespace(t)
	s.NAD(t, ns, "office", object{
		"cniVersion": "1.0.0", "name": ns + "-office", "type": ovnk.Plugin, "netAttachDefName": ns + "/office",
		"topology": "localnet", "role": "secondary", "physicalNetworkName": ovn.Physical,
	}, map[string]string{"dhcp-meta.io/ipam": "dhcp"})

	mark := s.server.Lines.Len()
	pod := s.awaitRunning(t, s.pod(t, ns, "office"))
	net1 := s.leased(t, pod, "net1")
	s.checkEntry(t, pod, ns+"/office", net1)
	port := ovnk.PortName(ns+"/office", ns, pod.Name)
	value := net1.mac + " " + net1.addr.String()
	stack.AwaitLSP(t, port, "the lease of "+net1.mac, func(p ovn.LSP) bool {
		return slices.Equal(p.Addresses, []string{value}) && slices.Equal(p.PortSecurity, []string{value + " 0.0.0.0 ::/0"})
	})
	s.awaitObjects(t, ns, net1.addr)
	ovn.Await(t, "the server to reach "+net1.addr.String(), func() (bool, string) {
		out, err := ovn.TryBusybox(lan.Server, "ping", "-c1", "-W2", net1.addr.String())
		return err == nil, out
	})
	s.asked(t, pod, "office", net1)

	s.delete(t, pod)
	s.awaitReleased(t, mark, net1)
	s.awaitObjects(t, ns)
	ovn.Await(t, "the end of port "+port, func() (bool, string) {
		p, there := stack.LSP(t, port)
		return !there, fmt.Sprintf("%+v", p)
	})
}

// onOVN is the site with OVN and the double of OVN-Kubernetes on its node until the end
// of the test, and its server behind OVN's provider bridge.
func onOVN(t *testing.T) (*site, *ovn.Stack, *rig.LAN) {
	t.Helper()
	s := *shared(t)
	t.Cleanup(func() {
		s.node.Run(t, "rm", "-r", "/run/openvswitch", "/run/ovn-ic", "/run/ovn-kubernetes", "/etc/ovnkube")
	})
	program := ovnk.Build(t)
	s.installWrapped(t, program)
	config := ovn.On(s.node.Node)
	config.OVNRun = "/run/ovn-ic" // with interconnect, which is OVN-Kubernetes's default
	stack := ovn.Start(t, config)
	lan := stack.Provider(t)
	s.server = rig.RunDnsmasq(t, lan.Server, rig.Pool(0, 0))
	s.node.Write(t, ovnk.Kubeconfig, s.AdminKubeconfig(t))
	ovnkube := ovnk.Start(t, s.node.Node, stack, program)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the double said: %q", ovnkube.Lines.Since(0))
		}
	})
	return &s, stack, lan
}

// checkEntry checks what the pod's annotation says of an interface.
func (s *site) checkEntry(t *testing.T, pod *corev1.Pod, nad string, i iface) {
	t.Helper()
	var entries map[string]struct {
		Addresses []netip.Prefix `json:"ip_addresses"`
		MAC       string         `json:"mac_address"`
		Mode      string         `json:"ipam_mode"`
	}
	if err := json.Unmarshal([]byte(pod.Annotations[ovnk.PodNetworks]), &entries); err != nil {
		t.Fatalf("%s of pod %s: %v in %q", ovnk.PodNetworks, pod.Name, err, pod.Annotations[ovnk.PodNetworks])
	}
	addr := netip.PrefixFrom(i.addr, rig.ServerAddr.Bits())
	if e := entries[nad]; !slices.Equal(e.Addresses, []netip.Prefix{addr}) || e.MAC != i.mac || e.Mode != "dhcp" {
		t.Errorf("entry %s of pod %s is %+v, want %v with MAC %s", nad, pod.Name, e, addr, i.mac)
	}
}
