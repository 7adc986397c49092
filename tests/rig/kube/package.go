package kube

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"slices"
	"sync"
	"testing"

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
		done := make(chan struct{})
		go func() { // Fatalf ends this goroutine
			defer close(done)
			l.cluster = Start(l)
		}()
		<-done
		if l.cluster == nil && l.err == nil {
			l.err = fmt.Errorf("it ended without a word")
		}
	})
	return l.cluster, l.err
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

func (l *lifetime) TempDir() string {
	dir, err := os.MkdirTemp("", "dhcp-meta-cluster")
	if err != nil {
		l.Fatal(err)
	}
	l.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}
