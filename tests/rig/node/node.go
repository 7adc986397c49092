// Package node makes a machine out of namespaces, as far as CNI and dhcp-meta can
// tell: the network namespace of a rig.LAN's node with a file system of its own
// around it, in which the default paths of programs hold:
//
//	/run/dhcp-meta/engine.sock   /var/lib/dhcp-meta   /var/lib/cni
//	/opt/cni/bin                 /etc/cni/net.d       /run/netns (the machine's)
//
// /run, /opt, /var/lib and the changes to /etc are memory of the node: nothing is
// left on the machine, however the test ends, and nodes side by side do not see
// each other. Everything else is the machine's, so programs are started from
// wherever they were built.
//
//	lan := rig.NewLAN(t)                     // server's and node's namespaces
//	n := node.New(t, lan.Node)
//	n.InstallPlugins(t)                      // /opt/cni/bin: reference plugins, dhcp-meta
//	engine := n.Engine(t, "--no-kubernetes") // not started yet
//	engine.Start(t)
//	n.Run(t, "ls", "/var/lib/dhcp-meta")     // a command in the node
//	os.ReadFile(n.Path("/etc/hostname"))     // one of its files, from outside
package node

import (
	_ "embed"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/dhcp-meta/dhcp-meta/tests/rig"
)

// Folders of a node.
const (
	// Plugins is where CNI plugins are.
	Plugins = "/opt/cni/bin"
	// Wrappers is where dhcp-meta stands under other plugins' names.
	Wrappers = Plugins + "/dhcp-meta-wrappers"
	// StateDir is the engine's, Socket what it listens on.
	StateDir = "/var/lib/dhcp-meta"
	Socket   = "/run/dhcp-meta/engine.sock"
)

//go:embed setup.sh
var setup string

// Node is a machine made of namespaces.
type Node struct {
	// Name is the host name; no other test has it.
	Name string
	// Net is the node's network namespace.
	Net *rig.Netns

	holder *rig.Process
}

var count atomic.Int64

// New makes a node around a network namespace.
func New(t testing.TB, net *rig.Netns) *Node {
	t.Helper()
	rig.Need(t)
	n := &Node{Name: fmt.Sprintf("node-%d-%d", os.Getpid(), count.Add(1)), Net: net}
	n.holder = net.Start(t, n.Name, exec.Command("unshare", "--mount", "--uts", "--propagation", "slave",
		"/bin/sh", "-c", setup, "sh", n.Name))
	n.holder.Lines.Await(t, "readiness of "+n.Name, 0, rig.Patience, func(line string) bool { return line == "ready" })
	return n
}

// Path is where a file of the node is found from outside, while the node lives.
// Sockets can be reached by it, and folders watched.
func (n *Node) Path(inside string) string {
	return filepath.Join("/proc", strconv.Itoa(n.holder.PID()), "root", inside)
}

// Enter makes cmd run in the node instead of here. Its program is looked up there.
func (n *Node) Enter(cmd *exec.Cmd) *exec.Cmd {
	program := cmd.Args
	cmd.Args = append([]string{
		"nsenter", "--target=" + strconv.Itoa(n.holder.PID()), "--mount", "--uts", "--net", "--wdns=/", "--",
	}, program...)
	cmd.Path, cmd.Err = nsenter, nil
	return cmd
}

const nsenter = "/usr/bin/nsenter"

// Start is a rig.Place: it starts a long-running program in the node.
func (n *Node) Start(t testing.TB, name string, cmd *exec.Cmd) *rig.Process {
	t.Helper()
	return n.Net.Start(t, name, n.Enter(cmd))
}

// Run executes a command in the node, which must succeed, and returns what it
// printed.
func (n *Node) Run(t testing.TB, name string, args ...string) string {
	t.Helper()
	out, err := n.Enter(exec.Command(name, args...)).CombinedOutput()
	if err != nil {
		t.Fatalf("%s on %s: %v\n%s", strings.Join(append([]string{name}, args...), " "), n.Name, err, out)
	}
	return strings.TrimSpace(string(out))
}

// Write puts a file of mode 0600 on the node, with the folders above it.
func (n *Node) Write(t testing.TB, path string, content []byte) {
	t.Helper()
	n.write(t, path, content, 0o600)
}

// Install copies a program of the machine to a path on the node, with the folders
// above it. It is a copy, since programs may look for what is beside them.
func (n *Node) Install(t testing.TB, program, path string) {
	t.Helper()
	b, err := os.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}
	n.write(t, path, b, 0o755)
}

func (n *Node) write(t testing.TB, path string, content []byte, mode os.FileMode) {
	t.Helper()
	outside := n.Path(path)
	if err := os.MkdirAll(filepath.Dir(outside), 0o755); err != nil {
		t.Fatal(err)
	}
	// Renamed into place: what is being executed cannot be written to.
	fresh := outside + ".new"
	if err := os.WriteFile(fresh, content, mode); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(fresh, outside); err != nil {
		t.Fatal(err)
	}
}

// InstallPlugins puts dhcp-meta and the reference plugins into Plugins. These are
// links to where they were built.
func (n *Node) InstallPlugins(t testing.TB) {
	t.Helper()
	n.Install(t, rig.Program("dhcp-meta"), filepath.Join(Plugins, "dhcp-meta"))
	entries, err := os.ReadDir(rig.Plugins())
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		n.Link(t, filepath.Join(rig.Plugins(), e.Name()), filepath.Join(Plugins, e.Name()))
	}
}

// InstallRecorder puts a recorder's plugins into Plugins, over what is there.
func (n *Node) InstallRecorder(t testing.TB, r *rig.Recorder) {
	t.Helper()
	for _, name := range r.Files() {
		n.Link(t, filepath.Join(r.Folder, name), filepath.Join(Plugins, name))
	}
}

// Link makes a symbolic link on the node, in the place of what is there.
func (n *Node) Link(t testing.TB, target, path string) {
	t.Helper()
	outside := n.Path(path)
	if err := os.Remove(outside); err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	if err := os.Symlink(target, outside); err != nil {
		t.Fatal(err)
	}
}

// Interpose puts dhcp-meta under the names of other plugins into Wrappers.
func (n *Node) Interpose(t testing.TB, names ...string) {
	t.Helper()
	for _, name := range names {
		n.Install(t, rig.Program("dhcp-meta"), filepath.Join(Wrappers, name))
	}
}

// Engine prepares the node's dhcp-engine with its paths as they are by default.
func (n *Node) Engine(t testing.TB, args ...string) *rig.Engine {
	t.Helper()
	return rig.NewEngineAt(n, n.Path(StateDir), n.Path(Socket), args...)
}
