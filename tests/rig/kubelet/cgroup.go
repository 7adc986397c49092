package kubelet

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dhcp-meta/dhcp-meta/tests/rig"
)

const cgroups = "/sys/fs/cgroup"

// cgroupName is a cgroup of a node, with the process that it belongs to.
const cgroupName = "dhcp-meta-%d-%d"

var count atomic.Int64

// newCgroup makes a cgroup for a node, in which the kubelet makes those of its pods, in
// every hierarchy of the machine, and returns its name. It ends with the test, when the
// node has ended.
func newCgroup(t testing.TB) string {
	t.Helper()
	removeLeftovers()
	name := fmt.Sprintf(cgroupName, os.Getpid(), count.Add(1))
	for _, hierarchy := range hierarchies(t) {
		folder := filepath.Join(hierarchy, name)
		if err := os.Mkdir(folder, 0o755); err != nil {
			t.Fatalf("make a cgroup: %v", err)
		}
		// Version 1: a cpuset takes no process before it has processors and memory.
		for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
			b, err := os.ReadFile(filepath.Join(hierarchy, file))
			if err != nil {
				continue
			}
			if err := os.WriteFile(filepath.Join(folder, file), b, 0o644); err != nil {
				t.Fatalf("fill a cpuset: %v", err)
			}
		}
	}
	t.Cleanup(func() {
		deadline := time.Now().Add(rig.Patience)
		for {
			err := removeCgroup(name)
			if err == nil {
				return
			}
			// What was killed leaves its cgroup when it is reaped, which no event tells.
			if time.Now().After(deadline) {
				t.Errorf("remove a node's cgroups: %v", err)
				return
			}
			time.Sleep(20 * time.Millisecond)
		}
	})
	return name
}

// hierarchies are the folders of cgroup version 1, one a controller, or the one folder
// of version 2, whose controllers are handed down.
func hierarchies(t testing.TB) []string {
	t.Helper()
	controllers, err := os.ReadFile(filepath.Join(cgroups, "cgroup.controllers"))
	if err == nil {
		down := "+" + strings.Join(strings.Fields(string(controllers)), " +")
		if err := os.WriteFile(filepath.Join(cgroups, "cgroup.subtree_control"), []byte(down), 0o644); err != nil {
			t.Fatalf("hand cgroup controllers down: %v", err)
		}
		return []string{cgroups}
	}
	folders, err := filepath.Glob(cgroups + "/*")
	if err != nil || len(folders) == 0 {
		t.Fatalf("no cgroups below %s: a kubelet needs them", cgroups)
	}
	return slices.DeleteFunc(folders, func(f string) bool { return filepath.Base(f) == "unified" })
}

// removeCgroup removes a cgroup and all below it from every hierarchy.
func removeCgroup(name string) error {
	var errs []error
	folders, _ := filepath.Glob(filepath.Join(cgroups, "*", name))
	for _, folder := range append(folders, filepath.Join(cgroups, name)) {
		var below []string
		_ = filepath.WalkDir(folder, func(path string, e fs.DirEntry, err error) error {
			if err == nil && e.IsDir() {
				below = append(below, path)
			}
			return nil
		})
		for _, path := range slices.Backward(below) {
			if err := unix.Rmdir(path); err != nil && !errors.Is(err, unix.ENOENT) {
				errs = append(errs, fmt.Errorf("%s: %w", path, err))
			}
		}
	}
	return errors.Join(errs...)
}

// removeLeftovers removes cgroups of killed runs.
func removeLeftovers() {
	for _, pattern := range []string{cgroups + "/dhcp-meta-*", cgroups + "/*/dhcp-meta-*"} {
		folders, _ := filepath.Glob(pattern)
		for _, folder := range folders {
			var pid, i int
			if _, err := fmt.Sscanf(filepath.Base(folder), cgroupName, &pid, &i); err == nil && unix.Kill(pid, 0) != nil {
				_ = removeCgroup(filepath.Base(folder))
			}
		}
	}
}
