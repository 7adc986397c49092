package install

import (
	"debug/buildinfo"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/dhcp-meta/dhcp-meta/internal/atomicfile"
)

// whose is whose a file is.
type whose int

const (
	absent whose = iota
	ours
	foreign
)

// look tells whose the file at path is. Ours it is by what Go's linker writes into every
// program: so it is recognised without being executed, whatever version it is of. A file
// that is half written is nobody's of ours.
func look(path string) (whose, error) {
	fi, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return absent, nil
	}
	if err != nil {
		return absent, err
	}
	// A link may lead to ourselves, and its way may be another one from where it would
	// be put.
	if !fi.Mode().IsRegular() {
		return absent, fmt.Errorf("%s %w (%s)", path, errIrregular, fi.Mode())
	}
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return absent, nil
	}
	if err != nil {
		return absent, err
	}
	defer f.Close()
	r := &reader{f: f}
	is := isProgram(r)
	switch {
	case r.err != nil: // to take ours for another would be the worst
		return absent, fmt.Errorf("read %s: %w", path, r.err)
	case is:
		return ours, nil
	}
	return foreign, nil
}

var errIrregular = errors.New("is no regular file")

// programPath is the package of the program.
const programPath = "github.com/dhcp-meta/dhcp-meta/cmd/dhcp-meta"

func isProgram(r io.ReaderAt) bool {
	info, err := buildinfo.Read(r)
	return err == nil && info.Path == programPath
}

// reader remembers why a file could not be read: buildinfo does not tell that from a file
// of another kind.
type reader struct {
	f   *os.File
	err error
}

func (r *reader) ReadAt(p []byte, off int64) (int, error) {
	n, err := r.f.ReadAt(p, off)
	if err != nil && err != io.EOF {
		r.err = err
	}
	return n, err
}

// whole is an error while somebody has the file open for writing, where the file system
// can tell: the kernel gives no lease for reading then. So it is before the file may be
// executed: install(1) closes it first.
func whole(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close() // the lease goes with it
	fi, err := f.Stat()
	if err != nil {
		return err
	}
	_, err = unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_RDLCK)
	if err == unix.EAGAIN || fi.Mode().Perm()&0o111 == 0 {
		return fmt.Errorf("%s %w", path, errNotWhole)
	}
	return nil
}

var errNotWhole = errors.New("cannot be wrapped yet: somebody is writing it, or it may not be executed")

// second gives the file at from a second name, or makes a copy of it where that is
// refused.
func (f *Folder) second(from, to string) error {
	err := f.change(func() error { return os.Link(from, to) })
	for _, refused := range []error{unix.EPERM, unix.EXDEV, unix.EMLINK, unix.EOPNOTSUPP, unix.ENOSYS} {
		if errors.Is(err, refused) {
			return f.duplicate(from, to)
		}
	}
	return err
}

// duplicate copies a file with owner and mode.
func (f *Folder) duplicate(from, to string) error {
	fi, err := os.Stat(from)
	if err != nil {
		return err
	}
	content, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return f.change(func() error {
		if err := atomicfile.Write(to, content, fi.Mode().Perm()); err != nil {
			return err
		}
		s, ok := fi.Sys().(*syscall.Stat_t)
		if !ok {
			return nil
		}
		return os.Lchown(to, int(s.Uid), int(s.Gid))
	})
}

// exchange lets two files change their names in one step: at neither there is nothing at
// any moment, and what came to path since it was looked at is not lost.
func (f *Folder) exchange(slot, path string) error {
	err := f.change(func() error { return renameat2(slot, path, unix.RENAME_EXCHANGE) })
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOSYS) {
		return fmt.Errorf("the file system cannot exchange two files: %w; mode %s does without", err, SearchPath)
	}
	return err
}

func renameat2(from, to string, flags uint) error {
	if err := unix.Renameat2(unix.AT_FDCWD, from, unix.AT_FDCWD, to, flags); err != nil {
		return &os.LinkError{Op: "rename", Old: from, New: to, Err: err}
	}
	return nil
}
