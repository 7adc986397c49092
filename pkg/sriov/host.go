package sriov

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/jaypipes/ghw"
	"github.com/jaypipes/ghw/pkg/pci"
	"github.com/jaypipes/pcidb"
	"golang.org/x/sys/unix"
)

// Config is what a Host is told once. The zero value is the machine itself.
type Config struct {
	// Root is the folder that holds sys, proc, lib/modules, etc/modprobe.d and the
	// like; empty: "/".
	Root string
	// Release is the release of the running kernel; empty: what the kernel says.
	Release string
	// Write writes to a file of sysfs, below Root; nil: it is written to. Tests
	// react to it as the kernel would.
	Write func(path string, data []byte) error
	// LoadModule hands a module's file, below Root, to the kernel; nil: by
	// finit_module(2). A module that is loaded already is no error.
	LoadModule func(path, options string) error
}

// Host is the PCI side of a node. It is safe for concurrent use.
type Host struct {
	root, release string
	write         func(string, []byte) error
	load          func(string, string) error
	pci           *pci.Info
}

// Open prepares a Host. It reads the machine's devices once, by ghw, which has no
// names for them: a list of names (pci.ids) would be a megabyte to read, and ghw
// would look for one in the network. Nobody needs them here.
func Open(cfg Config) (*Host, error) {
	h := &Host{root: cfg.Root, release: cfg.Release, write: cfg.Write, load: cfg.LoadModule}
	if h.root == "" {
		h.root = "/"
	}
	if h.release == "" {
		var uts unix.Utsname
		if err := unix.Uname(&uts); err != nil {
			return nil, fmt.Errorf("read the kernel's release: %w", err)
		}
		h.release = unix.ByteSliceToString(uts.Release[:])
	}
	if h.write == nil {
		h.write = write
	}
	if h.load == nil {
		h.load = h.loadFile
	}
	info, err := pci.New(ghw.WithChroot(h.root), ghw.WithPCIDB(&pcidb.PCIDB{}),
		ghw.WithDisableTopology(), ghw.WithDisableTools(), ghw.WithDisableWarnings())
	if err != nil {
		return nil, fmt.Errorf("read the PCI devices: %w", err)
	}
	h.pci = info
	return h, nil
}

// write is one write(2) to a file that exists; sysfs takes a value as one write.
func write(path string, data []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	return errors.Join(err, f.Close())
}

// path is a path below Root.
func (h *Host) path(elem ...string) string {
	return filepath.Join(append([]string{h.root}, elem...)...)
}

func (h *Host) device(address string, elem ...string) string {
	return h.path(append([]string{"sys/bus/pci/devices", address}, elem...)...)
}

// text is what a file of sysfs says, without the line's end.
func text(path string) (string, error) {
	b, err := os.ReadFile(path)
	return string(bytes.TrimSpace(b)), err
}

// linked is the name of what a link of sysfs points to; empty when there is none.
func linked(path string) string {
	to, err := os.Readlink(path)
	if err != nil {
		return ""
	}
	return filepath.Base(to)
}

// underscored is a module's name as the kernel writes it: file names and people
// use dashes too.
func underscored(name string) string { return strings.ReplaceAll(name, "-", "_") }
