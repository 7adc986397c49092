package nic

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine"
)

func openLinks(t testing.TB, roots ...string) *Links {
	t.Helper()
	l, err := Open(Config{Roots: roots})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func TestOpenChecksRoots(t *testing.T) {
	for _, tt := range []struct {
		name  string
		roots []string
		ok    bool
	}{
		{"OK", []string{"/run/netns", "/nowhere"}, true},
		{"bad none", nil, false},
		{"bad relative", []string{"run/netns"}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if _, err := Open(Config{Roots: tt.roots}); (err == nil) != tt.ok {
				t.Fatalf("err = %v", err)
			}
		})
	}
}

// Field case B82: a caller names a path that is not a pod's namespace. Nothing
// is entered, so these need no rights.
func TestRefusedPathsB82(t *testing.T) {
	root, outside := t.TempDir(), t.TempDir()
	write := func(path string) string {
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	link := func(target, name string) string {
		path := filepath.Join(root, name)
		if err := os.Symlink(target, path); err != nil {
			t.Fatal(err)
		}
		return path
	}
	if err := unix.Mkfifo(filepath.Join(root, "fifo"), 0o600); err != nil {
		t.Fatal(err)
	}
	file := write(filepath.Join(root, "file"))
	secret := write(filepath.Join(outside, "secret"))
	self := fmt.Sprintf("/proc/%d", os.Getpid())
	l := openLinks(t, root, filepath.Join(root, "absent"), "/proc")

	for _, tt := range []struct {
		name, path, want string
	}{
		{"bad empty", "", "not absolute"},
		{"bad relative", "file", "not absolute"},
		{"bad root folder", "/", "is no file"},
		{"bad regular file", file, "no network namespace"},
		{"bad folder", root + "/.", "no network namespace"},
		{"bad root itself", root, "not below an allowed root"},
		{"bad pipe", filepath.Join(root, "fifo"), "no network namespace"},
		{"bad outside", secret, "not below an allowed root"},
		{"bad outside by dots", root + "/../" + filepath.Base(outside) + "/secret", "not below an allowed root"},
		{"bad sibling with the root's name in front", root + "x/file", engine.ErrGone.Error()},
		{"bad link to outside", link(secret, "link"), "not below an allowed root"},
		{"bad relative link to outside", link("../"+filepath.Base(outside)+"/secret", "rellink"), "not below an allowed root"},
		{"bad folder link to outside", filepath.Join(link(outside, "dirlink"), "secret"), "not below an allowed root"},
		{"bad link to itself", link(filepath.Join(root, "loop"), "loop"), "too many symbolic links"},
		{"bad own by pid", self + "/ns/net", "host's own"},
		{"bad own by self", "/proc/self/ns/net", "host's own"},
		{"bad own by thread", fmt.Sprintf("%s/task/%d/ns/net", self, os.Getpid()), "host's own"},
		{"bad own by link", link(self+"/ns/net", "own"), "host's own"},
		{"bad pid namespace", self + "/ns/pid", "no network namespace"},
		{"bad through another process", self + "/root" + file, "into another process"},
		{"bad magic link that is no namespace", self + "/exe", "not below an allowed root"},
		{"bad missing", filepath.Join(root, "missing"), engine.ErrGone.Error()},
		{"bad missing process", "/proc/4194305/ns/net", engine.ErrGone.Error()},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := l.Inspect(context.Background(), engine.Target{Netns: engine.Netns{Path: tt.path}, IfName: "lo"})
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Fatalf("err = %v, want %q", err, tt.want)
			}
			gone := tt.want == engine.ErrGone.Error()
			if errors.Is(err, engine.ErrGone) != gone || errors.Is(err, fs.ErrNotExist) != gone {
				t.Fatalf("err = %v, want ErrGone and ErrNotExist = %v", err, gone)
			}
		})
	}
}

// The namespace of process 1 is the host's also where the engine may not look
// at it: then it cannot be opened either.
func TestRefusesProcess1B82(t *testing.T) {
	l := openLinks(t, "/proc")
	_, err := l.Inspect(context.Background(), engine.Target{Netns: engine.Netns{Path: "/proc/1/ns/net"}, IfName: "lo"})
	if err == nil || errors.Is(err, engine.ErrGone) {
		t.Fatalf("err = %v, want a refusal", err)
	}
}

// A record whose path holds something else now is of a namespace that is gone:
// a process number, say, that a process of the host has got since.
func TestKnownNamespaceReplacedIsGoneB41(t *testing.T) {
	l := openLinks(t, "/proc")
	target := engine.Target{Netns: engine.Netns{Path: fmt.Sprintf("/proc/%d/ns/net", os.Getpid()), Cookie: 4711}, IfName: "lo"}
	if _, err := l.Inspect(context.Background(), target); !errors.Is(err, engine.ErrGone) {
		t.Fatalf("err = %v, want ErrGone", err)
	}
	if err := l.Clear(context.Background(), target, engine.Setup{}); err != nil {
		t.Fatalf("Clear: %v, want nil for what is gone", err)
	}
}

func TestVisitEndsWithContext(t *testing.T) {
	l := openLinks(t, "/proc")
	for range maxVisits {
		l.visits <- struct{}{}
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, err := l.Inspect(ctx, engine.Target{Netns: engine.Netns{Path: "/proc/self/ns/net"}})
	if !errors.Is(err, context.Canceled) {
		t.Fatalf("err = %v, want canceled", err)
	}
}
