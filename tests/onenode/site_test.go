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
	kubelet.StartRegistry(t, s.Cluster)
	s.node = kubelet.Start(t, s.Cluster, lan.Node)
	s.node.InstallMultus(t)
	for _, tag := range []string{tagOne, tagTwo} {
		s.node.Push(t, s.buildImage(t, tag), imageName+":"+tag)
	}
}

// newNode joins another node to the cluster, which is on no network of its own.
func (s *site) newNode(t *testing.T) *kubelet.Node {
	t.Helper()
	return kubelet.Start(t, s.Cluster, rig.NewNetns(t, "new"))
}

// imageName is where the registry has our image, as in docs/install.md, of two versions.
const (
	imageName = kubelet.Registry + "/net/dhcp-meta"
	tagOne    = "v0.1.0"
	tagTwo    = "v0.2.0"
)

// buildImage builds our image as `make image` does, and returns the archive. Another tag
// is another program, as another version would be.
func (s *site) buildImage(t testing.TB, tag string) string {
	t.Helper()
	folder := t.TempDir()
	cmd := exec.Command(filepath.Join(root(t), "images/build"), folder, runtime.GOARCH)
	cmd.Env = append(os.Environ(), "VERSION="+tag, "REVISION="+tag, "SOURCE_DATE_EPOCH=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("images/build: %v\n%s", err, out)
	}
	return filepath.Join(folder, "dhcp-meta.tar")
}

// root is the root of the project.
func root(t testing.TB) string {
	t.Helper()
	root, err := rig.ModuleRoot()
	if err != nil {
		t.Fatal(err)
	}
	return root
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
