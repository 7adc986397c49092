package onenode

import (
	"encoding/json"
	"net/netip"
	"slices"
	"testing"

	nadv1 "github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/apis/k8s.cni.cncf.io/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/dhcp-meta/dhcp-meta/tests/rig"
	"github.com/dhcp-meta/dhcp-meta/tests/rig/kube"
	"github.com/dhcp-meta/dhcp-meta/tests/rig/kubelet"
)

// macvlan is the network of the uplink as a plugin makes it: form delegate.
func macvlan() object {
	return object{"cniVersion": "1.0.0", "name": "site", "type": "dhcp-meta", "delegate": wire("macvlan")}
}

// wire is the object of a plugin that makes a macvlan interface on the uplink.
func wire(plugin string) object {
	return object{"type": plugin, "master": rig.Uplink, "mode": "bridge"}
}

// pod makes a pod with networks, and does not wait for it.
func (s *site) pod(t *testing.T, ns, networks string) *corev1.Pod {
	t.Helper()
	return s.Pod(t, ns, kube.PodSpec{Image: kubelet.Pause, Networks: networks})
}

// awaitRunning waits until a pod runs, and returns it as it is then.
func (s *site) awaitRunning(t *testing.T, pod *corev1.Pod) *corev1.Pod {
	t.Helper()
	out, err := s.TryKubectl("", "wait", "--namespace="+pod.Namespace, "--for=condition=Ready", "--timeout="+patience.String(), "pod/"+pod.Name)
	if err != nil {
		t.Fatalf("pod %s does not come to run: %s\n%s", pod.Name, out, s.Kubectl(t, "", "describe", "pod", "--namespace="+pod.Namespace, pod.Name))
	}
	return s.GetPod(t, pod.Namespace, pod.Name)
}

// delete deletes a pod in its own time, and waits until it is gone.
func (s *site) delete(t *testing.T, pod *corev1.Pod) {
	t.Helper()
	s.Kubectl(t, "", "delete", "--namespace="+pod.Namespace, "--timeout="+patience.String(), "pod/"+pod.Name)
}

// iface is an interface of a pod as Multus wrote it on the pod.
type iface struct {
	mac  string
	addr netip.Addr
}

// network is what the pod's network status says of an interface.
func network(t *testing.T, pod *corev1.Pod, ifName string) iface {
	t.Helper()
	var status []nadv1.NetworkStatus
	if err := json.Unmarshal([]byte(pod.Annotations[nadv1.NetworkStatusAnnot]), &status); err != nil {
		t.Fatalf("network status of pod %s: %v in %q", pod.Name, err, pod.Annotations[nadv1.NetworkStatusAnnot])
	}
	i := slices.IndexFunc(status, func(st nadv1.NetworkStatus) bool { return st.Interface == ifName })
	if i < 0 || len(status[i].IPs) != 1 {
		t.Fatalf("network status of pod %s has no address of %s: %+v", pod.Name, ifName, status)
	}
	return iface{mac: status[i].Mac, addr: netip.MustParseAddr(status[i].IPs[0])}
}

// leased checks that the server holds the address of the pod's interface, for its MAC.
func (s *site) leased(t *testing.T, pod *corev1.Pod, ifName string) iface {
	t.Helper()
	i := network(t, pod, ifName)
	s.server.AwaitHeld(t, "the lease of "+i.mac, func(held []rig.Held) bool {
		return slices.ContainsFunc(held, func(h rig.Held) bool { return h.Addr == i.addr && h.MAC == i.mac })
	})
	return i
}

// awaitReleased waits until the server has the RELEASE of an interface, since mark, and
// its address is free.
func (s *site) awaitReleased(t *testing.T, mark int, i iface) {
	t.Helper()
	s.server.Await(t, mark, patience, "DHCPRELEASE", i.mac)
	s.server.AwaitHeld(t, "no lease of "+i.mac, func(held []rig.Held) bool {
		return !slices.ContainsFunc(held, func(h rig.Held) bool { return h.MAC == i.mac })
	})
}
