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
}

// NewLab starts a server, a capture at its end of the wire, and an engine with args
// added to its flags.
func NewLab(t testing.TB, args ...string) *Lab {
	t.Helper()
	l := NewLabWithout(t, args...)
	l.Server = StartServer(t)
	l.Engine.Start(t)
	return l
}

// NewLabWithout is NewLab with neither server nor engine running yet.
func NewLabWithout(t testing.TB, args ...string) *Lab {
	t.Helper()
	lan := &rig.LAN{Server: Server, Node: Node, Capture: rig.StartCapture(t, Server, rig.ServerIface)}
	return &Lab{Lab: &rig.Lab{LAN: lan, Engine: rig.NewEngine(t, Node, args...)}}
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
