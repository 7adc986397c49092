package onenode

import "testing"

var plain = kustomization{folder: "overlays/plain"}

// The main job as a cluster's administrator meets it: one apply, a network, a pod.
// B89: the same network as a single plugin, and in a list with tuning.
func TestK81B89PodOnAMacvlanNetwork(t *testing.T) {
	s := shared(t)
	s.install(t, plain)
	ns := s.namespace(t)
	s.NAD(t, ns, "site", macvlan(), nil)
	s.NAD(t, ns, "list", object{"cniVersion": "1.0.0", "name": "list", "plugins": []object{
		{"type": "dhcp-meta", "delegate": wire("macvlan")},
		{"type": "tuning", "sysctl": object{"net.ipv4.conf.IFNAME.arp_notify": "1"}},
	}}, nil)

	pod := s.awaitRunning(t, s.pod(t, ns, "site,list"))
	mark := s.server.Lines.Len()
	one, two := s.leased(t, pod, "net1"), s.leased(t, pod, "net2")
	if one.addr == two.addr {
		t.Errorf("both interfaces have %v", one.addr)
	}
	s.delete(t, pod)
	s.awaitReleased(t, mark, one)
	s.awaitReleased(t, mark, two)
}
