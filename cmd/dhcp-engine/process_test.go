package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine/api"
)

// asProgram makes the test binary be the program.
const asProgram = "TEST_AS_DHCP_ENGINE"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
	}
	os.Exit(m.Run())
}

// daemon is a `dhcp-engine run` as a process of its own.
type daemon struct {
	cmd  *exec.Cmd
	logs *bufio.Scanner
	// said is the log up to the last line awaited.
	said strings.Builder
}

func start(t *testing.T, args ...string) *daemon {
	t.Helper()
	cmd := exec.Command(os.Args[0], append([]string{"run", "--no-kubernetes"}, args...)...)
	cmd.Env = []string{asProgram + "=1"}
	return startAs(t, cmd)
}

func startAs(t *testing.T, cmd *exec.Cmd) *daemon {
	t.Helper()
	d := &daemon{cmd: cmd}
	stderr, err := d.cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	d.logs = bufio.NewScanner(stderr)
	if err := d.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = d.cmd.Process.Kill()
		_ = d.cmd.Wait()
	})
	return d
}

// await reads the log up to a line that matches and returns what re's group is.
func (d *daemon) await(t *testing.T, re string) string {
	t.Helper()
	match := regexp.MustCompile(re)
	for d.logs.Scan() {
		d.said.WriteString(d.logs.Text() + "\n")
		if m := match.FindStringSubmatch(d.logs.Text()); m != nil {
			return m[len(m)-1]
		}
	}
	t.Fatalf("dhcp-engine ended without %q:\n%s", re, &d.said)
	return ""
}

// end sends sig, unless that is 0, and returns the exit code and the whole log.
func (d *daemon) end(t *testing.T, sig syscall.Signal) (int, string) {
	t.Helper()
	if sig != 0 {
		if err := d.cmd.Process.Signal(sig); err != nil {
			t.Fatal(err)
		}
	}
	for d.logs.Scan() {
		d.said.WriteString(d.logs.Text() + "\n")
	}
	var exit *exec.ExitError
	if err := d.cmd.Wait(); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return d.cmd.ProcessState.ExitCode(), d.said.String()
}

// awaitReady asks until the engine is ready.
func awaitReady(t *testing.T, c api.Client) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	for {
		err := c.Ready(ctx)
		if err == nil {
			return
		}
		if ctx.Err() != nil || errors.Is(err, api.ErrUnreachable) {
			t.Fatal(err)
		}
	}
}

func get(t *testing.T, url string) (int, string) {
	t.Helper()
	resp, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}

// Profiles are there where --pprof-address says, and nowhere without it.
func TestProfiles(t *testing.T) {
	dir := t.TempDir()
	p := start(t, "--state-dir", dir, "--socket", filepath.Join(dir, "s"),
		"--metrics-address", "127.0.0.1:0", "--pprof-address", "127.0.0.1:0")
	metrics, profiles, _ := strings.Cut(p.await(t, `"?dhcp-engine listens"?.* metrics=(\S+ pprof=\S+)`), " pprof=")
	metrics, profiles = "http://"+metrics, "http://"+profiles
	if status, body := get(t, profiles+"/debug/pprof/goroutine?debug=1"); status != http.StatusOK || !strings.Contains(body, "goroutine profile:") {
		t.Errorf("profile of goroutines: status %d: %.200s", status, body)
	}
	if status, _ := get(t, metrics+"/debug/pprof/"); status != http.StatusNotFound {
		t.Errorf("profiles beside the metrics: status %d, want 404", status)
	}
	if status, _ := get(t, profiles+"/metrics"); status != http.StatusNotFound {
		t.Errorf("metrics beside the profiles: status %d, want 404", status)
	}
}

// TestProcess takes the program through a life: start beside a corrupt record,
// probes, a second one that is refused, SIGTERM, SIGKILL and start again.
func TestProcess(t *testing.T) {
	dir := t.TempDir()
	state, socket := filepath.Join(dir, "state"), filepath.Join(dir, "run", "s")
	records := filepath.Join(state, "attachments")
	if err := os.MkdirAll(records, 0o700); err != nil {
		t.Fatal(err)
	}
	corrupt := filepath.Join(records, "0a1b:net1.json")
	if err := os.WriteFile(corrupt, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	args := []string{"--state-dir", state, "--socket", socket, "--netns-root", dir, "--metrics-address", "127.0.0.1:0", "--protected-network", "10.128.0.0/14"}
	c := api.Client{Socket: socket}

	first := start(t, args...)
	url := "http://" + first.await(t, `"?dhcp-engine listens"?.* metrics=(\S+).* settings\.protected-network=10\.128\.0\.0/14 `)
	first.await(t, `corrupt record moved aside`)
	awaitReady(t, c)
	if _, err := os.Stat(corrupt + ".corrupt"); err != nil {
		t.Error(err)
	}
	for path, want := range map[string]string{"/healthz": "", "/readyz": "", "/metrics": "dhcp_engine_build_info{"} {
		if status, body := get(t, url+path); status/100 != 2 || !strings.Contains(body, want) {
			t.Errorf("%s: status %d, want 2xx and %q: %.200s", path, status, want, body)
		}
	}
	if l, err := c.List(t.Context()); err != nil || len(l) != 0 {
		t.Errorf("leases are %v, %v", l, err)
	}

	refused := fmt.Sprintf("another engine (pid %d)", first.cmd.Process.Pid)
	for what, args := range map[string][]string{
		"the same state folder": {"--state-dir", state, "--socket", filepath.Join(dir, "other", "s")},
		"the same socket":       {"--state-dir", filepath.Join(dir, "other"), "--socket", socket},
	} {
		if code, said := start(t, args...).end(t, 0); code != exitFailed || !strings.Contains(said, refused) || strings.Count(said, "\n") != 1 {
			t.Errorf("second engine on %s: exit code %d, want one line with %q:\n%s", what, code, refused, said)
		}
	}
	awaitReady(t, c) // the refused ones did not harm it

	if code, said := first.end(t, syscall.SIGTERM); code != exitOK || !strings.Contains(said, "leases stay") {
		t.Errorf("after SIGTERM: exit code %d:\n%s", code, said)
	}
	if _, err := os.Lstat(socket); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("after SIGTERM the socket: %v", err)
	}

	second := start(t, args...)
	second.await(t, "dhcp-engine listens")
	awaitReady(t, c)
	second.end(t, syscall.SIGKILL)
	if err := c.Healthy(t.Context()); !errors.Is(err, api.ErrUnreachable) {
		t.Errorf("after SIGKILL: %v", err)
	}
	third := start(t, args...)
	third.await(t, "dhcp-engine listens")
	awaitReady(t, c)
	if code, said := third.end(t, syscall.SIGINT); code != exitOK {
		t.Errorf("after SIGINT: exit code %d:\n%s", code, said)
	}
}

// TestProcessMetricsAddressTaken: nothing of the engine is left behind.
func TestProcessMetricsAddressTaken(t *testing.T) {
	dir := t.TempDir()
	socket := filepath.Join(dir, "run", "s")
	first := start(t, "--state-dir", filepath.Join(dir, "a"), "--socket", filepath.Join(dir, "run", "a"), "--metrics-address", "127.0.0.1:0")
	address := first.await(t, `metrics=(\S+)`)
	code, said := start(t, "--state-dir", filepath.Join(dir, "b"), "--socket", socket, "--metrics-address", address).end(t, 0)
	if code != exitFailed || !strings.Contains(said, address) || !strings.Contains(said, "address already in use") {
		t.Errorf("exit code %d:\n%s", code, said)
	}
	if _, err := os.Lstat(socket); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the socket: %v", err)
	}
}
