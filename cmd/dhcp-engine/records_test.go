package main

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine/store"
)

// TestExportAndImport moves a record by the two commands.
func TestExportAndImport(t *testing.T) {
	record, err := os.ReadFile("../../pkg/engine/store/testdata/record.json")
	if err != nil {
		t.Fatal(err)
	}
	from, to := t.TempDir(), t.TempDir()
	name := filepath.Join("attachments", "0a1b2c3d4e5f:net1.json")
	if err := errors.Join(os.Mkdir(filepath.Join(from, "attachments"), 0o700), os.WriteFile(filepath.Join(from, name), record, 0o600)); err != nil {
		t.Fatal(err)
	}
	call := func(want int, dir string, args ...string) (stdout, stderr string) {
		t.Helper()
		var out, errs bytes.Buffer
		if code := run(t.Context(), args, environment(map[string]string{"DHCP_ENGINE_STATE_DIR": dir}), &out, &errs); code != want {
			t.Fatalf("%v: exit code %d, want %d: %s", args, code, want, &errs)
		}
		return out.String(), errs.String()
	}
	doc, _ := call(exitOK, from, "export")
	file := filepath.Join(t.TempDir(), "records.json")
	if err := os.WriteFile(file, []byte(doc), 0o600); err != nil {
		t.Fatal(err)
	}
	if said, _ := call(exitOK, to, "import", file); !strings.Contains(said, to+": 1 added, 0 replaced") {
		t.Errorf("import says %q", said)
	}
	if _, err := os.Stat(filepath.Join(to, name)); err != nil {
		t.Error(err)
	}
	if _, said := call(exitFailed, to, "import", file); !strings.Contains(said, "--replace") {
		t.Errorf("second import says %q", said)
	}
	if said, _ := call(exitOK, to, "import", "--replace", file); !strings.Contains(said, to+": 0 added, 1 replaced") {
		t.Errorf("import --replace says %q", said)
	}

	engine, err := store.Open(to, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer engine.Close()
	if _, said := call(exitFailed, to, "import", "--replace", file); !strings.Contains(said, "another engine") || !strings.Contains(said, "stop it first") {
		t.Errorf("import beside an engine says %q", said)
	}
}

func TestStateDirIsThatOfRun(t *testing.T) {
	cfg, err := parseConfig([]string{"--no-kubernetes"}, environment(nil))
	if err != nil || cfg.stateDir != defaultStateDir {
		t.Errorf("run has %q, %v, export and import have %q", cfg.stateDir, err, defaultStateDir)
	}
}
