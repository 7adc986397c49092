package install

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"

	"github.com/dhcp-meta/dhcp-meta/pkg/delegate/aside"
)

// lock keeps others from changing the folder meanwhile. It waits: nobody holds it for
// longer than a few changes take.
func (f *Folder) lock() (unlock func(), err error) {
	d, err := flock(f.Dir, unix.LOCK_EX)
	if err != nil {
		return nil, err
	}
	return func() { d.Close() }, nil
}

// watched says that somebody keeps the plugins of the folder wrapped, until its file is
// closed.
func (f *Folder) watched() (*os.File, error) {
	return flock(aside.WrappedFolder(f.Dir), unix.LOCK_SH)
}

// unwatched is an error while somebody keeps the plugins wrapped: whatever would be put
// back, would be wrapped again.
func (f *Folder) unwatched() error {
	d, err := flock(aside.WrappedFolder(f.Dir), unix.LOCK_EX|unix.LOCK_NB)
	switch {
	case errors.Is(err, unix.EWOULDBLOCK):
		return fmt.Errorf("the plugins in %s are kept wrapped by a running `dhcp-engine install --watch`: end it first (delete the DaemonSet dhcp-engine, and wait for its pods)", f.Dir)
	case err != nil:
		return err
	}
	return d.Close()
}

func flock(dir string, how int) (*os.File, error) {
	d, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	for {
		err := unix.Flock(int(d.Fd()), how)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			d.Close()
			return nil, &fs.PathError{Op: "flock", Path: dir, Err: err}
		}
		return d, nil
	}
}
