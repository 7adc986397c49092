package trap_test

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/dhcp-meta/dhcp-meta/tests/rig"
	"github.com/dhcp-meta/dhcp-meta/tests/rig/node"
	"github.com/dhcp-meta/dhcp-meta/tests/rig/trap"
)

func TestMain(m *testing.M) {
	trap.Launch()
	rig.Main(m)
}

// A program gets what the verdict on each of its calls says, in a namespace and on a
// node, whether it makes the call itself or by a child; and the calls are seen with
// what they are made with.
func TestVerdicts(t *testing.T) {
	rig.Need(t)
	net := rig.NewNetns(t, "trap")
	places := map[string]rig.Place{"namespace": net, "node": node.New(t, net)}
	scripts := map[string]string{
		"by itself":  `echo one >>"$0"; echo two >>"$0"; echo three >>"$0"`,
		"by a child": `echo one >>"$0"; (echo two >>"$0"); echo three >>"$0"`,
	}
	for where, place := range places {
		for how, script := range scripts {
			for _, tt := range []struct {
				name    string
				at      string
				verdict trap.Verdict
				seen    []string
				left    string
				killed  bool
			}{
				{"killed", "two", trap.Verdict{Kill: true}, []string{"one", "two"}, "one\n", true},
				{"refused", "two", trap.Verdict{Err: unix.EIO}, []string{"one", "two", "three"}, "one\nthree\n", false},
				{"let pass", "", trap.Verdict{}, []string{"one", "two", "three"}, "one\ntwo\nthree\n", false},
			} {
				t.Run(where+", "+how+", "+tt.name, func(t *testing.T) {
					file := filepath.Join(t.TempDir(), "file")
					var opened, written []string
					decide := func(c trap.Call) trap.Verdict {
						switch {
						case c.Number == unix.SYS_OPENAT && c.Text(c.Args[1]) == file:
							opened = append(opened, file)
						case c.Number == unix.SYS_WRITE && c.File(c.Args[0]) == file:
							line := string(bytes.TrimSuffix(c.Memory(c.Args[1], int(c.Args[2])), []byte("\n")))
							written = append(written, line)
							if line == tt.at {
								return tt.verdict
							}
						}
						return trap.Verdict{}
					}
					p, tr := trap.Start(t, place, "sh", []int{unix.SYS_OPENAT, unix.SYS_WRITE}, decide, "/bin/sh", "-c", script, file)
					code := p.AwaitExit(t)
					<-tr.Ended()
					if !slices.Equal(written, tt.seen) || len(opened) != len(written) {
						t.Errorf("saw %q written and %d opened, want %q", written, len(opened), tt.seen)
					}
					if b, err := os.ReadFile(file); err != nil || string(b) != tt.left {
						t.Errorf("left is %q, %v, want %q", b, err, tt.left)
					}
					killed := false
					select {
					case <-tr.Killed():
						killed = true
					default:
					}
					if killed != tt.killed || (code == -1) != tt.killed {
						t.Errorf("killed is %v, the exit status %d", killed, code)
					}
				})
			}
		}
	}
}

// A decision can do what the call would have done, by the caller's own descriptor.
func TestOpen(t *testing.T) {
	rig.Need(t)
	file := filepath.Join(t.TempDir(), "file")
	decide := func(c trap.Call) trap.Verdict {
		if c.File(c.Args[0]) != file {
			return trap.Verdict{}
		}
		f, err := c.Open(c.Args[0], os.O_WRONLY|os.O_APPEND)
		if err != nil {
			t.Error(err)
			return trap.Verdict{}
		}
		defer f.Close()
		if _, err := f.WriteString("test\n"); err != nil {
			t.Error(err)
		}
		return trap.Verdict{Kill: true}
	}
	p, tr := trap.Start(t, rig.NewNetns(t, "trap"), "sh", []int{unix.SYS_WRITE}, decide, "/bin/sh", "-c", `echo program >"$0"`, file)
	p.AwaitExit(t)
	<-tr.Ended()
	if b, err := os.ReadFile(file); err != nil || string(b) != "test\n" {
		t.Errorf("left is %q, %v", b, err)
	}
}

// A program that is not there: what it was says so.
func TestNoProgram(t *testing.T) {
	rig.Need(t)
	p, tr := trap.Start(t, rig.NewNetns(t, "trap"), "nothing", []int{unix.SYS_WRITE},
		func(trap.Call) trap.Verdict { return trap.Verdict{} }, "/does/not/exist")
	if code := p.AwaitExit(t); code != 1 {
		t.Errorf("exit status %d, want 1", code)
	}
	<-tr.Ended()
	p.Lines.Await(t, "the reason", 0, rig.Patience, func(line string) bool {
		return line == "execute /does/not/exist: no such file or directory"
	})
}
