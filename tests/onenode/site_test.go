package onenode

import (
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dhcp-meta/dhcp-meta/tests/rig"
	"github.com/dhcp-meta/dhcp-meta/tests/rig/kube"
	"github.com/dhcp-meta/dhcp-meta/tests/rig/kubelet"
)

type object = rig.Object

// patience is how long a pod may take to run, or to go: two seconds on an idle machine.
const patience = 2 * time.Minute

// site is a cluster of one node, and the network that its uplink is on, with a DHCP
// server. The tests of this package share it, one after another, and each leaves the
// node as it was: what is installed is installed by the test.
type site struct {
	*kube.Cluster
	node   *kubelet.Node
	server *rig.Dnsmasq
	// images are archives of our image, by their tag.
	images map[string]string
	// namespaces are those of the test that runs.
	namespaces []string
}

var (
	startSite sync.Once
	theSite   site
	siteError error
)

func shared(t *testing.T) *site {
	t.Helper()
	theSite.Cluster = kube.Shared(t)
	startSite.Do(func() { siteError = kube.ForPackage(theSite.start) })
	if siteError != nil {
		t.Fatalf("start the package's node: %v", siteError)
	}
	return &theSite
}

func (s *site) start(t testing.TB) {
	lan := rig.NewLAN(t)
	config := rig.Pool(0, 0)
	config.Last = netip.MustParseAddr("10.77.0.250")
	s.server = rig.RunDnsmasq(t, lan.Server, config)
	s.StartControllers(t)
	s.node = kubelet.Start(t, s.Cluster, lan.Node)
	s.node.InstallMultus(t)
	s.images = map[string]string{}
	for _, tag := range []string{"one", "two"} {
		s.buildImage(t, tag)
		s.node.ImportArchive(t, s.images[tag], imageName+tag)
	}
}

// newNode joins another node to the cluster, which is on no network of its own.
func (s *site) newNode(t *testing.T) *kubelet.Node {
	t.Helper()
	// With the image from the start: a pull that fails is tried again after a minute.
	return kubelet.Start(t, s.Cluster, rig.NewNetns(t, "new"), func(n *kubelet.Node) {
		n.ImportArchive(t, s.images["one"], imageName+"one")
	})
}

// imageName is how the node knows the image that manifests call dhcp-meta.
const imageName = "docker.io/library/dhcp-meta:"

// buildImage builds our image as `make image` does. Another tag is another program, as
// another version would be.
func (s *site) buildImage(t testing.TB, tag string) {
	t.Helper()
	root, err := rig.ModuleRoot()
	if err != nil {
		t.Fatal(err)
	}
	folder := t.TempDir()
	cmd := exec.Command(filepath.Join(root, "images/build"), folder, runtime.GOARCH)
	cmd.Env = append(os.Environ(), "VERSION="+tag, "REVISION="+tag, "SOURCE_DATE_EPOCH=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("images/build: %v\n%s", err, out)
	}
	s.images[tag] = filepath.Join(folder, "dhcp-meta-"+runtime.GOARCH+".tar")
}

// namespace is the namespace of all that we install.
const namespace = "dhcp-meta"

// kustomization is what a user applies of us: a folder of manifests/ with the image's
// tag, and components.
type kustomization struct {
	folder     string
	components []string
}

// write writes the kustomization, and returns its folder.
func (k kustomization) write(t *testing.T, tag string) string {
	t.Helper()
	root, err := rig.ModuleRoot()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	// Kustomize takes no absolute path.
	manifests, err := filepath.Rel(dir, filepath.Join(root, "manifests"))
	if err != nil {
		t.Fatal(err)
	}
	text := "resources: [" + filepath.Join(manifests, k.folder) + "]\nimages: [{name: dhcp-meta, newTag: " + tag + "}]\n"
	for _, c := range k.components {
		text += "components: [" + filepath.Join(manifests, "components", c) + "]\n"
	}
	if err := os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

// install applies a kustomization and waits until the engine is ready. The end of the
// test uninstalls it, and checks that the node's files are what they were, but for empty
// folders that were made to be mounted.
func (s *site) install(t *testing.T, k kustomization, mounted ...string) {
	t.Helper()
	before := s.tree(t)
	t.Cleanup(func() {
		s.uninstall(t, k)
		for _, folder := range mounted {
			s.node.Run(t, "rmdir", folder)
		}
		s.asBefore(t, before)
	})
	s.tell(t)
	s.update(t, k, "one")
}

// update applies a kustomization with a tag of the image.
func (s *site) update(t *testing.T, k kustomization, tag string) {
	t.Helper()
	s.Kubectl(t, "", "apply", "--server-side", "-k", k.write(t, tag))
	s.node.RolloutStatus(t, namespace, "dhcp-engine")
}

// uninstall does what docs/install.md says: first of all pods go, then networks.
func (s *site) uninstall(t *testing.T, k kustomization) {
	t.Helper()
	for _, ns := range s.namespaces {
		for _, what := range []string{"pods", "network-attachment-definitions"} {
			s.Kubectl(t, "", "delete", what, "--all", "--namespace="+ns, "--timeout="+patience.String())
		}
	}
	s.namespaces = nil
	s.Kubectl(t, "", "delete", "--namespace="+namespace, "--timeout="+patience.String(), "daemonset/dhcp-engine")
	s.Kubectl(t, "", "apply", "--server-side", "-k", kustomization{folder: "uninstall"}.write(t, "one"))
	s.node.RolloutStatus(t, namespace, "dhcp-meta-uninstall")
	s.Kubectl(t, "", "delete", "-k", k.write(t, "one"), "--ignore-not-found", "--timeout="+patience.String())
}

// engine executes a program in the engine's container.
func (s *site) engine(t *testing.T, args ...string) string {
	t.Helper()
	return s.Kubectl(t, "", append([]string{"exec", "--namespace=" + namespace, "daemonset/dhcp-engine", "--"}, args...)...)
}

// namespace makes a namespace of the test's own, whose pods end before what the test has
// installed.
func (s *site) namespace(t *testing.T) string {
	t.Helper()
	ns := s.Namespace(t)
	s.namespaces = append(s.namespaces, ns)
	return ns
}

// tell shows what our pods said when the test has failed.
func (s *site) tell(t *testing.T) {
	t.Helper()
	t.Cleanup(func() {
		if !t.Failed() {
			return
		}
		for _, args := range [][]string{
			{"get", "pods", "--all-namespaces", "--output=wide"},
			{"logs", "--namespace=" + namespace, "daemonset/dhcp-engine", "--all-containers", "--tail=60"},
			{"get", "events", "--all-namespaces", "--field-selector=type=Warning"},
		} {
			out, _ := s.TryKubectl("", args...)
			t.Logf("kubectl %s:\n%s", strings.Join(args, " "), out)
		}
	})
}
