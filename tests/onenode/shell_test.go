package onenode

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/dhcp-meta/dhcp-meta/tests/rig"
	"github.com/dhcp-meta/dhcp-meta/tests/rig/kubelet"
)

var shell = flag.Bool("shell", false, "start the cluster and a shell on its node, and test nothing")

const welcome = `
A cluster of one node with Multus, and nothing of dhcp-meta on it. This is a shell on the
node; its first commands can be those of docs/install.md, from "Install it" on.

  kubectl, helm      are cluster admin; kubectl dhcp is there too
  dhcp-meta          in this folder is the clone
  %[1]s
                     and %[2]s: our image, of two versions
  %[3]s
                     an image for pods; others go there by skopeo with --dest-tls-verify=false
  %[4]s             the node's interface on %[5]s, where a DHCP server is
  %[6]s
                     what that server logs

The node's files are memory, of which doctor warns (state-memory). exit ends it all, with
what this folder has besides the clone.

`

// TestShell is ` + "`make playground`" + `: the site with nothing of ours installed, and a shell on
// its node. It reads standard input, so that a script can be its user.
func TestShell(t *testing.T) {
	if !*shell {
		t.Skip("this is make playground")
	}
	s := shared(t)
	web := kubelet.Registry + "/net/web:v1"
	s.node.Push(t, kubelet.PauseImage(t).Write(t), web)
	const kubeconfig, log = "/etc/kubernetes/admin.conf", "/var/log/dhcp-server.log"
	s.node.Write(t, kubeconfig, s.AdminKubeconfig(t))
	s.logServer(t, s.node.Path(log))
	path := buildKubectlDHCP(t) + ":" + os.Getenv("PATH")
	for _, module := range []string{"kubernetes", "manifests-tools"} {
		bin, err := rig.ToolCache(module)
		if err != nil {
			t.Fatal(err)
		}
		path = bin + ":" + path
	}

	fmt.Printf(welcome, imageName+":"+tagOne, tagTwo, web, rig.Uplink, rig.ServerAddr.Masked(), log)
	cmd := s.node.Enter(exec.Command("bash", "-c", `cd "$1" && exec bash --norc`, "bash", besideTheClone(t)))
	cmd.Env = append(os.Environ(), "KUBECONFIG="+kubeconfig, "PATH="+path, "PS1=playground# ")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	// The status is that of the last command that was typed.
	var status *exec.ExitError
	if err := cmd.Run(); err != nil && !errors.As(err, &status) {
		t.Fatal(err)
	}
	// Whoever leaves a shell has passed no test: of the package's PASS nothing is said.
	var err error
	if os.Stdout, err = os.OpenFile(os.DevNull, os.O_WRONLY, 0); err != nil {
		t.Fatal(err)
	}
}

// besideTheClone is a folder that holds the clone as dhcp-meta, whatever its own is called.
func besideTheClone(t *testing.T) string {
	t.Helper()
	folder := t.TempDir()
	if err := os.Symlink(root(t), filepath.Join(folder, "dhcp-meta")); err != nil {
		t.Fatal(err)
	}
	return folder
}

// logServer writes what the server logs into a file, until the test ends.
func (s *site) logServer(t *testing.T, path string) {
	t.Helper()
	file, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		defer file.Close()
		line, mark := "", 0
		for err == nil {
			line, mark, err = s.server.Lines.Next(t.Context(), mark, func(string) bool { return true })
			if err == nil {
				_, err = fmt.Fprintln(file, line)
			}
		}
	}()
}
