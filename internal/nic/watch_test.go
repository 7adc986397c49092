package nic

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// watching runs Watch and returns what it tells.
func watching(t *testing.T, roots ...string) <-chan string {
	t.Helper()
	l := openLinks(t, roots...)
	ctx, cancel := context.WithCancel(context.Background())
	endedC := make(chan string, 16)
	doneC := make(chan error, 1)
	go func() {
		doneC <- l.Watch(ctx, func(path string) {
			select {
			case endedC <- path:
			case <-ctx.Done():
			}
		})
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-doneC; err != nil {
			t.Errorf("Watch: %v, want nil at the end of ctx", err)
		}
	})
	return endedC
}

func touch(t *testing.T, path string) {
	t.Helper()
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
}

func remove(t *testing.T, path string) {
	t.Helper()
	if err := os.RemoveAll(path); err != nil {
		t.Fatal(err)
	}
}

func mkdir(t *testing.T, path string) {
	t.Helper()
	if err := os.MkdirAll(path, 0o700); err != nil {
		t.Fatal(err)
	}
}

// seen makes and removes entries called "probe" until Watch tells of one: only
// then is the root watched for certain. What else is told meanwhile is
// returned.
func seen(t *testing.T, endedC <-chan string, root string) []string {
	t.Helper()
	var others []string
	probe := filepath.Join(root, "probe")
	for {
		touch(t, probe)
		remove(t, probe)
		select {
		case path := <-endedC:
			if filepath.Base(path) == "probe" {
				return others
			}
			others = append(others, path)
		default:
		}
	}
}

// next returns what is told next that is not of the probe.
func next(endedC <-chan string) string {
	for path := range endedC {
		if filepath.Base(path) != "probe" {
			return path
		}
	}
	return ""
}

func TestWatchTellsOfEnds(t *testing.T) {
	root := t.TempDir()
	touch(t, filepath.Join(root, "old"))
	endedC := watching(t, root, "/proc")
	seen(t, endedC, root)
	touch(t, filepath.Join(root, "new"))
	remove(t, filepath.Join(root, "new"))
	if err := os.Rename(filepath.Join(root, "old"), filepath.Join(t.TempDir(), "old")); err != nil {
		t.Fatal(err)
	}
	want := []string{filepath.Join(root, "new"), filepath.Join(root, "old")}
	if diff := cmp.Diff(want, []string{next(endedC), next(endedC)}); diff != "" {
		t.Fatalf("ended (-want +got):\n%s", diff)
	}
}

func TestWatchSpeaksAllSpellings(t *testing.T) {
	base := t.TempDir()
	root, other := filepath.Join(base, "netns"), filepath.Join(base, "var")
	mkdir(t, root)
	if err := os.Symlink(root, other); err != nil {
		t.Fatal(err)
	}
	endedC := watching(t, root, other)
	seen(t, endedC, root)
	touch(t, filepath.Join(other, "pod"))
	remove(t, filepath.Join(other, "pod"))
	want := []string{filepath.Join(root, "pod"), filepath.Join(other, "pod")}
	if diff := cmp.Diff(want, []string{next(endedC), next(endedC)}); diff != "" {
		t.Fatalf("ended (-want +got):\n%s", diff)
	}
}

// Before the first pod of a node there is no /run/netns.
func TestWatchWaitsForMissingRoot(t *testing.T) {
	base := t.TempDir()
	root := filepath.Join(base, "run", "netns")
	endedC := watching(t, root)
	mkdir(t, root)
	seen(t, endedC, root)
	touch(t, filepath.Join(root, "pod"))

	// The folder itself goes, with all in it, and comes again.
	remove(t, filepath.Join(base, "run"))
	if got, want := next(endedC), filepath.Join(root, "pod"); got != want {
		t.Fatalf("ended %s, want %s", got, want)
	}
	mkdir(t, root)
	seen(t, endedC, root)
	touch(t, filepath.Join(root, "later"))
	remove(t, filepath.Join(root, "later"))
	if got, want := next(endedC), filepath.Join(root, "later"); got != want {
		t.Fatalf("ended %s, want %s", got, want)
	}
}

// What is lost when the kernel's queue runs over is found by looking again.
func TestWatchSettlesAfterLostEvents(t *testing.T) {
	root := t.TempDir()
	touch(t, filepath.Join(root, "stays"))
	f := &folder{roots: []string{root}, names: map[string]bool{"stays": true, "went": true}}
	var ended []string
	w := watch{ended: func(path string) { ended = append(ended, path) }}
	w.compare(root, f)
	if diff := cmp.Diff([]string{filepath.Join(root, "went")}, ended); diff != "" {
		t.Errorf("ended (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(map[string]bool{"stays": true}, f.names); diff != "" {
		t.Errorf("names (-want +got):\n%s", diff)
	}
}

func TestWatchWithoutRootsWaits(t *testing.T) {
	watching(t, "/proc", "/proc/self/ns")
}
