package atomicfile

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// The environment of the child in TestCrash: where it stops and what it writes.
const (
	crashAt   = "ATOMICFILE_TEST_CRASH_AT"
	crashPath = "ATOMICFILE_TEST_CRASH_PATH"
)

var (
	oldData = bytes.Repeat([]byte("old "), 5000)
	newData = bytes.Repeat([]byte("new content "), 5000)
)

// calls are the system calls of Write in their order. That the data is synced
// before the rename and the folder after it is what a loss of power needs; it
// cannot be tried here, so the order itself is the test.
var calls = []string{"create", "chmod", "write", "fsync", "close", "rename", "fsync folder"}

func TestMain(m *testing.M) {
	if at := os.Getenv(crashAt); at != "" {
		crash(os.Getenv(crashPath), at)
		os.Exit(3) // the call was not reached
	}
	os.Exit(m.Run())
}

// crash writes newData and dies by SIGKILL after the named call; after "half"
// in the middle of the write.
func crash(path, at string) {
	_ = write(path, newData, 0o600, func(call string, f *os.File) error {
		if at == "half" && call == "chmod" {
			if _, err := f.Write(newData[:len(newData)/2]); err != nil {
				os.Exit(4)
			}
			call = at
		}
		if call == at {
			if err := syscall.Kill(os.Getpid(), syscall.SIGKILL); err != nil {
				os.Exit(5)
			}
			select {} // the signal may take a moment
		}
		return nil
	})
}

func TestWriteOrder(t *testing.T) {
	var got []string
	path := filepath.Join(t.TempDir(), "f")
	if err := write(path, newData, 0o600, func(call string, _ *os.File) error {
		got = append(got, call)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(calls, got); diff != "" {
		t.Errorf("calls (-want +got):\n%s", diff)
	}
}

// TestCrash kills a process after each system call of Write: the file is the
// old one or the new one, whole, and what is left over is recognised.
func TestCrash(t *testing.T) {
	for _, at := range append([]string{"half"}, calls...) {
		for _, existed := range []bool{true, false} {
			t.Run(at+map[bool]string{true: " over an old file", false: " of a new file"}[existed], func(t *testing.T) {
				dir := t.TempDir()
				path := filepath.Join(dir, "record.json")
				want := []byte(nil)
				if existed {
					want = oldData
					if err := os.WriteFile(path, oldData, 0o600); err != nil {
						t.Fatal(err)
					}
				}
				if slices.Index(calls, at) >= slices.Index(calls, "rename") {
					want = newData
				}

				cmd := exec.Command(os.Args[0])
				cmd.Env = append(os.Environ(), crashAt+"="+at, crashPath+"="+path)
				var exit *exec.ExitError
				if err := cmd.Run(); !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
					t.Fatalf("child ended with %v, want SIGKILL", err)
				}

				got, err := os.ReadFile(path)
				if err != nil && !errors.Is(err, fs.ErrNotExist) {
					t.Fatal(err)
				}
				if !bytes.Equal(got, want) {
					t.Errorf("content has %d bytes, want %d", len(got), len(want))
				}
				for _, name := range names(t, dir) {
					if name != "record.json" && !Temp(name) {
						t.Errorf("%s is left over and not recognised", name)
					}
				}
			})
		}
	}
}

// TestWriteError lets each call fail in turn.
func TestWriteError(t *testing.T) {
	broken := errors.New("broken")
	for _, at := range calls {
		t.Run("bad "+at, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, "f")
			if err := os.WriteFile(path, oldData, 0o600); err != nil {
				t.Fatal(err)
			}
			err := write(path, newData, 0o600, func(call string, _ *os.File) error {
				if call == at {
					return broken
				}
				return nil
			})
			if !errors.Is(err, broken) {
				t.Fatalf("error is %v, want %v", err, broken)
			}
			want := oldData
			if slices.Index(calls, at) >= slices.Index(calls, "rename") {
				want = newData
			}
			if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, want) {
				t.Errorf("content has %d bytes (%v), want %d", len(got), err, len(want))
			}
			if diff := cmp.Diff([]string{"f"}, names(t, dir)); diff != "" {
				t.Errorf("folder (-want +got):\n%s", diff)
			}
		})
	}
}

func TestWrite(t *testing.T) {
	dir := t.TempDir()
	folder := filepath.Join(dir, "folder")
	if err := os.Mkdir(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name string
		path string
		perm fs.FileMode
		want error
	}{
		{"OK new file", filepath.Join(dir, "a"), 0o600, nil},
		{"OK over itself, other mode", filepath.Join(dir, "a"), 0o644, nil},
		{"OK mode beyond the umask", filepath.Join(dir, "b"), 0o666, nil},
		{"bad no folder", filepath.Join(dir, "none", "a"), 0o600, fs.ErrNotExist},
		{"bad name too long", filepath.Join(dir, strings.Repeat("x", 256)), 0o600, syscall.ENAMETOOLONG},
		{"bad path is a folder", folder, 0o600, fs.ErrExist},
	} {
		t.Run(tt.name, func(t *testing.T) {
			err := Write(tt.path, newData, tt.perm)
			if !errors.Is(err, tt.want) {
				t.Fatalf("error is %v, want %v", err, tt.want)
			}
			for _, name := range names(t, dir) {
				if Temp(name) {
					t.Errorf("%s is left over", name)
				}
			}
			if err != nil {
				if !strings.Contains(err.Error(), tt.path) {
					t.Errorf("error %q does not name %s", err, tt.path)
				}
				return
			}
			got, err := os.ReadFile(tt.path)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(got, newData) {
				t.Errorf("content has %d bytes, want %d", len(got), len(newData))
			}
			fi, err := os.Stat(tt.path)
			if err != nil {
				t.Fatal(err)
			}
			if fi.Mode() != tt.perm {
				t.Errorf("mode is %v, want %v", fi.Mode(), tt.perm)
			}
		})
	}
}

func TestTemp(t *testing.T) {
	for name, want := range map[string]bool{
		".tmp-123":         true,
		"0a1b:net1.json":   false,
		"x.tmp-1":          false,
		"tmp-1":            false,
		".a:net1.json.bak": false,
	} {
		if got := Temp(name); got != want {
			t.Errorf("Temp(%q) = %v, want %v", name, got, want)
		}
	}
}

func names(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out
}
