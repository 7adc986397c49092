package guest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/dhcp-meta/dhcp-meta/tests/rig"
)

// VendorClass is option 60 of the clients of Hotplug.
const VendorClass = "hotplug-client"

// A Hotplug gives every interface that appears on the node a DHCP client of the
// node's own, as a node does that configures whatever is plugged in.
type Hotplug struct {
	script string

	mu   sync.Mutex
	seen map[int]string
	run  []*exec.Cmd
}

// StartHotplug looks out for interfaces until the test ends.
func StartHotplug(t testing.TB) *Hotplug {
	t.Helper()
	h := &Hotplug{script: filepath.Join(t.TempDir(), "udhcpc"), seen: map[int]string{}}
	// udhcpc leaves it to its script to bring the link up.
	const script = "#!/bin/sh\n[ \"$1\" != deconfig ] || ip link set \"$interface\" up\n"
	if err := os.WriteFile(h.script, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	links, err := netlink.LinkList()
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range links {
		h.seen[l.Attrs().Index] = l.Attrs().Name
	}
	known := len(links)
	changes, done := make(chan netlink.LinkUpdate, 100), make(chan struct{})
	if err := netlink.LinkSubscribe(changes, done); err != nil {
		t.Fatalf("listen for interfaces: %v", err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for c := range changes {
			h.plugged(t, c)
		}
	}()
	t.Cleanup(func() {
		close(done)
		<-ended
		for _, c := range h.run {
			_ = c.Process.Kill()
			_ = c.Wait()
		}
		t.Logf("the node's client was started on %d interfaces", len(h.seen)-known)
	})
	return h
}

// plugged starts a client on an interface that is seen for the first time.
func (h *Hotplug) plugged(t testing.TB, c netlink.LinkUpdate) {
	h.mu.Lock()
	defer h.mu.Unlock()
	a := c.Attrs()
	if h.seen[a.Index] != "" || c.Header.Type != unix.RTM_NEWLINK {
		return
	}
	h.seen[a.Index] = a.Name
	cmd := exec.Command("busybox", "udhcpc", "-i", a.Name, "-f", "-n", "-t", "8", "-T", "1", "-V", VendorClass, "-s", h.script)
	if err := cmd.Start(); err != nil {
		t.Errorf("start udhcpc on %s: %v", a.Name, err)
		return
	}
	h.run = append(h.run, cmd)
}

// Saw are the names of interfaces that appeared, by index.
func (h *Hotplug) Saw() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return fmt.Sprint(h.seen)
}

// OfHotplug tells whether a frame was sent by one of its clients.
func OfHotplug(f rig.Frame) bool { return f.Msg.ClassIdentifier() == VendorClass }
