package kube

import (
	"path/filepath"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/dhcp-meta/dhcp-meta/tests/rig"
	"github.com/dhcp-meta/dhcp-meta/tests/rig/node"
)

// EngineKubeconfig is where a node's engine finds its own.
const EngineKubeconfig = "/etc/dhcp-meta/kubeconfig"

// Namespace and service account of the engine, as manifests/ has them.
const (
	EngineNamespace = "dhcp-meta"
	EngineAccount   = "dhcp-engine"
)

// Engine prepares the engine of a node that has joined: with the rights and under
// the admission policies of manifests/, by the token of a pod on that node, and
// without OVN unless the flags say so, since the last of them counts.
func (c *Cluster) Engine(t testing.TB, n *node.Node, flags ...string) *rig.Engine {
	t.Helper()
	c.InstallManifests(t)
	pod := c.EnginePod(t, n)
	n.Write(t, EngineKubeconfig, c.Kubeconfig(t, c.Token(t, EngineNamespace, EngineAccount, pod, time.Hour)))
	return n.Engine(t, append([]string{"--kubeconfig=" + EngineKubeconfig, "--node-name=" + n.Name, "--ovn-nb=off"}, flags...)...)
}

// EnginePod makes the pod object whose token an engine uses.
func (c *Cluster) EnginePod(t testing.TB, n *node.Node) *corev1.Pod {
	t.Helper()
	return c.Pod(t, EngineNamespace, PodSpec{Name: "dhcp-engine-" + n.Name, Node: n.Name, Account: EngineAccount})
}

// InstallManifests applies manifests/ as a user of the project does, once a cluster.
func (c *Cluster) InstallManifests(t testing.TB) {
	t.Helper()
	c.install.Lock()
	defer c.install.Unlock()
	if c.installed {
		return
	}
	root, err := rig.ModuleRoot()
	if err != nil {
		t.Fatal(err)
	}
	c.Kubectl(t, "", "apply", "--server-side", "-k", filepath.Join(root, "manifests/base"))
	c.ServiceAccount(t, EngineNamespace, "default")
	for _, may := range []authorizationv1.ResourceAttributes{
		{Verb: "patch", Resource: "pods"},
		{Verb: "list", Group: "k8s.cni.cncf.io", Resource: "network-attachment-definitions"},
	} {
		c.AwaitAccess(t, EngineNamespace, EngineAccount, may)
	}
	c.installed = true
}
