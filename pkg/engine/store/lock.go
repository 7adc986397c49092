package store

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// ErrLocked says that another engine uses the state folder.
var ErrLocked = errors.New("another engine")

const lockName = "engine.lock"

// lockFolder takes the lock of the state folder; closing the file gives it back,
// and so does the end of the process, however it ends. The file stays: removing
// it would let two engines lock two files of the same name.
func lockFolder(dir string) (*os.File, error) {
	path := filepath.Join(dir, lockName)
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if errors.Is(err, syscall.EROFS) || errors.Is(err, fs.ErrPermission) {
		// A lock needs no more than this, if the file exists.
		if r, rerr := os.Open(path); rerr == nil {
			f, err = r, nil
		}
	}
	if err != nil {
		return nil, err
	}
	if err := flock(f); err != nil {
		defer f.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, fmt.Errorf("%w (%s) uses %s", ErrLocked, holder(f), dir)
		}
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	// For the error of the next one only; on a full disk the lock is as good
	// without.
	if f.Truncate(0) == nil {
		_, _ = fmt.Fprintf(f, "%d\n", os.Getpid())
	}
	return f, nil
}

// flock does not wait. The runtime's signals may interrupt even that.
func flock(f *os.File) error {
	for {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if !errors.Is(err, syscall.EINTR) {
			return err
		}
	}
}

// holder is what the one who has the lock wrote about itself.
func holder(f *os.File) string {
	b := make([]byte, 20)
	n, _ := f.ReadAt(b, 0)
	if pid := strings.TrimSpace(string(b[:n])); pid != "" {
		return "pid " + pid
	}
	return "pid unknown"
}
