package guest

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/dhcp-meta/dhcp-meta/tests/rig"
	"github.com/dhcp-meta/dhcp-meta/tests/rig/trap"
)

// handed are the system calls that steps are made of. Which of them Go's library makes
// is its business; that the tests see what they mean to see is held by what they assert
// on the steps.
var handed = []int{
	unix.SYS_WRITE, unix.SYS_PWRITE64, unix.SYS_RENAMEAT, unix.SYS_RENAMEAT2, unix.SYS_UNLINKAT,
}

// A Step is something that the engine is about to do, which others can see.
type Step struct {
	// Call is "write", "rename" or "unlink".
	Call string
	// Path is the file; of a rename, what it will be called.
	Path string
	// Value is what is written, of a write to sysfs.
	Value string
}

// Sysfs tells whether it is a write to sysfs.
func (s Step) Sysfs() bool { return s.Call == "write" && strings.HasPrefix(s.Path, "/sys/") }

func (s Step) String() string { return fmt.Sprintf("%s %s %q", s.Call, s.Path, s.Value) }

// A Verdict is what becomes of a step.
type Verdict struct {
	// Kill ends the engine by SIGKILL in place of the step, or, with Done, when the
	// kernel has carried the step out and the engine has not learned of it.
	Kill, Done bool
	// Err is what the engine gets in place of the step, unless it is 0.
	Err syscall.Errno
}

// A Tracer sees the steps of an engine, whichever of its threads makes them.
type Tracer struct {
	*trap.Trap

	mu     sync.Mutex
	decide func(Step) Verdict
	steps  []Step
}

// TraceProgram starts any program under a tracer, which asks decide at every step.
func TraceProgram(t testing.TB, name string, decide func(Step) Verdict, argv ...string) (p *rig.Process, tr *Tracer) {
	t.Helper()
	tr = &Tracer{decide: decide}
	p, tr.Trap = trap.Start(t, Node, name, handed, tr.verdict, argv...)
	return p, tr
}

// Decide asks decide at every step from now on; nil lets all pass. It runs while the
// engine waits, and may do what another process could do at this moment.
func (tr *Tracer) Decide(decide func(Step) Verdict) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	tr.decide = decide
}

// Steps are those up to now. The last one of a killed engine is that at which it was.
func (tr *Tracer) Steps() []Step {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	return append([]Step(nil), tr.steps...)
}

// verdict notes a step and asks what becomes of it. A write that is to be done first is
// done by the tracer itself: nothing else can tell when the engine has come to its end.
func (tr *Tracer) verdict(c trap.Call) trap.Verdict {
	s, ok := describe(c)
	if !ok {
		return trap.Verdict{}
	}
	tr.mu.Lock()
	tr.steps = append(tr.steps, s)
	decide := tr.decide
	tr.mu.Unlock()
	if decide == nil {
		return trap.Verdict{}
	}
	v := decide(s)
	if v.Kill && v.Done {
		if err := writeFor(c); err != nil {
			// What a kernel refuses it has refused the engine too.
			fmt.Fprintln(os.Stderr, "tracer:", err)
		}
	}
	return trap.Verdict{Kill: v.Kill, Err: v.Err}
}

func writeFor(c trap.Call) error {
	if c.Number != unix.SYS_WRITE && c.Number != unix.SYS_PWRITE64 {
		return errors.New("only writes can be done first")
	}
	f, err := c.Open(c.Args[0], os.O_WRONLY)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = f.Write(c.Memory(c.Args[1], int(c.Args[2])))
	return err
}

// describe names a call that others can see the effect of.
func describe(c trap.Call) (Step, bool) {
	switch c.Number {
	case unix.SYS_UNLINKAT:
		return Step{Call: "unlink", Path: c.Text(c.Args[1])}, true
	case unix.SYS_RENAMEAT, unix.SYS_RENAMEAT2:
		return Step{Call: "rename", Path: c.Text(c.Args[3])}, true
	}
	s := Step{Call: "write", Path: c.File(c.Args[0])}
	switch {
	case !strings.HasPrefix(s.Path, "/"):
		return Step{}, false // a pipe, a socket
	case s.Sysfs():
		s.Value = strings.TrimRight(string(c.Memory(c.Args[1], int(min(c.Args[2], 200)))), "\n\x00")
	}
	return s, true
}
