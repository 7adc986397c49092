package doctor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine/network"
	"github.com/dhcp-meta/dhcp-meta/pkg/engine/store"
)

// What must be free for leases: a record has some 2 KB, and is written anew beside
// the old one.
const (
	scarceBytes = 16 << 20
	scarceFiles = 1000
)

// folder is what is read of the state folder.
type folder struct {
	path     string
	mode     fs.FileMode
	readOnly error
	memory   bool
	// bytes and files are what is free; files are no bound where total is 0.
	bytes, files, total uint64
}

func (e *examination) checkState(context.Context) ([]Finding, string) {
	path := e.cfg.StateDir
	f, err := readFolder(path)
	if err != nil {
		return []Finding{{StateMissing, Error, "the state folder is not there", err.Error(),
			"mount the node's " + path + " into the engine's container; the engine makes it where it can"}}, ""
	}
	found := f.judge()
	if path != network.DefaultStateDir {
		found = append(found, Finding{StateElsewhere, Note, "the state folder is not where plugins look for it: " + path,
			seen("DHCP_ENGINE_STATE_DIR or --state-dir; plugins use %s unless they are told otherwise", network.DefaultStateDir),
			"set the same DHCP_ENGINE_STATE_DIR in the environment of Multus' daemon, or \"stateDir\" in the dhcp object of each network: otherwise notes of plugins are not found"})
	}
	found = append(found, e.hostPath(path, "records and notes of plugins are lost with the container, or never seen")...)
	more, records := readRecords(path)
	return append(found, more...), fmt.Sprintf("%s; records: %d, free: %d MB", path, records, f.bytes>>20)
}

func readFolder(path string) (f folder, err error) {
	fi, err := os.Stat(path)
	if err != nil {
		return f, err
	}
	if !fi.IsDir() {
		return f, fmt.Errorf("%s is no folder", path)
	}
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil {
		return f, &fs.PathError{Op: "statfs", Path: path, Err: err}
	}
	f = folder{path: path, mode: fi.Mode().Perm(), bytes: st.Bavail * uint64(st.Bsize), files: st.Ffree, total: st.Files,
		memory: st.Type == unix.TMPFS_MAGIC || st.Type == unix.RAMFS_MAGIC}
	// Asked, not tried: a file written here would be an engine's to find.
	if err := unix.Access(path, unix.W_OK); err != nil {
		f.readOnly = &fs.PathError{Op: "access", Path: path, Err: err}
	}
	return f, nil
}

func (f folder) judge() (found []Finding) {
	if f.readOnly != nil {
		found = append(found, Finding{StateReadOnly, Error, "the state folder cannot be written", f.readOnly.Error(),
			"mount it writable; a file system that the kernel has made read-only has had an error (dmesg)"})
	}
	if f.mode&0o022 != 0 {
		found = append(found, Finding{StateOpen, Error, "others than root may write in the state folder, so the engine refuses it",
			seen("%s has mode %v", f.path, f.mode), "chmod 700 " + f.path})
	}
	if f.bytes < scarceBytes || f.total > 0 && f.files < scarceFiles {
		found = append(found, Finding{StateFull, Warning, "the state folder is nearly full; without room ADDs fail",
			seen("%d KB and %d files are free in %s", f.bytes>>10, f.files, f.path), "make room on that file system"})
	}
	if f.memory {
		found = append(found, Finding{StateMemory, Warning, "the state folder is in memory: all leases are forgotten at a reboot",
			seen("%s is on a tmpfs", f.path), "put it on the node's disk"})
	}
	return found
}

// readRecords reads all records as a backup does, beside the running engine.
func readRecords(dir string) (found []Finding, records int) {
	records, err := store.Export(io.Discard, dir, time.Now())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		found = append(found, Finding{RecordUnreadable, Warning, "records cannot be read: their leases end with the next start of the engine", err.Error(),
			"look at the files; dhcp-engine export makes a backup of the others once these are moved away"})
	}
	corrupt, _ := filepath.Glob(filepath.Join(dir, "attachments", "*.corrupt")) // the pattern is good
	if len(corrupt) > 0 {
		found = append(found, Finding{RecordCorrupt, Note, "the engine has put records aside that it could not read", seen("%d files, such as %s", len(corrupt), corrupt[0]),
			"their leases are lost, their pods have been served anew or wait for it; remove the files when you have seen them"})
	}
	return found, records
}
