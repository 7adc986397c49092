package store

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/fsnotify/fsnotify"

	"github.com/dhcp-meta/dhcp-meta/internal/atomicfile"
	"github.com/dhcp-meta/dhcp-meta/pkg/engine"
	"github.com/dhcp-meta/dhcp-meta/pkg/engine/api"
)

// Ended returns the attachments whose DEL came while no engine was there, by the
// notes that the plugin left in the state folder.
func (s *Store) Ended() ([]engine.AttachmentID, error) {
	entries, err := os.ReadDir(s.endedFolder())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, explain("read the notes of DELs", err)
	}
	var ids []engine.AttachmentID
	for _, e := range entries {
		path := filepath.Join(s.endedFolder(), e.Name())
		switch id, ok := api.ParseAttachmentID(e.Name()); {
		case ok && !atomicfile.Temp(e.Name()):
			ids = append(ids, id)
		default: // what a crash left
			if err := os.Remove(path); err != nil {
				s.log.Warn("cannot remove a file that is no note of a DEL", "file", path, "err", err)
			}
		}
	}
	return ids, nil
}

// WatchEnded calls ended for each note that comes, from one goroutine, until ctx
// ends; then it returns nil.
func (s *Store) WatchEnded(ctx context.Context, ended func(engine.AttachmentID)) error {
	if err := os.MkdirAll(s.endedFolder(), 0o700); err != nil {
		return explain("watch for notes of DELs", err)
	}
	w, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("watch for notes of DELs: %w", err)
	}
	defer w.Close()
	if err := w.Add(s.endedFolder()); err != nil {
		return fmt.Errorf("watch for notes of DELs: %w", err)
	}
	// Those that came before the watch.
	ids, err := s.Ended()
	if err != nil {
		return err
	}
	for _, id := range ids {
		ended(id)
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case ev := <-w.Events:
			name := filepath.Base(ev.Name)
			if id, ok := api.ParseAttachmentID(name); ok && ev.Has(fsnotify.Create) && !atomicfile.Temp(name) {
				ended(id)
			}
		case err := <-w.Errors:
			s.log.Warn("a note of a DEL may have been missed, it is read at the next start", "err", err)
		}
	}
}

// ForgetEnded removes the note of an attachment, if there is one.
func (s *Store) ForgetEnded(id engine.AttachmentID) error {
	err := os.Remove(filepath.Join(s.endedFolder(), id.String()))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("forget the note of a DEL: %w", err)
	}
	return nil
}

// endedFolder stands beside the folder of the records.
func (s *Store) endedFolder() string { return filepath.Join(filepath.Dir(s.dir), api.EndedFolder) }
