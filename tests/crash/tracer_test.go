package crash

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/dhcp-meta/dhcp-meta/tests/rig"
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

// tracer sees the calls of an engine that the filter hands over. Each is let
// pass, but the one at which the engine is to die.
type tracer struct {
	listener, pid int
	// folder is the state folder with a slash behind it.
	folder string
	// ended is closed when the engine has ended, killed when the tracer has
	// killed it.
	ended, killed chan struct{}

	mu    sync.Mutex
	armed bool
	// left is how many steps pass before the engine is killed; -1: it was.
	left  int
	steps []string
}

// arm begins to count: n steps pass, and before the next one the engine is
// killed.
func (tr *tracer) arm(n int) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	tr.armed, tr.left = true, n
}

// disarm lets everything pass again. It tells whether the engine was killed.
func (tr *tracer) disarm() (killed bool) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	tr.armed = false
	return tr.left < 0
}

// taken are the steps while it was armed; the last one was not carried out when
// the engine was killed there.
func (tr *tracer) taken() []string {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	return append([]string(nil), tr.steps...)
}

// mustHaveSeen holds the steps of a whole verb against what atomic replacement
// of a file is made of: a system call that Go's library has replaced by another
// one would leave the test blind.
func (tr *tracer) mustHaveSeen(t *testing.T, kinds ...string) {
	t.Helper()
	for _, kind := range kinds {
		seen := false
		for _, step := range tr.taken() {
			seen = seen || strings.HasPrefix(step, kind+" ")
		}
		if !seen {
			t.Errorf("no %s among the steps: %v", kind, tr.taken())
		}
	}
}

// serve answers the kernel until the engine has ended.
func (tr *tracer) serve() {
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
		if tr.deadly(n) {
			close(tr.killed)
			_ = unix.Kill(tr.pid, unix.SIGKILL)
			continue
		}
		tr.ioctl(unix.SECCOMP_IOCTL_NOTIF_SEND, unsafe.Pointer(&answer{id: n.id, flags: unix.SECCOMP_USER_NOTIF_FLAG_CONTINUE}))
	}
}

func (tr *tracer) ioctl(request uintptr, arg unsafe.Pointer) bool {
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(tr.listener), request, uintptr(arg))
	return errno == 0
}

// deadly counts a step and tells whether the engine is to die in place of it.
func (tr *tracer) deadly(n notification) bool {
	step := tr.describe(n)
	tr.mu.Lock()
	defer tr.mu.Unlock()
	if !tr.armed || step == "" {
		return false
	}
	if tr.left < 0 {
		return false // it dies already
	}
	tr.steps = append(tr.steps, step)
	tr.left--
	return tr.left < 0
}

// describe names a call that others can see the effect of; "" for all others.
func (tr *tracer) describe(n notification) string {
	switch n.nr {
	case unix.SYS_OPENAT:
		if n.args[2]&unix.O_CREAT == 0 {
			return ""
		}
		return tr.inFolder("create", tr.text(n.args[1]))
	case unix.SYS_MKDIRAT:
		return tr.inFolder("mkdir", tr.text(n.args[1]))
	case unix.SYS_UNLINKAT:
		return tr.inFolder("unlink", tr.text(n.args[1]))
	case unix.SYS_RENAMEAT, unix.SYS_RENAMEAT2:
		return tr.inFolder("rename", tr.text(n.args[3]))
	case unix.SYS_WRITE, unix.SYS_PWRITE64:
		if file := tr.file(n.args[0]); strings.HasPrefix(file, "socket:") {
			return "answer to the plugin"
		}
		return tr.inFolder("write", tr.file(n.args[0]))
	case unix.SYS_FSYNC, unix.SYS_FDATASYNC:
		return tr.inFolder("fsync", tr.file(n.args[0]))
	case unix.SYS_FTRUNCATE:
		return tr.inFolder("truncate", tr.file(n.args[0]))
	case unix.SYS_FCHMOD:
		return tr.inFolder("chmod", tr.file(n.args[0]))
	case unix.SYS_SENDTO:
		return tr.sent(n)
	case unix.SYS_SENDMSG:
		return "send a message"
	}
	return ""
}

// inFolder names a call on a path below the state folder.
func (tr *tracer) inFolder(call, path string) string {
	rel, ok := strings.CutPrefix(path+"/", tr.folder)
	if !ok {
		return ""
	}
	return call + " " + strings.TrimSuffix(rel, "/")
}

// sent names a message by the family of its socket; questions to the kernel
// change nothing.
func (tr *tracer) sent(n notification) string {
	switch family := binary.NativeEndian.Uint16(tr.memory(n.args[4], 2)); family {
	case unix.AF_NETLINK:
		kind := binary.NativeEndian.Uint16(tr.memory(n.args[1]+4, 2))
		const get = 2 // of new, del, get, set, in this order for each kind of object
		if (kind-unix.RTM_BASE)%4 == get {
			return ""
		}
		return fmt.Sprintf("send netlink %d", kind)
	case unix.AF_PACKET:
		return "send frame"
	default:
		return fmt.Sprintf("send by family %d", family)
	}
}

// file is what a descriptor of the engine stands for.
func (tr *tracer) file(fd uint64) string {
	path, _ := os.Readlink(fmt.Sprintf("/proc/%d/fd/%d", tr.pid, int32(fd)))
	return path
}

// text is a string of the engine's memory.
func (tr *tracer) text(addr uint64) string {
	b, _, _ := bytes.Cut(tr.memory(addr, unix.PathMax), []byte{0})
	return string(b)
}

// memory reads the engine's memory; what cannot be read is zero.
func (tr *tracer) memory(addr uint64, n int) []byte {
	b := make([]byte, n)
	f, err := os.Open(fmt.Sprintf("/proc/%d/mem", tr.pid))
	if err != nil {
		return b
	}
	defer f.Close()
	_, _ = f.ReadAt(b, int64(addr)) // less than n at the end of a mapping
	return b
}

// awaitEnd waits until the engine and its filter are gone.
func (tr *tracer) awaitEnd(t *testing.T, e *rig.Engine) {
	t.Helper()
	e.AwaitExit(t)
	<-tr.ended
}
