package onenode

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// tree is what the node has where we and others put files: what each is, by its path.
type tree map[string]string

// others are the runtime, the kubelet and Multus, whose files come and go with every pod.
var others = []string{
	"/run/containerd", "/run/netns", "/run/multus", "/var/lib/containerd", "/var/lib/kubelet", "/var/lib/cni",
}

// tree reads the node's files, those outside of /run with their content.
func (s *site) tree(t *testing.T) tree {
	t.Helper()
	files := tree{}
	root := s.node.Path("/")
	for _, folder := range []string{"/opt", "/etc", "/run", "/var/lib"} {
		err := filepath.WalkDir(filepath.Join(root, folder), func(path string, e fs.DirEntry, err error) error {
			inside := "/" + strings.TrimPrefix(strings.TrimPrefix(path, root), "/")
			switch {
			case errors.Is(err, fs.ErrNotExist):
				return nil
			case err != nil:
				return err
			case slices.Contains(others, inside):
				return fs.SkipDir
			}
			what, err := describe(path, e)
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			files[inside] = what
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return files
}

func describe(path string, e fs.DirEntry) (string, error) {
	info, err := e.Info()
	if err != nil {
		return "", err
	}
	what := info.Mode().String()
	switch {
	case info.Mode()&fs.ModeSymlink != 0:
		target, err := os.Readlink(path)
		return what + " " + target, err
	case info.Mode().IsRegular() && !strings.Contains(path, "/root/run/"):
		b, err := os.ReadFile(path)
		return fmt.Sprintf("%s %x", what, sha256.Sum256(b)), err
	}
	return what, nil
}

// asBefore checks that the node's files are those of before.
func (s *site) asBefore(t *testing.T, before tree) {
	t.Helper()
	now := s.tree(t)
	for _, path := range slices.Sorted(maps.Keys(before)) {
		if now[path] != before[path] {
			t.Errorf("%s was %q, and is %q", path, before[path], now[path])
		}
		delete(now, path)
	}
	for _, path := range slices.Sorted(maps.Keys(now)) {
		t.Errorf("%s was not there, and is %q", path, now[path])
	}
}
