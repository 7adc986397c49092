package store

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine"
)

// The test binary run again as another process: what it plays, and where.
const (
	rolePlayed = "STORE_TEST_ROLE"
	roleDir    = "STORE_TEST_DIR"
)

func TestMain(m *testing.M) {
	switch os.Getenv(rolePlayed) {
	case "holder":
		playHolder(os.Getenv(roleDir))
	case "writer":
		playWriter(os.Getenv(roleDir))
	case "importer":
		playImporter(os.Getenv(roleDir))
	default:
		os.Exit(m.Run())
	}
}

// playHolder has the folder until it is killed.
func playHolder(dir string) {
	if _, err := Open(dir, slog.New(slog.DiscardHandler)); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println("open")
	select {}
}

// playWriter puts a record again and again, with a number that goes up, and
// tells the number after each Put.
func playWriter(dir string) {
	s, err := Open(dir, slog.New(slog.DiscardHandler))
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	for i := 1; ; i++ {
		r := testRecord()
		r.Lease.MTU = i
		if err := s.Put(r); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		fmt.Println(i)
	}
}

func startRole(t *testing.T, role, dir string) (*exec.Cmd, *bufio.Scanner) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), rolePlayed+"="+role, roleDir+"="+dir)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return cmd, bufio.NewScanner(out)
}

func kill(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // "signal: killed"
}

// open returns a store on dir and what it logs.
func open(t *testing.T, dir string) (*Store, *bytes.Buffer) {
	t.Helper()
	var logs bytes.Buffer
	s, err := Open(dir, slog.New(slog.NewTextHandler(&logs, nil)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s, &logs
}

func recordOf(container string) engine.Record {
	r := testRecord()
	r.ContainerID = container
	return r
}

func loaded(t *testing.T, s *Store) []engine.Record {
	t.Helper()
	records, err := s.Load()
	if err != nil {
		t.Fatal(err)
	}
	return records
}

func TestStore(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "var", "lib")
	s, logs := open(t, dir)
	if got := loaded(t, s); len(got) != 0 {
		t.Errorf("a new store has %d records", len(got))
	}
	a, b := recordOf("a"), recordOf("b")
	changed := recordOf("a")
	changed.Phase = engine.Orphaned
	if err := errors.Join(s.Put(b), s.Put(a), s.Put(changed), s.Check(), s.Delete(engine.AttachmentID{ContainerID: "c", IfName: "net1"})); err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(s.dir); err != nil || len(left) != 2 {
		t.Errorf("want two files, there are %v, %v", left, err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}

	again, _ := open(t, dir)
	if diff := cmp.Diff([]engine.Record{changed, b}, loaded(t, again), byValue); diff != "" {
		t.Errorf("records (-want +got):\n%s", diff)
	}
	if err := again.Delete(a.AttachmentID); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]engine.Record{b}, loaded(t, again), byValue); diff != "" {
		t.Errorf("records after Delete (-want +got):\n%s", diff)
	}
	if logs.Len() != 0 {
		t.Errorf("all was well, and the log says:\n%s", logs)
	}
	for path, want := range map[string]fs.FileMode{dir: fs.ModeDir | 0o700, filepath.Join(dir, folder, "b:net1.json"): 0o600} {
		fi, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if fi.Mode() != want {
			t.Errorf("%s has mode %v, want %v", path, fi.Mode(), want)
		}
	}
}

func TestBadID(t *testing.T) {
	s, _ := open(t, t.TempDir())
	for _, id := range []engine.AttachmentID{{}, {ContainerID: "a"}, {IfName: "net1"}, {ContainerID: "../a", IfName: "net1"},
		{ContainerID: "a", IfName: "../net1"}, {ContainerID: "a:b", IfName: "c"}, {ContainerID: ".tmp-a", IfName: "c"}} {
		r := testRecord()
		r.AttachmentID = id
		if err := s.Put(r); err == nil {
			t.Errorf("Put of %v: no error", id)
		}
		if err := s.Delete(id); err == nil {
			t.Errorf("Delete of %v: no error", id)
		}
	}
	long := recordOf(strings.Repeat("x", 300))
	if err := s.Put(long); !errors.Is(err, syscall.ENAMETOOLONG) || !strings.Contains(err.Error(), "container id is too long") {
		t.Errorf("Put of a long id: %v", err)
	}
}

func TestNoFolder(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(file, slog.New(slog.DiscardHandler)); !errors.Is(err, syscall.ENOTDIR) || !strings.Contains(err.Error(), file) {
		t.Errorf("Open on a file: %v", err)
	}
	s, _ := open(t, t.TempDir())
	if err := os.RemoveAll(s.dir); err != nil {
		t.Fatal(err)
	}
	_, loadErr := s.Load()
	for what, err := range map[string]error{"Load": loadErr, "Put": s.Put(testRecord()), "Check": s.Check()} {
		if !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), s.dir) || !strings.Contains(err.Error(), "unmounted") {
			t.Errorf("%s without its folder: %v", what, err)
		}
	}
}

func TestLock(t *testing.T) {
	dir := t.TempDir()
	cmd, lines := startRole(t, "holder", dir)
	if !lines.Scan() || lines.Text() != "open" {
		t.Fatalf("holder says %q", lines.Text())
	}
	_, err := Open(dir, slog.New(slog.DiscardHandler))
	want := fmt.Sprintf("another engine (pid %d) uses %s", cmd.Process.Pid, dir)
	if !errors.Is(err, ErrLocked) || !strings.Contains(err.Error(), want) {
		t.Errorf("error is %v, want %q in it", err, want)
	}
	// The lock goes with the process, and the pid it wrote is not believed.
	kill(t, cmd)
	s, _ := open(t, dir)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	open(t, dir)
}

// TestKilledWriter kills a process that puts records at whatever point it is:
// what it told is there, and nothing is half.
func TestKilledWriter(t *testing.T) {
	dir := t.TempDir()
	for round := range 20 {
		cmd, lines := startRole(t, "writer", dir)
		told := 0
		for range 1 + 3*round {
			if !lines.Scan() {
				t.Fatal(lines.Err())
			}
			n, err := strconv.Atoi(lines.Text())
			if err != nil {
				t.Fatalf("writer says %q", lines.Text())
			}
			told = n
		}
		kill(t, cmd)
		s, logs := open(t, dir)
		records := loaded(t, s)
		if len(records) != 1 || records[0].Lease.MTU < told || logs.Len() > 0 {
			t.Errorf("round %d: want one record with %d or more, got %+v\n%s", round, told, records, logs)
		}
		if left, err := os.ReadDir(s.dir); err != nil || len(left) != 1 {
			t.Errorf("round %d: left: %v, %v", round, left, err)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestParallel(t *testing.T) {
	s, _ := open(t, t.TempDir())
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() {
			r := recordOf(fmt.Sprint("c", i))
			if err := errors.Join(s.Put(r), s.Check(), s.Put(r)); err != nil {
				t.Error(err)
			}
			if i%2 == 0 {
				if err := s.Delete(r.AttachmentID); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if got := loaded(t, s); len(got) != 10 {
		t.Errorf("%d records, want 10", len(got))
	}
}

func BenchmarkLoad1000(b *testing.B) {
	s, err := Open(b.TempDir(), slog.New(slog.DiscardHandler))
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	for i := range 1000 {
		if err := s.Put(recordOf(fmt.Sprintf("%064x", i))); err != nil {
			b.Fatal(err)
		}
	}
	for b.Loop() {
		records, err := s.Load()
		if err != nil || len(records) != 1000 {
			b.Fatalf("%d records, %v", len(records), err)
		}
	}
}

func BenchmarkPut(b *testing.B) {
	s, err := Open(b.TempDir(), slog.New(slog.DiscardHandler))
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	for b.Loop() {
		if err := s.Put(testRecord()); err != nil {
			b.Fatal(err)
		}
	}
}
