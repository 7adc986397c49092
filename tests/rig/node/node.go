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
	"slices"
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

//go:embed machine.sh
var machine string

// Node is a machine made of namespaces.
type Node struct {
	// Name is the host name; no other test has it.
	Name string
	// Net is the node's network namespace.
	Net *rig.Netns

	// pid is a process that lives as long as the node; namespaces are what it has of
	// its own.
	pid        int
	namespaces []string
}

var count atomic.Int64

// New makes a node around a network namespace.
func New(t testing.TB, net *rig.Netns) *Node {
	t.Helper()
	n := newNode(t, net, "--mount", "--uts", "--net")
	holder := net.Start(t, n.Name, exec.Command("unshare", "--mount", "--uts", "--propagation=slave",
		"/bin/sh", "-c", setup, "sh", n.Name))
	n.pid = holder.PID()
	awaitReady(t, holder)
	return n
}

// NewMachine makes a node that a container runtime can run on: it has processes of
// its own too, the first of which is init, and shares no mount with the machine, not
// even /run/netns. All of its processes end with init.
func NewMachine(t testing.TB, net *rig.Netns, init string) *Node {
	t.Helper()
	n := newNode(t, net, "--mount", "--uts", "--net", "--ipc", "--pid")
	holder := net.Start(t, n.Name, exec.Command("unshare", "--mount", "--uts", "--ipc", "--pid", "--propagation=private",
		"--fork", "--kill-child", "/bin/sh", "-c", machine, "sh", n.Name, init))
	awaitReady(t, holder)
	children := fmt.Sprintf("/proc/%[1]d/task/%[1]d/children", holder.PID())
	b, err := os.ReadFile(children)
	if err != nil {
		t.Fatal(err)
	}
	if n.pid, err = strconv.Atoi(strings.TrimSpace(string(b))); err != nil {
		t.Fatalf("the first process of %s: %v", n.Name, err)
	}
	return n
}

func newNode(t testing.TB, net *rig.Netns, namespaces ...string) *Node {
	t.Helper()
	rig.Need(t)
	return &Node{Name: fmt.Sprintf("node-%d-%d", os.Getpid(), count.Add(1)), Net: net, namespaces: namespaces}
}

func awaitReady(t testing.TB, holder *rig.Process) {
	t.Helper()
	holder.Lines.Await(t, "readiness of "+holder.Name, 0, rig.Patience, func(line string) bool { return line == "ready" })
}

// Path is where a file of the node is found from outside, while the node lives.
// Sockets can be reached by it, and folders watched.
func (n *Node) Path(inside string) string {
	return filepath.Join("/proc", strconv.Itoa(n.pid), "root", inside)
}

// Enter makes cmd run in the node instead of here. Its program is looked up there.
func (n *Node) Enter(cmd *exec.Cmd) *exec.Cmd {
	args := append([]string{"nsenter", "--target=" + strconv.Itoa(n.pid), "--wdns=/"}, n.namespaces...)
	args = append(args, "--")
	if slices.Contains(n.namespaces, "--pid") {
		// What joins a PID namespace is a child of nsenter, and must end with it.
		args = append(args, "setpriv", "--pdeathsig=KILL", "--")
	}
	cmd.Args = append(args, cmd.Args...)
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
