package install

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// retryDelay is the time after which what could not be wrapped is tried again, when
// nobody has touched it before.
const retryDelay = 10 * time.Second

// Watch installs p, whose mode is Swap or DropIn, and wraps its plugins again whenever
// somebody has put others into their places, until ctx ends: then all stays as it is, and
// the error is nil.
func (f *Folder) Watch(ctx context.Context, p Plan) error {
	w, err := watchFolder(f.Dir)
	if err != nil {
		return fmt.Errorf("watch %s: %w", f.Dir, err)
	}
	defer w.file.Close()
	// What is not wrapped, and why as far as the log has it.
	failed := make(map[string]string)
	// After the watch has begun: what comes in between has its event.
	if err := f.Install(p); errors.Is(err, errNotWhole) {
		for _, name := range p.swapped() {
			failed[name] = ""
		}
	} else if err != nil {
		return err
	}
	mark, err := f.watched()
	if err != nil {
		return err
	}
	defer mark.Close()
	f.Log.Info("plugins are kept wrapped", "folder", f.Dir, "plugins", p.swapped())
	events := make(chan []string)
	ended := make(chan error, 1)
	go func() { ended <- w.run(ctx, events, p.swapped()) }()
	for {
		var again <-chan time.Time
		if len(failed) > 0 {
			again = time.After(retryDelay)
		}
		var names []string
		select {
		case <-ctx.Done():
			return nil
		case err := <-ended:
			return err
		case names = <-events:
		case <-again:
			names = slices.Collect(maps.Keys(failed))
		}
		for _, name := range names {
			f.rewrap(name, failed)
		}
	}
}

// rewrap wraps a plugin into whose place somebody may have come.
func (f *Folder) rewrap(name string, failed map[string]string) {
	err := f.rewrapForeign(name)
	if err == nil {
		delete(failed, name)
		return
	}
	said, again := failed[name]
	// Who is writing it will soon be through, and then there is another event.
	if said == err.Error() || !again && errors.Is(err, errNotWhole) {
		failed[name] = said
		return
	}
	failed[name] = err.Error()
	f.Log.Warn("plugin is not wrapped, trying again", "plugin", f.path(name), "error", err)
}

func (f *Folder) rewrapForeign(name string) error {
	unlock, err := f.lock()
	if err != nil {
		return err
	}
	defer unlock()
	// A program of ours of another version is a newer installer's: two that took each
	// other's away would never end.
	it, err := look(f.path(name))
	if err != nil || it != foreign {
		return err
	}
	if err := f.mend(); err != nil {
		return err
	}
	return f.wrap(name, false)
}

// watch tells when files of a folder are whole and under their names. It speaks inotify
// itself: fsnotify has no word for a file that its writer has closed.
type watch struct {
	file *os.File
	dir  string
}

func watchFolder(dir string) (*watch, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("%w (fs.inotify.max_user_instances?)", err)
	}
	const events = unix.IN_CLOSE_WRITE | unix.IN_MOVED_TO | unix.IN_ATTRIB | unix.IN_DELETE_SELF | unix.IN_MOVE_SELF | unix.IN_ONLYDIR
	if _, err := unix.InotifyAddWatch(fd, dir, events); err != nil {
		unix.Close(fd)
		return nil, err
	}
	return &watch{os.NewFile(uintptr(fd), "inotify"), dir}, nil
}

// run sends those of names that somebody has written, until the file is closed. When
// events were lost it sends all. Its error says that the folder is gone.
func (w *watch) run(ctx context.Context, out chan<- []string, names []string) error {
	buf := make([]byte, 64<<10)
	for {
		n, err := w.file.Read(buf)
		if err != nil {
			return fmt.Errorf("watch %s: %w", w.dir, err)
		}
		written, err := parse(buf[:n], names)
		if err != nil {
			return fmt.Errorf("watch %s: %w", w.dir, err)
		}
		if len(written) == 0 {
			continue
		}
		select {
		case out <- written:
		case <-ctx.Done():
			return nil
		}
	}
}

// parse takes events of inotify apart.
func parse(raw []byte, names []string) (written []string, err error) {
	for len(raw) >= unix.SizeofInotifyEvent {
		mask := binary.NativeEndian.Uint32(raw[unsafe.Offsetof(unix.InotifyEvent{}.Mask):])
		end := unix.SizeofInotifyEvent + int(binary.NativeEndian.Uint32(raw[unsafe.Offsetof(unix.InotifyEvent{}.Len):]))
		name, _, _ := bytes.Cut(raw[unix.SizeofInotifyEvent:end], []byte{0})
		raw = raw[end:]
		switch {
		case mask&(unix.IN_DELETE_SELF|unix.IN_MOVE_SELF|unix.IN_IGNORED|unix.IN_UNMOUNT) != 0:
			return nil, errors.New("the folder is there no longer")
		case mask&unix.IN_Q_OVERFLOW != 0:
			return names, nil
		case slices.Contains(names, string(name)) && !slices.Contains(written, string(name)):
			written = append(written, string(name))
		}
	}
	return written, nil
}
