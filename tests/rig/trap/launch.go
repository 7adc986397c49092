package trap

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// launchVerb makes the test binary the launcher. Behind it are the numbers of the
// calls, joined by commas, and the program's command line.
const launchVerb = "launch-under-filter"

// Descriptors of the launcher: a socket to the test, and the filter's listener.
const (
	toTest     = 3
	listenerFD = 100
)

// beforeFetch are the calls that the launcher makes under the filter while nobody has
// the listener: who would let them pass?
var beforeFetch = []int{unix.SYS_DUP3, unix.SYS_SHUTDOWN, unix.SYS_READ}

func launchArguments(calls []int, argv []string) []string {
	numbers := make([]string, len(calls))
	for i, nr := range calls {
		numbers[i] = strconv.Itoa(nr)
	}
	return append([]string{launchVerb, strings.Join(numbers, ",")}, argv...)
}

// Launch is the first thing that TestMain does in a package that uses Start. In a
// process that Start has started it becomes the program and does not return; elsewhere
// it does nothing.
func Launch() {
	if len(os.Args) < 4 || os.Args[1] != launchVerb {
		return
	}
	fmt.Fprintln(os.Stderr, launch(os.Args[2], os.Args[3:]))
	os.Exit(1)
}

// launch returns only when it fails. Between the filter and the test's word it makes
// raw calls only, those of beforeFetch.
func launch(numbers string, argv []string) error {
	prog, err := filter(numbers)
	if err != nil {
		return err
	}
	runtime.LockOSThread() // a filter is one thread's
	fprog := unix.SockFprog{Len: uint16(len(prog)), Filter: &prog[0]}
	fd, _, errno := unix.RawSyscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER,
		unix.SECCOMP_FILTER_FLAG_NEW_LISTENER, uintptr(unsafe.Pointer(&fprog)))
	if errno != 0 {
		return fmt.Errorf("install the seccomp filter: %w", errno)
	}
	unix.RawSyscall(unix.SYS_DUP3, fd, listenerFD, unix.O_CLOEXEC)
	unix.RawSyscall(unix.SYS_SHUTDOWN, toTest, unix.SHUT_WR, 0) // the listener can be fetched
	var b [1]byte
	unix.RawSyscall(unix.SYS_READ, toTest, uintptr(unsafe.Pointer(&b)), 1) // it has been
	unix.CloseOnExec(toTest)
	return fmt.Errorf("execute %s: %w", argv[0], syscall.Exec(argv[0], argv, os.Environ()))
}

// filter is the program of the filter: the calls of these numbers go to the listener,
// all others pass.
func filter(numbers string) ([]unix.SockFilter, error) {
	ret := func(k uint32) unix.SockFilter { return unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: k} }
	prog := []unix.SockFilter{{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS}} // the call's number
	for word := range strings.SplitSeq(numbers, ",") {
		nr, err := strconv.ParseUint(word, 10, 32)
		if err != nil {
			return nil, fmt.Errorf("number of a system call: %w", err)
		}
		prog = append(prog,
			unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: uint32(nr), Jf: 1}, // over the next
			ret(unix.SECCOMP_RET_USER_NOTIF))
	}
	return append(prog, ret(unix.SECCOMP_RET_ALLOW)), nil
}
