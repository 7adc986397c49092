package onenode

import (
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/dhcp-meta/dhcp-meta/tests/rig"
)

// asked checks what `kubectl dhcp` says and does about the interface net1 of a pod, and
// that a healthy installation has no finding.
func (s *site) asked(t *testing.T, pod *corev1.Pod, network string, net1 iface) {
	t.Helper()
	dhcp := s.kubectlDHCP(t, pod.Namespace)
	for _, want := range []string{pod.Name, "net1", net1.addr.String()} {
		if out := dhcp("leases"); !strings.Contains(out, want) {
			t.Errorf("kubectl dhcp leases says nothing of %s:\n%s", want, out)
		}
	}
	server := rig.ServerAddr.Addr().String()
	for _, args := range [][]string{{pod.Name, "net1"}, {"--network", pod.Namespace + "/" + network}} {
		if out := dhcp("probe", args...); !strings.Contains(out, server) {
			t.Errorf("kubectl dhcp probe %q says nothing of the server %s:\n%s", args, server, out)
		}
	}
	mark := s.server.Lines.Len()
	dhcp("renew", pod.Name, "net1")
	s.server.Await(t, mark, patience, "DHCPACK", net1.mac)
	// Here the node's files are memory, and they are nowhere else.
	finding := regexp.MustCompile(`(?m)^(?:error|warning) +(\S+):.*$`)
	for _, m := range finding.FindAllStringSubmatch(dhcp("doctor", "--network", pod.Namespace+"/"+network), -1) {
		if m[1] != "state-memory" {
			t.Errorf("kubectl dhcp doctor finds something in a healthy installation: %s", m[0])
		}
	}
}

// buildKubectlDHCP builds the plugin of kubectl, and returns its folder.
func buildKubectlDHCP(t *testing.T) string {
	t.Helper()
	folder := t.TempDir()
	build := exec.Command("go", "build", "-ldflags=-X github.com/dhcp-meta/dhcp-meta/internal/build.version="+tagOne, "-o", folder, "./cmd/kubectl-dhcp")
	build.Dir = root(t)
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build kubectl-dhcp: %v\n%s", err, out)
	}
	return folder
}

// kubectlDHCP builds the plugin of kubectl; the result runs it, which must succeed.
func (s *site) kubectlDHCP(t *testing.T, ns string) func(verb string, args ...string) string {
	t.Helper()
	folder := buildKubectlDHCP(t)
	return func(verb string, args ...string) string {
		t.Helper()
		args = append([]string{verb, "--namespace=" + ns}, args...)
		out, err := s.TryClient(exec.Command(filepath.Join(folder, "kubectl-dhcp"), args...))
		if err != nil {
			t.Fatalf("kubectl dhcp %s: %v\n%s", strings.Join(args, " "), err, out)
		}
		return out
	}
}
