package install

import (
	"bytes"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

const overlay = "ovn-k8s-cni-overlay"

// programs are two versions of ours, and three of another plugin, built once.
type programs struct {
	dir               string
	older, newer      []byte
	first, next, last string // files
	child             string // these tests: see crash
	// known are the contents of all.
	known map[string][]byte
}

var built = sync.OnceValues(func() (programs, error) {
	dir, err := os.MkdirTemp("", "install")
	if err != nil {
		return programs{}, err
	}
	p := programs{dir: dir}
	run := func(name string, args ...string) string {
		path := filepath.Join(dir, name)
		c := exec.Command("go", append([]string{args[0], "-o", path}, args[1:]...)...)
		c.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, e := c.CombinedOutput(); e != nil && err == nil {
			err = fmt.Errorf("%w: %s", e, out)
		}
		return path
	}
	build := func(name, source, version string) string {
		return run(name, "build", "-ldflags", "-s -w -X "+version, source)
	}
	read := func(path string) []byte {
		b, e := os.ReadFile(path)
		if e != nil && err == nil {
			err = e
		}
		return b
	}
	const version = "github.com/dhcp-meta/dhcp-meta/internal/build.version="
	p.older = read(build("older", "../../cmd/dhcp-meta", version+"v1"))
	p.newer = read(build("newer", "../../cmd/dhcp-meta", version+"v2"))
	p.first = build("first", "./testdata/plugin", "main.version=1")
	p.next = build("next", "./testdata/plugin", "main.version=2")
	p.last = build("last", "./testdata/plugin", "main.version=3")
	// Without the race detector, with which each of hundreds takes its time to start.
	p.child = run("child", "test", "-c")
	p.known = map[string][]byte{
		"ours, older": p.older, "ours": p.newer, "plugin 1": read(p.first), "plugin 2": read(p.next), "plugin 3": read(p.last),
	}
	return p, err
})

func TestMain(m *testing.M) {
	if os.Getenv(crashAt) != "" {
		crash()
	}
	code := m.Run()
	if p, err := built(); err == nil {
		os.RemoveAll(p.dir)
	}
	os.Exit(code)
}

// memory is a folder that is in memory, where there is one with room from which programs
// may be executed; empty: none. What a disk makes of all this is for tests/install: here
// every fsync of hundreds of programs would be waited for.
func memory() string {
	const dir, room = "/dev/shm", 1 << 30
	var s unix.Statfs_t
	if unix.Statfs(dir, &s) != nil || s.Flags&unix.ST_NOEXEC != 0 || s.Bavail*uint64(s.Bsize) < room || unix.Access(dir, unix.W_OK) != nil {
		return ""
	}
	return dir
}

// node is a folder of CNI plugins, with what others have in it.
type node struct {
	*testing.T
	programs
	*Folder
	log bytes.Buffer
}

func newNode(t *testing.T) *node {
	t.Helper()
	p, err := built()
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp(memory(), "install")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	n := &node{T: t, programs: p}
	n.Folder = &Folder{Dir: dir, Program: p.newer, Log: slog.New(slog.NewTextHandler(&n.log, nil))}
	for name, mode := range map[string]fs.FileMode{overlay: 0o755, "macvlan": 0o700, "bridge": 0o555} {
		n.copyFile(p.first, n.path(name))
		n.ok(os.Chmod(n.path(name), mode))
	}
	n.ok(os.Symlink("macvlan", n.path("ipvlan")))
	n.ok(os.Mkdir(n.path("whereabouts.d"), 0o700))
	return n
}

func (n *node) ok(err error) {
	n.Helper()
	if err != nil {
		n.Fatal(err)
	}
}

func (n *node) fails(err error, words ...string) {
	n.Helper()
	if err == nil {
		n.Fatalf("no error, want %q", words)
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			n.Errorf("error %q does not say %q", err, w)
		}
	}
}

// said takes the log's messages with their file or plugin, since the last time.
func (n *node) said() []string {
	var lines []string
	for _, m := range regexp.MustCompile(`msg="([^"]*)" (?:\w+)=(\S+)`).FindAllStringSubmatch(n.log.String(), -1) {
		lines = append(lines, m[1]+": "+strings.TrimPrefix(m[2], n.Dir+"/"))
	}
	n.log.Reset()
	return lines
}

func (n *node) wantSaid(want ...string) {
	n.Helper()
	if diff := cmp.Diff(want, n.said()); diff != "" {
		n.Errorf("log (-want +got):\n%s", diff)
	}
}

func (n *node) copyFile(from, to string) {
	n.Helper()
	content, err := os.ReadFile(from)
	n.ok(err)
	n.ok(os.WriteFile(to, content, 0o755))
}

// shell has another program do something in the folder, as network plugins install
// themselves.
func (n *node) shell(script string) {
	n.Helper()
	c := exec.Command("sh", "-ec", script)
	c.Dir = n.Dir
	c.Env = append(os.Environ(), "FIRST="+n.first, "NEXT="+n.next, "LAST="+n.last)
	if out, err := c.CombinedOutput(); err != nil {
		n.Fatalf("%s: %v: %s", script, err, out)
	}
}

// file is what is compared of a file.
type file struct {
	Mode    fs.FileMode
	Content string // whose
	Inode   uint64 // of what is not ours
}

// tree is all that is in the folder.
func (n *node) tree() map[string]file {
	n.Helper()
	all := map[string]file{}
	n.ok(filepath.WalkDir(n.Dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || path == n.Dir {
			return err
		}
		fi, err := d.Info()
		if err != nil {
			return err
		}
		f := file{Mode: fi.Mode(), Inode: fi.Sys().(*syscall.Stat_t).Ino}
		if d.Type().IsRegular() {
			content, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			f.Content = fmt.Sprintf("%d bytes", len(content))
			for name, known := range n.known {
				if bytes.Equal(content, known) {
					f.Content = name
				}
			}
			if strings.HasPrefix(f.Content, "ours") {
				f.Inode = 0
				if links := fi.Sys().(*syscall.Stat_t).Nlink; links != 1 {
					n.Errorf("%s has %d names: who writes into it writes into others", path, links)
				}
			}
		}
		all[strings.TrimPrefix(path, n.Dir+"/")] = f
		return nil
	}))
	return all
}

// holds compares the folder with what others have put there, and what is ours.
func (n *node) holds(theirs map[string]file, ours map[string]file) {
	n.Helper()
	want := map[string]file{}
	for _, m := range []map[string]file{theirs, ours} {
		for name, f := range m {
			want[name] = f
		}
	}
	got := n.tree()
	for name, f := range got {
		if f.Mode.IsDir() && want[name].Inode == 0 {
			f.Inode = 0 // made by us
			got[name] = f
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		n.Errorf("folder (-want +got):\n%s", diff)
	}
}

var (
	program = file{Mode: 0o755, Content: "ours"}
	folder  = file{Mode: fs.ModeDir | 0o755}
)

// moved are theirs with a plugin aside and ours in its place.
func moved(theirs map[string]file, name string) map[string]file {
	return map[string]file{
		"dhcp-meta": program, name: program,
		"dhcp-meta-wrapped": folder, "dhcp-meta-wrapped/" + name: theirs[name],
	}
}

// runs executes the plugin of that name and returns what it says.
func (n *node) runs(name string) string {
	n.Helper()
	c := exec.Command(n.path(name))
	c.Env = []string{"CNI_COMMAND=VERSION", "CNI_PATH=" + n.Dir}
	out, err := c.CombinedOutput()
	if err != nil {
		n.Fatalf("%s: %v: %s", name, err, out)
	}
	return strings.TrimSpace(string(out))
}
