// Package atomicfile replaces whole files so that after a crash, or a loss of
// power, a reader finds the old content or the new one, never a half.
//
// There is no counterpart for removing: what os.Remove took away may be back
// after a loss of power, until something else in the folder was made durable.
// Who cannot live with that writes a file that says so instead.
package atomicfile

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// prefix begins the names of temporary files. CNI's identifiers begin with a
// letter or a digit, so it cannot be the name of anybody's record.
const prefix = ".tmp-"

// Temp tells whether name, without a folder, is that of a temporary file. One
// that is found while no Write runs in the folder was left by a crash and may
// be removed.
func Temp(name string) bool { return strings.HasPrefix(name, prefix) }

// Write makes data the content of the file at path, with the mode perm (before
// no umask), durable when it returns. A symbolic link at path is replaced, not
// followed. After an error path is as it was and no temporary file remains,
// with one exception: when only the last step fails, the fsync of the folder,
// the new content stands and may be lost with the power.
//
// Several may write the same path at once; one of them wins whole.
func Write(path string, data []byte, perm fs.FileMode) error {
	return write(path, data, perm, func(string, *os.File) error { return nil })
}

// write calls done after each system call that changes the folder or the file,
// with the name of the call. An error of done counts as one of the call. Tests
// end the process there.
func write(path string, data []byte, perm fs.FileMode, done func(call string, temp *os.File) error) error {
	dir := filepath.Dir(path)
	f, err := os.CreateTemp(dir, prefix+"*")
	if err != nil {
		return fmt.Errorf("write %s: create a temporary file: %w", path, nameless(err))
	}
	if err := replace(path, f, data, perm, done); err != nil {
		f.Close()           // closed already, or of no use any more
		os.Remove(f.Name()) // gone already if it was the rename that failed half way
		return fmt.Errorf("write %s: %w", path, nameless(err))
	}
	// The name is in the folder, not in the file: without this the rename itself
	// may be lost.
	if err := syncDir(dir); err != nil {
		return fmt.Errorf("write %s: make the rename durable: %w", path, err)
	}
	return done("fsync folder", nil)
}

// replace fills the temporary file f and gives it the name path.
func replace(path string, f *os.File, data []byte, perm fs.FileMode, done func(string, *os.File) error) error {
	steps := []struct {
		call string
		run  func() error
	}{
		{"create", func() error { return nil }},
		{"chmod", func() error { return f.Chmod(perm) }},
		{"write", func() error { _, err := f.Write(data); return err }},
		// Before the rename: some file systems make the new name durable earlier
		// than the data behind it, which would leave an empty file.
		{"fsync", f.Sync},
		{"close", f.Close},
		{"rename", func() error { return os.Rename(f.Name(), path) }},
	}
	for _, s := range steps {
		if err := s.run(); err != nil {
			return err
		}
		if err := done(s.call, f); err != nil {
			return fmt.Errorf("%s: %w", s.call, err)
		}
	}
	return nil
}

// nameless leaves the name of the temporary file out of an error: it is another one
// each time, and who compares errors would take the same trouble for a new one.
func nameless(err error) error {
	var p *fs.PathError
	var l *os.LinkError
	switch {
	case errors.As(err, &p):
		return fmt.Errorf("%s: %w", p.Op, p.Err)
	case errors.As(err, &l):
		return fmt.Errorf("%s: %w", l.Op, l.Err)
	}
	return err
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}
