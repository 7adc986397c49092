package server

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine/api"
)

// The test binary run again as another process: what it plays, and where.
const (
	rolePlayed = "SERVER_TEST_ROLE"
	roleSocket = "SERVER_TEST_SOCKET"
)

func TestMain(m *testing.M) {
	switch os.Getenv(rolePlayed) {
	case "engine":
		playEngine(os.Getenv(roleSocket))
	case "stranger":
		playStranger(os.Getenv(roleSocket))
	default:
		os.Exit(m.Run())
	}
}

// playEngine serves a backend that never answers, and tells on standard output
// when it listens and when a call has come.
func playEngine(socket string) {
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	l, err := Listen(socket, log)
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println("listens")
	s := New(fake{attach: func(context.Context, api.Request) (api.Lease, error) {
		fmt.Println("attach")
		select {}
	}}, log)
	if err := s.Serve(context.Background(), l); err != nil {
		os.Exit(1)
	}
}

// playStranger connects and tells what it sees.
func playStranger(socket string) {
	conn, err := net.Dial("unix", socket)
	if err != nil {
		fmt.Println("dial:", err)
		os.Exit(1)
	}
	_, _ = io.WriteString(conn, "GET /v1/attachments HTTP/1.1\r\nHost: x\r\n\r\n") // may be too late for that
	answer, _ := io.ReadAll(conn)
	fmt.Printf("%d bytes\n", len(answer))
}

// engineProcess starts an engine of its own and returns it with what it says.
func engineProcess(t *testing.T, socket string) (*exec.Cmd, *bufio.Scanner) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), rolePlayed+"=engine", roleSocket+"="+socket)
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
	lines := bufio.NewScanner(out)
	expect(t, lines, "listens")
	return cmd, lines
}

func expect(t *testing.T, lines *bufio.Scanner, want string) {
	t.Helper()
	if !lines.Scan() || lines.Text() != want {
		t.Fatalf("the other process says %q (%v), want %q", lines.Text(), lines.Err(), want)
	}
}

func TestEngineKilled(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "engine.sock")
	c := api.Client{Socket: socket}
	engine, lines := engineProcess(t, socket)
	errC := make(chan error, 1)
	go func() { _, err := c.Attach(t.Context(), request); errC <- err }()
	expect(t, lines, "attach")
	if err := engine.Process.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if err := <-errC; !errors.Is(err, api.ErrUnreachable) || !strings.Contains(err.Error(), socket) || api.CodeOf(err) != api.CodeTryAgain {
		t.Errorf("killed in the middle: code %d, %v", api.CodeOf(err), err)
	}
	if err := c.Healthy(t.Context()); !errors.Is(err, api.ErrUnreachable) || !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("after that: %v", err)
	}
	// What it left is no obstacle to the next one.
	engineProcess(t, socket)
	if err := c.Healthy(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestSecondEngine(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "engine.sock")
	engine, _ := engineProcess(t, socket)
	_, err := Listen(socket, slog.New(slog.DiscardHandler))
	want := fmt.Sprintf("another engine (pid %d) serves %s", engine.Process.Pid, socket)
	if !errors.Is(err, ErrInUse) || !strings.Contains(err.Error(), want) {
		t.Errorf("error is %v, want %q in it", err, want)
	}
	if err := (api.Client{Socket: socket}).Healthy(t.Context()); err != nil {
		t.Errorf("the first engine after that: %v", err)
	}
}

// TestStranger lets another user reach the socket, and sees it refused.
func TestStranger(t *testing.T) {
	requireRoot(t)
	// Not t.TempDir: its parents are closed to others.
	dir, err := os.MkdirTemp("", "dhcp-meta-stranger-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	self, err := os.ReadFile(os.Args[0])
	if err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(dir, "stranger")
	if err := os.WriteFile(program, self, 0o755); err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(dir, "engine.sock")
	var logs logBuffer
	l, err := Listen(socket, logs.logger())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- New(fake{}, logs.logger()).Serve(ctx, l) }()
	defer func() {
		cancel()
		if err := <-served; err != nil {
			t.Error(err)
		}
	}()
	stranger := func() string {
		cmd := exec.Command(program)
		cmd.Dir = dir
		cmd.Env = []string{rolePlayed + "=stranger", roleSocket + "=" + socket}
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		out, _ := cmd.CombinedOutput() // exits 1 when it cannot connect
		return strings.TrimSpace(string(out))
	}
	if out := stranger(); !strings.Contains(out, "permission denied") {
		t.Errorf("mode 0600: the stranger says %q", out)
	}
	if err := os.Chmod(socket, 0o666); err != nil {
		t.Fatal(err)
	}
	if out := stranger(); out != "0 bytes" {
		t.Errorf("mode 0666: the stranger says %q", out)
	}
	if !strings.Contains(logs.String(), "uid=65534") {
		t.Errorf("log does not name the stranger:\n%s", logs.String())
	}
	if err := (api.Client{Socket: socket}).Healthy(t.Context()); err != nil {
		t.Errorf("after the stranger: %v", err)
	}
}

func TestListen(t *testing.T) {
	for _, tt := range []struct {
		name string
		// path makes what is to be there already.
		path func(t *testing.T, dir string) string
		want string // of the error; empty: none
	}{
		{"OK missing folders", func(_ *testing.T, dir string) string { return filepath.Join(dir, "a", "b", "s") }, ""},
		{"OK stale socket", func(t *testing.T, dir string) string {
			path := filepath.Join(dir, "s")
			l, err := net.Listen("unix", path)
			if err != nil {
				t.Fatal(err)
			}
			l.(*net.UnixListener).SetUnlinkOnClose(false)
			if err := l.Close(); err != nil {
				t.Fatal(err)
			}
			return path
		}, ""},
		{"bad a file", func(t *testing.T, dir string) string {
			path := filepath.Join(dir, "s")
			if err := os.WriteFile(path, []byte("precious"), 0o600); err != nil {
				t.Fatal(err)
			}
			return path
		}, "no socket"},
		{"bad socket of somebody else", func(t *testing.T, dir string) string {
			path := filepath.Join(dir, "s")
			l, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { l.Close() })
			return path
		}, "wrong type for socket"},
		{"bad link to elsewhere", func(t *testing.T, dir string) string {
			path := filepath.Join(dir, "s")
			if err := os.Symlink(dir, path); err != nil {
				t.Fatal(err)
			}
			return path
		}, "no socket"},
		{"bad folder of everybody", func(t *testing.T, dir string) string {
			if err := os.Chmod(dir, 0o777); err != nil {
				t.Fatal(err)
			}
			return filepath.Join(dir, "s")
		}, "others may write"},
		{"bad parent is a file", func(t *testing.T, dir string) string {
			if err := os.WriteFile(filepath.Join(dir, "f"), nil, 0o600); err != nil {
				t.Fatal(err)
			}
			return filepath.Join(dir, "f", "s")
		}, "not a directory"},
		{"bad long path", func(_ *testing.T, dir string) string { return filepath.Join(dir, strings.Repeat("x", 108)) }, "invalid argument"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			path := tt.path(t, t.TempDir())
			_, existed := os.Lstat(path)
			l, err := Listen(path, slog.New(slog.DiscardHandler))
			if tt.want != "" {
				if err == nil || !strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), path) {
					t.Errorf("error is %v, want %s and %q in it", err, path, tt.want)
				}
				if _, gone := os.Lstat(path); existed == nil && gone != nil {
					t.Errorf("what was there is not any more: %v", gone)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if err := l.Close(); err != nil {
				t.Fatal(err)
			}
			if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("after Close the socket is there: %v", err)
			}
		})
	}
}

// TestListenMode: the socket is closed to others from the moment that it has a
// name, not after a chmod. With the mode taken from the umask alone it would be
// 0777 here.
func TestListenMode(t *testing.T) {
	old := syscall.Umask(0)
	defer syscall.Umask(old)
	path := filepath.Join(t.TempDir(), "new", "s")
	l, err := Listen(path, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for path, want := range map[string]fs.FileMode{path: fs.ModeSocket | 0o600, filepath.Dir(path): fs.ModeDir | 0o700} {
		fi, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if fi.Mode() != want {
			t.Errorf("%s has mode %v, want %v", path, fi.Mode(), want)
		}
	}
}

// TestCloseForeign: a socket that took the place of ours stays.
func TestCloseForeign(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	first, err := Listen(path, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(path); err != nil { // somebody tidied up
		t.Fatal(err)
	}
	second, err := Listen(path, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer second.Close()
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	if err := first.Close(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("second Close: %v", err)
	}
	conn, err := net.Dial("unix", path)
	if err != nil {
		t.Fatalf("the second engine's socket went with the first: %v", err)
	}
	conn.Close()
}

func TestNobodyListens(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ name, socket, hint string }{
		{"bad missing", filepath.Join(dir, "none"), "is the dhcp-engine of this node running"},
		{"bad a file", file, "is the dhcp-engine of this node running"},
		{"bad long path", filepath.Join(dir, strings.Repeat("x", 108)), "shorter than 108"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			err := api.Client{Socket: tt.socket}.Healthy(t.Context())
			if !errors.Is(err, api.ErrUnreachable) || api.CodeOf(err) != api.CodeTryAgain {
				t.Fatalf("code %d, %v", api.CodeOf(err), err)
			}
			for _, want := range []string{tt.socket, tt.hint} {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("error %q does not say %q", err, want)
				}
			}
		})
	}
}

// TestNotAnEngine: something else listens.
func TestNotAnEngine(t *testing.T) {
	for _, tt := range []struct{ name, answer string }{
		{"bad another protocol", "220 mail.example ESMTP\r\n"},
		{"bad another server", "HTTP/1.1 404 Not Found\r\nContent-Length: 9\r\n\r\nnot found"},
		{"bad JSON of another server", "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "s")
			l, err := net.Listen("unix", path)
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			go func() {
				if conn, err := l.Accept(); err == nil {
					_, _ = io.WriteString(conn, tt.answer)
					conn.Close()
				}
			}()
			_, err = api.Client{Socket: path}.List(t.Context())
			if err == nil || errors.Is(err, api.ErrUnreachable) || !strings.Contains(err.Error(), "is it") {
				t.Errorf("error is %v", err)
			}
		})
	}
}

// requireRoot skips where the test was started by a user, but not in CI.
func requireRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() == 0 {
		return
	}
	if os.Getenv("CI") != "" || os.Getenv("DHCP_META_REQUIRE_ROOT") != "" {
		t.Fatal("needs root, to become another user")
	}
	t.Skip("needs root, to become another user")
}
