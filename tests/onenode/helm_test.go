package onenode

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dhcp-meta/dhcp-meta/tests/rig"
)

// chart is a release of manifests/helm/dhcp-meta, by the commands of the documents.
type chart struct {
	mode      string
	installed bool
}

func (c *chart) apply(t *testing.T, s *site, tag string) {
	t.Helper()
	folder := filepath.Join(root(t), "manifests/helm/dhcp-meta")
	if c.installed {
		s.helm(t, "upgrade", "dhcp-meta", folder, "--reset-then-reuse-values", "--set", "image.tag="+tag)
		return
	}
	s.Kubectl(t, "", "create", "namespace", namespace)
	s.Kubectl(t, "", "label", "namespace", namespace, "pod-security.kubernetes.io/enforce=privileged")
	c.installed = true
	s.helm(t, "install", "dhcp-meta", folder, "--set", "image.repository="+imageName+",image.tag="+tag+",mode="+c.mode)
}

func (c *chart) takeOut(t *testing.T, s *site) {
	t.Helper()
	s.helm(t, "upgrade", "dhcp-meta", filepath.Join(root(t), "manifests/helm/dhcp-meta"), "--reset-then-reuse-values", "--set", "uninstall=true")
	s.node.RolloutStatus(t, namespace, "dhcp-meta-uninstall")
	s.helm(t, "uninstall", "dhcp-meta")
	s.Kubectl(t, "", "delete", "namespace", namespace, "--timeout="+patience.String())
}

// helm runs helm as cluster admin, in our namespace; it must succeed.
func (s *site) helm(t *testing.T, args ...string) {
	t.Helper()
	bin, err := rig.ToolCache("manifests-tools")
	if err != nil {
		t.Fatal(err)
	}
	args = append(args, "--namespace="+namespace)
	if out, err := s.TryClient(exec.Command(filepath.Join(bin, "helm"), args...)); err != nil {
		t.Fatalf("helm %q: %v\n%s", args, err, out)
	}
}

// Installed, upgraded and taken out by Helm: a pod keeps its lease under the upgrade, and
// a plugin that somebody keeps wrapped is itself again at the end. The uninstaller begins
// while the engine's pod still ends: Helm makes what is new before it removes what is old.
func TestHelm(t *testing.T) {
	s := shared(t)
	release := &chart{mode: "drop-in"}
	s.install(t, release, "/run/cni")
	ns := s.namespace(t)
	s.NAD(t, ns, "site", macvlan(), nil)
	begin := s.server.Lines.Len()
	pod := s.awaitRunning(t, s.pod(t, ns, "site"))
	net1 := s.leased(t, pod, "net1")
	s.droppedIn(t)

	mark := s.server.Lines.Len()
	s.update(t, release, tagTwo)
	if version := s.engine(t, "/usr/bin/dhcp-engine", "version"); !strings.Contains(version, tagTwo) {
		t.Errorf("after the upgrade to %s the engine is %s", tagTwo, version)
	}
	s.checkKept(t, pod, net1, mark)
	s.delete(t, pod)
	s.awaitReleased(t, begin, net1)
}
