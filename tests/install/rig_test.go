package install

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/dhcp-meta/dhcp-meta/tests/rig"
)

func TestMain(m *testing.M) { rig.Main(m) }

const overlay = "ovn-k8s-cni-overlay"

// node is a folder of CNI plugins, with one in it that says its version.
type node struct {
	*testing.T
	dir string
	// plugins has the versions of the plugin: <number>.
	plugins string
	// version is the newest that is installed.
	version atomic.Int64
	// foreign is odd while somebody else writes into the folder in a way that does not
	// keep a plugin whole, or there: what is executed then may fail, as without us.
	foreign atomic.Int64
}

func newNode(t *testing.T) *node {
	t.Helper()
	rig.Need(t)
	n := &node{T: t, dir: t.TempDir(), plugins: t.TempDir()}
	root, err := rig.ModuleRoot()
	n.ok(err)
	path := n.plugin(0)
	c := exec.Command("go", "build", "-ldflags", "-s -w -X main.version=VERSION", "-o", path, "./internal/install/testdata/plugin")
	c.Dir, c.Env = root, append(os.Environ(), "CGO_ENABLED=0")
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	n.install("cp")
	return n
}

func (n *node) ok(err error) {
	n.Helper()
	if err != nil {
		n.Fatal(err)
	}
}

func (n *node) path(names ...string) string {
	return filepath.Join(append([]string{n.dir}, names...)...)
}

func (n *node) plugin(version int64) string {
	return filepath.Join(n.plugins, strconv.FormatInt(version, 10))
}

// next makes another version of the plugin. Its number has the length of the one that was
// built in, so that only that changes.
func (n *node) next() int64 {
	n.Helper()
	version := n.version.Load() + 1
	content, err := os.ReadFile(n.plugin(0))
	n.ok(err)
	made := bytes.ReplaceAll(content, []byte("VERSION"), []byte(number(version)))
	if bytes.Equal(made, content) {
		n.Fatal("the plugin has no version in it")
	}
	n.ok(os.WriteFile(n.plugin(version), made, 0o755))
	return version
}

func number(version int64) string { return fmt.Sprintf("%07d", version) }

// ways are how network plugins install themselves.
var ways = []struct {
	name, script string
	// atomic says that the plugin is there, and whole, all the time.
	atomic bool
}{
	{"cp", `cp "$NEW" ` + overlay, false},
	{"cp -f", `cp -f "$NEW" ` + overlay, false},
	{"install", `install -m 755 "$NEW" ` + overlay, false},
	{"cp and mv", `cp "$NEW" .upgrade && mv .upgrade ` + overlay, true},
}

// install has the next version of the plugin installed by somebody else.
func (n *node) install(way string) {
	n.Helper()
	version := n.next()
	for _, w := range ways {
		if w.name != way {
			continue
		}
		if !w.atomic {
			n.foreign.Add(1)
			defer n.foreign.Add(1)
		}
		// cp cannot write into a program that runs; its caller tries again.
		for deadline := time.Now().Add(rig.Patience); ; {
			out, err := n.shell(w.script, "NEW="+n.plugin(version))
			if err == nil {
				n.version.Store(version)
				return
			}
			if !strings.Contains(out, "Text file busy") || time.Now().After(deadline) {
				n.Fatalf("%s: %v: %s", w.script, err, out)
			}
		}
	}
	n.Fatalf("there is no way %q", way)
}

// shell runs a script in the folder, as somebody else.
func (n *node) shell(script string, env ...string) (string, error) {
	c := exec.Command("sh", "-c", script)
	c.Dir, c.Env = n.dir, append(os.Environ(), env...)
	out, err := c.CombinedOutput()
	return string(out), err
}

// engine runs dhcp-engine, and returns what it said.
func (n *node) engine(args ...string) (string, error) {
	out, err := exec.Command(rig.Program("dhcp-engine"), append(args, "--bin-dir", n.dir)...).CombinedOutput()
	return string(out), err
}

func (n *node) mustEngine(args ...string) string {
	n.Helper()
	out, err := n.engine(args...)
	if err != nil {
		n.Fatalf("dhcp-engine %q: %v: %s", args, err, out)
	}
	return out
}

var swap = []string{"install", "--mode", "swap", "--wrap", overlay}

// watch starts install --watch, and waits until it watches.
func (n *node) watch() *rig.Process {
	n.Helper()
	cmd := exec.Command(rig.Program("dhcp-engine"), append(swap, "--watch", "--bin-dir", n.dir)...)
	p := rig.NewNetns(n.T, "node").Start(n.T, "install --watch", cmd)
	p.Lines.Await(n.T, "watch", 0, rig.Patience, func(line string) bool { return strings.Contains(line, "plugins are kept wrapped") })
	return p
}

// stop ends a watch as a pod's end does.
func (n *node) stop(p *rig.Process) {
	n.Helper()
	p.Signal(n.T, syscall.SIGTERM)
	if code := p.AwaitExit(n.T); code != 0 {
		n.Errorf("install --watch ended with %d", code)
	}
}

// wrapped tells whether ours is in the plugin's place, and its newest version aside.
func (n *node) wrapped() bool {
	return n.same(n.path(overlay), n.path("dhcp-meta")) && n.same(n.path("dhcp-meta-wrapped", overlay), n.plugin(n.version.Load()))
}

func (n *node) same(a, b string) bool {
	one, err1 := os.ReadFile(a)
	two, err2 := os.ReadFile(b)
	return err1 == nil && err2 == nil && bytes.Equal(one, two)
}

// await waits for a condition of the folder.
func (n *node) await(what string, holds func() bool) {
	n.Helper()
	ctx, cancel := context.WithTimeout(n.Context(), rig.Patience)
	defer cancel()
	for tick := time.NewTicker(5 * time.Millisecond); !holds(); {
		select {
		case <-tick.C:
		case <-ctx.Done():
			out, _ := n.shell("ls -laiR")
			n.Fatalf("waited for: %s; there is:\n%s", what, out)
		}
	}
}

// call executes the plugin as a runtime does, for a network that is not ours.
func (n *node) call() (string, error) {
	c := exec.Command(n.path(overlay))
	c.Env = []string{
		"CNI_COMMAND=ADD", "CNI_CONTAINERID=0123456789abcdef", "CNI_IFNAME=net1", "CNI_NETNS=/run/netns/a", "CNI_PATH=" + n.dir,
		"DHCP_ENGINE_SOCKET=" + n.plugins + "/no.sock", "DHCP_ENGINE_STATE_DIR=" + n.plugins + "/state",
	}
	c.Stdin = strings.NewReader(`{"cniVersion":"1.0.0","name":"ovn-kubernetes","type":"` + overlay + `","ipam":{},"dns":{}}`)
	out, err := c.CombinedOutput()
	return strings.TrimSpace(string(out)), err
}

// callAllTheTime executes the plugin until stop is called, and holds that each call is the
// plugin's, of the newest version when the call began, or of one that came since.
func (n *node) callAllTheTime() (stop func()) {
	ctx, cancel := context.WithCancel(n.Context())
	var callers sync.WaitGroup
	var calls, excused atomic.Int64
	for range 2 {
		callers.Go(func() {
			for ctx.Err() == nil && !n.Failed() {
				foreign, version := n.foreign.Load(), n.version.Load()
				out, err := n.call()
				calls.Add(1)
				disturbed := foreign%2 == 1 || n.foreign.Load() != foreign
				// It is written into, is not there, or has not got its mode.
				theirs := errors.Is(err, syscall.ETXTBSY) || errors.Is(err, syscall.ENOENT) || errors.Is(err, syscall.EACCES)
				if disturbed && theirs {
					excused.Add(1)
					continue
				}
				got, _ := strings.CutPrefix(out, "plugin ")
				if v, _ := strconv.ParseInt(got, 10, 64); err != nil || v < version {
					n.Errorf("a call ended with %v and %q, want version %d or later", err, out, version)
				}
			}
		})
	}
	return func() {
		n.Helper()
		cancel()
		callers.Wait()
		n.Logf("%d calls, %d of them failed while somebody else wrote the plugin", calls.Load(), excused.Load())
		if calls.Load() < 20 {
			n.Errorf("only %d calls were made", calls.Load())
		}
	}
}
