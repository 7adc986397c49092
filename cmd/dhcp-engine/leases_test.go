package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine/api"
	"github.com/dhcp-meta/dhcp-meta/pkg/engine/api/server"
)

var update = flag.Bool("update", false, "rewrite testdata; commit only a diff that you understand")

var now = time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)

func in(d time.Duration) *time.Time {
	t := now.Add(d)
	return &t
}

func testStatuses() []api.Status {
	return []api.Status{
		{
			AttachmentID: api.AttachmentID{ContainerID: strings.Repeat("0a1b2c3d", 8), IfName: "net1"},
			Pod:          api.Pod{Namespace: "default", Name: "web-0"}, Network: "site", Netns: "/run/netns/a", State: "BOUND",
			HardwareAddr: "02:00:5e:00:53:01", ClientID: "0102005e005301", Address: "10.77.0.50/24", Server: "10.77.0.1",
			T1: in(29*time.Minute + 30*time.Second + 400*time.Millisecond), T2: in(52 * time.Minute), Expiry: in(23*time.Hour + 59*time.Minute),
		},
		{
			AttachmentID: api.AttachmentID{ContainerID: strings.Repeat("1b2c3d4e", 8), IfName: "net1"},
			Pod:          api.Pod{Namespace: "default", Name: "forever"}, Network: "site", State: "BOUND",
			Address: "10.77.0.51/24", Server: "10.77.0.1", Infinite: true,
		},
		{
			AttachmentID: api.AttachmentID{ContainerID: strings.Repeat("2c3d4e5f", 8), IfName: "eth17"},
			Pod:          api.Pod{Namespace: "a-long-namespace", Name: "with-a-long-name-7d9f8b6c5-x2x4z"}, Network: "site", State: "REBINDING",
			Address: "10.77.0.152/24", Server: "10.77.0.1",
			T1: in(-31 * time.Minute), T2: in(-8 * time.Minute), Expiry: in(90 * time.Second),
			LastError: "no answer to 12 messages\nin 31m;\x1b[31m is 10.77.0.1 alive?",
		},
		{AttachmentID: api.AttachmentID{ContainerID: "c4", IfName: "net1"}, Network: "site", State: "SUPERSEDED"},
	}
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", path, diff)
	}
}

func TestWriteTable(t *testing.T) {
	for file, tt := range map[string]struct {
		list []api.Status
		wide bool
	}{
		"leases.txt":      {testStatuses(), false},
		"leases-wide.txt": {testStatuses(), true},
		"no-leases.txt":   {nil, false},
	} {
		var b bytes.Buffer
		if err := (table{short: shortIDs(tt.list), now: now, wide: tt.wide}).write(&b, tt.list); err != nil {
			t.Fatal(err)
		}
		golden(t, file, b.String())
	}
}

func TestWriteTableError(t *testing.T) {
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer full.Close()
	if err := (table{now: now}).write(full, testStatuses()); err == nil {
		t.Error("no error from a full disk")
	}
}

// backend is a Backend that keeps what it was asked for by hand.
type backend struct {
	api.Backend
	list    []api.Status
	renewed api.Status
	report  api.ProbeReport
	err     error
	calls   []any
}

func (b *backend) List(context.Context) ([]api.Status, error) { return b.list, b.err }

func (b *backend) Renew(_ context.Context, id api.AttachmentID, rebind bool) (api.Status, error) {
	b.calls = append(b.calls, "renew", id, rebind)
	return b.renewed, b.err
}

func (b *backend) Release(_ context.Context, id api.AttachmentID) error {
	b.calls = append(b.calls, "release", id)
	return b.err
}

func (b *backend) Probe(_ context.Context, r api.ProbeRequest) (api.ProbeReport, error) {
	b.calls = append(b.calls, "probe", r)
	return b.report, b.err
}

// listen serves b and returns the socket.
func listen(t *testing.T, b *backend) string {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "s")
	log := slog.New(slog.DiscardHandler)
	listener, err := server.Listen(socket, log)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- server.New(b, log).Serve(ctx, listener) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return socket
}

func TestLeases(t *testing.T) {
	all := testStatuses()
	all[1].NAD = "default/office-lan" // a name with a slash is that of no configuration
	socket := listen(t, &backend{list: all})
	var stdout, stderr bytes.Buffer
	if code := run(t.Context(), []string{"leases", "-o", "json"}, environment(map[string]string{"DHCP_ENGINE_SOCKET": socket}), &stdout, &stderr); code != exitOK {
		t.Fatalf("exit code %d: %s", code, &stderr)
	}
	var got []api.Status
	if err := json.Unmarshal(stdout.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(all, got); diff != "" {
		t.Errorf("leases (-want +got):\n%s", diff)
	}
	if !strings.Contains(stdout.String(), "\n    \"") {
		t.Errorf("JSON is not indented:\n%s", &stdout)
	}
	for _, tt := range []struct {
		flags string
		want  []string // pods
	}{
		{"--pod=default/web-0", []string{"web-0"}},
		{"--pod=default/none", nil},
		{"--network=site", []string{"web-0", "forever", "with-a-long-name-7d9f8b6c5-x2x4z", ""}},
		{"--network=default/office-lan", []string{"forever"}},
		{"--network=office-lan", nil},
		{"--network=shop/office-lan", nil},
		{"--network=other", nil},
	} {
		stdout.Reset()
		if code := run(t.Context(), []string{"leases", "-o=json", "--socket", socket, tt.flags}, environment(nil), &stdout, &stderr); code != exitOK {
			t.Fatalf("%s: exit code %d: %s", tt.flags, code, &stderr)
		}
		var got []api.Status
		if err := json.Unmarshal(stdout.Bytes(), &got); err != nil {
			t.Fatalf("%s: %v in %s", tt.flags, err, &stdout)
		}
		var pods []string
		for _, s := range got {
			pods = append(pods, s.Pod.Name)
		}
		if diff := cmp.Diff(tt.want, pods); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.flags, diff)
		}
	}
	stdout.Reset()
	if code := run(t.Context(), []string{"leases", "--socket", socket}, environment(nil), &stdout, &stderr); code != exitOK || !strings.HasPrefix(stdout.String(), "ATTACHMENT ") {
		t.Errorf("exit code %d: %s%s", code, &stdout, &stderr)
	}
}

func TestExitCodes(t *testing.T) {
	broken := listen(t, &backend{err: errors.New("no list today")})
	nobody := filepath.Join(t.TempDir(), "none")
	for _, tt := range []struct {
		name           string
		args           []string
		code           int
		stdout, stderr string // found there; empty: nothing is there
	}{
		{"OK help", []string{"help"}, exitOK, "Usage:", ""},
		{"OK -h", []string{"-h"}, exitOK, "Usage:", ""},
		{"OK run -h", []string{"run", "-h"}, exitOK, "DHCP_ENGINE_STATE_DIR", ""},
		{"OK leases --help", []string{"leases", "--help"}, exitOK, "-o format\n", ""},
		{"OK version", []string{"version"}, exitOK, "\n", ""},
		{"bad nothing", nil, exitUsage, "", "no command"},
		{"bad command", []string{"leese"}, exitUsage, "", `unknown command "leese"`},
		{"bad flags of run", []string{"run", "--log-level=loud"}, exitUsage, "", "--log-level"},
		{"bad output", []string{"leases", "-o", "yaml"}, exitUsage, "", `-o: "yaml" is neither table nor json`},
		{"bad socket", []string{"leases", "--socket", "engine.sock"}, exitUsage, "", "no absolute path"},
		{"bad pod", []string{"leases", "--pod", "web-0"}, exitUsage, "", `--pod: "web-0" is not of the form namespace/name`},
		{"bad renew of nothing", []string{"renew"}, exitUsage, "", "renew: ID is missing"},
		{"bad renew of two", []string{"renew", "a", "b"}, exitUsage, "", `unexpected argument "b"`},
		{"bad renew without an engine", []string{"renew", "a:net1", "--socket", nobody}, exitFailed, "", nobody},
		{"bad rebind by an engine that fails", []string{"rebind", "a:net1", "--socket", broken}, exitFailed, "", "no list today"},
		{"bad release of nothing", []string{"release", "--yes"}, exitUsage, "", "release: ID is missing"},
		{"bad probe of nothing", []string{"probe"}, exitUsage, "", "--interface: is required"},
		{"bad probe without end", []string{"probe", "--netns=/a", "--interface=net1", "--timeout=1h"}, exitUsage, "", "--timeout: 1h0m0s is not between 0 and 1m0s"},
		{"bad probe by an engine that fails", []string{"probe", "--netns=/a", "--interface=net1", "--socket", broken}, exitFailed, "", "no list today"},
		{"bad import of nothing", []string{"import"}, exitUsage, "", "import: FILE is missing"},
		{"bad import of no file", []string{"import", nobody}, exitFailed, "", nobody},
		{"bad export of no folder", []string{"export", "--state-dir", nobody}, exitFailed, "", nobody},
		{"OK renew --help", []string{"renew", "--help"}, exitOK, "Usage: dhcp-engine renew [flags] ID\n", ""},
		{"OK release --help", []string{"release", "--help"}, exitOK, "goes on to run, without this address", ""},
		{"bad no engine", []string{"leases", "--socket", nobody}, exitFailed, "", nobody},
		{"bad engine", []string{"leases", "--socket", broken}, exitFailed, "", "no list today"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			if code := run(t.Context(), tt.args, environment(nil), &stdout, &stderr); code != tt.code {
				t.Errorf("exit code %d, want %d", code, tt.code)
			}
			for what, o := range map[string]struct{ got, want string }{"standard output": {stdout.String(), tt.stdout}, "standard error": {stderr.String(), tt.stderr}} {
				if !strings.Contains(o.got, o.want) || o.want == "" && o.got != "" {
					t.Errorf("%s is %q, want %q", what, o.got, o.want)
				}
			}
		})
	}
}
