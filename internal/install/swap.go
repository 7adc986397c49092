package install

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/dhcp-meta/dhcp-meta/internal/atomicfile"
	"github.com/dhcp-meta/dhcp-meta/pkg/delegate/aside"
)

// wrap puts the program into the place of a plugin, and the plugin aside. When nobody is
// there, the program goes there all the same if alone says so.
//
// Ours has an inode of its own. Who copies a newer plugin over it writes into that one,
// which has no other name: it goes aside as it is when its writer has closed it, and
// another one of ours comes in its place.
func (f *Folder) wrap(name string, alone bool) error {
	path := f.path(name)
	it, err := look(path)
	if errors.Is(err, errIrregular) {
		return fmt.Errorf("%w: such a plugin can be wrapped by mode %s only", err, SearchPath)
	}
	if err != nil {
		return err
	}
	behind, err := look(f.aside(name))
	if err != nil {
		return err
	}
	switch {
	case it == absent && !alone:
		f.Log.Warn("plugin to be wrapped is not there yet", "plugin", path)
		return nil
	case it == absent:
		return f.placeAlone(name)
	case it == ours && behind == absent && !alone:
		f.Log.Warn("wrapped plugin is missing, its network plugin has to be installed anew", "plugin", path)
	}
	if it == ours && f.current(path) {
		return nil
	}
	if it == foreign {
		if err := whole(path); err != nil {
			return err
		}
		// Before anything else: from the exchange on it is asked for there.
		if err := f.second(path, f.slot(name)); err != nil {
			return err
		}
		if err := f.rename(f.slot(name), f.aside(name)); err != nil {
			return err
		}
	}
	if err := f.fill(f.slot(name)); err != nil { // makes the folder durable, too
		return err
	}
	if err := f.exchange(f.slot(name), path); err != nil {
		return errors.Join(err, f.settle(name))
	}
	if err := f.settle(name); err != nil {
		return err
	}
	f.Log.Info("plugin is wrapped", "plugin", path, "original", f.aside(name))
	return f.sync()
}

// placeAlone puts the program where nobody is.
func (f *Folder) placeAlone(name string) error {
	if err := f.fill(f.slot(name)); err != nil {
		return err
	}
	err := f.change(func() error { return renameat2(f.slot(name), f.path(name), unix.RENAME_NOREPLACE) })
	if errors.Is(err, fs.ErrExist) { // somebody came in between
		return f.wrap(name, true)
	}
	if err != nil {
		return err
	}
	f.Log.Info("program is installed", "file", f.path(name))
	return f.sync()
}

// settle ends what goes through a slot, also when a crash broke it off: it is ours and of
// no use any more, or the newest of the plugin.
func (f *Folder) settle(name string) error {
	it, err := look(f.slot(name))
	if err != nil {
		return err
	}
	if it == foreign {
		if err := f.rename(f.slot(name), f.aside(name)); err != nil {
			return err
		}
	}
	// A rename of one name of a file over another one of the same does nothing.
	return f.unlink(f.slot(name))
}

// unwrap puts a plugin back into its place.
func (f *Folder) unwrap(name string) error {
	path := f.path(name)
	it, err := look(path)
	if err != nil {
		return err
	}
	switch it {
	case absent: // somebody took us away; the plugin was there before
		if err = f.second(f.aside(name), f.slot(name)); err == nil {
			err = f.rename(f.slot(name), path)
		}
	case ours:
		err = f.back(name)
	case foreign: // installed anew since; what is aside is older
	}
	if err != nil {
		return err
	}
	// Last, since a program of ours may be about to execute it; see package aside.
	if err := f.unlink(f.aside(name)); err != nil {
		return err
	}
	f.Log.Info("plugin is in its place again", "plugin", path)
	return f.sync()
}

// back changes ours in the plugin's place for the plugin. When a newer one has come there
// meanwhile, that one stays.
func (f *Folder) back(name string) error {
	if err := f.second(f.aside(name), f.slot(name)); err != nil {
		return err
	}
	if err := f.exchange(f.slot(name), f.path(name)); err != nil {
		return errors.Join(err, f.settle(name))
	}
	it, err := look(f.slot(name))
	if err != nil {
		return err
	}
	if it == foreign {
		return f.rename(f.slot(name), f.path(name))
	}
	return f.unlink(f.slot(name))
}

// restore unwraps the plugins that are not in keep, and removes the folder that they lay
// in when it is empty then.
func (f *Folder) restore(keep []string) error {
	dir := aside.WrappedFolder(f.Dir)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	var back []string
	left := len(keep)
	for _, e := range entries {
		switch {
		case slices.Contains(keep, e.Name()):
		case e.Type().IsRegular():
			back = append(back, e.Name())
		default:
			left++
			f.Log.Warn("file is not ours and is left alone", "file", f.aside(e.Name()))
		}
	}
	if left == 0 || len(back) > 0 {
		if err := f.unwatched(); err != nil {
			return err
		}
	}
	for _, name := range back {
		if err := f.unwrap(name); err != nil {
			return err
		}
	}
	if left > 0 {
		return nil
	}
	return f.unlink(dir)
}

// mend makes our folder, and ends in it what a crash broke off.
func (f *Folder) mend() error {
	dir := aside.WrappedFolder(f.Dir)
	if err := f.makeFolder(dir); err != nil {
		return err
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		name, isSlot := strings.CutPrefix(e.Name(), slotPrefix)
		switch {
		case isSlot:
			err = f.settle(name)
		case atomicfile.Temp(e.Name()):
			err = f.unlink(f.aside(e.Name()))
		case e.Type().IsRegular():
			// A copy of ours would be asked for as the plugin, by itself, for ever.
			err = f.remove(f.aside(e.Name()))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (f *Folder) sync() error {
	return errors.Join(syncDir(aside.WrappedFolder(f.Dir)), syncDir(f.Dir))
}
