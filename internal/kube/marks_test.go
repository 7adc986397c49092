package kube

import (
	"context"
	"encoding/json"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine/api"
)

// patience is far more than anything here takes, for machines that do much else.
const patience = time.Minute

func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !is(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within %s: %s", patience, what)
		}
	}
}

func silent() *slog.Logger { return slog.New(slog.DiscardHandler) }

func marksIn(t *testing.T, path string) []string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var n api.Networks
	if err := json.Unmarshal(data, &n); err != nil {
		t.Fatalf("%s: %v", data, err)
	}
	return n.Marked
}

func TestMarksFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), api.NetworksFile)
	f := newMarksFile(path, silent())
	var names atomic.Value
	names.Store([]string{})

	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { f.run(ctx, func() []string { return names.Load().([]string) }) })
	defer running.Wait()
	defer cancel()

	if f.isWritten() {
		t.Error("written before anybody said that the list is complete")
	}
	f.changed()
	eventually(t, "an empty list is a list", f.isWritten)
	if got := marksIn(t, path); got == nil || len(got) > 0 {
		t.Errorf("%v, want an empty list", got)
	}
	want := []string{"a/b", "lab/office"}
	names.Store(want)
	f.changed()
	eventually(t, "the list follows", func() bool { return cmp.Equal(want, marksIn(t, path)) })
}

// A list that is the same is not written again: the file stays the very same.
func TestMarksFileIsWrittenOnlyWhenChanged(t *testing.T) {
	path := filepath.Join(t.TempDir(), api.NetworksFile)
	f := newMarksFile(path, silent())
	if err := f.write([]string{"a/b"}); err != nil {
		t.Fatal(err)
	}
	before, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if mode := before.Mode().Perm(); mode != 0o600 {
		t.Errorf("mode %o", mode)
	}
	for range 3 {
		if err := f.write([]string{"a/b"}); err != nil {
			t.Fatal(err)
		}
	}
	after, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if !os.SameFile(before, after) {
		t.Error("the file was replaced by its like")
	}
	if err := f.write([]string{"a/c"}); err != nil {
		t.Fatal(err)
	}
	if got := marksIn(t, path); !cmp.Equal(got, []string{"a/c"}) {
		t.Errorf("%v", got)
	}
}

// A list that cannot be written is not called written.
func TestMarksFileThatCannotBeWritten(t *testing.T) {
	f := newMarksFile(filepath.Join(t.TempDir(), "none", api.NetworksFile), silent())
	if err := f.write([]string{"a/b"}); err == nil {
		t.Fatal("written into a folder that is not there")
	}
	asked := make(chan bool, 1)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go f.run(ctx, func() []string { asked <- true; return nil })
	f.changed()
	<-asked
	if f.isWritten() {
		t.Error("is called written")
	}
}
