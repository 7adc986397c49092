package server

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/google/go-cmp/cmp"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine/api"
)

// fake is a Backend of functions; a call without its function panics.
type fake struct {
	prepare func(context.Context, api.Request) error
	attach  func(context.Context, api.Request) (api.Lease, error)
	check   func(context.Context, api.Request) (api.Lease, error)
	detach  func(context.Context, api.AttachmentID) error
	sweep   func(context.Context, api.Sweep) error
	list    func(context.Context) ([]api.Status, error)
	ready   func() error
}

var _ api.Backend = fake{}

func (f fake) Prepare(ctx context.Context, r api.Request) error             { return f.prepare(ctx, r) }
func (f fake) Attach(ctx context.Context, r api.Request) (api.Lease, error) { return f.attach(ctx, r) }
func (f fake) Check(ctx context.Context, r api.Request) (api.Lease, error)  { return f.check(ctx, r) }
func (f fake) Detach(ctx context.Context, id api.AttachmentID) error        { return f.detach(ctx, id) }
func (f fake) Sweep(ctx context.Context, s api.Sweep) error                 { return f.sweep(ctx, s) }
func (f fake) List(ctx context.Context) ([]api.Status, error)               { return f.list(ctx) }
func (f fake) Ready() error                                                 { return f.ready() }

// logBuffer holds what was logged; safe for concurrent use.
type logBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func (l *logBuffer) logger() *slog.Logger { return slog.New(slog.NewTextHandler(l, nil)) }

// rig is a server on a real socket with a real client.
type rig struct {
	api.Client
	srv  *Server
	logs logBuffer
	// stop ends Serve and returns when it has ended.
	stop func()
}

func serve(t *testing.T, f fake) *rig {
	t.Helper()
	r := &rig{Client: api.Client{Socket: filepath.Join(t.TempDir(), "engine.sock")}}
	r.srv = New(f, r.logs.logger())
	l, err := Listen(r.Socket, r.logs.logger())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.srv.Serve(ctx, l) }()
	r.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	t.Cleanup(r.stop)
	return r
}

// http is a client that can say what ours would not.
func (r *rig) http() *http.Client {
	return &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", r.Socket)
		},
	}}
}

var (
	id      = api.AttachmentID{ContainerID: "0a1b2c", IfName: "net1"}
	request = api.Request{
		AttachmentID: id,
		Netns:        "/run/netns/pod",
		Network:      "site",
		Pod:          api.Pod{Namespace: "default", Name: "web-0", UID: "5f1c"},
		DHCP:         json.RawMessage(`{"timeout":"30s"}`),
		Timeout:      30 * time.Second,
	}
	lease = api.Lease{
		HardwareAddr: "02:00:00:00:00:01",
		Address:      "10.77.0.50/24",
		Gateway:      "10.77.0.1",
		Routes:       []api.Route{{Dst: "10.9.0.0/16", Gateway: "10.77.0.1", Metric: 100}, {Dst: "10.10.0.0/16"}},
		DNS:          api.DNS{Nameservers: []string{"10.77.0.3"}, Domain: "site.example", Search: []string{"a.example"}},
		MTU:          1400,
	}
)

// TestValues sends every value there and back.
func TestValues(t *testing.T) {
	start := time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)
	statuses := []api.Status{{
		AttachmentID: id, Pod: request.Pod, Network: "site", Netns: "/run/netns/pod", State: "BOUND",
		HardwareAddr: "02:00:00:00:00:01", ClientID: "01020000000001", Address: "10.77.0.50/24", Server: "10.77.0.1",
		T1: &start, T2: &start, Expiry: &start, LastError: "none",
	}, {AttachmentID: id, State: "BOUND", Infinite: true}}
	sweep := api.Sweep{Network: "site", Valid: []api.AttachmentID{id}}

	var got []any
	r := serve(t, fake{
		prepare: func(_ context.Context, r api.Request) error { got = append(got, "prepare", r); return nil },
		attach: func(_ context.Context, r api.Request) (api.Lease, error) {
			got = append(got, "attach", r)
			return lease, nil
		},
		check: func(_ context.Context, r api.Request) (api.Lease, error) {
			got = append(got, "check", r)
			return lease, nil
		},
		detach: func(_ context.Context, id api.AttachmentID) error { got = append(got, "detach", id); return nil },
		sweep:  func(_ context.Context, s api.Sweep) error { got = append(got, "sweep", s); return nil },
		list:   func(context.Context) ([]api.Status, error) { got = append(got, "list"); return statuses, nil },
		ready:  func() error { got = append(got, "ready"); return nil },
	})
	ctx := t.Context()
	attached, err1 := r.Attach(ctx, request)
	checked, err2 := r.Check(ctx, request)
	listed, err3 := r.List(ctx)
	if err := errors.Join(err1, err2, err3, r.Prepare(ctx, request), r.Detach(ctx, id),
		r.Sweep(ctx, sweep), r.Sweep(ctx, api.Sweep{Network: "site"}), r.Ready(ctx), r.Healthy(ctx)); err != nil {
		t.Fatal(err)
	}
	want := []any{"attach", request, "check", request, "list", "prepare", request, "detach", id,
		"sweep", sweep, "sweep", api.Sweep{Network: "site", Valid: []api.AttachmentID{}}, "ready"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("what the backend got (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]any{lease, lease, statuses}, []any{attached, checked, listed}); diff != "" {
		t.Errorf("what the client got (-want +got):\n%s", diff)
	}
}

// TestCodes holds that an error of the engine comes out of the client as a CNI
// error of the same code and text.
func TestCodes(t *testing.T) {
	for _, tt := range []struct {
		name string
		err  error
		want types.Error
	}{
		{"OK config", api.WithCode(api.CodeConfig, errors.New("dhcp.timeout: negative")), types.Error{Code: 7, Msg: "dhcp.timeout: negative"}},
		{"OK try again, coded below", fmt.Errorf("attach: %w", api.WithCode(api.CodeTryAgain, errors.New("no offer"))), types.Error{Code: 11, Msg: "attach: no offer"}},
		{"OK no code", errors.New("broken"), types.Error{Code: 999, Msg: "broken"}},
		{"OK a CNI error as it is", &types.Error{Code: 123, Msg: "m", Details: "d"}, types.Error{Code: 123, Msg: "m", Details: "d"}},
		{"OK a CNI error below", fmt.Errorf("attach: %w", &types.Error{Code: 4, Msg: "m"}), types.Error{Code: 4, Msg: "attach: m"}},
		{"OK shutdown", fmt.Errorf("wait for an offer: %w", context.Canceled), types.Error{Code: 11, Msg: "wait for an offer: context canceled"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := serve(t, fake{
				prepare: func(context.Context, api.Request) error { return tt.err },
				attach:  func(context.Context, api.Request) (api.Lease, error) { return lease, tt.err },
				check:   func(context.Context, api.Request) (api.Lease, error) { return lease, tt.err },
				detach:  func(context.Context, api.AttachmentID) error { return tt.err },
				sweep:   func(context.Context, api.Sweep) error { return tt.err },
				list:    func(context.Context) ([]api.Status, error) { return nil, tt.err },
			})
			_, attachErr := r.Attach(t.Context(), request)
			_, checkErr := r.Check(t.Context(), request)
			_, listErr := r.List(t.Context())
			for call, err := range map[string]error{
				"Prepare": r.Prepare(t.Context(), request),
				"Attach":  attachErr,
				"Check":   checkErr,
				"Detach":  r.Detach(t.Context(), id),
				"Sweep":   r.Sweep(t.Context(), api.Sweep{Network: "site"}),
				"List":    listErr,
			} {
				var got *types.Error
				if !errors.As(err, &got) {
					t.Errorf("%s: error is %#v, want a CNI error", call, err)
					continue
				}
				if diff := cmp.Diff(tt.want, *got); diff != "" {
					t.Errorf("%s: error (-want +got):\n%s", call, diff)
				}
			}
		})
	}
}

func TestNotReady(t *testing.T) {
	r := serve(t, fake{ready: func() error { return errors.New("records are being restored") }})
	if err := r.Ready(t.Context()); api.CodeOf(err) != api.CodeNotReady || !strings.Contains(err.Error(), "being restored") {
		t.Errorf("Ready: code %d, %v", api.CodeOf(err), err)
	}
	if err := r.Healthy(t.Context()); err != nil {
		t.Errorf("Healthy: %v", err)
	}
}

// TestCallerGone: the work for a caller ends with it, but for Detach.
func TestCallerGone(t *testing.T) {
	ctxC := make(chan context.Context)
	hang := func(ctx context.Context) error {
		ctxC <- ctx
		<-ctx.Done()
		return ctx.Err()
	}
	goOn, ended := make(chan struct{}), make(chan error, 1)
	r := serve(t, fake{
		prepare: func(ctx context.Context, _ api.Request) error { return hang(ctx) },
		attach:  func(ctx context.Context, _ api.Request) (api.Lease, error) { return lease, hang(ctx) },
		check:   func(ctx context.Context, _ api.Request) (api.Lease, error) { return lease, hang(ctx) },
		list:    func(ctx context.Context) ([]api.Status, error) { return nil, hang(ctx) },
		detach: func(ctx context.Context, _ api.AttachmentID) error {
			ctxC <- ctx
			<-goOn
			ended <- ctx.Err()
			return nil
		},
	})
	for name, call := range map[string]func(context.Context) error{
		"Prepare": func(ctx context.Context) error { return r.Prepare(ctx, request) },
		"Attach":  func(ctx context.Context) error { _, err := r.Attach(ctx, request); return err },
		"Check":   func(ctx context.Context) error { _, err := r.Check(ctx, request); return err },
		"List":    func(ctx context.Context) error { _, err := r.List(ctx); return err },
		"Detach":  func(ctx context.Context) error { return r.Detach(ctx, id) },
	} {
		ctx, cancel := context.WithCancel(t.Context())
		errC := make(chan error, 1)
		go func() { errC <- call(ctx) }()
		work := <-ctxC
		cancel()
		if err := <-errC; !errors.Is(err, context.Canceled) || errors.Is(err, api.ErrUnreachable) {
			t.Errorf("%s: error is %v, want %v", name, err, context.Canceled)
		}
		if name == "Detach" {
			close(goOn)
			if err := <-ended; err != nil {
				t.Errorf("Detach was cancelled with its caller: %v", err)
			}
			continue
		}
		<-work.Done() // hangs, and so fails, if the work is not cancelled
	}
}

func TestDetachBounded(t *testing.T) {
	r := serve(t, fake{detach: func(ctx context.Context, _ api.AttachmentID) error { <-ctx.Done(); return ctx.Err() }})
	r.srv.detach = time.Millisecond
	if err := r.Detach(t.Context(), id); api.CodeOf(err) != api.CodeTryAgain {
		t.Errorf("error is %v, want one with code %d", err, api.CodeTryAgain)
	}
}

// TestParallel needs all calls to be in the backend at once.
func TestParallel(t *testing.T) {
	const n = 20
	var inside sync.WaitGroup
	inside.Add(n)
	r := serve(t, fake{attach: func(_ context.Context, r api.Request) (api.Lease, error) {
		inside.Done()
		inside.Wait()
		return api.Lease{Address: r.ContainerID}, nil
	}})
	var calls sync.WaitGroup
	for i := range n {
		calls.Go(func() {
			req := request
			req.ContainerID = fmt.Sprintf("sandbox%d", i)
			l, err := r.Attach(t.Context(), req)
			if err != nil || l.Address != req.ContainerID {
				t.Errorf("%s got the answer %q, %v", req.ContainerID, l.Address, err)
			}
		})
	}
	calls.Wait()
}

func TestPanic(t *testing.T) {
	r := serve(t, fake{})
	err := r.Detach(t.Context(), id) // a nil function
	if api.CodeOf(err) != api.CodeInternal || !strings.Contains(err.Error(), "panicked") {
		t.Errorf("error is %v", err)
	}
	if logs := r.logs.String(); !strings.Contains(logs, "nil pointer") || !strings.Contains(logs, "server_test.go") {
		t.Errorf("log has neither reason nor stack:\n%s", logs)
	}
	if err := r.Healthy(t.Context()); err != nil {
		t.Errorf("after the panic: %v", err)
	}
}

// TestShutdown: work is cancelled, a Detach completes, the socket is removed,
// and a new engine can take over.
func TestShutdown(t *testing.T) {
	inAttach, inDetach := make(chan struct{}), make(chan struct{})
	attachEnded := make(chan struct{})
	r := serve(t, fake{
		attach: func(ctx context.Context, _ api.Request) (api.Lease, error) {
			close(inAttach)
			<-ctx.Done()
			close(attachEnded)
			return lease, ctx.Err()
		},
		detach: func(ctx context.Context, _ api.AttachmentID) error {
			close(inDetach)
			<-attachEnded // so it ends after the shutdown began
			return ctx.Err()
		},
	})
	attachErr, detachErr := make(chan error, 1), make(chan error, 1)
	go func() { _, err := r.Attach(t.Context(), request); attachErr <- err }()
	go func() { detachErr <- r.Detach(t.Context(), id) }()
	<-inAttach
	<-inDetach
	r.stop()
	if err := <-attachErr; api.CodeOf(err) != api.CodeTryAgain || errors.Is(err, api.ErrUnreachable) {
		t.Errorf("Attach: error is %v, want the engine's own with code %d", err, api.CodeTryAgain)
	}
	if err := <-detachErr; err != nil {
		t.Errorf("Detach: %v", err)
	}
	if err := r.Healthy(t.Context()); !errors.Is(err, api.ErrUnreachable) || !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("after the end: %v", err)
	}
}

func TestShutdownBounded(t *testing.T) {
	inAttach, goOn := make(chan struct{}), make(chan struct{})
	r := serve(t, fake{attach: func(context.Context, api.Request) (api.Lease, error) {
		close(inAttach)
		<-goOn // deaf to its context
		return lease, nil
	}})
	defer close(goOn)
	r.srv.shutdown = time.Millisecond
	errC := make(chan error, 1)
	go func() { _, err := r.Attach(t.Context(), request); errC <- err }()
	<-inAttach
	r.stop()
	if err := <-errC; !errors.Is(err, api.ErrUnreachable) {
		t.Errorf("error is %v, want %v", err, api.ErrUnreachable)
	}
}

// badRequests are requests that never reach the backend.
var badRequests = []struct {
	name, method, path, body string
	status                   int
	code                     uint
	text                     string
}{
	{"bad no JSON", "PUT", "/v1/attachments/0a1b2c/net1", "pod", 400, 6, "decode the request"},
	{"bad empty body", "PUT", "/v1/attachments/0a1b2c/net1", "", 400, 6, "decode the request"},
	{"bad unknown key", "PUT", "/v1/attachments/0a1b2c/net1", `{"containerID":"0a1b2c","ifName":"net1","vlan":3}`, 400, 6, "vlan"},
	{"bad two values", "PUT", "/v1/attachments/0a1b2c/net1", `{"containerID":"0a1b2c","ifName":"net1"}{}`, 400, 6, "follows"},
	{"bad wrong type", "POST", "/v1/attachments/0a1b2c/net1/check", `{"netns":1}`, 400, 6, "netns"},
	{"bad other attachment", "POST", "/v1/attachments/0a1b2c/net1/prepare", `{"containerID":"0a1b2c","ifName":"net2"}`, 400, 6, "0a1b2c:net2"},
	{"bad negative timeout", "PUT", "/v1/attachments/0a1b2c/net1", `{"containerID":"0a1b2c","ifName":"net1","timeout":-1}`, 400, 6, "negative"},
	{"bad way out of the folder", "DELETE", "/v1/attachments/..%2F..%2Fetc/net1", "", 400, 4, "containerID"},
	{"bad colon", "DELETE", "/v1/attachments/a:b/net1", "", 400, 4, "containerID"},
	{"bad interface name", "DELETE", "/v1/attachments/a/net%2F1", "", 400, 4, "interface name"},
	{"bad long interface name", "DELETE", "/v1/attachments/a/abcdefghijklmnop", "", 400, 4, "interface name"},
	{"bad sweep of no network", "POST", "/v1/sweep", `{"valid":[]}`, 400, 6, "network"},
	{"bad sweep without a list", "POST", "/v1/sweep", `{"network":"site"}`, 400, 6, "valid"},
	{"bad sweep with null", "POST", "/v1/sweep", `{"network":"site","valid":null}`, 400, 6, "valid"},
	{"bad method", "PATCH", "/v1/attachments/0a1b2c/net1", "", 404, 999, "PATCH"},
	{"bad path", "GET", "/v2/attachments", "", 404, 999, "/v2/attachments"},
	{"bad huge body", "POST", "/v1/sweep", `{"network":"` + strings.Repeat("x", maxBody) + `"}`, 413, 6, "too large"},
}

func TestBadRequests(t *testing.T) {
	r := serve(t, fake{})
	for _, tt := range badRequests {
		t.Run(tt.name, func(t *testing.T) {
			req, err := http.NewRequest(tt.method, "http://engine"+tt.path, strings.NewReader(tt.body))
			if err != nil {
				t.Fatal(err)
			}
			resp, err := r.http().Do(req)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			body, err := io.ReadAll(resp.Body)
			if err != nil {
				t.Fatal(err)
			}
			var e types.Error
			if err := json.Unmarshal(body, &e); err != nil {
				t.Fatalf("%v: %q", err, body)
			}
			if resp.StatusCode != tt.status || e.Code != tt.code || !strings.Contains(e.Msg+e.Details, tt.text) {
				t.Errorf("answer is %d %s, want status %d, code %d and %q", resp.StatusCode, body, tt.status, tt.code, tt.text)
			}
		})
	}
	if logs := r.logs.String(); logs != "" {
		t.Errorf("bad requests are the caller's to log, but:\n%s", logs)
	}
}

// TestHugeRequest: our client gets the refusal although the server stops reading.
func TestHugeRequest(t *testing.T) {
	r := serve(t, fake{})
	err := r.Sweep(t.Context(), api.Sweep{Network: strings.Repeat("x", 2*maxBody)})
	var e *types.Error
	if !errors.As(err, &e) || e.Code != types.ErrDecodingFailure {
		t.Errorf("error is %v, want a CNI error of code %d", err, types.ErrDecodingFailure)
	}
}

// FuzzRequest: whatever the body, the backend sees only requests about the
// attachment in the path, and the answer is its or a CNI error.
func FuzzRequest(f *testing.F) {
	for _, tt := range badRequests {
		if len(tt.body) < 1000 {
			f.Add([]byte(tt.body))
		}
	}
	good, err := json.Marshal(request)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Add([]byte(`{"network":"site","valid":[{"containerID":"a","ifName":"b"}]}`))
	var logs logBuffer
	f.Fuzz(func(t *testing.T, body []byte) {
		s := New(fake{
			attach: func(_ context.Context, r api.Request) (api.Lease, error) {
				if r.AttachmentID != id || r.Timeout < 0 {
					t.Errorf("backend got %+v", r)
				}
				return lease, nil
			},
			sweep: func(_ context.Context, s api.Sweep) error {
				if s.Network == "" || s.Valid == nil {
					t.Errorf("backend got %+v", s)
				}
				return nil
			},
		}, logs.logger())
		for _, call := range [][2]string{{"PUT", "/v1/attachments/0a1b2c/net1"}, {"POST", "/v1/sweep"}} {
			w := httptest.NewRecorder()
			req, err := http.NewRequest(call[0], call[1], bytes.NewReader(body))
			if err != nil {
				t.Fatal(err)
			}
			s.ServeHTTP(w, req)
			if w.Code == http.StatusOK || w.Code == http.StatusNoContent {
				continue
			}
			var e types.Error
			if err := json.Unmarshal(w.Body.Bytes(), &e); err != nil || e.Msg == "" || w.Code != http.StatusBadRequest {
				t.Errorf("%v: answer %d %q", call, w.Code, w.Body)
			}
		}
		if logs := logs.String(); logs != "" {
			t.Error(logs)
		}
	})
}
