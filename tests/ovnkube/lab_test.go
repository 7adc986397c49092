// Package ovnkube has the tests of both programs in front of OVN-Kubernetes: a real
// API server, the real Multus, a real OVS and OVN, and tests/ovnkdouble in the place
// of OVN-Kubernetes itself.
//
// All tests share one node. Each has a Kubernetes namespace, and a VLAN with servers
// of its own; a test that takes something of the node away has the node alone.
package ovnkube

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/dhcp-meta/dhcp-meta/tests/rig"
	"github.com/dhcp-meta/dhcp-meta/tests/rig/kube"
	"github.com/dhcp-meta/dhcp-meta/tests/rig/node"
	"github.com/dhcp-meta/dhcp-meta/tests/rig/ovn"
)

func TestMain(m *testing.M) {
	flag.Parse()
	// Tests wait more than they work.
	if err := flag.Set("test.parallel", "6"); err != nil {
		panic(err) // the flag is there since Go 1.5
	}
	kube.Main(m, func() { os.RemoveAll(theLab.double) })
}

type object = rig.Object

const (
	plugin      = "ovn-k8s-cni-overlay"
	podNetworks = "k8s.ovn.org/pod-networks"
	// kubeconfig is where the double finds its own on the node.
	kubeconfig = "/etc/ovnkube/kubeconfig"
)

// lab is a node with OVN, the double, Multus with dhcp-meta in front of the double,
// and an engine.
type lab struct {
	*ovn.Stack
	// tb is what the node's processes end with.
	tb      testing.TB
	kube    *kube.Cluster
	node    *node.Node
	runtime *kube.Runtime
	engine  *rig.Engine
	ovnkube *rig.Process
	// program is the double's.
	program string
}

var theLab struct {
	once   sync.Once
	lab    *lab
	err    error
	double string // folder

	// alone is held for writing by tests that need the node for themselves.
	alone sync.RWMutex
}

// shared is the node, which the first test starts.
func shared(t *testing.T) *lab {
	t.Helper()
	c := kube.Shared(t)
	theLab.once.Do(func() {
		program, err := buildDouble()
		if err != nil {
			theLab.err = err
			return
		}
		theLab.err = kube.ForPackage(func(tb testing.TB) { theLab.lab = start(tb, c, program) })
	})
	if theLab.err != nil {
		t.Fatalf("start the node: %v", theLab.err)
	}
	return theLab.lab
}

func buildDouble() (string, error) {
	folder, err := os.MkdirTemp("", "dhcp-meta-ovnk")
	if err != nil {
		return "", err
	}
	theLab.double = folder
	// The flags of the other programs, so that what is compiled for them serves here too.
	cmd := exec.Command("go", "build", "-trimpath", "-o", folder+"/", "../ovnkdouble")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build ovnkdouble: %w\n%s", err, out)
	}
	return filepath.Join(folder, "ovnkdouble"), nil
}

func start(t testing.TB, c *kube.Cluster, program string) *lab {
	t.Helper()
	l := &lab{tb: t, kube: c, program: program, node: node.New(t, rig.NewNetns(t, "node"))}
	l.node.InstallPlugins(t)
	l.node.Install(t, program, filepath.Join(node.Plugins, plugin))
	l.node.Interpose(t, plugin)
	l.node.Install(t, rig.Program("dhcp-meta"), filepath.Join(node.Plugins, "dhcp"))
	c.Join(t, l.node)
	l.Stack = ovn.Start(t, ovn.On(l.node))
	l.node.Write(t, kubeconfig, c.AdminKubeconfig(t))
	l.startOVNKube()
	l.runtime = c.StartMultus(t, l.node, kube.Multus{
		Interposed: true,
		Default:    `{"cniVersion":"1.0.0","name":"ovn-kubernetes","type":"` + plugin + `"}`,
	})
	l.engine = c.Engine(t, l.node, "--ovn-nb=auto", "--dhcp-socket=/run/cni/dhcp.sock")
	l.engine.Start(t)
	return l
}

// startOVNKube starts controller and CNI server of the double, and waits for its
// socket.
func (l *lab) startOVNKube() {
	l.ovnkube = l.node.Start(l.tb, "ovnkube", exec.Command(l.program, "--kubeconfig="+kubeconfig, "--node="+l.node.Name))
	l.ovnkube.Lines.Await(l.tb, "the double's CNI server", 0, rig.Patience, func(line string) bool {
		return strings.Contains(line, "serves CNI")
	})
}

// restartOVNKube is what an upgrade of OVN-Kubernetes does to the node.
func (l *lab) restartOVNKube(t *testing.T) {
	t.Helper()
	l.ovnkube.Kill(t)
	l.startOVNKube()
}

// restartEngine is what an upgrade, or a crash, of dhcp-meta does to it.
func (l *lab) restartEngine() { l.engine.Restart(l.tb, l.engine.Kill) }
