// Package install puts the plugin dhcp-meta into a node's folder of CNI plugins, in front
// of another plugin or into its place, keeps it there, and takes it out again.
//
// It promises that under every name that a runtime may look for there is a whole plugin
// at every moment, while it works, when it is killed at any point, and when others install
// their plugins in the same folder at the same time; that the newest plugin that somebody
// else put there is the one that is wrapped, and is there again in the end; and that what
// is not ours is left alone. Whatever a killed process left is mended by the next.
//
// Nothing is written into a file that has its name already: a file is made in a folder of
// our own and gets its name by one rename. Whose a file is, its content tells: see look.
package install

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/dhcp-meta/dhcp-meta/internal/atomicfile"
	"github.com/dhcp-meta/dhcp-meta/pkg/delegate/aside"
)

// Mode is how the program is put in front of others.
type Mode string

// The modes.
const (
	// Plain: the program alone, under its own name.
	Plain Mode = "plain"
	// SearchPath: under the names of other plugins too, in a folder of their own which
	// somebody has Multus search first.
	SearchPath Mode = "search-path"
	// Swap: in the places of other plugins, which go aside.
	Swap Mode = "swap"
	// DropIn: in the place of the IPAM plugin dhcp, whether it is there or not.
	DropIn Mode = "drop-in"
)

// WrappersFolder is the folder of SearchPath, in that of the plugins.
const WrappersFolder = aside.OwnName + "-wrappers"

// Plan is what a folder shall hold.
type Plan struct {
	Mode Mode
	// Wrap are the plugins in front of which, or in whose place, the program stands.
	Wrap []string
}

// Check tells what is wrong with a plan.
func (p Plan) Check() error {
	switch p.Mode {
	case Plain, DropIn:
		if len(p.Wrap) > 0 {
			return fmt.Errorf("mode %s wraps no plugin that could be named; %s and %s do", p.Mode, SearchPath, Swap)
		}
	case SearchPath, Swap:
		if len(p.Wrap) == 0 {
			return fmt.Errorf("mode %s needs the name of the plugin to wrap, as ovn-k8s-cni-overlay", p.Mode)
		}
	default:
		return fmt.Errorf("%q is no mode: %s, %s, %s and %s are", p.Mode, Plain, SearchPath, Swap, DropIn)
	}
	for _, name := range p.Wrap {
		switch {
		case name == "" || strings.HasPrefix(name, ".") || strings.ContainsRune(name, filepath.Separator):
			return fmt.Errorf("%q is no name of a plugin: it is the name of a file, without a folder", name)
		case strings.HasPrefix(name, aside.OwnName):
			return fmt.Errorf("%q cannot be wrapped: that would be dhcp-meta itself", name)
		}
	}
	return nil
}

// swapped are the plugins in whose places the program stands.
func (p Plan) swapped() []string {
	switch p.Mode {
	case Swap:
		return p.Wrap
	case DropIn:
		return []string{aside.IPAMName}
	}
	return nil
}

// Folder is a folder of CNI plugins. It is not safe for concurrent use; several
// processes may work on one folder.
type Folder struct {
	// Dir is its path.
	Dir string
	// Program is the content of dhcp-meta; Uninstall needs none.
	Program []byte
	// Log takes what was done, and what was left alone.
	Log *slog.Logger

	// before is called before each change; nil: nothing. Tests end the process there.
	before func()
}

// Check tells whether the folder can be used, and the program is one.
func (f *Folder) Check() error {
	if base := filepath.Base(f.Dir); base == WrappersFolder || base == filepath.Base(aside.WrappedFolder(f.Dir)) {
		return fmt.Errorf("%s is a folder of the installer's own: name the one that it lies in", f.Dir)
	}
	fi, err := os.Stat(f.Dir)
	if err != nil {
		return fmt.Errorf("look up the folder of the CNI plugins: %w; which one does the container runtime use (bin_dir of containerd, plugin_dirs of CRI-O)?", err)
	}
	if !fi.IsDir() {
		return fmt.Errorf("%s is no folder", f.Dir)
	}
	if f.Program != nil && !isProgram(bytes.NewReader(f.Program)) {
		return errors.New("the program to be installed is not dhcp-meta")
	}
	return nil
}

// Install makes the folder what p says. What another plan left is taken back.
func (f *Folder) Install(p Plan) error {
	unlock, err := f.lock()
	if err != nil {
		return err
	}
	defer unlock()
	if err := f.mend(); err != nil {
		return err
	}
	if err := f.put(f.path(aside.OwnName), aside.OwnName); err != nil {
		return err
	}
	var wrappers []string
	if p.Mode == SearchPath {
		wrappers = p.Wrap
	}
	for _, name := range wrappers {
		if err := f.put(f.path(WrappersFolder, name), name); err != nil {
			return err
		}
	}
	for _, name := range p.swapped() {
		if err := f.wrap(name, p.Mode == DropIn); err != nil {
			return err
		}
	}
	// Now, not first: for a moment a plugin may be wrapped in two ways, but not in none.
	if err := f.restore(p.swapped()); err != nil {
		return err
	}
	return f.removeWrappers(wrappers)
}

// Uninstall takes out all that is ours, whatever plan put it there. It needs no plan, and
// succeeds where there is nothing.
func (f *Folder) Uninstall() error {
	unlock, err := f.lock()
	if err != nil {
		return err
	}
	defer unlock()
	if err := f.mend(); err != nil {
		return err
	}
	if err := f.restore(nil); err != nil {
		return err
	}
	if err := f.removeWrappers(nil); err != nil {
		return err
	}
	entries, err := os.ReadDir(f.Dir)
	if err != nil {
		return err
	}
	// The program itself, and drop-ins in whose place nobody was.
	for _, e := range entries {
		if !e.Type().IsRegular() {
			continue
		}
		if err := f.remove(f.path(e.Name())); err != nil {
			return err
		}
	}
	return syncDir(f.Dir)
}

func (f *Folder) path(names ...string) string {
	return filepath.Join(append([]string{f.Dir}, names...)...)
}

// aside is where the plugin goes whose place the program takes.
func (f *Folder) aside(name string) string {
	return filepath.Join(aside.WrappedFolder(f.Dir), name)
}

// slotPrefix begins the names of slots. It is none of a plugin.
const slotPrefix = ".new-"

// slot is where a file waits for its name. What is there is whole.
func (f *Folder) slot(name string) string { return f.aside(slotPrefix + name) }

// change carries out one change of the disk.
func (f *Folder) change(do func() error) error {
	if f.before != nil {
		f.before()
	}
	return do()
}

func (f *Folder) rename(from, to string) error {
	return f.change(func() error { return os.Rename(from, to) })
}

// unlink removes a file, or an empty folder, that may be gone already.
func (f *Folder) unlink(path string) error {
	err := f.change(func() error { return os.Remove(path) })
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// fill puts the program into a slot.
func (f *Folder) fill(slot string) error {
	return f.change(func() error { return atomicfile.Write(slot, f.Program, programMode) })
}

const programMode fs.FileMode = 0o755

// put makes path, in the folder or in one of its own below it, the program of this
// version.
func (f *Folder) put(path, name string) error {
	switch it, err := look(path); {
	case err != nil:
		return err
	case it == foreign:
		return fmt.Errorf("%s is there and is not ours: nothing is written over it; who has put it there?", path)
	case it == ours && f.current(path):
		return nil
	}
	if err := f.fill(f.slot(name)); err != nil {
		return err
	}
	if err := f.makeFolder(filepath.Dir(path)); err != nil {
		return err
	}
	if err := f.rename(f.slot(name), path); err != nil {
		return err
	}
	f.Log.Info("program is installed", "file", path)
	return syncDir(filepath.Dir(path))
}

func (f *Folder) makeFolder(path string) error {
	err := f.change(func() error { return os.Mkdir(path, 0o755) })
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	return err
}

// remove takes a program of ours away.
func (f *Folder) remove(path string) error {
	it, err := look(path)
	if err != nil || it != ours {
		return err
	}
	if err := f.unlink(path); err != nil {
		return err
	}
	f.Log.Info("program is removed", "file", path)
	return nil
}

// removeWrappers takes the wrappers away that are not in keep, and their folder when it
// is empty then.
func (f *Folder) removeWrappers(keep []string) error {
	dir := f.path(WrappersFolder)
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	left := 0
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		if slices.Contains(keep, e.Name()) {
			left++
			continue
		}
		it, err := look(path)
		if err == nil && it == ours {
			if err := f.remove(path); err != nil {
				return err
			}
			continue
		}
		left++
		f.Log.Warn("file is not ours and is left alone", "file", path)
	}
	if left > 0 {
		return nil
	}
	return f.unlink(dir)
}

// current tells whether a program of ours is the one that is to be installed, and fit to
// stand where others write: with an inode of its own.
func (f *Folder) current(path string) bool {
	fi, err := os.Lstat(path)
	if err != nil || fi.Mode() != programMode || fi.Size() != int64(len(f.Program)) {
		return false
	}
	if s, ok := fi.Sys().(*syscall.Stat_t); !ok || s.Nlink != 1 {
		return false
	}
	content, err := os.ReadFile(path)
	return err == nil && bytes.Equal(content, f.Program)
}

// syncDir makes the names in a folder durable.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}
