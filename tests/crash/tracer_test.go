package crash

import (
	"encoding/binary"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/dhcp-meta/dhcp-meta/tests/rig"
	"github.com/dhcp-meta/dhcp-meta/tests/rig/trap"
)

// handed are the system calls that the test sees. Go's library makes no others for
// these ends; whether that is so still is what tracer.mustHaveSeen is for.
var handed = []int{
	unix.SYS_OPENAT, unix.SYS_WRITE, unix.SYS_PWRITE64, unix.SYS_FTRUNCATE, unix.SYS_FCHMOD,
	unix.SYS_FSYNC, unix.SYS_FDATASYNC, unix.SYS_RENAMEAT, unix.SYS_RENAMEAT2, unix.SYS_UNLINKAT,
	unix.SYS_MKDIRAT, unix.SYS_SENDTO, unix.SYS_SENDMSG,
}

// tracer sees the calls of an engine. Each is let pass, but the one at which the
// engine is to die.
type tracer struct {
	*trap.Trap
	// folder is the state folder with a slash behind it.
	folder string

	mu    sync.Mutex
	armed bool
	// left is how many steps pass before the engine is killed; -1: it was.
	left  int
	steps []string
}

// startTraced starts the engine, ready, with a tracer that lets everything pass
// until it is armed.
func startTraced(t *testing.T, l *rig.Lab) *tracer {
	t.Helper()
	tr := &tracer{folder: filepath.Clean(l.Engine.StateDir) + "/"}
	l.Engine.Process, tr.Trap = trap.Start(t, l.Node, "dhcp-engine", handed, tr.decide,
		rig.Program("dhcp-engine"), "run", "--no-kubernetes", "--log-level=debug",
		"--state-dir="+l.Engine.StateDir, "--socket="+l.Engine.Socket)
	l.Engine.AwaitReady(t)
	return tr
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

// decide counts a step and kills the engine in place of the one at which it is to die.
func (tr *tracer) decide(c trap.Call) trap.Verdict {
	step := tr.describe(c)
	tr.mu.Lock()
	defer tr.mu.Unlock()
	if !tr.armed || step == "" {
		return trap.Verdict{}
	}
	tr.steps = append(tr.steps, step)
	tr.left--
	return trap.Verdict{Kill: tr.left < 0}
}

// describe names a call that others can see the effect of; "" for all others.
func (tr *tracer) describe(c trap.Call) string {
	switch c.Number {
	case unix.SYS_OPENAT:
		if c.Args[2]&unix.O_CREAT == 0 {
			return ""
		}
		return tr.inFolder("create", c.Text(c.Args[1]))
	case unix.SYS_MKDIRAT:
		return tr.inFolder("mkdir", c.Text(c.Args[1]))
	case unix.SYS_UNLINKAT:
		return tr.inFolder("unlink", c.Text(c.Args[1]))
	case unix.SYS_RENAMEAT, unix.SYS_RENAMEAT2:
		return tr.inFolder("rename", c.Text(c.Args[3]))
	case unix.SYS_WRITE, unix.SYS_PWRITE64:
		if file := c.File(c.Args[0]); strings.HasPrefix(file, "socket:") {
			return "answer to the plugin"
		}
		return tr.inFolder("write", c.File(c.Args[0]))
	case unix.SYS_FSYNC, unix.SYS_FDATASYNC:
		return tr.inFolder("fsync", c.File(c.Args[0]))
	case unix.SYS_FTRUNCATE:
		return tr.inFolder("truncate", c.File(c.Args[0]))
	case unix.SYS_FCHMOD:
		return tr.inFolder("chmod", c.File(c.Args[0]))
	case unix.SYS_SENDTO:
		return sent(c)
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
func sent(c trap.Call) string {
	switch family := binary.NativeEndian.Uint16(c.Memory(c.Args[4], 2)); family {
	case unix.AF_NETLINK:
		kind := binary.NativeEndian.Uint16(c.Memory(c.Args[1]+4, 2))
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

// awaitEnd waits until the engine and its filter are gone.
func (tr *tracer) awaitEnd(t *testing.T, e *rig.Engine) {
	t.Helper()
	e.AwaitExit(t)
	<-tr.Ended()
}
