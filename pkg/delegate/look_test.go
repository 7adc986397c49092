package delegate

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// The process's first thread runs nothing but TestMain: the threads that newNetns moves
// into other namespaces must not be this one, whose namespace counts as the process's.
func init() { runtime.LockOSThread() }

// newNetns makes a network namespace with an interface, which lives until the test
// ends or end is called, and returns its path.
func newNetns(t *testing.T, ifName string) (path string, end func()) {
	t.Helper()
	if os.Geteuid() != 0 {
		if os.Getenv("CI") != "" || os.Getenv("DHCP_META_REQUIRE_ROOT") != "" {
			t.Fatal("needs root")
		}
		t.Skip("needs root")
	}
	made, ended, gone := make(chan error), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(gone)
		runtime.LockOSThread() // the thread ends with us, and the namespace with it
		err := unix.Unshare(unix.CLONE_NEWNET)
		if err == nil {
			path = fmt.Sprintf("/proc/%d/task/%d/ns/net", os.Getpid(), unix.Gettid())
			var out []byte
			if out, err = exec.Command("ip", "link", "add", ifName, "type", "veth", "peer", "peer0").CombinedOutput(); err != nil {
				err = fmt.Errorf("%w: %s", err, out)
			}
		}
		made <- err
		<-ended
	}()
	if err := <-made; err != nil {
		t.Fatal(err)
	}
	once := false
	end = func() {
		if !once {
			once = true
			close(ended)
			<-gone
		}
	}
	t.Cleanup(end)
	return path, end
}

func TestLookInto(t *testing.T) {
	path, _ := newNetns(t, "net1")
	other, _ := newNetns(t, "net2")
	self, err := os.Readlink("/proc/thread-self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	s, err := lookInto(path, "net1")
	if err != nil || s.cookie == 0 || !s.there {
		t.Errorf("an interface that is there: %+v, %v", s, err)
	}
	if again, err := lookInto(path, "net2"); err != nil || again.cookie != s.cookie || again.there {
		t.Errorf("an interface that is not: %+v, %v", again, err)
	}
	if o, err := lookInto(other, "net1"); err != nil || o.cookie == 0 || o.cookie == s.cookie || o.there {
		t.Errorf("another namespace: %+v, %v", o, err)
	}
	if now, err := os.Readlink("/proc/thread-self/ns/net"); err != nil || now != self {
		t.Errorf("looking left us in %s, %v", now, err)
	}
	for range 200 { // on whatever thread, the process's first included
		if _, err := lookInto(path, "net1"); err != nil {
			t.Fatal(err)
		}
	}
	threads, err := filepath.Glob("/proc/self/task/*/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	here, elsewhere := 0, 0
	for _, thread := range threads {
		switch ns, err := os.Readlink(thread); {
		case err != nil: // it has ended meanwhile
		case ns == self:
			here++
		default:
			elsewhere++
		}
	}
	if here == 0 || elsewhere > 2 { // the two namespaces that we hold are a thread each
		t.Errorf("%d threads are here, %d elsewhere", here, elsewhere)
	}
	if s, err := lookInto(path, "a name that is no interface's"); err == nil {
		t.Errorf("an impossible name: %+v", s)
	}
}

func TestLookIntoWhatIsGone(t *testing.T) {
	file := filepath.Join(t.TempDir(), "netns")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{filepath.Join(t.TempDir(), "gone"), file, filepath.Join(file, "below"), "/proc/0/ns/net"} {
		if s, err := lookInto(path, "net1"); err != nil || s != (seen{}) {
			t.Errorf("%s: %+v, %v", path, s, err)
		}
	}
}
