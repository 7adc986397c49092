// Package trap runs a program whose system calls the test sees before the kernel
// carries them out, on whatever thread they are made. The test lets each of them pass,
// refuses it, or kills the program in place of it. What the calls mean is the test's
// business.
//
//	func TestMain(m *testing.M) {
//		trap.Launch() // this binary is also what starts the program
//		rig.Main(m)
//	}
//
//	program, tr := trap.Start(t, lan.Node, "rm", []int{unix.SYS_UNLINKAT},
//		func(c trap.Call) trap.Verdict {
//			return trap.Verdict{Kill: c.Text(c.Args[1]) == "second"}
//		}, "/bin/rm", "first", "second")
//	program.AwaitExit(t) // with the first removed and the second not
//	<-tr.Ended()
//
// The test binary executes itself as a launcher, which puts a seccomp filter on itself
// and becomes the program; the test takes the filter's listener before (seccomp(2),
// seccomp_unotify(2)). The filter is that of the program's children too. Calls that are
// not handed over cost next to nothing.
package trap

import (
	"os"
	"os/exec"
	"slices"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/dhcp-meta/dhcp-meta/tests/rig"
)

// A Verdict is what becomes of a call. The zero value lets it pass.
type Verdict struct {
	// Kill ends the program by SIGKILL in place of the call.
	Kill bool
	// Err is what the program gets in place of the call, unless it is 0.
	Err syscall.Errno
}

// A Trap answers the kernel for one program. Its channels may be used by several
// goroutines.
type Trap struct {
	killed, ended chan struct{}
}

// Killed is closed when a verdict has killed the program.
func (tr *Trap) Killed() <-chan struct{} { return tr.killed }

// Ended is closed when nothing is left of the program and its children, and no call is
// being decided.
func (tr *Trap) Ended() <-chan struct{} { return tr.ended }

// Start runs argv in a place until the test ends, and asks decide at each of calls,
// which are system call numbers. argv begins with a path: no folders are searched. The
// package's TestMain must call Launch. What goes wrong ends the test; a program that
// cannot be executed says so and exits with 1.
//
// decide is asked in a goroutine of the trap, one call after another, until the
// program has ended or a verdict has killed it; from then on all calls pass. Whoever
// makes a call waits meanwhile, so decide may do what another process could do at that
// moment. It must not end the test.
//
// The place must start the program as the process that it returns, as a namespace and
// a node do; a node with processes of its own (node.NewMachine) has nsenter there.
func Start(t testing.TB, place rig.Place, name string, calls []int, decide func(Call) Verdict, argv ...string) (*rig.Process, *Trap) {
	t.Helper()
	for _, nr := range beforeFetch {
		if slices.Contains(calls, nr) {
			t.Fatalf("system call %d cannot be trapped: the launcher makes it", nr)
		}
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatalf("make a socket to the launcher: %v", err)
	}
	ours, theirs := os.NewFile(uintptr(pair[0]), "launcher"), os.NewFile(uintptr(pair[1]), "test")
	defer ours.Close() // tells the launcher that the listener has been fetched
	cmd := exec.Command(self, launchArguments(calls, argv)...)
	cmd.ExtraFiles = []*os.File{theirs}
	p := place.Start(t, name, cmd)
	theirs.Close()

	var b [1]byte
	if _, err := ours.Read(b[:]); err == nil {
		t.Fatal("the launcher wrote something")
	}
	process, err := unix.PidfdOpen(p.PID(), 0)
	if err != nil {
		t.Fatalf("open the launcher: %v", err)
	}
	fd, err := unix.PidfdGetfd(process, listenerFD, 0)
	if err != nil {
		unix.Close(process)
		t.Fatalf("fetch the filter's listener: %v", err)
	}
	tr := &Trap{killed: make(chan struct{}), ended: make(chan struct{})}
	go tr.serve(listener(fd), process, decide)
	return p, tr
}

// serve answers the kernel until nobody is left under the filter. process is a pidfd
// of the program.
func (tr *Trap) serve(l listener, process int, decide func(Call) Verdict) {
	defer close(tr.ended)
	defer unix.Close(process)
	defer unix.Close(int(l))
	dead := false
	for l.wait() {
		var n notification
		if !l.ioctl(unix.SECCOMP_IOCTL_NOTIF_RECV, unsafe.Pointer(&n)) {
			continue // it died meanwhile
		}
		var v Verdict
		if !dead {
			v = decide(Call{Number: int(n.nr), Args: n.args, thread: n.tid})
		}
		reply := answer{id: n.id}
		switch {
		case v.Kill:
			dead = true
			_ = unix.PidfdSendSignal(process, unix.SIGKILL, nil, 0) // it may have ended
			close(tr.killed)
			// The program does not see this any more; a child that made the call does.
			reply.err = -int32(unix.EPERM)
		case v.Err != 0:
			reply.err = -int32(v.Err)
		default:
			reply.flags = unix.SECCOMP_USER_NOTIF_FLAG_CONTINUE
		}
		l.ioctl(unix.SECCOMP_IOCTL_NOTIF_SEND, unsafe.Pointer(&reply)) // who made it may be dead
	}
}

// listener is the descriptor by which a filter hands over calls.
type listener int

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

// wait waits for a call. It returns false when nobody is left under the filter.
func (l listener) wait() bool {
	for {
		poll := []unix.PollFd{{Fd: int32(l), Events: unix.POLLIN}}
		if _, err := unix.Poll(poll, -1); err != unix.EINTR {
			return poll[0].Revents&unix.POLLIN != 0
		}
	}
}

func (l listener) ioctl(request uintptr, arg unsafe.Pointer) bool {
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(l), request, uintptr(arg))
	return errno == 0
}
