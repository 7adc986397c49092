package onenode

import (
	"os"
	"path/filepath"
	"testing"
)

// namespace is the namespace of all that we install.
const namespace = "dhcp-meta"

// way is a way of docs/install.md to put us on a cluster, and to take us out again.
type way interface {
	// apply has the cluster run what is wanted, by a tag of the image.
	apply(t *testing.T, s *site, tag string)
	// takeOut takes it off nodes and cluster, where no pod needs it any more.
	takeOut(t *testing.T, s *site)
}

// install installs a way and waits until the engine is ready. The end of the test takes
// it out, and checks that the node's files are what they were, but for empty folders that
// were made to be mounted.
func (s *site) install(t *testing.T, w way, mounted ...string) {
	t.Helper()
	before := s.tree(t)
	t.Cleanup(func() {
		s.uninstall(t, w)
		for _, folder := range mounted {
			s.node.Run(t, "rmdir", folder)
		}
		s.asBefore(t, before)
	})
	s.tell(t)
	s.update(t, w, tagOne)
}

// update applies a way with a tag of the image, and waits until the engine is ready.
func (s *site) update(t *testing.T, w way, tag string) {
	t.Helper()
	w.apply(t, s, tag)
	s.node.RolloutStatus(t, namespace, "dhcp-engine")
}

// uninstall does what docs/install.md says: first of all pods go, then networks.
func (s *site) uninstall(t *testing.T, w way) {
	t.Helper()
	for _, ns := range s.namespaces {
		for _, what := range []string{"pods", "network-attachment-definitions"} {
			s.Kubectl(t, "", "delete", what, "--all", "--namespace="+ns, "--timeout="+patience.String())
		}
	}
	s.namespaces = nil
	w.takeOut(t, s)
}

// kustomization is what a user applies of us: a folder of manifests/ with the image's
// name and tag, and components.
type kustomization struct {
	folder     string
	components []string
}

func (k kustomization) apply(t *testing.T, s *site, tag string) {
	t.Helper()
	s.Kubectl(t, "", "apply", "--server-side", "-k", k.write(t, tag))
}

func (k kustomization) takeOut(t *testing.T, s *site) {
	t.Helper()
	s.Kubectl(t, "", "delete", "daemonset", "dhcp-engine", "dhcp-meta-uninstall", "--ignore-not-found", "--namespace="+namespace, "--timeout="+patience.String())
	kustomization{folder: "uninstall"}.apply(t, s, tagOne)
	s.node.RolloutStatus(t, namespace, "dhcp-meta-uninstall")
	s.Kubectl(t, "", "delete", "-k", k.write(t, tagOne), "--ignore-not-found", "--timeout="+patience.String())
}

// write writes the kustomization, and returns its folder.
func (k kustomization) write(t *testing.T, tag string) string {
	t.Helper()
	dir := t.TempDir()
	// Kustomize takes no absolute path.
	manifests, err := filepath.Rel(dir, filepath.Join(root(t), "manifests"))
	if err != nil {
		t.Fatal(err)
	}
	text := "resources: [" + filepath.Join(manifests, k.folder) + "]\n" +
		"images: [{name: dhcp-meta, newName: " + imageName + ", newTag: " + tag + "}]\n"
	for _, c := range k.components {
		text += "components: [" + filepath.Join(manifests, "components", c) + "]\n"
	}
	if err := os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}
