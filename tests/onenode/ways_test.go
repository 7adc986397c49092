package onenode

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/dhcp-meta/dhcp-meta/tests/rig"
	"github.com/dhcp-meta/dhcp-meta/tests/rig/kube"
	"github.com/dhcp-meta/dhcp-meta/tests/rig/kubelet"
	"github.com/dhcp-meta/dhcp-meta/tests/rig/node"
	"github.com/dhcp-meta/dhcp-meta/tests/rig/ovnk"
)

// wrapped is the plugin of OVN-Kubernetes. Here the reference macvlan does its work:
// these tests are about which program Multus finds. ovn_test.go and tests/ovnkube have
// what OVN-Kubernetes does.
const wrapped = node.Plugins + "/" + ovnk.Plugin

const podMAC = "0a:58:0a:4d:00:07"

// installWrapped puts the wrapped plugin on the node, as its pod does at each start.
func (s *site) installWrapped(t *testing.T, program string) {
	t.Helper()
	s.node.Install(t, program, wrapped)
	t.Cleanup(func() { os.Remove(s.node.Path(wrapped)) })
}

// localnet makes a network of the wrapped plugin, as OVN-Kubernetes writes it.
func (s *site) localnet(t *testing.T, ns, name string, more object) {
	t.Helper()
	o := wire(filepath.Base(wrapped))
	for key, value := range (object{
		"cniVersion": "1.0.0", "name": name, "netAttachDefName": ns + "/" + name, "mac": podMAC,
		"topology": "localnet", "role": "secondary", "physicalNetworkName": "site",
	}) {
		o[key] = value
	}
	for key, value := range more {
		o[key] = value
	}
	s.NAD(t, ns, name, o, nil)
}

// ovnPod makes a pod with the entry that OVN-Kubernetes's controller writes on it.
func (s *site) ovnPod(t *testing.T, ns, network string) *corev1.Pod {
	t.Helper()
	return s.Pod(t, ns, kube.PodSpec{Image: kubelet.Pause, Networks: network, Annotations: map[string]string{
		ovnk.PodNetworks: `{"` + ns + `/` + network + `":{"ip_addresses":null,"mac_address":"` + podMAC + `","role":"secondary"}}`,
	}})
}

// interposed checks that a marked network of the wrapped plugin has an address of the
// site's server, and one without a mark none.
func (s *site) interposed(t *testing.T) {
	t.Helper()
	ns := s.namespace(t)
	s.localnet(t, ns, "marked", object{"dhcp": object{}})
	s.localnet(t, ns, "unmarked", nil)

	mark := s.server.Lines.Len()
	pod := s.awaitRunning(t, s.ovnPod(t, ns, "unmarked"))
	s.delete(t, pod)
	if i := slices.IndexFunc(s.server.Events(mark), func(e rig.DHCPEvent) bool { return e.MAC == podMAC }); i >= 0 {
		t.Errorf("a network without a mark asks the server: %v", s.server.Events(mark)[i])
	}
	pod = s.awaitRunning(t, s.ovnPod(t, ns, "marked"))
	net1 := s.leased(t, pod, "net1")
	if net1.mac != podMAC {
		t.Errorf("the interface has MAC %s, want %s", net1.mac, podMAC)
	}
	s.delete(t, pod)
	s.awaitReleased(t, mark, net1)
}

var (
	searchPath = kustomization{folder: "overlays/ovn-kubernetes"}
	dropIn     = kustomization{folder: "overlays/drop-in"}
)

// The ways of docs/install.md but the plain one. Applying another is enough to change.
func TestWaysOfInstalling(t *testing.T) {
	s := shared(t)
	s.installWrapped(t, filepath.Join(rig.Plugins(), "macvlan"))
	swap := kustomization{folder: "overlays/ovn-kubernetes", components: []string{"swap"}}

	s.install(t, searchPath, "/run/ovn-ic", "/run/cni")
	t.Run("search path", func(t *testing.T) {
		s.tellMultus(t)
		s.interposed(t)
	})
	s.update(t, swap, tagOne)
	t.Run("swap", func(t *testing.T) {
		s.interposed(t)
		// Its owner installs the plugin again, by a copy into its place.
		s.node.Run(t, "cp", filepath.Join(rig.Plugins(), "macvlan"), wrapped)
		s.interposed(t)
	})
	s.update(t, dropIn, tagOne)
	t.Run("drop-in", func(t *testing.T) {
		s.node.Run(t, "cmp", wrapped, filepath.Join(rig.Plugins(), "macvlan"))
		s.droppedIn(t)
	})
}

// droppedIn checks that a network of the reference's daemon is served as it is.
func (s *site) droppedIn(t *testing.T) {
	t.Helper()
	ns := s.namespace(t)
	s.NAD(t, ns, "site", referenced(), nil)
	mark := s.server.Lines.Len()
	pod := s.awaitRunning(t, s.pod(t, ns, "site"))
	net1 := s.leased(t, pod, "net1")
	s.delete(t, pod)
	s.awaitReleased(t, mark, net1)
}

// referenced is the network of the uplink as it is written for the reference's daemon.
func referenced() object {
	config := wire("macvlan")
	config["cniVersion"], config["name"], config["ipam"] = "1.0.0", "site", object{"type": "dhcp"}
	return config
}

// tellMultus has Multus search our wrappers until the end of the test, by the commands
// of docs/install.md.
func (s *site) tellMultus(t *testing.T) {
	t.Helper()
	t.Cleanup(func() {
		s.setMultus(t, `s|"binDir": "/opt/cni/bin/dhcp-meta-wrappers", ||`, "CNI_PATH-")
	})
	s.setMultus(t, `/dhcp-meta-wrappers/! s|"chrootDir"|"binDir": "/opt/cni/bin/dhcp-meta-wrappers", "chrootDir"|`, "CNI_PATH=/opt/cni/bin")
}

// setMultus changes Multus's configuration by a command of sed(1), and its environment.
func (s *site) setMultus(t *testing.T, edit, variable string) {
	t.Helper()
	script := `set -euo pipefail
kubectl -n kube-system get configmap multus-daemon-config -o yaml | sed '` + edit + `' | kubectl apply -f -
kubectl -n kube-system set env daemonset/kube-multus-ds --containers=kube-multus ` + variable
	if out, err := s.TryClient(exec.Command("bash", "-c", script)); err != nil {
		t.Fatalf("tell Multus where to search: %v\n%s", err, out)
	}
	s.node.AwaitMultus(t)
}
