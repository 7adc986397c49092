package vm

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/dhcp-meta/dhcp-meta/tests/rig/kube"
	"github.com/dhcp-meta/dhcp-meta/tests/vm/guest"
)

// Who the engine is in the manifests.
const engineNamespace, engineAccount = "dhcp-meta", "dhcp-engine"

// machineNode is the name of the machine in the cluster.
const machineNode = "emulated"

// apiCard is the machine's way to the API server: qemu's own network, whose packets
// leave by the namespace that qemu is in.
var apiCard = []string{"-netdev", "user,id=api", "-device", "virtio-net-pci,netdev=api,mac=" + guest.APICard}

// TestVirtualMachines runs the tests of guest/cluster in a machine that is a node of a
// real API server's cluster, with the engine's account and rights as they are shipped.
func TestVirtualMachines(t *testing.T) {
	c := kube.Shared(t)
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: machineNode}}
	if _, err := c.Client.CoreV1().Nodes().Create(t.Context(), node, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"namespace.yaml", "rbac.yaml", "policy-engine.yaml"} {
		text, err := os.ReadFile(filepath.Join(moduleRoot(t), "manifests/base", name))
		if err != nil {
			t.Fatal(err)
		}
		c.Apply(t, string(text))
	}
	c.AwaitAccess(t, engineNamespace, engineAccount, authorizationv1.ResourceAttributes{Verb: "patch", Resource: "pods"})
	engine := c.Pod(t, engineNamespace, kube.PodSpec{Node: machineNode, Account: engineAccount})
	token := c.Token(t, engineNamespace, engineAccount, engine, 2*time.Hour)

	list := files(t, "cluster")
	put := func(name string, b []byte) {
		list[name] = filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(list[name], b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	put("kubeconfig", c.Kubeconfig(t, token))
	put("admin.kubeconfig", c.AdminKubeconfig(t))
	facts, err := json.Marshal(guest.Facts{Node: machineNode, Namespace: c.Namespace(t)})
	if err != nil {
		t.Fatal(err)
	}
	put("facts.json", facts)
	RunTests(t, Config{Files: list, Netns: c.Net, Devices: apiCard})
}
