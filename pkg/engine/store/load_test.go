package store

import (
	"bytes"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/dhcp-meta/dhcp-meta/internal/atomicfile"
	"github.com/dhcp-meta/dhcp-meta/pkg/engine"
)

// TestCorrupt puts a broken file beside a good one.
func TestCorrupt(t *testing.T) {
	good := testEncode(t, recordOf("good"))
	for _, tt := range []struct {
		name, file string
		data       []byte
		reason     string // in the log; empty: the file is none of the store's
	}{
		{"bad no JSON", "a:net1.json", []byte("pod"), "invalid character"},
		{"bad empty", "a:net1.json", nil, "unexpected end"},
		{"bad older version", "a:net1.json", bytes.Replace(good, []byte(`"version": 3`), []byte(`"version": 0`), 1), "version is 0"},
		{"bad copy under another name", "a:net1.json", good, "its content is about good:net1"},
		{"bad name", "a.json", good, "its content is about good:net1"},
		{"bad huge", "a:net1.json", bytes.Repeat([]byte(" "), maxRecord+1), "larger than"},
		{"OK note of an administrator", "README", []byte("do not touch"), ""},
		{"OK put aside earlier", "a:net1.json.corrupt", []byte("pod"), ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s, logs := open(t, t.TempDir())
			if err := s.Put(recordOf("good")); err != nil {
				t.Fatal(err)
			}
			path := filepath.Join(s.dir, tt.file)
			if err := os.WriteFile(path, tt.data, 0o600); err != nil {
				t.Fatal(err)
			}
			for range 2 { // the second Load has nothing more to say
				if diff := cmp.Diff([]engine.Record{recordOf("good")}, loaded(t, s), byValue); diff != "" {
					t.Errorf("records (-want +got):\n%s", diff)
				}
			}
			left := path
			if tt.reason != "" {
				left += corruptExt
				if n := strings.Count(logs.String(), "level=WARN"); n != 1 || !strings.Contains(logs.String(), left) || !strings.Contains(logs.String(), tt.reason) {
					t.Errorf("log has %d warnings, want 1 with %s and %q:\n%s", n, left, tt.reason, logs)
				}
			} else if logs.Len() > 0 {
				t.Errorf("log says:\n%s", logs)
			}
			if got, err := os.ReadFile(left); err != nil || !bytes.Equal(got, tt.data) {
				t.Errorf("%s: %d bytes, %v", left, len(got), err)
			}
		})
	}
}

// An engine that is rolled back must not lose what the newer one wrote.
func TestRecordOfANewerReleaseIsLeftAlone(t *testing.T) {
	dir := t.TempDir()
	s, logs := open(t, dir)
	if err := s.Put(recordOf("a")); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(s.dir, "a:net1.json")
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	newer := bytes.Replace(data, []byte(`"version": 3`), []byte(`"version": 4`), 1)
	if err := os.WriteFile(path, newer, 0o600); err != nil {
		t.Fatal(err)
	}
	if got := loaded(t, s); len(got) != 0 {
		t.Errorf("loaded %v", got)
	}
	if !strings.Contains(logs.String(), "left alone") {
		t.Errorf("log says:\n%s", logs)
	}
	if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, newer) {
		t.Errorf("the record is %q, %v", got, err)
	}
}

func TestDeleteTakesTheCorruptFileAlong(t *testing.T) {
	s, _ := open(t, t.TempDir())
	path := filepath.Join(s.dir, "a:net1.json")
	if err := os.WriteFile(path, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	loaded(t, s)
	if _, err := os.Stat(path + corruptExt); err != nil {
		t.Fatal(err)
	}
	if err := s.Delete(recordOf("a").AttachmentID); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path + corruptExt); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("stat: %v", err)
	}
}

func TestOpenRefusesAFolderInWhichOthersMayWrite(t *testing.T) {
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	if s, err := Open(dir, slog.New(slog.DiscardHandler)); err == nil || !strings.Contains(err.Error(), "others may write") {
		t.Errorf("Open = %v, %v", s, err)
	}
}

func TestLoadClearsTemporaryFiles(t *testing.T) {
	s, _ := open(t, t.TempDir())
	for _, name := range []string{".tmp-123", checkName} {
		if !atomicfile.Temp(name) {
			t.Fatalf("%s is no temporary file", name)
		}
		if err := os.WriteFile(filepath.Join(s.dir, name), []byte("half"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	loaded(t, s)
	if left, err := os.ReadDir(s.dir); err != nil || len(left) != 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}
