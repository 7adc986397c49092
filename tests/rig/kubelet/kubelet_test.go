package kubelet_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dhcp-meta/dhcp-meta/tests/rig"
	"github.com/dhcp-meta/dhcp-meta/tests/rig/kube"
	"github.com/dhcp-meta/dhcp-meta/tests/rig/kubelet"
)

func TestMain(m *testing.M) { kube.Main(m) }

// A pod is scheduled, runs and goes, with Multus too, and a node leaves nothing on the machine even when
// it ends with pods on it.
func TestPodRuns(t *testing.T) {
	c := kube.Shared(t)
	var n *kubelet.Node
	t.Run("life", func(t *testing.T) {
		lan := rig.NewLAN(t)
		c.StartControllers(t)
		n = kubelet.Start(t, c, lan.Node)
		for _, name := range []string{"goes", "stays"} {
			c.Apply(t, `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"`+name+`","namespace":"default"},
				"spec":{"containers":[{"name":"main","image":"`+kubelet.Pause+`"}]}}`)
		}
		c.Kubectl(t, "", "wait", "--for=condition=Ready", "--timeout=60s", "pod/goes", "pod/stays")
		if addr := c.GetPod(t, "default", "goes").Status.PodIP; !strings.HasPrefix(addr, "10.244.0.") {
			t.Errorf("the pod's address is %q", addr)
		}
		c.Kubectl(t, "", "delete", "--timeout=60s", "pod/goes")
		n.InstallMultus(t)
	})
	left, err := filepath.Glob(fmt.Sprintf("/sys/fs/cgroup/*/dhcp-meta-%d-*", os.Getpid()))
	if err != nil || len(left) > 0 {
		t.Errorf("cgroups are left: %v %v", left, err)
	}
	if _, err := os.Stat(n.Path("/")); !os.IsNotExist(err) {
		t.Errorf("the node's first process is still there: %v", err)
	}
}
