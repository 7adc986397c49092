package vfio

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/dhcp-meta/dhcp-meta/pkg/sriov"
)

// errHeld says that a process has the device.
var errHeld = errors.New("the device is in use")

// guard makes sure that no process has a device open that is on vfio-pci, and that
// none opens it until the guard is closed: only one process can have the group.
// Unbinding a device that is open would block until it is closed.
func (d *Devices) guard(dev sriov.Device) (*os.File, error) {
	nodes, err := d.host.VFIO(dev)
	if err != nil {
		return nil, err
	}
	who, err := holders(filepath.Join(d.root, "proc"), nodes)
	if err != nil {
		return nil, err
	}
	if len(who) > 0 {
		return nil, fmt.Errorf("%w: %s has it open", errHeld, strings.Join(who, ", "))
	}
	for _, name := range []string{dev.Group, "noiommu-" + dev.Group} {
		if dev.Group == "" {
			break
		}
		f, err := os.OpenFile(filepath.Join(d.root, "dev/vfio", name), os.O_RDWR, 0)
		switch {
		case err == nil:
			return f, nil
		case errors.Is(err, unix.EBUSY):
			return nil, fmt.Errorf("%w: a process that cannot be seen from here has IOMMU group %s open", errHeld, dev.Group)
		case !errors.Is(err, fs.ErrNotExist):
			return nil, fmt.Errorf("see whether IOMMU group %s is open: %w", dev.Group, err)
		}
	}
	if !hasGroup(nodes) {
		// A kernel without groups: there is nothing that only one can have, so what
		// was seen of the processes must do.
		for node := range nodes {
			if _, err := os.Stat(filepath.Join(d.root, "dev", node)); err == nil {
				return nil, nil
			}
		}
	}
	return nil, fmt.Errorf("nobody can tell whether the device is in use: %s is not here (the engine's container needs the node's /dev/vfio)",
		filepath.Join("/dev/vfio", dev.Group))
}

func hasGroup(nodes map[string]string) bool {
	for node := range nodes {
		if !strings.HasPrefix(node, "vfio/devices/") {
			return true
		}
	}
	return false
}

// holders are the processes that have one of the nodes open, as far as they can be
// seen in proc: with the process number space of the node, all.
func holders(proc string, nodes map[string]string) ([]string, error) {
	entries, err := os.ReadDir(proc)
	if err != nil {
		return nil, fmt.Errorf("see which processes have the device: %w", err)
	}
	var who []string
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		folder := filepath.Join(proc, e.Name())
		fds, err := os.ReadDir(filepath.Join(folder, "fd"))
		if err != nil {
			continue // it has ended, or is a kernel thread
		}
		if slices.ContainsFunc(fds, func(fd fs.DirEntry) bool { return opens(filepath.Join(folder, "fd", fd.Name()), nodes) }) {
			comm, _ := os.ReadFile(filepath.Join(folder, "comm")) // a name is better than none
			who = append(who, fmt.Sprintf("process %d (%s)", pid, strings.TrimSpace(string(comm))))
		}
	}
	return who, nil
}

// opens tells whether a descriptor is of one of the nodes. Their path says little:
// it is that of the other process's own /dev.
func opens(fd string, nodes map[string]string) bool {
	to, err := os.Readlink(fd)
	if err != nil || !strings.Contains(to, "vfio") {
		return false
	}
	var st unix.Stat_t
	known := unix.Stat(fd, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFCHR
	for node, number := range nodes {
		if known && number == fmt.Sprintf("%d:%d", unix.Major(uint64(st.Rdev)), unix.Minor(uint64(st.Rdev))) {
			return true
		}
		if !known && strings.HasSuffix(to, "/"+node) {
			return true
		}
	}
	return false
}
