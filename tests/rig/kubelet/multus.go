package kubelet

import (
	_ "embed"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	nadv1 "github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/apis/k8s.cni.cncf.io/v1"

	"github.com/dhcp-meta/dhcp-meta/tests/rig"
	"github.com/dhcp-meta/dhcp-meta/tests/rig/kube"
)

// multusManifest is how most clusters get Multus.
//
//go:embed multus-daemonset-thick.yml
var multusManifest string

const multusImage = "ghcr.io/k8snetworkplumbingwg/multus-cni:snapshot-thick"

// InstallMultus installs Multus on the cluster by its own manifest, and waits until it
// serves pods on this node.
func (n *Node) InstallMultus(t testing.TB) {
	t.Helper()
	bin, err := rig.ToolCache("multus")
	if err != nil {
		t.Fatal(err)
	}
	const folder = "usr/src/multus-cni/bin/"
	n.Import(t, Image{
		Name: multusImage,
		Programs: map[string]string{
			folder + "multus-daemon":  filepath.Join(bin, "multus-daemon"),
			folder + "multus-shim":    filepath.Join(bin, "multus-shim"),
			folder + "install_multus": filepath.Join(bin, "install_multus"),
			folder + "passthru":       filepath.Join(bin, "passthru-cni"),
		},
		Texts: map[string]string{"etc/passwd": "root:x:0:0:root:/root:/sbin/nologin\n", "tmp/.keep": ""},
		Links: map[string]string{"var/run": "../run"},
	})
	n.ApplyMultus(t)
}

// ApplyMultus applies Multus's manifest, with components of Kustomize, and waits until
// Multus serves pods as they say.
func (n *Node) ApplyMultus(t testing.TB, components ...string) {
	t.Helper()
	// A tenth of a processor makes a pod wait for seconds on a machine that has time.
	manifest := strings.Replace(multusManifest, multusLimits, "", 1)
	if manifest == multusManifest {
		t.Fatal("Multus's manifest has no limits where it had them")
	}
	dir := t.TempDir()
	text := "resources: [multus.yml]\n"
	for _, c := range components {
		// Kustomize takes no absolute path.
		relative, err := filepath.Rel(dir, c)
		if err != nil {
			t.Fatal(err)
		}
		text += "components: [" + relative + "]\n"
	}
	for name, content := range map[string]string{"multus.yml": manifest, "kustomization.yaml": text} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	n.cluster.Kubectl(t, "", "apply", "--server-side", "-k", dir)
	n.RolloutStatus(t, "kube-system", "kube-multus-ds")
	n.awaitMultus(t)
}

const multusLimits = `            limits:
              cpu: "100m"
              memory: "50Mi"
`

// RolloutStatus waits until all pods of a DaemonSet are of its last version, and ready.
func (n *Node) RolloutStatus(t testing.TB, namespace, daemonSet string) {
	t.Helper()
	n.cluster.Kubectl(t, "", "rollout", "status", "--namespace="+namespace, "--timeout="+startPatience.String(), "daemonset/"+daemonSet)
}

// awaitMultus makes pods until one has been through Multus: containerd takes a while to
// see a new configuration, and does not tell when it does.
func (n *Node) awaitMultus(t testing.TB) {
	t.Helper()
	deadline := time.Now().Add(startPatience)
	for {
		pod := n.cluster.Pod(t, "default", kube.PodSpec{Image: Pause})
		n.cluster.Kubectl(t, "", "wait", "--for=condition=Ready", "--timeout="+startPatience.String(), "pod/"+pod.Name)
		pod = n.cluster.GetPod(t, "default", pod.Name)
		n.cluster.Kubectl(t, "", "delete", "--timeout="+startPatience.String(), "pod/"+pod.Name)
		if pod.Annotations[nadv1.NetworkStatusAnnot] != "" {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("pods do not go through Multus %v after its start", startPatience)
		}
	}
}
