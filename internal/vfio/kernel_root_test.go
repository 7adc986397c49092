package vfio

import (
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine"
)

// inChild is set for a test that runs in a process of its own, with namespaces of
// its own: the engine's own network namespace is where interfaces are born.
const inChild = "VFIO_TEST_CHILD"

// apart runs the test in such a process; true: this is it.
func apart(t *testing.T) bool {
	t.Helper()
	if os.Getenv(inChild) != "" {
		// A name space of mounts that shares nothing with the machine's.
		must(t, unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""))
		return true
	}
	if os.Getuid() != 0 {
		if os.Getenv("CI") != "" || os.Getenv("DHCP_META_REQUIRE_ROOT") != "" {
			t.Fatal("must run as root: it makes network namespaces")
		}
		t.Skip("needs root to make network namespaces")
	}
	cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
	cmd.Env = append(os.Environ(), inChild+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	// The signal comes when the thread ends that started the process.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()) {
		t.Fatalf("%v:\n%s", err, out)
	}
	return false
}

// halfReal is the kernel, but for what needs a physical function.
type halfReal struct {
	kernel
	w *world
}

func (h halfReal) Physical(ifname string) (physical, error) { return h.w.net.Physical(ifname) }

func (h halfReal) SetMAC(ifname string, vf int, mac net.HardwareAddr) error {
	return h.w.net.SetMAC(ifname, vf, mac)
}

func (h halfReal) Move(index int, namespace, name string, mac net.HardwareAddr) error {
	err := h.kernel.Move(index, namespace, name, mac)
	if err == nil {
		h.w.tree.Moved(vf0, index)
	}
	return err
}

// realLinks makes the drivers of a world make interfaces, after a moment, with a
// random MAC and in the way of whoever looks at names.
func realLinks(t *testing.T, w *world) {
	w.tree.Bound = func(address, driver string) (string, int) {
		time.AfterFunc(20*time.Millisecond, func() {
			la := netlink.NewLinkAttrs()
			la.Name = "eth0"
			if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: la, PeerName: "wire"}); err != nil {
				t.Error(err)
				return
			}
			link, err := netlink.LinkByName("eth0")
			if err == nil {
				err = netlink.LinkSetUp(link) // as a network manager would
			}
			if err == nil {
				err = netlink.LinkSetName(link, "enp1s0v0")
			}
			if err != nil {
				t.Error(err)
			}
			// sysfs shows it under a name that is the old one already.
			if err := w.tree.Appear(address, "eth0", link.Attrs().Index); err != nil {
				t.Error(err)
			}
		})
		return "", 0
	}
	w.tree.Unbound = func(string, string) {
		if link, err := netlink.LinkByName("wire"); err == nil {
			if err := netlink.LinkDel(link); err != nil {
				t.Error(err)
			}
		}
	}
}

// B71, B76, K71, K73: the interface of a borrowed device is, on a real network
// stack, in a namespace of its own, with the right name and MAC, up, and without
// IPv6; and nothing of it is left afterwards.
func TestB71B76K71K73PrivateNamespace(t *testing.T) {
	if !apart(t) {
		return
	}
	w := newWorld(t)
	realLinks(t, w)
	d := w.engine()
	d.net = halfReal{w: w}
	for range 3 {
		b, err := d.Borrow(t.Context(), loanOf(vf0, "vm", nil))
		must(t, err)
		target := b.Target()
		checkPrivate(t, target)
		if _, err := netlink.LinkByName("enp1s0v0"); !errors.As(err, &netlink.LinkNotFoundError{}) {
			t.Errorf("it is in the node's namespace still: %v", err)
		}
		must(t, b.Return(t.Context()))
		if _, err := os.Stat(target.Netns.Path); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("namespace is left: %v", err)
		}
		if mounts, err := os.ReadFile("/proc/self/mounts"); err != nil || strings.Contains(string(mounts), vf0) {
			t.Errorf("mount is left (%v):\n%s", err, mounts)
		}
	}
	w.expect(vf0, untouched(mac0))
	// A name that a crash has left, with and without a namespace behind it.
	path := filepath.Join(w.dir, "netns", vf0)
	must(t, os.WriteFile(path, nil, 0o600))
	must(t, d.Heal(t.Context()))
	_, err := kernel{}.MakeNamespace(path)
	must(t, err)
	must(t, d.Heal(t.Context()))
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("namespace is left: %v", err)
	}
}

// checkPrivate looks at a borrowed interface from inside its namespace.
func checkPrivate(t *testing.T, target engine.Target) {
	t.Helper()
	ns, err := netns.GetFromPath(target.Netns.Path)
	must(t, err)
	defer ns.Close()
	h, err := open(ns)
	must(t, err)
	defer h.Close()
	links, err := h.LinkList()
	must(t, err)
	if len(links) != 2 {
		t.Fatalf("%d interfaces", len(links))
	}
	link, err := h.LinkByName(target.IfName)
	must(t, err)
	if a := link.Attrs(); a.HardwareAddr.String() != mac0.String() || a.Flags&net.FlagUp == 0 {
		t.Errorf("MAC %s, flags %s", a.HardwareAddr, a.Flags)
	}
	if _, err := os.Stat("/proc/sys/net/ipv6"); err == nil {
		off := make(chan string)
		go func() {
			runtime.LockOSThread() // and ends with the goroutine
			if err := netns.Set(ns); err != nil {
				off <- err.Error()
				return
			}
			b, err := os.ReadFile("/proc/sys/net/ipv6/conf/" + target.IfName + "/disable_ipv6")
			if err != nil {
				off <- err.Error()
				return
			}
			off <- strings.TrimSpace(string(b))
		}()
		if got := <-off; got != "1" {
			t.Errorf("disable_ipv6 of the interface: %s", got)
		}
	}
	addrs, err := h.AddrList(link, unix.AF_UNSPEC)
	if err != nil || len(addrs) != 0 {
		t.Errorf("addresses %v, %v", addrs, err)
	}
	cookie := make(chan uint64, 1)
	go func() {
		runtime.LockOSThread()
		if err := netns.Set(ns); err != nil {
			cookie <- 0
			return
		}
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			cookie <- 0
			return
		}
		defer unix.Close(fd)
		c, _ := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
		cookie <- c
	}()
	if got := <-cookie; got == 0 || got != target.Netns.Cookie {
		t.Errorf("cookie %d, want %d", target.Netns.Cookie, got)
	}
}

// A sysfs that is read-only, as in a container that is not privileged, is one clear
// error before anything is noted.
func TestReadOnlySysfs(t *testing.T) {
	if !apart(t) {
		return
	}
	w := newWorld(t)
	d := w.engine()
	sys := filepath.Join(w.tree.Root, "sys")
	must(t, unix.Mount(sys, sys, "", unix.MS_BIND, ""))
	defer unix.Unmount(sys, unix.MNT_DETACH)
	must(t, unix.Mount("", sys, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, ""))
	_, err := d.Borrow(t.Context(), loanOf(vf0, "vm", nil))
	if err == nil || !strings.Contains(err.Error(), "sysfs is read-only here") || !strings.Contains(err.Error(), "needs /sys mounted read-write") {
		t.Errorf("got %v", err)
	}
	if ops := w.done(); len(ops) != 0 {
		t.Errorf("changes: %q", ops)
	}
	w.expect(vf0, untouched(mac0))
}

// A process is found by the device that it has open, whatever its own /dev calls it.
func TestHoldersAreFoundByNumber(t *testing.T) {
	if !apart(t) {
		return
	}
	dir := filepath.Join(t.TempDir(), "vfio")
	must(t, os.Mkdir(dir, 0o755))
	node := filepath.Join(dir, "77")
	must(t, unix.Mknod(node, unix.S_IFCHR|0o600, int(unix.Mkdev(1, 3))))
	nodes := map[string]string{"vfio/11": "1:3"}
	// Another run of this test may have the same device open.
	have := func(nodes map[string]string) bool {
		who, err := holders("/proc", nodes)
		must(t, err)
		return slices.ContainsFunc(who, func(s string) bool { return strings.HasPrefix(s, "process "+strconv.Itoa(os.Getpid())+" (") })
	}
	if have(nodes) {
		t.Fatal("found before it is open")
	}
	f, err := os.OpenFile(node, os.O_RDWR, 0)
	if errors.Is(err, unix.EACCES) {
		t.Skip("device files cannot be opened below the folder for temporary files")
	}
	must(t, err)
	defer f.Close()
	if !have(nodes) {
		t.Error("not found")
	}
	if have(map[string]string{"vfio/77": "1:5"}) {
		t.Error("found by another device's number")
	}
}
