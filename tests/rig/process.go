package rig

import (
	"bufio"
	"errors"
	"io"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"
)

// Process is a long-running program in a namespace. It ends with the test.
type Process struct {
	// Name is for messages.
	Name string
	// Lines is what it wrote to standard output and error.
	Lines Stream[string]

	cmd    *exec.Cmd
	exited chan struct{}
}

// Start runs cmd in the namespace. It dies when this process dies, so a killed
// test run leaves no server behind.
func (n *Netns) Start(t testing.TB, name string, cmd *exec.Cmd) *Process {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatalf("pipe: %v", err)
	}
	cmd.Stdout, cmd.Stderr = w, w
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	err = n.Do(cmd.Start)
	w.Close()
	if err != nil {
		r.Close()
		t.Fatalf("start %s: %v", name, err)
	}
	p := &Process{Name: name, cmd: cmd, exited: make(chan struct{})}
	go p.read(r)
	t.Cleanup(func() {
		p.Kill(t)
		if t.Failed() {
			t.Logf("%s said:\n%s", name, list(tail(p.Lines.Since(0), 80)))
		}
	})
	return p
}

// read collects the lines until the program ends.
func (p *Process) read(r io.ReadCloser) {
	defer r.Close()
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		p.Lines.Add(lines.Text())
	}
	// The exit status tells nothing that a test asks for, but it must be reaped.
	_ = p.cmd.Wait()
	p.Lines.End()
	close(p.exited)
}

// PID is the process id.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Signal sends sig; an ended process is no error.
func (p *Process) Signal(t testing.TB, sig os.Signal) {
	t.Helper()
	if err := p.cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		t.Fatalf("signal %v to %s: %v", sig, p.Name, err)
	}
}

// Kill ends the process by SIGKILL and waits for its end.
func (p *Process) Kill(t testing.TB) {
	t.Helper()
	p.end(t, syscall.SIGKILL)
}

// Stop ends the process by SIGTERM and waits for its end; it reports an error
// when that takes too long.
func (p *Process) Stop(t testing.TB) {
	t.Helper()
	p.end(t, syscall.SIGTERM)
}

func (p *Process) end(t testing.TB, sig os.Signal) {
	t.Helper()
	if err := p.cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		t.Errorf("signal %v to %s: %v", sig, p.Name, err)
	}
	select {
	case <-p.exited:
	case <-time.After(Patience):
		t.Errorf("%s is still there %v after %v", p.Name, Patience, sig)
		_ = p.cmd.Process.Kill()
		<-p.exited
	}
}

// Exited is closed when the process has ended.
func (p *Process) Exited() <-chan struct{} { return p.exited }

// AwaitExit waits until the process ends by itself, and returns its exit status;
// -1 when a signal ended it.
func (p *Process) AwaitExit(t testing.TB) int {
	t.Helper()
	select {
	case <-p.exited:
	case <-time.After(Patience):
		t.Fatalf("%s is still there after %v; it said:\n%s", p.Name, Patience, list(p.Lines.Since(0)))
	}
	return p.cmd.ProcessState.ExitCode()
}

func tail[E any](items []E, n int) []E {
	if len(items) > n {
		return items[len(items)-n:]
	}
	return items
}
