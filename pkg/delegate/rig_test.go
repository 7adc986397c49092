package delegate

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/google/go-cmp/cmp"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine/api"
	"github.com/dhcp-meta/dhcp-meta/pkg/engine/api/server"
)

// journal is what happened, in order, on both sides of the plugin.
type journal struct {
	mu    sync.Mutex
	lines []string
}

func (j *journal) add(format string, args ...any) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.lines = append(j.lines, fmt.Sprintf(format, args...))
}

// want compares the journal with lines, and empties it.
func (j *journal) want(t *testing.T, lines ...string) {
	t.Helper()
	j.mu.Lock()
	defer j.mu.Unlock()
	if diff := cmp.Diff(lines, j.lines); diff != "" {
		t.Errorf("what happened (-want +got):\n%s", diff)
	}
	j.lines = nil
}

// run is one execution of a delegate.
type run struct {
	verb, path string
	stdin      object
	environ    []string
}

// scripted is an Exec whose plugins do what a test says; by default they succeed
// and ADD gives a macvlan's result.
type scripted struct {
	journal *journal
	mu      sync.Mutex
	runs    []run
	// sandbox is what is seen of the network namespace: the interface comes with an
	// ADD and goes with a DEL.
	sandbox seen
	// on answers a verb in place of the default.
	on map[string]func(context.Context, run) (string, error)
}

const macvlanResult = `{"cniVersion":"1.1.0","interfaces":[{"name":"net1","mac":"02:00:00:00:00:09","sandbox":"/run/netns/a"}]}`

func (s *scripted) FindInPath(plugin string, paths []string) (string, error) {
	if plugin != "macvlan" && plugin != "ovn-k8s-cni-overlay" || filepath.Base(paths[0]) == "dhcp-meta-wrapped" {
		return "", fmt.Errorf("find plugin %s in %v", plugin, paths)
	}
	return filepath.Join(paths[0], plugin), nil
}

func (s *scripted) ExecPlugin(ctx context.Context, path string, stdin []byte, environ []string) ([]byte, error) {
	r := run{path: path, environ: environ}
	for _, kv := range environ {
		if v, ok := strings.CutPrefix(kv, "CNI_COMMAND="); ok {
			r.verb = v
		}
	}
	if err := json.Unmarshal(stdin, &r.stdin); err != nil {
		return nil, err
	}
	s.mu.Lock()
	s.runs = append(s.runs, r)
	s.mu.Unlock()
	s.journal.add("delegate %s", r.verb)
	var (
		out string
		err error
	)
	if r.verb == "ADD" {
		out = macvlanResult
	}
	if on := s.on[r.verb]; on != nil {
		out, err = on(ctx, r)
	}
	if err == nil && (r.verb == "ADD" || r.verb == "DEL") {
		s.setThere(r.verb == "ADD")
	}
	return []byte(out), err
}

func (s *scripted) setThere(there bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sandbox.there = there
}

func (s *scripted) look(string, string) (seen, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sandbox, nil
}

func (s *scripted) last() run {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.runs[len(s.runs)-1]
}

func (s *scripted) count(verb string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for _, r := range s.runs {
		if r.verb == verb {
			n++
		}
	}
	return n
}

// backend is an engine whose answers a test may change.
type backend struct {
	api.Backend // nil: what the plugin never calls

	journal  *journal
	lease    api.Lease
	requests []api.Request
	sweeps   []api.Sweep
	marked   bool
	// on answers a call ("prepare", "attach", "check", "detach", "sweep",
	// "ready", "limited", "marked") in place of success.
	on map[string]func(context.Context) error
}

func (b *backend) call(ctx context.Context, name string) error {
	b.journal.add("engine %s", name)
	if on := b.on[name]; on != nil {
		return on(ctx)
	}
	return nil
}

func (b *backend) Prepare(ctx context.Context, r api.Request) error {
	b.requests = append(b.requests, r)
	return b.call(ctx, "prepare")
}

func (b *backend) Attach(ctx context.Context, r api.Request) (api.Lease, error) {
	b.requests = append(b.requests, r)
	return b.lease, b.call(ctx, "attach")
}

func (b *backend) Check(ctx context.Context, r api.Request) (api.Lease, error) {
	b.requests = append(b.requests, r)
	return b.lease, b.call(ctx, "check")
}

func (b *backend) Detach(ctx context.Context, _ api.AttachmentID) error { return b.call(ctx, "detach") }

func (b *backend) Sweep(ctx context.Context, s api.Sweep) error {
	b.sweeps = append(b.sweeps, s)
	return b.call(ctx, "sweep")
}

func (b *backend) List(context.Context) ([]api.Status, error) { return nil, nil }

func (b *backend) Ready() error { return b.call(context.Background(), "ready") }

func (b *backend) Limited() error {
	if on := b.on["limited"]; on != nil {
		return on(context.Background())
	}
	return nil
}

func (b *backend) Marked(ctx context.Context, r api.Request) (bool, error) {
	b.requests = append(b.requests, r)
	return b.marked, b.call(ctx, "marked")
}

// rig is a plugin between a scripted delegate and an engine on a real socket.
type rig struct {
	t       *testing.T
	plugin  *Plugin
	journal *journal
	exec    *scripted
	engine  *backend
	stdout  bytes.Buffer
	// socket and stateDir are those of the network.
	socket, stateDir string
	args             *skel.CmdArgs
}

// newRig has no engine running yet.
func newRig(t *testing.T) *rig {
	t.Helper()
	dir, err := os.MkdirTemp("", "dm") // t.TempDir can be too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	j := &journal{}
	r := &rig{
		t:       t,
		journal: j,
		exec:    &scripted{journal: j, on: map[string]func(context.Context, run) (string, error){}, sandbox: seen{cookie: 1}},
		engine: &backend{
			journal: j,
			lease:   api.Lease{HardwareAddr: "02:00:5e:00:53:01", Address: "10.77.0.50/24", Gateway: "10.77.0.1"},
			on:      map[string]func(context.Context) error{},
		},
		socket:   filepath.Join(dir, "run", "engine.sock"),
		stateDir: filepath.Join(dir, "state"),
	}
	r.plugin = &Plugin{
		Name:    pluginName,
		Dir:     "/opt/cni/bin",
		Environ: []string{"CNI_COMMAND=(ours)", "CNI_ARGS=FOO=BAR", "PATH=/bin"},
		Exec:    r.exec,
		Dial:    func(socket string) Engine { return api.Client{Socket: socket} },
		Look:    r.exec.look,
		SysFS:   filepath.Join(dir, "sys"),
		Stdout:  &r.stdout,
	}
	r.args = &skel.CmdArgs{
		ContainerID: "c1", IfName: "net1", Netns: "/run/netns/a", Path: "/opt/cni/bin",
		Args: "IgnoreUnknown=1;K8S_POD_NAMESPACE=prod;K8S_POD_NAME=web-0;K8S_POD_UID=u1",
	}
	r.conf("1.1.0", `"delegate":{"type":"macvlan","master":"eth1"}`)
	return r
}

// start starts the engine; it ends with the test, or with the returned function.
func (r *rig) start() (stop func()) {
	r.t.Helper()
	l, err := server.Listen(r.socket, slog.New(slog.DiscardHandler))
	if err != nil {
		r.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(r.t.Context())
	ended := make(chan error, 1)
	go func() { ended <- server.New(r.engine, slog.New(slog.DiscardHandler)).Serve(ctx, l) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			r.t.Error(err)
		}
	})
	r.t.Cleanup(stop)
	return stop
}

// conf makes the configuration of this version, with more keys beside ours.
func (r *rig) conf(version string, more ...string) {
	dhcp := fmt.Sprintf(`"dhcp":{"socket":%q,"stateDir":%q}`, r.socket, r.stateDir)
	keys := append([]string{`"name":"vlan77"`, `"type":"dhcp-meta"`, fmt.Sprintf(`"cniVersion":%q`, version), dhcp}, more...)
	r.args.StdinData = []byte("{" + strings.Join(keys, ",") + "}")
}

// must runs a verb that has to succeed, without a remark.
func (r *rig) must(verb func(context.Context, *skel.CmdArgs) error) {
	r.t.Helper()
	if err := verb(r.t.Context(), r.args); err != nil {
		r.t.Fatal(err)
	}
	if len(r.plugin.remarks) != 0 {
		r.t.Errorf("remarks: %q", r.plugin.remarks)
	}
}

// mustFail runs a verb that has to fail with this code, and returns the message
// as the runtime gets it.
func (r *rig) mustFail(verb func(context.Context, *skel.CmdArgs) error, code uint) string {
	r.t.Helper()
	return r.wantError(verb(r.t.Context(), r.args), code)
}

func (r *rig) wantError(err error, code uint) string {
	r.t.Helper()
	e, ok := coded(err).(*types.Error)
	if !ok {
		r.t.Fatalf("no error, or one without a code: %v", err)
	}
	if e.Code != code {
		r.t.Errorf("code %d, want %d: %v", e.Code, code, e)
	}
	return e.Error()
}

// ledgerFiles lists the entries of the ledger, without locks.
func (r *rig) ledgerFiles() []string {
	r.t.Helper()
	names := files(r.t, filepath.Join(r.stateDir, "delegates"))
	return slices.DeleteFunc(names, func(name string) bool { return strings.HasSuffix(name, lockSuffix) })
}

// nothingLeft fails the test if the ledger has an entry, or anything else.
func (r *rig) nothingLeft() {
	r.t.Helper()
	if got := files(r.t, filepath.Join(r.stateDir, "delegates")); len(got) != 0 {
		r.t.Errorf("left in the ledger: %q", got)
	}
}
