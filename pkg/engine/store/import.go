package store

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dhcp-meta/dhcp-meta/internal/atomicfile"
	"github.com/dhcp-meta/dhcp-meta/internal/boot"
	"github.com/dhcp-meta/dhcp-meta/pkg/engine"
)

// stagePrefix begins the name of the folder in which Import builds the new state
// beside the old one, and of the old one when the two have changed places.
const stagePrefix = ".tmp-import-"

// Imported is what an Import has changed.
type Imported struct{ Added, Replaced int }

// Import puts the records of a document into the state folder dir, which it makes
// where it is missing. It is all or nothing, also when the process or the machine
// stops in the middle: the folder of records has the old content until, in one
// step, it has the new one. Records of the folder that the document does not have
// stay. One that is in both is an error unless replace is set.
//
// While an engine uses the folder, the error is ErrLocked: what it holds in memory
// would overwrite what was imported. Records of another boot, or node, are taken
// as they are; the engine sorts them out at its start.
func Import(dir string, doc io.Reader, replace bool) (Imported, error) {
	return importRecords(dir, doc, replace, func(string) error { return nil })
}

// importRecords is Import. It calls done after each step that changes something
// on the disk, with the name of the step; an error of done counts as the step's.
// Tests end the process there.
func importRecords(dir string, doc io.Reader, replace bool, done func(step string) error) (Imported, error) {
	data, err := io.ReadAll(io.LimitReader(doc, maxDocument+1))
	switch {
	case err != nil:
		return Imported{}, fmt.Errorf("read the document: %w", err)
	case len(data) > maxDocument:
		return Imported{}, fmt.Errorf("read the document: it is larger than %d bytes", maxDocument)
	}
	records, err := decodeDocument(data)
	if err != nil {
		return Imported{}, fmt.Errorf("read the document: %w", err)
	}
	live := filepath.Join(dir, folder)
	if err := os.MkdirAll(live, 0o700); err != nil {
		return Imported{}, explain("import records", err)
	}
	lock, err := lockFolder(dir)
	if err != nil {
		return Imported{}, explain("import records", err)
	}
	defer lock.Close()
	i := importing{live: live, dir: dir, records: make(map[string]engine.Record), done: done}
	for _, r := range records {
		name, err := fileName(r.AttachmentID)
		if err != nil {
			return Imported{}, fmt.Errorf("import records: %w", err) // check has let it through
		}
		i.records[name] = r
	}
	if err := i.run(replace); err != nil {
		return Imported{}, explain("import records", err)
	}
	return Imported{Added: len(records) - i.replaced, Replaced: i.replaced}, nil
}

// importing is an Import under the lock of the state folder.
type importing struct {
	dir, live string
	records   map[string]engine.Record // by file name
	replaced  int
	done      func(step string) error
}

func (i *importing) run(replace bool) error {
	if err := removeStages(i.dir); err != nil {
		return err
	}
	kept, err := i.keep(replace)
	if err != nil {
		return err
	}
	stage, err := os.MkdirTemp(i.dir, stagePrefix+"*")
	if err != nil {
		return err
	}
	if err := i.build(stage, kept); err != nil {
		return errors.Join(err, os.RemoveAll(stage))
	}
	// The two folders change places in one step of the file system.
	if err := unix.Renameat2(unix.AT_FDCWD, stage, unix.AT_FDCWD, i.live, unix.RENAME_EXCHANGE); err != nil {
		err = &os.LinkError{Op: "exchange", Old: stage, New: i.live, Err: err}
		return errors.Join(err, os.RemoveAll(stage))
	}
	// From here on the new records count, whatever fails.
	if err := i.done("exchange"); err != nil {
		return err
	}
	if err := syncFolder(i.dir); err != nil {
		return fmt.Errorf("the records are imported, but a loss of power may undo it: %w", err)
	}
	if err := i.done("fsync"); err != nil {
		return err
	}
	if err := os.RemoveAll(stage); err != nil {
		return fmt.Errorf("the records are imported, but the old ones are not removed: %w", err)
	}
	return i.done("remove")
}

// keep returns the names of the files that stay. With replace it counts those
// that do not, otherwise they are an error.
func (i *importing) keep(replace bool) (kept []string, err error) {
	entries, err := os.ReadDir(i.live)
	if err != nil {
		return nil, err
	}
	var there []string
	for _, e := range entries {
		switch _, both := i.records[e.Name()]; {
		case atomicfile.Temp(e.Name()): // left by a crash
		case both:
			there = append(there, strings.TrimSuffix(e.Name(), extension))
		default:
			kept = append(kept, e.Name())
		}
	}
	if len(there) > 0 && !replace {
		return nil, fmt.Errorf("%d of the records are there already (nothing is imported; --replace puts those of the document in their place): %s",
			len(there), strings.Join(there, ", "))
	}
	i.replaced = len(there)
	return kept, nil
}

// build makes stage the new folder: links to the files that stay, whose content
// is durable already, and the new records.
func (i *importing) build(stage string, kept []string) error {
	if err := i.done("create"); err != nil {
		return err
	}
	for _, name := range kept {
		if err := os.Link(filepath.Join(i.live, name), filepath.Join(stage, name)); err != nil {
			return err
		}
		if err := i.done("link"); err != nil {
			return err
		}
	}
	for name, r := range i.records {
		data, err := encode(r, time.Now(), boot.Wall)
		if err != nil {
			return fmt.Errorf("record %s: %w", r.AttachmentID, err)
		}
		if err := atomicfile.Write(filepath.Join(stage, name), data, 0o600); err != nil {
			return err
		}
		if err := i.done("write"); err != nil {
			return err
		}
	}
	return syncFolder(stage) // for the links
}

// removeStages removes what an Import that was cut off has left: a new folder
// that never counted, or an old one that counts no more.
func removeStages(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), stagePrefix) {
			if err := os.RemoveAll(filepath.Join(dir, e.Name())); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
	}
	return nil
}

func syncFolder(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}
