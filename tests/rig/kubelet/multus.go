package kubelet

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	nadv1 "github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/apis/k8s.cni.cncf.io/v1"

	"github.com/dhcp-meta/dhcp-meta/tests/rig"
)

// MultusManifest is how most clusters get Multus: the manifest of its thick DaemonSet,
// from the module that tests/multus builds it of.
func MultusManifest(t testing.TB) string {
	t.Helper()
	root, err := rig.ModuleRoot()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("go", "mod", "download", "-json", "gopkg.in/k8snetworkplumbingwg/multus-cni.v4")
	cmd.Dir = filepath.Join(root, "tests/multus")
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go mod download of Multus: %v\n%s", err, out)
	}
	var module struct{ Dir string }
	if err := json.Unmarshal(out, &module); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(module.Dir, "deployments/multus-daemonset-thick.yml"))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

var multusImage = regexp.MustCompile(`(?m)^ +image: (\S+)$`)

// InstallMultus installs Multus on the cluster by its own manifest, and waits until it
// serves pods on this node.
func (n *Node) InstallMultus(t testing.TB) {
	t.Helper()
	bin, err := rig.ToolCache("multus")
	if err != nil {
		t.Fatal(err)
	}
	const folder = "usr/src/multus-cni/bin/"
	upstream := MultusManifest(t)
	image := multusImage.FindStringSubmatch(upstream)
	if image == nil {
		t.Fatal("Multus's manifest names no image")
	}
	n.Import(t, Image{
		Name: image[1],
		Programs: map[string]string{
			folder + "multus-daemon":  filepath.Join(bin, "multus-daemon"),
			folder + "multus-shim":    filepath.Join(bin, "multus-shim"),
			folder + "install_multus": filepath.Join(bin, "install_multus"),
			folder + "passthru":       filepath.Join(bin, "passthru-cni"),
		},
		Texts: map[string]string{"etc/passwd": "root:x:0:0:root:/root:/sbin/nologin\n", "tmp/.keep": ""},
		Links: map[string]string{"var/run": "../run"},
	})
	// A tenth of a processor makes a pod wait for seconds on a machine that has time.
	manifest := strings.Replace(upstream, multusLimits, "", 1)
	if manifest == upstream {
		t.Fatal("Multus's manifest has no limits where it had them")
	}
	n.cluster.Apply(t, manifest)
	n.AwaitMultus(t)
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

// AwaitMultus waits until Multus is of its last version, and serves pods. It makes pods
// until one has been through it: containerd takes a while to see a new configuration,
// and does not tell when it does.
func (n *Node) AwaitMultus(t testing.TB) {
	t.Helper()
	n.RolloutStatus(t, "kube-system", "kube-multus-ds")
	const pod = "pod/multus-probe"
	deadline := time.Now().Add(startPatience)
	for {
		n.cluster.Kubectl(t, "", "run", "multus-probe", "--image="+Pause, "--restart=Never")
		n.cluster.Kubectl(t, "", "wait", "--for=condition=Ready", "--timeout="+startPatience.String(), pod)
		annotations := n.cluster.Kubectl(t, "", "get", pod, "--output=jsonpath={.metadata.annotations}")
		n.cluster.Kubectl(t, "", "delete", "--timeout="+startPatience.String(), pod)
		if strings.Contains(annotations, nadv1.NetworkStatusAnnot) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("pods do not go through Multus %v after its start", startPatience)
		}
	}
}
