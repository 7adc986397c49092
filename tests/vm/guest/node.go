package guest

import (
	"net/netip"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/dhcp-meta/dhcp-meta/tests/rig"
)

// Quiet is how long a test listens for what must not come.
const Quiet = 2 * time.Second

// Lab is the wire with a server's end, and an engine on the node.
type Lab struct {
	*rig.Lab
	Server *rig.Dnsmasq
	flags  []string
}

// NewLab starts a server, a capture at its end of the wire, and an engine with more
// flags.
func NewLab(t testing.TB, flags ...string) *Lab {
	t.Helper()
	l := NewLabWithout(t, flags...)
	l.Server = StartServer(t)
	l.Engine.Start(t)
	return l
}

// NewLabWithout is NewLab with neither server nor engine running yet.
func NewLabWithout(t testing.TB, flags ...string) *Lab {
	t.Helper()
	lan := &rig.LAN{Server: Server, Node: Node, Capture: rig.StartCapture(t, Server, rig.ServerIface)}
	// However slow the machine is just now: the window has a test of its own.
	flags = append([]string{"--vfio-window=1m"}, flags...)
	return &Lab{Lab: &rig.Lab{LAN: lan, Engine: rig.NewEngine(t, Node, flags...)}, flags: flags}
}

// Trace starts the engine under a tracer that lets everything pass until Decide is
// called, and waits until it is ready.
func (l *Lab) Trace(t testing.TB) *Tracer {
	t.Helper()
	p, tr := TraceProgram(t, "dhcp-engine", nil, l.Arguments()...)
	l.Engine.Process = p
	l.Engine.AwaitReady(t)
	return tr
}

// Arguments are the engine's command line.
func (l *Lab) Arguments() []string {
	return append([]string{rig.Program("dhcp-engine"), "run", "--no-kubernetes", "--log-level=debug",
		"--state-dir=" + l.Engine.StateDir, "--socket=" + l.Engine.Socket}, l.flags...)
}

// StartServer runs dnsmasq at the other end of the wire until the test ends.
func StartServer(t testing.TB) *rig.Dnsmasq {
	t.Helper()
	return rig.RunDnsmasq(t, Server, rig.Pool(0, 0))
}

// Pool tells whether an address is one of the server's pool.
func Pool(a netip.Addr) bool {
	p := rig.Pool(0, 0)
	return a.Compare(p.First) >= 0 && a.Compare(p.Last) <= 0
}

// StartUdev runs udev on the node until the test ends: from now on it renames
// interfaces that appear.
func StartUdev(t testing.TB) {
	t.Helper()
	t.Cleanup(func() { os.RemoveAll("/run/udev") })
	Node.Start(t, "udevd", exec.Command("/lib/systemd/systemd-udevd"))
	Await(t, "udev answers", func() bool { return exec.Command("udevadm", "control", "--ping").Run() == nil })
}
