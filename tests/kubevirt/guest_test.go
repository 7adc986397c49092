package kubevirt

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/dhcp-meta/dhcp-meta/tests/rig"
)

// guest is what runs in a virtual machine: a NIC and a DHCP client.
type guest struct {
	*rig.Netns
	mac     net.HardwareAddr
	capture *rig.Capture
	script  string
	nic     *os.File

	mu sync.Mutex
	// wire is the tap device of the pod that the machine runs in.
	wire *os.File
}

// boot makes a guest behind a tap device. The machine is on until the test ends.
func boot(t *testing.T, p plugged) *guest {
	t.Helper()
	g := &guest{Netns: rig.NewNetns(t, "guest"), mac: p.MAC}
	g.nic = openTap(t, g.Netns, "eth0")
	g.IP(t, "link", "set", "eth0", "address", p.MAC.String(), "up")
	g.capture = rig.StartCapture(t, g.Netns, "eth0")
	g.script = filepath.Join(t.TempDir(), "udhcpc.sh")
	if err := os.WriteFile(g.script, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	g.runIn(p)
	go g.send()
	return g
}

// runIn has the machine run in another pod, as at the end of a live migration. What
// comes from the pod before does not arrive any longer.
func (g *guest) runIn(p plugged) {
	g.mu.Lock()
	g.wire = p.Tap
	g.mu.Unlock()
	go g.receive(p.Tap)
}

func (g *guest) on() *os.File {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.wire
}

func (g *guest) send() {
	frame := make([]byte, 1<<16)
	for {
		n, err := g.nic.Read(frame)
		if err != nil {
			return
		}
		if _, err := g.on().Write(frame[:n]); errors.Is(err, os.ErrClosed) {
			return
		}
	}
}

func (g *guest) receive(from *os.File) {
	frame := make([]byte, 1<<16)
	for {
		n, err := from.Read(frame)
		if err != nil {
			return
		}
		if g.on() != from {
			continue
		}
		if _, err := g.nic.Write(frame[:n]); errors.Is(err, os.ErrClosed) {
			return
		}
	}
}

// script is what udhcpc calls: it tells the test, and configures the NIC.
const script = `#!/bin/sh
case $1 in
deconfig) ip -4 addr flush dev $interface ;;
bound | renew) ip -4 addr replace $ip/$mask dev $interface ;;
esac
echo guest $1 ip=$ip server=$serverid
`

// identity is how a guest's client shows itself.
type identity struct {
	name string
	args func(mac net.HardwareAddr) []string
}

// The clients that guests have: systemd-networkd and most others of today send a DUID,
// older ones 01 and the MAC, and some nothing at all.
var identities = []identity{
	{"DUID", func(mac net.HardwareAddr) []string {
		// RFC 4361: ff, an IAID, and a DUID-EN as systemd makes it.
		machine := strings.ReplaceAll(mac.String(), ":", "")
		return []string{"-x", "0x3d:ff5e00530100020000ab11" + machine + "7d3a"}
	}},
	{"01+MAC", func(net.HardwareAddr) []string { return nil }},
	{"without identifier", func(net.HardwareAddr) []string { return []string{"-C"} }},
}

// client is a running DHCP client of a guest.
type client struct {
	*rig.Process
	mark int
}

var told = regexp.MustCompile(`^guest (bound|renew) ip=([0-9.]+) server=([0-9.]+)$`)

// udhcpc starts the guest's client. It never gives its lease back, like a machine
// that is switched off.
func (g *guest) udhcpc(t *testing.T, id identity) *client {
	t.Helper()
	args := append([]string{"udhcpc", "-f", "-i", "eth0", "-s", g.script, "-t", "30", "-T", "1"}, id.args(g.mac)...)
	return &client{Process: g.Start(t, "udhcpc in "+g.Name, exec.Command("busybox", args...))}
}

// bound waits until the client has a lease, or has it again, and checks that it comes
// from the site's server and is on the NIC.
func (c *client) bound(t *testing.T, g *guest) netip.Addr {
	t.Helper()
	line, mark := c.Lines.Await(t, "lease of the guest", c.mark, rig.Patience, told.MatchString)
	c.mark = mark
	m := told.FindStringSubmatch(line)
	if m[3] != rig.ServerAddr.Addr().String() {
		t.Errorf("the guest has its lease from %s, want the site's server %v", m[3], rig.ServerAddr.Addr())
	}
	addr := netip.MustParseAddr(m[2])
	if have := g.IP(t, "-4", "addr", "show", "dev", "eth0"); !strings.Contains(have, " "+addr.String()+"/") {
		t.Errorf("the guest's NIC does not carry %v: %s", addr, have)
	}
	return addr
}

// renew has the client renew its lease at once.
func (c *client) renew(t *testing.T) {
	t.Helper()
	c.Signal(t, unix.SIGUSR1)
}

// ping checks that the guest reaches the site.
func (g *guest) ping(t *testing.T) {
	t.Helper()
	if err := g.tryPing(20); err != nil {
		t.Errorf("the guest does not reach the site: %v", err)
	}
}

// tryPing waits for one answer, no longer than some seconds.
func (g *guest) tryPing(seconds int) error {
	return g.Do(func() error {
		out, err := exec.Command("ping", "-c1", fmt.Sprintf("-w%d", seconds), "-i0.5", rig.ServerAddr.Addr().String()).CombinedOutput()
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	})
}
