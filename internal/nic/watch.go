package nic

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/fsnotify/fsnotify"
)

// Watch implements engine.Links. It calls ended from one goroutine, the
// caller's. A root that is missing is waited for. /proc is not watched: it
// tells of no ends. Only the folders themselves are watched, not folders below.
//
// A folder may be a root under several names, as /run/netns and /var/run/netns
// are; ended is called with each of them.
func (l *Links) Watch(ctx context.Context, ended func(path string)) error {
	notify, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("watch netns roots: %w", err)
	}
	defer notify.Close()
	w := watch{notify: notify, ended: ended, roots: l.watchedRoots(), folders: make(map[string]*folder)}
	if err := w.settle(); err != nil {
		return err
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case ev := <-notify.Events:
			if err := w.handle(ev); err != nil {
				return err
			}
		case err := <-notify.Errors:
			if !errors.Is(err, fsnotify.ErrEventOverflow) {
				return fmt.Errorf("watch netns roots: %w", err)
			}
			// What was missed is found by looking.
			if err := w.settle(); err != nil {
				return err
			}
		}
	}
}

// watchedRoots returns the roots that tell of ends.
func (l *Links) watchedRoots() []string {
	return slices.DeleteFunc(slices.Clone(l.roots), func(root string) bool {
		return root == "/proc" || strings.HasPrefix(root, "/proc/")
	})
}

// watch is a running Watch.
type watch struct {
	notify *fsnotify.Watcher
	ended  func(path string)
	roots  []string
	// folders are the watched ones by their real path.
	folders map[string]*folder
}

// A folder is a watched folder.
type folder struct {
	// roots are the roots that are this folder. Without any it is watched
	// because a root may appear below it.
	roots []string
	// names are the entries seen last; nil for one without roots.
	names map[string]bool
}

// handle takes one event in.
func (w *watch) handle(ev fsnotify.Event) error {
	f := w.folders[filepath.Dir(ev.Name)]
	switch gone := ev.Has(fsnotify.Remove) || ev.Has(fsnotify.Rename); {
	case w.folders[ev.Name] != nil && gone:
		return w.settle() // a watched folder is no longer there
	case f == nil:
		return nil
	case len(f.roots) == 0:
		return w.settle() // a root may have appeared
	case gone:
		w.end(f, filepath.Base(ev.Name))
	case ev.Has(fsnotify.Create):
		f.names[filepath.Base(ev.Name)] = true
	}
	return nil
}

func (w *watch) end(f *folder, name string) {
	delete(f.names, name)
	for _, root := range f.roots {
		w.ended(filepath.Join(root, name))
	}
}

// endAll ends each of names.
func (w *watch) endAll(f *folder, names map[string]bool) {
	for _, name := range slices.Sorted(maps.Keys(names)) {
		w.end(f, name)
	}
}

// settle makes the watched folders those that are to be watched as the file
// system is now, and tells of what has ended unseen. It repeats itself until
// nothing has changed while it looked.
func (w *watch) settle() error {
	for {
		wanted := w.wanted()
		for path, f := range w.folders {
			now, ok := wanted[path]
			if ok && slices.Equal(now.roots, f.roots) && w.isWatched(path) {
				continue
			}
			if ok && len(now.roots) > 0 {
				now.names = f.names // compare goes on from them
			} else {
				w.endAll(f, f.names)
			}
			delete(w.folders, path)
			// An error means that it went by itself.
			_ = w.notify.Remove(path)
		}
		changed := false
		for path, f := range wanted {
			if w.folders[path] == nil {
				changed = true
				if err := w.notify.Add(path); errors.Is(err, os.ErrNotExist) {
					continue
				} else if err != nil {
					return fmt.Errorf("watch %s: %w", path, err)
				}
				w.folders[path] = f
			}
		}
		for path, f := range w.folders {
			w.compare(path, f)
		}
		if !changed {
			return nil
		}
	}
}

func (w *watch) isWatched(path string) bool {
	return slices.Contains(w.notify.WatchList(), path)
}

// compare looks at the entries of a root, and tells of those that have ended.
func (w *watch) compare(path string, f *folder) {
	if len(f.roots) == 0 {
		return
	}
	entries, err := os.ReadDir(path)
	if err != nil {
		entries = nil // it has just gone, which comes as an event
	}
	names := make(map[string]bool)
	for _, e := range entries {
		names[e.Name()] = true
		delete(f.names, e.Name())
	}
	w.endAll(f, f.names)
	f.names = names
}

// wanted returns the folders to watch: each root, or the nearest folder above
// it that exists.
func (w *watch) wanted() map[string]*folder {
	wanted := make(map[string]*folder)
	at := func(path string) *folder {
		if wanted[path] == nil {
			wanted[path] = &folder{}
		}
		return wanted[path]
	}
	for _, root := range w.roots {
		if real, err := filepath.EvalSymlinks(root); err == nil {
			f := at(real)
			f.roots = append(f.roots, root)
			continue
		}
		for above := filepath.Dir(root); ; above = filepath.Dir(above) {
			if real, err := filepath.EvalSymlinks(above); err == nil {
				at(real)
				break
			}
			if above == "/" {
				break
			}
		}
	}
	return wanted
}
