// Package ovnk starts tests/ovnkdouble on nodes, in the place of OVN-Kubernetes.
package ovnk

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dhcp-meta/dhcp-meta/tests/rig"
	"github.com/dhcp-meta/dhcp-meta/tests/rig/node"
	"github.com/dhcp-meta/dhcp-meta/tests/rig/ovn"
)

const (
	// Plugin is the name under which the program is the CNI plugin.
	Plugin = "ovn-k8s-cni-overlay"
	// PodNetworks is the key of the annotation.
	PodNetworks = "k8s.ovn.org/pod-networks"
	// Kubeconfig is where the double finds its own on the node.
	Kubeconfig = "/etc/ovnkube/kubeconfig"
)

// Build builds the double, and returns its program.
func Build(t testing.TB) string {
	t.Helper()
	root, err := rig.ModuleRoot()
	if err != nil {
		t.Fatal(err)
	}
	folder := t.TempDir()
	// The flags of the other programs, so that what is compiled for them serves here too.
	cmd := exec.Command("go", "build", "-trimpath", "-o", folder+"/", "./tests/ovnkdouble")
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build ovnkdouble: %v\n%s", err, out)
	}
	return filepath.Join(folder, "ovnkdouble")
}

// Start starts controller and CNI server of the double on the node of a stack, which has
// Kubeconfig, and waits for its socket.
func Start(t testing.TB, n *node.Node, s *ovn.Stack, program string) *rig.Process {
	t.Helper()
	cmd := exec.Command(program, "--kubeconfig="+Kubeconfig, "--node="+n.Name)
	cmd.Env = append(os.Environ(), "OVN_NB_DB="+s.NorthAddress())
	p := n.Start(t, "ovnkube", cmd)
	p.Lines.Await(t, "the double's CNI server", 0, rig.Patience, func(line string) bool {
		return strings.Contains(line, "serves CNI")
	})
	return p
}

// PortName is the logical port of a pod's interface on a network, which its definition
// names: "<namespace>/<name>".
func PortName(nad, namespace, pod string) string {
	return strings.NewReplacer("-", ".", "/", ".").Replace(nad) + "_" + namespace + "_" + pod
}
