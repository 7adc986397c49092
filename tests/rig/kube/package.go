package kube

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/dhcp-meta/dhcp-meta/tests/rig"
)

// Main is the TestMain of a package whose tests use Shared.
func Main(m *testing.M) { rig.Main(m, shared.end) }

// Shared is the package's cluster, which the first test that asks starts.
func Shared(t testing.TB) *Cluster {
	t.Helper()
	rig.Need(t)
	c, err := shared.get()
	if err != nil {
		t.Fatalf("start the package's cluster: %v", err)
	}
	c.tell(t)
	return c
}

// ForPackage calls start with a testing.TB whose cleanups run when all tests are
// through, before the package's cluster ends, and returns what start failed with: for
// what tests share besides that. The cluster must have been started.
func ForPackage(start func(testing.TB)) error {
	l := new(lifetime)
	shared.Cleanup(l.end)
	return l.run(func() bool { start(l); return true })
}

var shared lifetime

// lifetime is the cluster that outlives a test. What it is made of is started for a
// testing.TB, so it plays one.
type lifetime struct {
	testing.TB
	start   sync.Once
	cluster *Cluster
	err     error

	mu       sync.Mutex
	cleanups []func()
}

func (l *lifetime) get() (*Cluster, error) {
	l.start.Do(func() {
		_ = l.run(func() bool { l.cluster = Start(l); return l.cluster != nil })
	})
	return l.cluster, l.err
}

// run calls start, which Fatalf ends early.
func (l *lifetime) run(start func() bool) error {
	done, ok := make(chan struct{}), false
	go func() {
		defer close(done)
		ok = start()
	}()
	<-done
	if !ok && l.err == nil {
		l.err = fmt.Errorf("it ended without a word")
	}
	return l.err
}

func (l *lifetime) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, f := range slices.Backward(l.cleanups) {
		f()
	}
}

func (l *lifetime) Helper()                  {}
func (l *lifetime) Name() string             { return "the package's cluster" }
func (l *lifetime) Failed() bool             { return false }
func (l *lifetime) Context() context.Context { return context.Background() }

func (l *lifetime) Logf(format string, args ...any) {
	fmt.Fprintf(os.Stderr, format+"\n", args...)
}

func (l *lifetime) Errorf(format string, args ...any) { l.Logf(format, args...) }
func (l *lifetime) Error(args ...any)                 { l.Logf("%s", fmt.Sprint(args...)) }

func (l *lifetime) Fatalf(format string, args ...any) {
	l.err = fmt.Errorf(format, args...)
	runtime.Goexit()
}

func (l *lifetime) Fatal(args ...any) { l.Fatalf("%s", fmt.Sprint(args...)) }

func (l *lifetime) Cleanup(f func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cleanups = append(l.cleanups, f)
}

// tempName is a folder of a cluster, with the process that it belongs to.
const tempName = "dhcp-meta-cluster-%d-"

func (l *lifetime) TempDir() string {
	removeLeftovers()
	dir, err := os.MkdirTemp("", fmt.Sprintf(tempName, os.Getpid()))
	if err != nil {
		l.Fatal(err)
	}
	l.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// removeLeftovers removes folders of killed runs: etcd's log alone takes 64 MiB.
func removeLeftovers() {
	entries, _ := os.ReadDir(os.TempDir())
	for _, e := range entries {
		var pid int
		if _, err := fmt.Sscanf(e.Name(), tempName, &pid); err != nil || unix.Kill(pid, 0) == nil {
			continue
		}
		_ = os.RemoveAll(filepath.Join(os.TempDir(), e.Name()))
	}
}
