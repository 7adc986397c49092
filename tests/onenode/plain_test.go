package onenode

import (
	"context"
	"maps"
	"net/netip"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dhcp-meta/dhcp-meta/tests/rig"
)

var plain = kustomization{folder: "overlays/plain"}

// The main job as a cluster's administrator meets it: one apply, a network, a pod. Its
// leases can be read and asked for while it is there, and are gone with it, at the server
// too.
// B89: the same network as a single plugin, and in a list with tuning.
func TestU13B89PodOnAMacvlanNetwork(t *testing.T) {
	s := shared(t)
	s.install(t, plain)
	ns := s.namespace(t)
	s.NAD(t, ns, "site", macvlan(), nil)
	s.NAD(t, ns, "list", object{"cniVersion": "1.0.0", "name": "list", "plugins": []object{
		{"type": "dhcp-meta", "delegate": wire("macvlan")},
		{"type": "tuning", "sysctl": object{"net.ipv4.conf.IFNAME.arp_notify": "1"}},
	}}, nil)

	mark := s.server.Lines.Len()
	pod := s.awaitRunning(t, s.pod(t, ns, "site,list"))
	one, two := s.leased(t, pod, "net1"), s.leased(t, pod, "net2")
	if one.addr == two.addr {
		t.Errorf("both interfaces have %v", one.addr)
	}
	s.awaitObjects(t, ns, one.addr, two.addr)
	s.asked(t, pod, "site", one)
	s.delete(t, pod)
	s.awaitReleased(t, mark, one)
	s.awaitReleased(t, mark, two)
	s.awaitObjects(t, ns)
}

// Taken out in the wrong order, what the cluster has before what the node has, and installed
// once more, as docs/install.md says: the engine goes on with the leases, and the end of the
// test takes everything out.
func TestTakenOutInTheWrongOrder(t *testing.T) {
	s := shared(t)
	s.install(t, plain)
	ns := s.namespace(t)
	s.NAD(t, ns, "site", macvlan(), nil)
	pod := s.awaitRunning(t, s.pod(t, ns, "site"))
	net1 := s.leased(t, pod, "net1")
	mark := s.server.Lines.Len()
	s.Kubectl(t, "", "delete", "-k", plain.write(t, tagOne), "--timeout="+patience.String())
	s.update(t, plain, tagOne)
	s.checkKept(t, pod, net1, mark)
	s.awaitObjects(t, ns, net1.addr)
	s.delete(t, pod)
	s.awaitReleased(t, mark, net1)
}

// awaitObjects waits until the DHCPLeases of a namespace are those of the addresses.
func (s *site) awaitObjects(t *testing.T, ns string, addrs ...netip.Addr) {
	t.Helper()
	want := map[string]bool{}
	for _, addr := range addrs {
		want[netip.PrefixFrom(addr, rig.ServerAddr.Bits()).String()+" Bound "+s.node.Name] = true
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	have := map[string]bool{}
	err := poll(ctx, func() (bool, error) {
		list, err := s.Dynamic.Resource(leases).Namespace(ns).List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, err
		}
		clear(have)
		for _, item := range list.Items {
			status, _, _ := unstructured.NestedStringMap(item.Object, "status")
			have[status["address"]+" "+status["state"]+" "+status["node"]] = true
		}
		return maps.Equal(have, want), nil
	})
	if err != nil {
		t.Fatalf("DHCPLeases in %s: %v; they are %v, want %v", ns, err, have, want)
	}
}

var leases = schema.GroupVersionResource{Group: "dhcp-meta.io", Version: "v1alpha1", Resource: "dhcpleases"}

// Every node has its engine, one that comes later too.
func TestK81EngineOnANewNode(t *testing.T) {
	s := shared(t)
	s.install(t, plain)
	s.awaitEngines(t, 1)
	n := s.newNode(t)
	s.awaitEngines(t, 2)
	// Its pod ends in an orderly way: one of a node that is gone stays for a minute.
	s.Kubectl(t, "", "label", "node", n.Name, "kubernetes.io/os=none", "--overwrite")
	s.awaitEngines(t, 1)
	s.Kubectl(t, "", "delete", "node", n.Name)
}

// awaitEngines waits until there are so many engines, all of them ready.
func (s *site) awaitEngines(t *testing.T, want int32) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var last appsv1.DaemonSetStatus
	err := poll(ctx, func() (bool, error) {
		ds, err := s.Client.AppsV1().DaemonSets(namespace).Get(ctx, "dhcp-engine", metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		last = ds.Status
		return last.DesiredNumberScheduled == want && last.NumberReady == want, nil
	})
	if err != nil {
		t.Fatalf("engines: %v; %d are wanted, %d are to be, %d are ready", err, want, last.DesiredNumberScheduled, last.NumberReady)
	}
}
