package rig

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"
)

// netnsFolder is where iproute2 keeps named namespaces; it is one of the
// engine's default roots too.
const netnsFolder = "/run/netns"

// Netns is a named network namespace that ends with the test.
type Netns struct {
	Name string
	// Path is the file that stands for the namespace.
	Path string
}

var netnsCount atomic.Int64

// NewNetns makes a namespace with its loopback up. The name holds the process id,
// so that a later run can tell what a killed one left.
func NewNetns(t testing.TB, role string) *Netns {
	t.Helper()
	name := fmt.Sprintf("dm-%d-%d-%s", os.Getpid(), netnsCount.Add(1), role)
	run(t, "ip", "netns", "add", name)
	n := &Netns{Name: name, Path: filepath.Join(netnsFolder, name)}
	t.Cleanup(func() { n.Delete(t) })
	n.IP(t, "link", "set", "lo", "up")
	return n
}

// Delete unmounts the namespace, as a runtime does. The kernel ends it when
// nothing lives in it any longer. Deleting it again does nothing.
func (n *Netns) Delete(t testing.TB) {
	t.Helper()
	if err := deleteNetns(n.Name); err != nil {
		t.Errorf("%v", err)
	}
}

// Recreate puts another namespace in the place of this one, under the same path.
func (n *Netns) Recreate(t testing.TB) {
	t.Helper()
	n.Delete(t)
	run(t, "ip", "netns", "add", n.Name)
}

func deleteNetns(name string) error {
	path := filepath.Join(netnsFolder, name)
	if err := unix.Unmount(path, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("unmount %s: %w", path, err)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

var ownName = regexp.MustCompile(`^dm-([0-9]+)-[0-9]+-`)

// RemoveLeftovers deletes namespaces of earlier runs whose process is gone. The
// processes in them have gone with it: they are started with a death signal.
func RemoveLeftovers() error {
	entries, err := os.ReadDir(netnsFolder)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, e := range entries {
		m := ownName.FindStringSubmatch(e.Name())
		if m == nil {
			continue
		}
		pid, err := strconv.Atoi(m[1])
		if err != nil || unix.Kill(pid, 0) == nil {
			continue
		}
		if err := deleteNetns(e.Name()); err != nil {
			return err
		}
	}
	return nil
}

// IP runs ip(8) in the namespace and returns what it printed.
func (n *Netns) IP(t testing.TB, args ...string) string {
	t.Helper()
	return run(t, "ip", append([]string{"-n", n.Name}, args...)...)
}

// TryIP is IP for a command that may fail.
func (n *Netns) TryIP(args ...string) (string, error) {
	out, err := exec.Command("ip", append([]string{"-n", n.Name}, args...)...).CombinedOutput()
	return strings.TrimSpace(string(out)), err
}

// Do runs fn on a thread that is in the namespace. Sockets opened and processes
// started by fn stay there. fn must not start goroutines that need the
// namespace.
func (n *Netns) Do(fn func() error) error {
	done := make(chan error, 1)
	go func() {
		// The thread goes back to the pool only when it is home again: a process
		// started with a death signal dies with the thread that started it.
		runtime.LockOSThread()
		done <- n.doLocked(fn)
	}()
	return <-done
}

func (n *Netns) doLocked(fn func() error) error {
	home, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return err
	}
	defer home.Close()
	there, err := os.Open(n.Path)
	if err != nil {
		return err
	}
	defer there.Close()
	if err := unix.Setns(int(there.Fd()), unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("enter %s: %w", n.Path, err)
	}
	err = fn()
	if home := unix.Setns(int(home.Fd()), unix.CLONE_NEWNET); home != nil {
		return errors.Join(err, fmt.Errorf("leave %s: %w", n.Path, home))
	}
	runtime.UnlockOSThread()
	return err
}

// Veth joins two namespaces by a veth pair, both ends up.
func Veth(t testing.TB, a *Netns, aName string, b *Netns, bName string) {
	t.Helper()
	a.IP(t, "link", "add", aName, "type", "veth", "peer", "name", bName, "netns", b.Name)
	a.IP(t, "link", "set", aName, "up")
	b.IP(t, "link", "set", bName, "up")
}

// run executes a command of the laboratory; the test ends when it fails.
func run(t testing.TB, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(string(out))
}
