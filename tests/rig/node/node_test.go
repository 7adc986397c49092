package node_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dhcp-meta/dhcp-meta/tests/rig"
	"github.com/dhcp-meta/dhcp-meta/tests/rig/node"
)

func TestMain(m *testing.M) { rig.Main(m) }

// Two nodes have the same paths and do not see each other's files; both see the
// namespaces of sandboxes, and neither keeps one alive that is gone.
func TestNodesAreApart(t *testing.T) {
	t.Parallel()
	rig.Need(t)
	one, two := node.New(t, rig.NewNetns(t, "one")), node.New(t, rig.NewNetns(t, "two"))
	if got := one.Run(t, "hostname"); got != one.Name {
		t.Errorf("host name %q, want %q", got, one.Name)
	}
	one.Write(t, node.StateDir+"/x", []byte("one"))
	one.Write(t, "/etc/cni/net.d/x", []byte("one"))
	if got := one.Run(t, "cat", node.StateDir+"/x", "/etc/cni/net.d/x"); got != "oneone" {
		t.Errorf("the node reads %q", got)
	}
	for _, path := range []string{node.StateDir + "/x", "/etc/cni/net.d/x"} {
		for where, outside := range map[string]string{"the other node": two.Path(path), "the machine": path} {
			if _, err := os.Stat(outside); !os.IsNotExist(err) {
				t.Errorf("%s has %s too: %v", where, path, err)
			}
		}
	}
	if got := one.Run(t, "ls", "/sys/class/net"); strings.Contains(got, rig.Uplink) {
		t.Errorf("a node without uplink shows %q", got)
	}

	pod := rig.NewNetns(t, "pod")
	for _, n := range []*node.Node{one, two} {
		n.Run(t, "nsenter", "--net="+pod.Path, "ip", "link", "show", "lo")
	}
	pod.Delete(t)
	if _, err := os.Stat(one.Path(filepath.Join("/run/netns", pod.Name))); !os.IsNotExist(err) {
		t.Errorf("the node keeps a deleted namespace: %v", err)
	}
}

// The engine runs on a node with its defaults, and answers there.
func TestEngineAtItsOwnPaths(t *testing.T) {
	t.Parallel()
	lan := rig.NewLAN(t)
	n := node.New(t, lan.Node)
	n.InstallPlugins(t)
	engine := n.Engine(t, "--no-kubernetes")
	engine.Start(t)
	if out := n.Run(t, rig.Program("dhcp-engine"), "leases"); !strings.Contains(out, "ATTACHMENT") {
		t.Errorf("leases on the node: %q", out)
	}
	if _, err := os.Stat(n.Path(node.Plugins + "/macvlan")); err != nil {
		t.Error(err)
	}
}
