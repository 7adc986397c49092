// Package ovnkube has the tests of both programs in front of OVN-Kubernetes: a real
// API server, the real Multus, a real OVS and OVN, and tests/ovnkdouble in the place
// of OVN-Kubernetes itself.
//
// All tests share one node. Each has a Kubernetes namespace, and a VLAN with servers
// of its own; a test that takes something of the node away has the node alone.
package ovnkube

import (
	"flag"
	"path/filepath"
	"sync"
	"testing"

	"github.com/dhcp-meta/dhcp-meta/tests/rig"
	"github.com/dhcp-meta/dhcp-meta/tests/rig/kube"
	"github.com/dhcp-meta/dhcp-meta/tests/rig/node"
	"github.com/dhcp-meta/dhcp-meta/tests/rig/ovn"
	"github.com/dhcp-meta/dhcp-meta/tests/rig/ovnk"
)

func TestMain(m *testing.M) {
	flag.Parse()
	// Tests wait more than they work.
	if err := flag.Set("test.parallel", "6"); err != nil {
		panic(err) // the flag is there since Go 1.5
	}
	kube.Main(m)
}

type object = rig.Object

const (
	plugin      = ovnk.Plugin
	podNetworks = ovnk.PodNetworks
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
	once sync.Once
	lab  *lab
	err  error

	// alone is held for writing by tests that need the node for themselves.
	alone sync.RWMutex
}

// shared is the node, which the first test starts.
func shared(t *testing.T) *lab {
	t.Helper()
	c := kube.Shared(t)
	theLab.once.Do(func() {
		theLab.err = kube.ForPackage(func(tb testing.TB) { theLab.lab = start(tb, c) })
	})
	if theLab.err != nil {
		t.Fatalf("start the node: %v", theLab.err)
	}
	return theLab.lab
}

func start(t testing.TB, c *kube.Cluster) *lab {
	t.Helper()
	l := &lab{tb: t, kube: c, program: ovnk.Build(t), node: node.New(t, rig.NewNetns(t, "node"))}
	l.node.InstallPlugins(t)
	l.node.Install(t, l.program, filepath.Join(node.Plugins, plugin))
	l.node.Interpose(t, plugin)
	l.node.Install(t, rig.Program("dhcp-meta"), filepath.Join(node.Plugins, "dhcp"))
	c.Join(t, l.node)
	l.Stack = ovn.Start(t, ovn.On(l.node))
	l.node.Write(t, ovnk.Kubeconfig, c.AdminKubeconfig(t))
	l.startOVNKube()
	l.runtime = c.StartMultus(t, l.node, kube.Multus{
		Interposed: true,
		Default:    `{"cniVersion":"1.0.0","name":"ovn-kubernetes","type":"` + plugin + `"}`,
	})
	l.engine = c.Engine(t, l.node, "--ovn-nb=auto", "--dhcp-socket=/run/cni/dhcp.sock")
	l.engine.Start(t)
	return l
}

// startOVNKube starts controller and CNI server of the double.
func (l *lab) startOVNKube() { l.ovnkube = ovnk.Start(l.tb, l.node, l.Stack, l.program) }

// restartOVNKube is what an upgrade of OVN-Kubernetes does to the node.
func (l *lab) restartOVNKube(t *testing.T) {
	t.Helper()
	l.ovnkube.Kill(t)
	l.startOVNKube()
}

// restartEngine is what an upgrade, or a crash, of dhcp-meta does to it.
func (l *lab) restartEngine() { l.engine.Restart(l.tb, l.engine.Kill) }
