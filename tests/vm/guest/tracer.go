package guest

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// notification is struct seccomp_notif of the kernel, answer its
// struct seccomp_notif_resp.
type (
	notification struct {
		id         uint64
		tid, flags uint32
		nr         int32
		arch       uint32
		ip         uint64
		args       [6]uint64
	}
	answer struct {
		id    uint64
		val   int64
		err   int32
		flags uint32
	}
)

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
	listener, pid int
	// ended is closed when the engine has ended, killed when the tracer has killed it.
	ended, killed chan struct{}

	mu     sync.Mutex
	decide func(Step) Verdict
	steps  []Step
	dead   bool
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

// Killed is closed when the engine was killed by a verdict.
func (tr *Tracer) Killed() <-chan struct{} { return tr.killed }

// Ended is closed when nothing is left of the engine.
func (tr *Tracer) Ended() <-chan struct{} { return tr.ended }

// serve answers the kernel until the engine has ended.
func (tr *Tracer) serve() {
	defer close(tr.ended)
	defer unix.Close(tr.listener)
	for {
		poll := []unix.PollFd{{Fd: int32(tr.listener), Events: unix.POLLIN}}
		if _, err := unix.Poll(poll, -1); err == unix.EINTR {
			continue
		}
		if poll[0].Revents&unix.POLLIN == 0 {
			return // nobody is left under the filter
		}
		var n notification
		if !tr.ioctl(unix.SECCOMP_IOCTL_NOTIF_RECV, unsafe.Pointer(&n)) {
			continue // it died meanwhile
		}
		tr.answer(n)
	}
}

func (tr *Tracer) answer(n notification) {
	v := tr.verdict(n)
	reply := answer{id: n.id, flags: unix.SECCOMP_USER_NOTIF_FLAG_CONTINUE}
	switch {
	case v.Kill:
		tr.kill(n, v.Done)
		return
	case v.Err != 0:
		reply = answer{id: n.id, err: -int32(v.Err)}
	}
	tr.ioctl(unix.SECCOMP_IOCTL_NOTIF_SEND, unsafe.Pointer(&reply))
}

// kill ends the engine. A write that is to be done first is done by the tracer
// itself: nothing else can tell when the engine has come to its end.
func (tr *Tracer) kill(n notification, done bool) {
	if done {
		if err := tr.writeFor(n); err != nil {
			// What a kernel refuses it has refused the engine too.
			fmt.Fprintln(os.Stderr, "tracer:", err)
		}
	}
	tr.mu.Lock()
	tr.dead = true
	tr.mu.Unlock()
	close(tr.killed)
	_ = unix.Kill(tr.pid, unix.SIGKILL)
}

func (tr *Tracer) writeFor(n notification) error {
	if n.nr != unix.SYS_WRITE && n.nr != unix.SYS_PWRITE64 {
		return errors.New("only writes can be done first")
	}
	f, err := os.OpenFile(fmt.Sprintf("/proc/%d/fd/%d", tr.pid, int32(n.args[0])), os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = f.Write(tr.memory(n.args[1], int(n.args[2])))
	return err
}

func (tr *Tracer) ioctl(request uintptr, arg unsafe.Pointer) bool {
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(tr.listener), request, uintptr(arg))
	return errno == 0
}

// verdict notes a step and asks what becomes of it.
func (tr *Tracer) verdict(n notification) Verdict {
	s, ok := tr.describe(n)
	tr.mu.Lock()
	decide, dead := tr.decide, tr.dead
	if ok && !dead {
		tr.steps = append(tr.steps, s)
	}
	tr.mu.Unlock()
	if !ok || dead || decide == nil {
		return Verdict{}
	}
	return decide(s)
}

// describe names a call that others can see the effect of.
func (tr *Tracer) describe(n notification) (Step, bool) {
	switch n.nr {
	case unix.SYS_UNLINKAT:
		return Step{Call: "unlink", Path: tr.text(n.args[1])}, true
	case unix.SYS_RENAMEAT, unix.SYS_RENAMEAT2:
		return Step{Call: "rename", Path: tr.text(n.args[3])}, true
	}
	s := Step{Call: "write", Path: tr.file(n.args[0])}
	switch {
	case !strings.HasPrefix(s.Path, "/"):
		return Step{}, false // a pipe, a socket
	case s.Sysfs():
		s.Value = strings.TrimRight(string(tr.memory(n.args[1], int(min(n.args[2], 200)))), "\n\x00")
	}
	return s, true
}

// file is what a descriptor of the engine stands for.
func (tr *Tracer) file(fd uint64) string {
	path, _ := os.Readlink(fmt.Sprintf("/proc/%d/fd/%d", tr.pid, int32(fd)))
	return path
}

// text is a string of the engine's memory.
func (tr *Tracer) text(addr uint64) string {
	b, _, _ := bytes.Cut(tr.memory(addr, unix.PathMax), []byte{0})
	return string(b)
}

// memory reads the engine's memory; what cannot be read is zero.
func (tr *Tracer) memory(addr uint64, n int) []byte {
	b := make([]byte, n)
	f, err := os.Open(fmt.Sprintf("/proc/%d/mem", tr.pid))
	if err != nil {
		return b
	}
	defer f.Close()
	_, _ = f.ReadAt(b, int64(addr)) // less than n at the end of a mapping
	return b
}
