// Package store keeps the engine's records: one JSON file an attachment, in the
// folder attachments of the state folder, under the name
// <containerID>:<ifName>.json. CNI allows ':' in neither part, so no two
// attachments share a name.
//
// The files are for the engine and, read only, for people: `cat` and `jq` are
// the debugger. Addresses, MACs and client ids are text, times are in boot time
// (which decides) and beside it as the wall's (which is never read back).
//
// A Put is durable when it returns, a crash leaves the old file or the new one.
// A file that cannot be understood is moved aside as <name>.corrupt, and costs
// one lease, not the start. One engine at a time uses a state folder.
//
// Export and Import move records as one document, for a backup or another disk:
// the first beside a running engine, the second in its place, whole or not at all.
package store

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/dhcp-meta/dhcp-meta/internal/atomicfile"
	"github.com/dhcp-meta/dhcp-meta/internal/boot"
	"github.com/dhcp-meta/dhcp-meta/pkg/engine"
)

var _ engine.Store = (*Store)(nil)

const (
	folder     = "attachments"
	extension  = ".json"
	corruptExt = ".corrupt"
	// checkName is what Check writes. To Load it is one of the temporary files.
	checkName = ".tmp-check"
	// maxRecord bounds what Load reads of a file: a record has some 2 KB, and
	// 64 KB of options at the very most.
	maxRecord = 1 << 20
	// maxWriters is how many files are written at once. A write blocks its
	// thread in fsync, and a thread that Go has made for it stays: without a
	// bound, sixty ADDs at once would leave sixty. The disk takes them one after
	// another anyway.
	maxWriters = 2
)

// Store is the folder of records. It is safe for concurrent use; of two Puts of
// the same attachment at once, one wins.
type Store struct {
	dir  string // the folder of the records
	lock *os.File
	log  *slog.Logger
	// writers holds a token for each write under way.
	writers chan struct{}
}

// Open makes the state folder dir where it is missing and takes it for this
// process until Close. When another engine has it, the error is ErrLocked. A
// folder that can only be read is opened all the same, so that the leases in it
// stay known; Check tells.
func Open(dir string, log *slog.Logger) (*Store, error) {
	records := filepath.Join(dir, folder)
	if err := os.MkdirAll(records, 0o700); err != nil {
		return nil, explain("open the state folder", err)
	}
	if err := private(dir); err != nil {
		return nil, fmt.Errorf("open the state folder: %w", err)
	}
	lock, err := lockFolder(dir)
	if err != nil {
		return nil, explain("open the state folder", err)
	}
	if err := removeStages(dir); err != nil { // of a read-only folder: in nobody's way
		log.Warn("cannot remove what a crash of an import left", "err", err)
	}
	return &Store{dir: records, lock: lock, log: log, writers: make(chan struct{}, maxWriters)}, nil
}

// private refuses a folder in which others may write: records make root enter
// namespaces and send messages.
func private(dir string) error {
	fi, err := os.Stat(dir)
	if err != nil {
		return err
	}
	if fi.Mode().Perm()&0o022 != 0 {
		return fmt.Errorf("others may write in %s (mode %v): give it mode 0700", dir, fi.Mode())
	}
	return nil
}

// Close lets another engine have the folder.
func (s *Store) Close() error { return s.lock.Close() }

// Load returns all records, sorted by file name. It removes the temporary files
// of a crash and moves corrupt records aside, with one warning each; an error
// says that the folder itself cannot be read. Nobody may Put while it runs.
func (s *Store) Load() ([]engine.Record, error) {
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return nil, explain("load records", err)
	}
	var records []engine.Record
	for _, e := range entries {
		path := filepath.Join(s.dir, e.Name())
		switch {
		case atomicfile.Temp(e.Name()):
			if err := os.Remove(path); err != nil {
				s.log.Warn("cannot remove a file that a crash left", "file", path, "err", err)
			}
		case strings.HasSuffix(e.Name(), extension):
			r, _, err := load(path)
			if err != nil {
				if errors.Is(err, errNewer) {
					s.log.Warn("record of a newer release left alone: nobody keeps its lease meanwhile", "file", path, "reason", err)
				} else {
					s.putAside(path, err)
				}
				continue
			}
			records = append(records, r)
		}
	}
	return records, nil
}

// load reads one record and holds it against its name; data is the file.
func load(path string) (r engine.Record, data []byte, err error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return r, nil, err
	}
	defer f.Close()
	if fi, err := f.Stat(); err != nil || !fi.Mode().IsRegular() {
		return r, nil, errors.Join(errors.New("is no regular file"), err)
	}
	if data, err = io.ReadAll(io.LimitReader(f, maxRecord+1)); err != nil {
		return r, nil, err
	}
	if len(data) > maxRecord {
		return r, nil, fmt.Errorf("larger than %d bytes", maxRecord)
	}
	if r, err = decode(data); err != nil {
		return r, nil, err
	}
	// A copy under another name would become a second session of the same lease.
	if name, err := fileName(r.AttachmentID); err != nil || name != filepath.Base(path) {
		return r, nil, fmt.Errorf("its content is about %s", r.AttachmentID)
	}
	return r, data, nil
}

func (s *Store) putAside(path string, reason error) {
	aside := path + corruptExt
	if err := os.Rename(path, aside); err != nil {
		s.log.Warn("corrupt record ignored: it cannot be moved aside either", "file", path, "reason", reason, "err", err)
		return
	}
	s.log.Warn("corrupt record moved aside: its lease is lost", "file", aside, "reason", reason)
}

// Put makes r durable.
func (s *Store) Put(r engine.Record) error {
	name, err := fileName(r.AttachmentID)
	if err != nil {
		return fmt.Errorf("put record: %w", err)
	}
	data, err := encode(r, time.Now(), boot.Wall)
	if err != nil {
		return fmt.Errorf("put record %s: %w", r.AttachmentID, err)
	}
	if err := s.write(filepath.Join(s.dir, name), data); err != nil {
		return explain("put record", err)
	}
	return nil
}

// Delete forgets the record of id; an unknown one is no error.
//
// It is not made durable, since nothing hangs on it: only a loss of power brings
// the record back, then it is from another boot, and restore takes away what is
// left of it, which is nothing. Every later Put makes it durable too.
func (s *Store) Delete(id engine.AttachmentID) error {
	name, err := fileName(id)
	if err != nil {
		return fmt.Errorf("delete record: %w", err)
	}
	if err := os.Remove(filepath.Join(s.dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return explain("delete record", err)
	}
	// Container ids do not come again; nor does anybody look for it.
	_ = os.Remove(filepath.Join(s.dir, name+corruptExt))
	return s.ForgetEnded(id)
}

// Check writes and removes a file of the size of a record.
func (s *Store) Check() error {
	path := filepath.Join(s.dir, checkName)
	if err := s.write(path, make([]byte, 4096)); err != nil {
		return explain("check the state folder", err)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) { // another Check was quicker
		return explain("check the state folder", err)
	}
	return nil
}

// write replaces a file when it is its turn.
func (s *Store) write(path string, data []byte) error {
	s.writers <- struct{}{}
	defer func() { <-s.writers }()
	return atomicfile.Write(path, data, 0o600)
}

// fileName returns the name of the record of id. It does not trust id: a name
// must not lead out of the folder, nor to what is no record.
func fileName(id engine.AttachmentID) (string, error) {
	if id.ContainerID == "" || id.IfName == "" || strings.HasPrefix(id.ContainerID, ".") ||
		strings.ContainsAny(id.ContainerID, "/:\x00") || strings.ContainsAny(id.IfName, "/:\x00") {
		return "", fmt.Errorf("attachment %q is not of the form container:interface", id)
	}
	return id.String() + extension, nil
}

// explain adds to an error of the file system, which names the path, what to do.
func explain(what string, err error) error {
	hint := ""
	switch {
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		hint = ": the file system is full, of blocks or of inodes: see df and df -i"
	case errors.Is(err, syscall.EROFS):
		hint = ": the file system is read-only: see dmesg for why, and the volume of the pod"
	case errors.Is(err, fs.ErrPermission):
		hint = ": dhcp-engine must run as root, and the folder must be root's"
	case errors.Is(err, syscall.ENAMETOOLONG):
		hint = ": the container id is too long for a file name"
	case errors.Is(err, fs.ErrNotExist):
		hint = ": the state folder has gone: was its volume unmounted?"
	}
	return fmt.Errorf("%s: %w%s", what, err, hint)
}
