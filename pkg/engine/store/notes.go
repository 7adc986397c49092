package store

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/fsnotify/fsnotify"

	"github.com/dhcp-meta/dhcp-meta/internal/atomicfile"
	"github.com/dhcp-meta/dhcp-meta/pkg/engine"
	"github.com/dhcp-meta/dhcp-meta/pkg/engine/api"
)

// notes is a folder of the state folder in which the plugin leaves word for an
// engine that is away, a file for each attachment.
type notes struct {
	dir  string
	what string // "notes of DELs", for messages
	log  *slog.Logger
}

// list returns the attachments that there is a note of, and removes what a crash
// left.
func (n notes) list() ([]engine.AttachmentID, error) {
	entries, err := os.ReadDir(n.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, explain("read the "+n.what, err)
	}
	var ids []engine.AttachmentID
	for _, e := range entries {
		switch id, ok := api.ParseAttachmentID(e.Name()); {
		case ok && !atomicfile.Temp(e.Name()):
			ids = append(ids, id)
		default:
			if err := os.Remove(filepath.Join(n.dir, e.Name())); err != nil {
				n.log.Warn("cannot remove a file that is no note of the plugin", "file", filepath.Join(n.dir, e.Name()), "err", err)
			}
		}
	}
	return ids, nil
}

// watch calls came for each note that there is or that comes, from one goroutine,
// until ctx ends; then it returns nil.
func (n notes) watch(ctx context.Context, came func(engine.AttachmentID)) error {
	if err := os.MkdirAll(n.dir, 0o700); err != nil {
		return explain("watch for "+n.what, err)
	}
	w, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("watch for %s: %w", n.what, err)
	}
	defer w.Close()
	if err := w.Add(n.dir); err != nil {
		return fmt.Errorf("watch for %s: %w", n.what, err)
	}
	// Those that came before the watch.
	ids, err := n.list()
	if err != nil {
		return err
	}
	for _, id := range ids {
		came(id)
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case ev := <-w.Events:
			name := filepath.Base(ev.Name)
			if id, ok := api.ParseAttachmentID(name); ok && ev.Has(fsnotify.Create) && !atomicfile.Temp(name) {
				came(id)
			}
		case err := <-w.Errors:
			n.log.Warn("a note of the plugin may have been missed, it is read at the next start", "err", err)
		}
	}
}

// path is the file of an attachment.
func (n notes) path(id engine.AttachmentID) string { return filepath.Join(n.dir, id.String()) }

// forget removes the note of an attachment, if there is one.
func (n notes) forget(id engine.AttachmentID) error {
	if err := os.Remove(n.path(id)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("forget one of the %s: %w", n.what, err)
	}
	return nil
}

// Ended returns the attachments whose DEL came while no engine was there.
func (s *Store) Ended() ([]engine.AttachmentID, error) { return s.ended().list() }

// WatchEnded calls ended for each note of a DEL, from one goroutine, until ctx
// ends; then it returns nil.
func (s *Store) WatchEnded(ctx context.Context, ended func(engine.AttachmentID)) error {
	return s.ended().watch(ctx, ended)
}

// ForgetEnded removes the note of an attachment's DEL, if there is one.
func (s *Store) ForgetEnded(id engine.AttachmentID) error { return s.ended().forget(id) }

// The folders of notes stand beside that of the records.
func (s *Store) ended() notes {
	return notes{filepath.Join(filepath.Dir(s.dir), api.EndedFolder), "notes of DELs", s.log}
}

func (s *Store) passed() notes {
	return notes{filepath.Join(filepath.Dir(s.dir), api.PassedFolder), "notes of ADDs that passed", s.log}
}
