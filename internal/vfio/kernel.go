package vfio

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// kernel is the network stack of the node.
type kernel struct{}

var _ network = kernel{}

// netlinkTimeout ends the wait for an answer of the kernel, which comes at once
// unless the kernel is busy with all interfaces.
const netlinkTimeout = 5 * time.Second

func (kernel) Physical(ifname string) (physical, error) {
	h, err := open(netns.None())
	if err != nil {
		return physical{}, err
	}
	defer h.Close()
	link, err := h.LinkByName(ifname)
	if err != nil {
		return physical{}, err
	}
	attrs := link.Attrs()
	f := physical{Up: attrs.Flags&net.FlagUp != 0, MAC: attrs.HardwareAddr, MACs: map[int]net.HardwareAddr{}}
	for _, vf := range attrs.Vfs {
		f.MACs[vf.ID] = vf.Mac
	}
	return f, nil
}

func (kernel) SetMAC(ifname string, vf int, mac net.HardwareAddr) error {
	h, err := open(netns.None())
	if err != nil {
		return err
	}
	defer h.Close()
	link, err := h.LinkByName(ifname)
	if err == nil {
		err = h.LinkSetVfHardwareAddr(link, vf, mac)
	}
	if err != nil {
		return fmt.Errorf("set MAC %s of virtual function %d by %s: %w", mac, vf, ifname, err)
	}
	return nil
}

func (kernel) Watch() (<-chan struct{}, func(), error) {
	updates, done := make(chan netlink.LinkUpdate, 64), make(chan struct{})
	changed := make(chan struct{}, 1)
	// Where the socket breaks down, who waits looks now and then all the same.
	err := netlink.LinkSubscribeWithOptions(updates, done, netlink.LinkSubscribeOptions{ErrorCallback: func(error) {}})
	if err != nil {
		return nil, nil, fmt.Errorf("watch interfaces: %w", err)
	}
	go func() {
		for range updates {
			select {
			case changed <- struct{}{}:
			default:
			}
		}
	}()
	var stopped bool
	return changed, func() {
		if !stopped {
			stopped = true
			close(done)
		}
	}, nil
}

// open opens netlink in a namespace; netns.None is the engine's own.
func open(ns netns.NsHandle) (*netlink.Handle, error) {
	h, err := netlink.NewHandleAt(ns, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open netlink: %w", err)
	}
	if err := h.SetSocketTimeout(netlinkTimeout); err != nil {
		h.Close()
		return nil, fmt.Errorf("open netlink: %w", err)
	}
	return h, nil
}

func (kernel) MakeNamespace(path string) (uint64, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return 0, fmt.Errorf("make a network namespace: %w", err)
	}
	type result struct {
		cookie uint64
		err    error
	}
	c := make(chan result, 1)
	// A goroutine of its own, because it may have to take its thread with it.
	go func() {
		runtime.LockOSThread()
		home, err := os.Open("/proc/thread-self/ns/net")
		if err != nil {
			runtime.UnlockOSThread()
			c <- result{0, err}
			return
		}
		defer home.Close()
		cookie, err := makeHere(path)
		// A thread that cannot get back home is never used again. The first one of
		// the process cannot end, so it must not stay here as a rule.
		if back := unix.Setns(int(home.Fd()), unix.CLONE_NEWNET); back == nil {
			runtime.UnlockOSThread()
		} else {
			err = errors.Join(err, os.NewSyscallError("setns", back))
		}
		c <- result{cookie, err}
	}()
	r := <-c
	if r.err != nil {
		return 0, fmt.Errorf("make network namespace %s: %w", path, r.err)
	}
	return r.cookie, nil
}

// makeHere puts the calling thread into a new namespace and gives that a name.
func makeHere(path string) (uint64, error) {
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return 0, os.NewSyscallError("unshare", err)
	}
	// Before anything is in it. These files are those of the thread's namespace.
	for _, which := range []string{"all", "default"} {
		err := os.WriteFile("/proc/sys/net/ipv6/conf/"+which+"/disable_ipv6", []byte("1"), 0)
		if err != nil && !errors.Is(err, fs.ErrNotExist) { // a kernel without IPv6
			return 0, fmt.Errorf("turn IPv6 off: %w (the engine's container must be privileged)", err)
		}
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, os.NewSyscallError("socket", err)
	}
	cookie, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	unix.Close(fd)
	if err != nil {
		return 0, os.NewSyscallError("getsockopt SO_NETNS_COOKIE", err)
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDONLY, 0o400)
	if err != nil {
		return 0, err
	}
	f.Close()
	if err := unix.Mount("/proc/thread-self/ns/net", path, "", unix.MS_BIND, ""); err != nil {
		os.Remove(path)
		return 0, os.NewSyscallError("mount", err)
	}
	return cookie, nil
}

func (kernel) RemoveNamespace(path string) error {
	// EINVAL: a file that no namespace is mounted on, after a crash in between.
	if err := unix.Unmount(path, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("remove network namespace %s: %w", path, os.NewSyscallError("umount", err))
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove network namespace %s: %w", path, err)
	}
	return nil
}

func (kernel) Move(index int, namespace, name string, mac net.HardwareAddr) error {
	ns, err := netns.GetFromPath(namespace)
	if err != nil {
		return fmt.Errorf("open network namespace %s: %w", namespace, err)
	}
	defer ns.Close()
	here, err := open(netns.None())
	if err != nil {
		return err
	}
	defer here.Close()
	link := &netlink.Device{LinkAttrs: netlink.LinkAttrs{Index: index}}
	if err := here.LinkSetNsFd(link, int(ns)); err != nil {
		return fmt.Errorf("move interface %d to %s: %w", index, namespace, err)
	}
	there, err := open(ns)
	if err != nil {
		return err
	}
	defer there.Close()
	if err := settle(there, name, mac); err != nil {
		return fmt.Errorf("interface %d in %s: %w", index, namespace, err)
	}
	return nil
}

// settle gives the only interface of a namespace but lo its name and MAC and brings
// it up.
func settle(h *netlink.Handle, name string, mac net.HardwareAddr) error {
	links, err := h.LinkList()
	if err != nil {
		return err
	}
	for _, link := range links {
		attrs := link.Attrs()
		if attrs.Flags&net.FlagLoopback != 0 {
			continue
		}
		if err := h.LinkSetName(link, name); err != nil {
			return fmt.Errorf("name it %s: %w", name, err)
		}
		if !bytes.Equal(attrs.HardwareAddr, mac) {
			if err := h.LinkSetHardwareAddr(link, mac); err != nil {
				return fmt.Errorf("it has MAC %s and does not take %s: %w", attrs.HardwareAddr, mac, err)
			}
		}
		if err := h.LinkSetUp(link); err != nil {
			return fmt.Errorf("bring it up: %w", err)
		}
		return nil
	}
	return errors.New("it is not there any more")
}

func (kernel) Elsewhere(ctx context.Context, address, except string) (string, error) {
	seen := map[[2]uint64]bool{}
	note := func(path string) bool { // whether it is a new one
		var st unix.Stat_t
		if err := unix.Stat(path, &st); err != nil {
			return false
		}
		id := [2]uint64{uint64(st.Dev), st.Ino}
		was := seen[id]
		seen[id] = true
		return !was
	}
	note("/proc/thread-self/ns/net")
	note(except)
	for _, pattern := range []string{"/run/netns/*", "/proc/[0-9]*/ns/net"} {
		paths, err := filepath.Glob(pattern)
		if err != nil {
			return "", err
		}
		for _, path := range paths {
			if err := context.Cause(ctx); err != nil {
				return "", fmt.Errorf("look for the interface of %s: %w", address, err)
			}
			if note(path) && holds(path, address) {
				return path, nil
			}
		}
	}
	return "", nil
}

// holds tells whether a namespace has an interface of the device. One that cannot
// be looked at has ended since.
func holds(path, address string) bool {
	ns, err := netns.GetFromPath(path)
	if err != nil {
		return false
	}
	defer ns.Close()
	h, err := open(ns)
	if err != nil {
		return false
	}
	defer h.Close()
	links, err := h.LinkList()
	if err != nil {
		return false
	}
	for _, link := range links {
		if link.Attrs().ParentDev == address {
			return true
		}
	}
	return false
}
