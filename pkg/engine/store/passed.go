package store

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine"
	"github.com/dhcp-meta/dhcp-meta/pkg/engine/api"
)

// Passed returns the ADDs that the plugin let pass without an engine's word. A note
// that cannot be decoded is removed, with a line in the log: nothing can be made of
// it.
func (s *Store) Passed() ([]api.Request, error) {
	ids, err := s.passed().list()
	if err != nil {
		return nil, err
	}
	var passed []api.Request
	for _, id := range ids {
		raw, err := os.ReadFile(s.passed().path(id))
		if errors.Is(err, fs.ErrNotExist) {
			continue // its DEL has come
		}
		var r api.Request
		if err == nil {
			err = json.Unmarshal(raw, &r)
		}
		if err != nil || r.AttachmentID != id {
			s.log.Warn("note of an ADD that passed cannot be used, removing it", "attachment", id.String(), "err", err)
			if err := s.ForgetPassed(id); err != nil {
				return passed, err
			}
			continue
		}
		passed = append(passed, r)
	}
	return passed, nil
}

// WatchPassed calls passed for each note of an ADD that passed, from one goroutine,
// until ctx ends; then it returns nil.
func (s *Store) WatchPassed(ctx context.Context, passed func(engine.AttachmentID)) error {
	return s.passed().watch(ctx, passed)
}

// ForgetPassed removes the note of an ADD that passed, if there is one.
func (s *Store) ForgetPassed(id engine.AttachmentID) error { return s.passed().forget(id) }
