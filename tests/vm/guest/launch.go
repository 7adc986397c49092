package guest

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/dhcp-meta/dhcp-meta/tests/rig"
)

// launchVerb makes the test binary put a seccomp filter on itself and become the
// program that the arguments name.
const launchVerb = "launch-under-filter"

// Descriptors of the launcher: a socket to the test, and the filter's listener.
const (
	toTest     = 3
	listenerFD = 100
)

// handed are the system calls that the filter hands to the test before the kernel
// carries them out. Which of them Go's library makes is its business; that the tests
// see what they mean to see is held by what they assert on the steps.
var handed = []uint32{
	unix.SYS_WRITE, unix.SYS_PWRITE64, unix.SYS_RENAMEAT, unix.SYS_RENAMEAT2, unix.SYS_UNLINKAT,
}

// filter is the program of the filter: the calls of handed go to the listener, all
// others pass.
func filter() []unix.SockFilter {
	prog := []unix.SockFilter{{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS}} // the call's number
	for i, nr := range handed {
		prog = append(prog, unix.SockFilter{
			Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: nr,
			Jt: uint8(len(handed) - i), // to the last instruction
		})
	}
	ret := func(k uint32) unix.SockFilter { return unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: k} }
	return append(prog, ret(unix.SECCOMP_RET_ALLOW), ret(unix.SECCOMP_RET_USER_NOTIF))
}

// launch is what the test binary does as the launcher. Between the filter and the
// test's word it makes raw calls only, none of which the filter hands over: nobody
// would let them pass yet.
func launch(argv []string) {
	runtime.LockOSThread() // a filter is one thread's
	prog := filter()
	fprog := unix.SockFprog{Len: uint16(len(prog)), Filter: &prog[0]}
	fd, _, errno := unix.RawSyscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER,
		unix.SECCOMP_FILTER_FLAG_NEW_LISTENER, uintptr(unsafe.Pointer(&fprog)))
	if errno != 0 {
		fmt.Fprintln(os.Stderr, "install the seccomp filter:", errno)
		os.Exit(1)
	}
	unix.RawSyscall(unix.SYS_DUP3, fd, listenerFD, unix.O_CLOEXEC)
	unix.RawSyscall(unix.SYS_SHUTDOWN, toTest, unix.SHUT_WR, 0) // the listener can be fetched
	var b [1]byte
	unix.RawSyscall(unix.SYS_READ, toTest, uintptr(unsafe.Pointer(&b)), 1) // it has been
	unix.CloseOnExec(toTest)
	err := syscall.Exec(argv[0], argv, os.Environ())
	fmt.Fprintln(os.Stderr, "execute", argv[0], err)
	os.Exit(1)
}

// TraceProgram starts any program under a tracer, which asks decide at every step.
func TraceProgram(t testing.TB, name string, decide func(Step) Verdict, argv ...string) (*rig.Process, *Tracer) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	ours, theirs := os.NewFile(uintptr(pair[0]), "launcher"), os.NewFile(uintptr(pair[1]), "test")
	defer ours.Close()
	cmd := exec.Command(self, append([]string{launchVerb}, argv...)...)
	cmd.ExtraFiles = []*os.File{theirs}
	p := Node.Start(t, name, cmd)
	theirs.Close()

	var b [1]byte
	if _, err := ours.Read(b[:]); err == nil {
		t.Fatal("the launcher wrote something")
	}
	fd, err := fetch(p.PID(), listenerFD)
	if err != nil {
		t.Fatalf("fetch the filter's listener: %v; the launcher said:\n%s", err, strings.Join(p.Lines.Since(0), "\n"))
	}
	tr := &Tracer{listener: fd, pid: p.PID(), decide: decide, ended: make(chan struct{}), killed: make(chan struct{})}
	go tr.serve()
	return p, tr
}

// fetch takes a copy of another process's descriptor.
func fetch(pid, fd int) (int, error) {
	p, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return 0, err
	}
	defer unix.Close(p)
	return unix.PidfdGetfd(p, fd, 0)
}
