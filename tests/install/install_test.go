package install

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/dhcp-meta/dhcp-meta/tests/rig"
)

// Pods come and go all the time. While we are installed, upgraded, taken out again and
// killed, and while the network plugin installs itself anew in every way, each call of it
// is its own, and none of an older version than was there when it began.
func TestNoCallFails(t *testing.T) {
	t.Run("the network plugin installs itself anew", func(t *testing.T) {
		n := newNode(t)
		stop := n.callAllTheTime()
		watch := n.watch()
		for range 3 {
			for _, way := range ways {
				n.install(way.name)
				n.await("the plugin wrapped again after "+way.name, n.wrapped)
			}
		}
		n.stop(watch)
		if !n.wrapped() {
			t.Error("at the end of the watch the plugin is not wrapped")
		}
		n.mustEngine("uninstall")
		stop()
	})
	t.Run("two versions of ours", func(t *testing.T) {
		n := newNode(t)
		other := n.otherVersion()
		stop := n.callAllTheTime()
		older, newer := n.watch(), other
		for range 10 {
			if out, err := exec.Command(newer, append(swap, "--bin-dir", n.dir)...).CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			n.install("cp and mv")
			n.await("the plugin aside", func() bool {
				return n.same(n.path("dhcp-meta-wrapped", overlay), n.plugin(n.version.Load()))
			})
			n.mustEngine(swap...)
		}
		n.stop(older)
		stop()
	})
	t.Run("installed and uninstalled", func(t *testing.T) {
		n := newNode(t)
		stop := n.callAllTheTime()
		for range 25 {
			n.mustEngine(swap...)
			n.mustEngine("uninstall")
		}
		stop()
		n.untouched()
	})
	t.Run("killed", func(t *testing.T) {
		n := newNode(t)
		stop := n.callAllTheTime()
		killed := 0
		for i := range 60 {
			command := swap
			if i%3 == 2 {
				command = []string{"uninstall"}
			}
			args := append([]string{"-s", "KILL", fmt.Sprintf("0.%03d", 3+3*(i%40)), rig.Program("dhcp-engine")}, command...)
			if err := exec.Command("timeout", append(args, "--bin-dir", n.dir)...).Run(); err != nil {
				killed++
			}
			if i%10 == 9 {
				n.install("cp and mv")
			}
		}
		t.Logf("%d of 60 were killed", killed)
		n.mustEngine(swap...)
		if !n.wrapped() {
			t.Error("the plugin is not wrapped")
		}
		n.mustEngine("uninstall")
		stop()
		n.untouched()
	})
}

// untouched holds that nothing of ours is left.
func (n *node) untouched() {
	n.Helper()
	entries, err := os.ReadDir(n.dir)
	n.ok(err)
	if len(entries) != 1 || !n.same(n.path(overlay), n.plugin(n.version.Load())) {
		out, _ := n.shell("ls -laiR")
		n.Errorf("left over, or not the newest version:\n%s", out)
	}
}

// otherVersion is an engine with another dhcp-meta beside it.
func (n *node) otherVersion() string {
	n.Helper()
	dir := n.TempDir()
	for _, name := range []string{"dhcp-engine", "dhcp-meta"} {
		content, err := os.ReadFile(rig.Program(name))
		n.ok(err)
		n.ok(os.WriteFile(filepath.Join(dir, name), append(content, '\n'), 0o755))
	}
	return filepath.Join(dir, "dhcp-engine")
}

// While the plugins are kept wrapped, nobody can take us out; afterwards everything is
// there, and then nothing.
func TestUninstallWaitsForTheWatch(t *testing.T) {
	n := newNode(t)
	before := n.inode(overlay)
	watch := n.watch()
	for _, args := range [][]string{{"uninstall"}, {"install", "--mode", "plain"}} {
		out, err := n.engine(args...)
		if err == nil || !strings.Contains(out, "are kept wrapped by a running") {
			t.Errorf("%q: %v: %s", args, err, out)
		}
		if !n.wrapped() {
			t.Errorf("after %q the plugin is not wrapped", args)
		}
	}
	// The init container of a newer pod.
	n.mustEngine(swap...)
	n.stop(watch)
	n.mustEngine("uninstall")
	n.untouched()
	if after := n.inode(overlay); after != before {
		t.Errorf("the plugin has inode %d, and had %d", after, before)
	}
}

func (n *node) inode(name string) uint64 {
	fi, err := os.Stat(n.path(name))
	n.ok(err)
	return fi.Sys().(*syscall.Stat_t).Ino
}

// A node that boots: the network plugin has not come yet, and then writes itself slowly.
func TestPluginComesWhileWatched(t *testing.T) {
	n := newNode(t)
	n.ok(os.Remove(n.path(overlay)))
	watch := n.watch()
	version := n.next()
	// Its first half is there, and closed by one writer while another has it open still.
	out, err := n.shell(fmt.Sprintf(`exec 9>>%[1]s; dd if=%[2]s of=%[1]s bs=4096 count=1 status=none; ls dhcp-meta-wrapped; cat %[2]s > %[1]s; chmod 755 %[1]s`, overlay, n.plugin(version)))
	if err != nil || out != "" {
		t.Fatalf("%v: %s", err, out)
	}
	n.version.Store(version)
	n.await("the plugin wrapped", n.wrapped)
	n.stop(watch)
}

// Where nobody has a capability, root's own files need none. A plugin of another user
// cannot get a second name then, and is copied.
func TestInstallerNeedsNoCapability(t *testing.T) {
	without := func(n *node, caps string, args ...string) {
		t.Helper()
		full := append([]string{"--bounding-set", caps, "--inh-caps", caps, rig.Program("dhcp-engine")}, args...)
		if out, err := exec.Command("setpriv", append(full, "--bin-dir", n.dir)...).CombinedOutput(); err != nil {
			t.Fatalf("without %s: %v: %s", caps, err, out)
		}
	}
	t.Run("none", func(t *testing.T) {
		n := newNode(t)
		without(n, "-all", swap...)
		if !n.wrapped() {
			t.Error("the plugin is not wrapped")
		}
		n.install("cp and mv")
		without(n, "-all", swap...)
		without(n, "-all", "uninstall")
		n.untouched()
	})
	t.Run("a plugin of another user", func(t *testing.T) {
		if protected, err := os.ReadFile("/proc/sys/fs/protected_hardlinks"); err != nil || string(protected) != "1\n" {
			t.Skipf("fs.protected_hardlinks is %q (%v): links are not refused", protected, err)
		}
		n := newNode(t)
		n.ok(os.Chown(n.path(overlay), 1234, 1234))
		before := n.inode(overlay)
		without(n, "-fowner,-dac_override", swap...)
		if !n.wrapped() {
			t.Error("the plugin is not wrapped")
		}
		without(n, "-fowner,-dac_override", "uninstall")
		n.untouched()
		fi, err := os.Stat(n.path(overlay))
		n.ok(err)
		if s := fi.Sys().(*syscall.Stat_t); s.Uid != 1234 || s.Gid != 1234 || fi.Mode() != 0o755 {
			t.Errorf("the plugin is of %d:%d with mode %v", s.Uid, s.Gid, fi.Mode())
		}
		if n.inode(overlay) == before {
			t.Error("the plugin has its inode still: links were not refused")
		}
	})
}

// What is wrong with the command line, or the node, is one line, and nothing is done.
func TestInstallSaysWhatIsWrong(t *testing.T) {
	n := newNode(t)
	for _, tt := range []struct {
		code int
		says string
		args []string
	}{
		{2, "--mode: mode swap needs the name of the plugin to wrap", []string{"install", "--mode", "swap"}},
		{2, `--mode: "link" is no mode`, []string{"install", "--mode", "link"}},
		{2, `"../x" is no name of a plugin`, []string{"install", "--mode", "swap", "--wrap", "../x"}},
		{2, "--watch: only in the modes swap and drop-in", []string{"install", "--watch"}},
		{2, "--bin-dir: \"bin\" is no absolute path", []string{"install", "--bin-dir", "bin"}},
		{2, "--state-dir: \"x\" is no absolute path", []string{"uninstall", "--state-dir", "x"}},
		{1, "which one does the container runtime use", []string{"install", "--bin-dir", n.path("nowhere")}},
		{1, "which one does the container runtime use", []string{"uninstall", "--bin-dir", n.path("nowhere")}},
	} {
		args := tt.args
		if !strings.Contains(strings.Join(args, " "), "--bin-dir") {
			args = append(args, "--bin-dir", n.dir)
		}
		c := exec.Command(rig.Program("dhcp-engine"), args...)
		out, _ := c.CombinedOutput()
		if c.ProcessState.ExitCode() != tt.code || !strings.Contains(string(out), tt.says) || strings.Count(string(out), "\n") != 1 {
			t.Errorf("%q: exit code %d, want %d: %s", tt.args, c.ProcessState.ExitCode(), tt.code, out)
		}
	}
	// A program that lies beside no dhcp-meta.
	alone := filepath.Join(t.TempDir(), "dhcp-engine")
	if out, err := exec.Command("cp", rig.Program("dhcp-engine"), alone).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	out, err := exec.Command(alone, "install", "--bin-dir", n.dir).CombinedOutput()
	if err == nil || !strings.Contains(string(out), filepath.Dir(alone)+"/dhcp-meta") {
		t.Errorf("%v: %s", err, out)
	}
	n.untouched()
}

// The state folder goes when it is named, and nobody needs it any more.
func TestUninstallState(t *testing.T) {
	lan := rig.NewLAN(t)
	n := newNode(t)
	e := rig.StartEngine(t, lan.Node)
	run := filepath.Dir(e.Socket)
	args := []string{"uninstall", "--state-dir", e.StateDir, "--run-dir", run}
	n.mustEngine(swap...)

	out, err := n.engine(args...)
	if err == nil || !strings.Contains(out, "dhcp-engine runs") || !n.wrapped() {
		t.Errorf("beside an engine: %v: %s", err, out)
	}
	e.Stop(t)
	record := filepath.Join(e.StateDir, "attachments", "0123456789abcdef:net1.json")
	n.ok(os.WriteFile(record, []byte("{}"), 0o600))
	out, err = n.engine(args...)
	if err == nil || !strings.Contains(out, record[len(e.StateDir):][len("/attachments/"):]) || !n.wrapped() {
		t.Errorf("with a record: %v: %s", err, out)
	}
	n.ok(os.Remove(record))
	foreign := filepath.Join(e.StateDir, "notes.txt")
	n.ok(os.WriteFile(foreign, nil, 0o600))
	out = n.mustEngine(args...)
	if !strings.Contains(out, "file is not ours and is left alone") {
		t.Errorf("said: %s", out)
	}
	entries, err := os.ReadDir(e.StateDir)
	n.ok(err)
	if len(entries) != 1 {
		t.Errorf("left over: %v", entries)
	}
	n.ok(os.Remove(foreign))
	n.mustEngine(args...)
	for _, dir := range []string{e.StateDir, run} {
		if _, err := os.Stat(dir); !os.IsNotExist(err) {
			t.Errorf("%s is there still (%v)", dir, err)
		}
	}
	n.mustEngine(args...) // nothing is there
}

// A DaemonSet's container may not end: it waits, and ends at once when it is told to.
func TestUninstallStays(t *testing.T) {
	n := newNode(t)
	n.mustEngine(swap...)
	cmd := exec.Command(rig.Program("dhcp-engine"), "uninstall", "--stay", "--bin-dir", n.dir)
	p := rig.NewNetns(t, "node").Start(t, "uninstall --stay", cmd)
	p.Lines.Await(t, "the end of the work", 0, rig.Patience, func(line string) bool { return strings.Contains(line, "all is removed") })
	n.untouched()
	n.stop(p)
}

// What a mode of the drop-in does is what docs/dropin.md promises: the plugin dhcp is ours.
func TestDropIn(t *testing.T) {
	n := newNode(t)
	version := func() string {
		c := exec.Command(n.path("dhcp"))
		c.Env = []string{"CNI_COMMAND=VERSION"}
		c.Stdin = strings.NewReader(`{"cniVersion":"1.1.0"}`)
		out, err := c.CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return string(out)
	}
	reference := filepath.Join(rig.Plugins(), "dhcp")
	if out, err := n.shell("cp " + reference + " dhcp"); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	before := n.inode("dhcp")
	n.mustEngine("install", "--mode", "drop-in")
	if !n.same(n.path("dhcp"), n.path("dhcp-meta")) || !n.same(n.path("dhcp-meta-wrapped", "dhcp"), reference) {
		t.Error("dhcp is not ours, or the reference's is not aside")
	}
	if diff := cmp.Diff(true, strings.Contains(version(), `"1.1.0"`)); diff != "" {
		t.Errorf("ours does not answer: %s", version())
	}
	n.mustEngine("uninstall")
	if n.inode("dhcp") != before {
		t.Error("the reference's plugin is not back")
	}
}
