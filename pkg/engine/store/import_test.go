package store

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine"
)

// roleStep is at which step of an Import the process that plays it ends.
const roleStep = "STORE_TEST_STEP"

// playImporter imports the file "doc" beside the state folder, and is killed at a
// step of it.
func playImporter(dir string) {
	last, err := strconv.Atoi(os.Getenv(roleStep))
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	doc, err := os.Open(dir + ".doc")
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	step := 0
	_, err = importRecords(dir, doc, true, func(name string) error {
		if step++; step == last {
			fmt.Println(name)
			return syscall.Kill(os.Getpid(), syscall.SIGKILL) // and does not return
		}
		return nil
	})
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}

// TestImportKilled ends the process at each step of an Import: the next engine
// finds the old records or the new ones, and nothing that was left.
func TestImportKilled(t *testing.T) {
	before := leased("a")
	before.Lease.MTU = 9000
	kept := leased("kept")
	doc := exported(t, folderWith(t, leased("a"), leased("b")))
	old := []engine.Record{before, kept}
	imported := []engine.Record{leased("a"), leased("b"), kept}
	var steps []string
	for step := 1; ; step++ {
		dir := filepath.Join(folderWith(t), "state")
		s, _ := open(t, dir)
		if err := errors.Join(s.Put(before), s.Put(kept), s.Close(), os.WriteFile(dir+".doc", doc, 0o600)); err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), rolePlayed+"=importer", roleDir+"="+dir, roleStep+"="+strconv.Itoa(step))
		out, err := cmd.Output()
		name := strings.TrimSpace(string(out))
		if err == nil && name == "" { // it came to its end
			if diff := cmp.Diff(imported, in(t, dir), byValue); diff != "" {
				t.Errorf("at the end, records (-want +got):\n%s", diff)
			}
			break
		}
		if cmd.ProcessState.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
			t.Fatalf("step %d: %v: %s", step, err, out)
		}
		steps = append(steps, name)
		want := old
		if name == "exchange" || name == "fsync" || name == "remove" {
			want = imported
		}
		if diff := cmp.Diff(want, in(t, dir), byValue); diff != "" {
			t.Errorf("killed at step %d (%s), records (-want +got):\n%s", step, name, diff)
		}
		wantOnly(t, dir, folder, lockName)
	}
	if diff := cmp.Diff([]string{"create", "link", "write", "write", "exchange", "fsync", "remove"}, steps); diff != "" {
		t.Errorf("steps (-want +got):\n%s", diff)
	}
}

// TestImportThatFails: an error of any step before the exchange leaves the folder
// as it was, and nothing beside it.
func TestImportThatFails(t *testing.T) {
	before := leased("a")
	doc := exported(t, folderWith(t, leased("b")))
	full := errors.New("no space left on device")
	for _, at := range []string{"create", "link", "write"} {
		t.Run("bad "+at, func(t *testing.T) {
			dir := folderWith(t, before)
			_, err := importRecords(dir, bytes.NewReader(doc), false, func(step string) error {
				if step == at {
					return full
				}
				return nil
			})
			if !errors.Is(err, full) {
				t.Errorf("error is %v, want %v", err, full)
			}
			wantOnly(t, dir, folder, lockName)
			if diff := cmp.Diff([]engine.Record{before}, in(t, dir), byValue); diff != "" {
				t.Errorf("records (-want +got):\n%s", diff)
			}
		})
	}
}

// A folder among the records cannot be linked: it is not lost but refused.
func TestImportBesideAFolder(t *testing.T) {
	dir := folderWith(t, leased("a"))
	odd := filepath.Join(dir, folder, "backup")
	if err := os.Mkdir(odd, 0o700); err != nil {
		t.Fatal(err)
	}
	_, err := Import(dir, bytes.NewReader(exported(t, folderWith(t, leased("b")))), false)
	if err == nil || !strings.Contains(err.Error(), odd) {
		t.Errorf("error is %v, want one that names %s", err, odd)
	}
	if _, err := os.Stat(odd); err != nil {
		t.Error(err)
	}
}
