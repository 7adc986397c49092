package rig

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine/api"
)

// Engine is a dhcp-engine on the node, and what survives it: its state folder and
// the path of its socket.
type Engine struct {
	*Process
	StateDir, Socket string

	node Place
	args []string
	// past are the log lines of the lives before this one.
	past []string
}

// Place is where long-running programs are started: a namespace, or a whole node.
type Place interface {
	Start(t testing.TB, name string, cmd *exec.Cmd) *Process
}

// StartEngine runs dhcp-engine in the node's namespace, with args added to its
// flags, and waits until it is ready.
func StartEngine(t testing.TB, node *Netns, args ...string) *Engine {
	t.Helper()
	e := NewEngine(t, node, args...)
	e.Start(t)
	return e
}

// NewEngine prepares an engine that does not run yet.
func NewEngine(t testing.TB, node *Netns, args ...string) *Engine {
	t.Helper()
	// A socket's path may have 107 bytes, which the folder of a test with a long
	// name would exceed.
	run, err := os.MkdirTemp("", "dm")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(run) })
	stateDir, socket := filepath.Join(t.TempDir(), "state"), filepath.Join(run, "run", "engine.sock")
	flags := []string{"--no-kubernetes", "--state-dir=" + stateDir, "--socket=" + socket}
	return NewEngineAt(node, stateDir, socket, append(flags, args...)...)
}

// NewEngineAt prepares an engine with just these flags. State folder and socket
// are where the test finds what the engine has at its own paths.
func NewEngineAt(place Place, stateDir, socket string, args ...string) *Engine {
	return &Engine{StateDir: stateDir, Socket: socket, node: place, args: args}
}

// Start starts the engine and waits until it is ready.
func (e *Engine) Start(t testing.TB) {
	t.Helper()
	e.Launch(t)
	e.AwaitReady(t)
}

// Launch starts the engine and does not wait.
func (e *Engine) Launch(t testing.TB) {
	t.Helper()
	args := append([]string{"run", "--log-level=debug"}, e.args...)
	if e.Process != nil {
		e.past = append(e.past, e.Lines.Since(0)...)
	}
	e.Process = e.node.Start(t, "dhcp-engine", exec.Command(Program("dhcp-engine"), args...))
	life := e.Process
	t.Cleanup(func() {
		life.Kill(t)
		for _, line := range life.Lines.Since(0) {
			if strings.Contains(line, "DATA RACE") || strings.HasPrefix(line, "panic:") || strings.HasPrefix(line, "fatal error:") {
				t.Errorf("dhcp-engine: %s:\n%s", line, list(life.Lines.Since(0)))
				return
			}
		}
	})
}

// AwaitReady waits until /readyz says yes.
func (e *Engine) AwaitReady(t testing.TB) {
	t.Helper()
	e.await(t, "ready", e.Client().Ready)
}

// AwaitHealthy waits until the engine answers at all.
func (e *Engine) AwaitHealthy(t testing.TB) {
	t.Helper()
	e.await(t, "healthy", e.Client().Healthy)
}

func (e *Engine) await(t testing.TB, what string, probe func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), Patience)
	defer cancel()
	// Readiness has no event to wait for from outside; the kubelet's probe asks
	// again and again too.
	again := time.NewTicker(5 * time.Millisecond)
	defer again.Stop()
	for {
		err := probe(ctx)
		if err == nil {
			return
		}
		select {
		case <-again.C:
		case <-e.Exited():
			t.Fatalf("dhcp-engine ended before it was %s:\n%s", what, list(e.Lines.Since(0)))
		case <-ctx.Done():
			t.Fatalf("dhcp-engine is not %s: %v\n%s", what, err, list(e.Lines.Since(0)))
		}
	}
}

// Restart ends the engine with end, which is Kill or Stop, and starts it again.
func (e *Engine) Restart(t testing.TB, end func(testing.TB)) {
	t.Helper()
	end(t)
	e.Start(t)
}

// Leases lists the engine's attachments.
func (e *Engine) Leases(t testing.TB) []api.Status {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), Patience)
	defer cancel()
	list, err := e.Client().List(ctx)
	if err != nil {
		t.Fatalf("list leases: %v", err)
	}
	return list
}

// Log is all that the engine has logged, over all its restarts.
func (e *Engine) Log() []string { return append(slices.Clone(e.past), e.Lines.Since(0)...) }

// Client asks the engine over its socket.
func (e *Engine) Client() api.Client { return api.Client{Socket: e.Socket} }

// Records are the names of the files in the engine's folder of attachments.
func (e *Engine) Records(t testing.TB) []string {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join(e.StateDir, "attachments"))
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	var names []string
	for _, f := range entries {
		names = append(names, f.Name())
	}
	return names
}

// AwaitNoRecords waits until the engine has nothing on disk: a RELEASE that could
// not be sent at once is kept for a while.
func (e *Engine) AwaitNoRecords(t testing.TB) {
	t.Helper()
	folder := filepath.Join(e.StateDir, "attachments")
	err := AwaitFolder(t.Context(), folder, Patience, func() bool { return len(e.Records(t)) == 0 })
	if err != nil {
		t.Errorf("records left: %v: %v", e.Records(t), err)
	}
}

// Load is what a process takes from the machine.
type Load struct {
	Threads, Descriptors int
	// RSS in bytes.
	RSS int64
}

// Load is what the engine takes now.
func (e *Engine) Load(t testing.TB) Load {
	t.Helper()
	return LoadOf(t, e.PID())
}

// AwaitDescriptors waits until the engine has no more than most descriptors open:
// it closes sockets after it has answered, one after another.
func (e *Engine) AwaitDescriptors(t testing.TB, most int) {
	t.Helper()
	deadline := time.After(Patience)
	again := time.NewTicker(10 * time.Millisecond)
	defer again.Stop()
	for {
		now := e.Load(t)
		if now.Descriptors <= most {
			return
		}
		select {
		case <-again.C:
		case <-deadline:
			t.Errorf("dhcp-engine has %d descriptors open after %v, want no more than %d", now.Descriptors, Patience, most)
			return
		}
	}
}

// LoadOf reads /proc of any process.
func LoadOf(t testing.TB, pid int) Load {
	t.Helper()
	proc := fmt.Sprintf("/proc/%d", pid)
	threads, err := os.ReadDir(proc + "/task")
	if err != nil {
		t.Fatal(err)
	}
	fds, err := os.ReadDir(proc + "/fd")
	if err != nil {
		t.Fatal(err)
	}
	statm, err := os.ReadFile(proc + "/statm")
	if err != nil {
		t.Fatal(err)
	}
	var size, resident int64
	if _, err := fmt.Sscan(string(statm), &size, &resident); err != nil {
		t.Fatalf("read %s/statm: %v", proc, err)
	}
	return Load{Threads: len(threads), Descriptors: len(fds), RSS: resident * int64(os.Getpagesize())}
}
