package kubevirt

import (
	"maps"
	"net/netip"
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/dhcp-meta/dhcp-meta/tests/rig"
	"github.com/dhcp-meta/dhcp-meta/tests/rig/kube"
)

// One network serves a pod and a virtual machine, and both get addresses of one pool:
// the pod's is on its interface and goes back at its end, the machine's is neither.
func TestK15K18OneNetworkOnePool(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	server := rig.StartKea(t, m.server, rig.Pool(0, 0))
	m.network(t, "lan", nil, nil)
	vmMAC, podMAC := newMAC(t), newMAC(t)
	vm, pod := m.launcher(t, "vm1", "lan", vmMAC), m.labelled(t, nil, "lan", podMAC)
	vm.Add(t)
	pod.Add(t)
	a, b := m.reported(t, vm, "lan"), m.reported(t, pod, "lan")
	pool := rig.Pool(0, 0)
	for _, addr := range []netip.Addr{a, b} {
		if addr.Less(pool.First) || pool.Last.Less(addr) {
			t.Errorf("%v is not of the pool %v to %v", addr, pool.First, pool.Last)
		}
	}
	if a == b {
		t.Errorf("both have %v", a)
	}
	if have := vm.Addresses(t, lanIface); len(have) != 0 {
		t.Errorf("the machine's interface carries %v", have)
	}
	if have := pod.Addresses(t, lanIface); len(have) != 1 || have[0].Addr.Addr() != b {
		t.Errorf("the pod's interface carries %v, want %v", have, b)
	}
	vm.Del(t)
	pod.Del(t)
	server.AwaitHeld(t, "the machine's lease alone", rig.Holds(vmMAC, a))
}

// What a pod is taken for goes by its labels, also where they are odd.
func TestK47OddLabels(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	rig.StartDnsmasq(t, m.server, rig.Pool(0, 0))
	m.network(t, "lan", nil, nil)
	for _, c := range []struct {
		name   string
		labels map[string]string
		vm     bool
	}{
		{"OK both labels", launcherLabels("vm1"), true},
		{"OK the role alone", map[string]string{"kubevirt.io": "virt-launcher"}, true},
		{"odd name of a machine on a plain pod", map[string]string{"app": "web", "vm.kubevirt.io/name": "not-a-vm"}, true},
		{"odd empty name", map[string]string{"vm.kubevirt.io/name": ""}, true},
		{"odd machine without its labels", map[string]string{"kubevirt.io/created-by": "1234"}, false},
		{"odd one of KubeVirt's own pods", map[string]string{"kubevirt.io": "virt-handler"}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := m.labelled(t, c.labels, "lan", newMAC(t))
			s.Add(t)
			addr := m.reported(t, s, "lan") // all are reported alike
			// On a container KubeVirt sees an address, and would give it to the guest by a
			// server of its own, which knows nothing of its lease.
			if p := plug(t, s, lanIface); p.OwnServer == c.vm {
				t.Errorf("%v: an address on the interface: %v, want %v", addr, p.OwnServer, !c.vm)
			}
			s.Del(t)
		})
	}
}

// Labels are their owners': policies and NetworkQoS select by them. The engine writes
// annotations of a pod and nothing else.
func TestQ33LabelsStayAsTheyAre(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	rig.StartDnsmasq(t, m.server, rig.Pool(0, 0))
	m.network(t, "lan", nil, nil)
	mine := launcherLabels("vm1")
	mine["qos"] = "gold"
	s := m.labelled(t, mine, "lan", newMAC(t))
	s.Add(t)
	m.reported(t, s, "lan")
	labelsAre(t, m, s, mine)
	s.Del(t)
	labelsAre(t, m, s, mine)
	writes := slices.DeleteFunc(m.kube.PodWrites(t, s.Object), func(r kube.Request) bool {
		return r.User != "system:serviceaccount:"+kube.EngineNamespace+":"+kube.EngineAccount
	})
	if len(writes) == 0 {
		t.Error("the engine has written nothing")
	}
	for _, w := range writes {
		for _, path := range written(t, w.Body) {
			if path != "/metadata/annotations/dhcp-meta.io~1pod-networks" {
				t.Errorf("the engine writes %s: %v", path, w)
			}
		}
	}
}

func labelsAre(t *testing.T, m *machine, s *kube.Sandbox, want labels.Set) {
	t.Helper()
	if got := m.kube.GetPod(t, m.ns, s.Pod).Labels; !maps.Equal(got, want) {
		t.Errorf("labels %v, want %v", got, want)
	}
}
