package store

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine"
	"github.com/dhcp-meta/dhcp-meta/pkg/engine/api"
)

func TestEnded(t *testing.T) {
	dir := t.TempDir()
	s, err := Open(dir, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	want := func(want ...engine.AttachmentID) {
		t.Helper()
		got, err := s.Ended()
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("Ended (-want +got):\n%s", diff)
		}
	}
	want() // no folder
	notes := filepath.Join(dir, api.EndedFolder)
	if err := os.Mkdir(notes, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"c1:net1", "c2:net1", "no-note", ".tmp-left-by-a-crash"} {
		if err := os.WriteFile(filepath.Join(notes, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	c1, c2 := engine.AttachmentID{ContainerID: "c1", IfName: "net1"}, engine.AttachmentID{ContainerID: "c2", IfName: "net1"}
	want(c1, c2)
	if err := s.Delete(c1); err != nil { // there never was a record of it
		t.Fatal(err)
	}
	want(c2)
	left, err := os.ReadDir(notes)
	if err != nil || len(left) != 1 {
		t.Errorf("left %v, %v; want the note of c2 alone", left, err)
	}
}
