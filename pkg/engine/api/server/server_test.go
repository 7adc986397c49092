package server

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
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
	renew   func(context.Context, api.AttachmentID, bool) (api.Status, error)
	release func(context.Context, api.AttachmentID) error
	probe   func(context.Context, api.ProbeRequest) (api.ProbeReport, error)
	ready   func() error
	limited func() error
	mark    func(context.Context, api.Request) (bool, error)
}

var _ api.Backend = fake{}

func (f fake) Prepare(ctx context.Context, r api.Request) error             { return f.prepare(ctx, r) }
func (f fake) Attach(ctx context.Context, r api.Request) (api.Lease, error) { return f.attach(ctx, r) }
func (f fake) Check(ctx context.Context, r api.Request) (api.Lease, error)  { return f.check(ctx, r) }
func (f fake) Detach(ctx context.Context, id api.AttachmentID) error        { return f.detach(ctx, id) }
func (f fake) Sweep(ctx context.Context, s api.Sweep) error                 { return f.sweep(ctx, s) }
func (f fake) List(ctx context.Context) ([]api.Status, error)               { return f.list(ctx) }
func (f fake) Renew(ctx context.Context, id api.AttachmentID, rebind bool) (api.Status, error) {
	return f.renew(ctx, id, rebind)
}
func (f fake) Release(ctx context.Context, id api.AttachmentID) error { return f.release(ctx, id) }
func (f fake) Probe(ctx context.Context, r api.ProbeRequest) (api.ProbeReport, error) {
	return f.probe(ctx, r)
}
func (f fake) Ready() error   { return f.ready() }
func (f fake) Limited() error { return f.limited() }
func (f fake) Marked(ctx context.Context, r api.Request) (bool, error) {
	return f.mark(ctx, r)
}

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
	probe  = api.ProbeRequest{Netns: "/run/netns/pod", IfName: "net1", Timeout: 5 * time.Second, ClientID: "none", Broadcast: true}
	report = api.ProbeReport{
		Netns: "/run/netns/pod", IfName: "net1", HardwareAddr: "02:00:00:00:00:01", Kind: "veth", ClientID: "01020000000001",
		Discovers: 2, Waited: 5 * time.Second, LeftAside: []string{"nak"}, Hint: "look there", Heard: &api.Heard{Frames: 9, OtherReplies: 1},
		Offers: []api.Offer{{
			Server: "10.77.0.1", From: "10.77.0.2", Relay: "10.77.0.3", After: time.Millisecond, Discover: 1,
			Address: "10.77.0.50/24", LeaseSeconds: 3600, T1Seconds: 1800, T2Seconds: 3150, Infinite: true,
			Routers: []string{"10.77.0.1"}, Routes: lease.Routes, DNS: lease.DNS, NTP: []string{"10.77.0.4"}, MTU: 1400,
			Options: []api.OfferedOption{{Code: 1, Value: "ffffff00"}}, Remarks: []string{"odd"}, Problem: "none",
		}},
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
		renew: func(_ context.Context, id api.AttachmentID, rebind bool) (api.Status, error) {
			got = append(got, "renew", id, rebind)
			return statuses[0], nil
		},
		release: func(_ context.Context, id api.AttachmentID) error { got = append(got, "release", id); return nil },
		probe: func(_ context.Context, r api.ProbeRequest) (api.ProbeReport, error) {
			got = append(got, "probe", r)
			return report, nil
		},
		ready:   func() error { got = append(got, "ready"); return nil },
		limited: func() error { got = append(got, "limited"); return nil },
		mark:    func(_ context.Context, r api.Request) (bool, error) { got = append(got, "marked", r); return true, nil },
	})
	ctx := t.Context()
	renewed, err4 := r.Renew(ctx, id, false)
	rebound, err5 := r.Renew(ctx, id, true)
	probed, err6 := r.Probe(ctx, probe)
	attached, err1 := r.Attach(ctx, request)
	checked, err2 := r.Check(ctx, request)
	listed, err3 := r.List(ctx)
	marked, err7 := r.Marked(ctx, request)
	if err := errors.Join(err1, err2, err3, err4, err5, err6, err7, r.Release(ctx, id), r.Prepare(ctx, request), r.Detach(ctx, id),
		r.Sweep(ctx, sweep), r.Sweep(ctx, api.Sweep{Network: "site"}), r.Ready(ctx), r.Healthy(ctx), r.Status(ctx)); err != nil {
		t.Fatal(err)
	}
	want := []any{"renew", id, false, "renew", id, true, "probe", probe, "attach", request, "check", request, "list", "marked", request, "release", id, "prepare", request, "detach", id,
		"sweep", sweep, "sweep", api.Sweep{Network: "site", Valid: []api.AttachmentID{}}, "ready", "ready", "limited"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("what the backend got (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]any{lease, lease, statuses, statuses[0], statuses[0], report, true},
		[]any{attached, checked, listed, renewed, rebound, probed, marked}); diff != "" {
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
				renew:   func(context.Context, api.AttachmentID, bool) (api.Status, error) { return api.Status{}, tt.err },
				release: func(context.Context, api.AttachmentID) error { return tt.err },
				probe:   func(context.Context, api.ProbeRequest) (api.ProbeReport, error) { return report, tt.err },
			})
			_, renewErr := r.Renew(t.Context(), id, true)
			_, probeErr := r.Probe(t.Context(), probe)
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
				"Renew":   renewErr,
				"Release": r.Release(t.Context(), id),
				"Probe":   probeErr,
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

// TestStatus: what is not ready comes before what is limited, which is no reason to
// take the engine for one that cannot serve.
func TestStatus(t *testing.T) {
	var ready, limited error
	r := serve(t, fake{ready: func() error { return ready }, limited: func() error { return limited }})
	for _, tt := range []struct {
		ready, limited error
		code           uint
		text           string
	}{
		{nil, nil, 0, ""},
		{nil, errors.New("OVN's database is away"), 51, "OVN's database is away"},
		{nil, api.WithCode(api.CodeTryAgain, errors.New("connect: refused")), 51, "connect: refused"},
		{errors.New("records are being restored"), errors.New("OVN's database is away"), 50, "being restored"},
	} {
		ready, limited = tt.ready, tt.limited
		err := r.Status(t.Context())
		var got *types.Error
		switch {
		case tt.code == 0 && err != nil:
			t.Errorf("Status: %v", err)
		case tt.code != 0 && (!errors.As(err, &got) || got.Code != tt.code || !strings.Contains(got.Msg, tt.text)):
			t.Errorf("Status: %v, want code %d with %q", err, tt.code, tt.text)
		}
		if err := r.Ready(t.Context()); (err == nil) != (tt.ready == nil) {
			t.Errorf("Ready: %v while ready is %v", err, tt.ready)
		}
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
		renew: func(ctx context.Context, _ api.AttachmentID, _ bool) (api.Status, error) {
			return api.Status{}, hang(ctx)
		},
		probe: func(ctx context.Context, _ api.ProbeRequest) (api.ProbeReport, error) { return report, hang(ctx) },
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
		"Renew":   func(ctx context.Context) error { _, err := r.Renew(ctx, id, false); return err },
		"Probe":   func(ctx context.Context) error { _, err := r.Probe(ctx, probe); return err },
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

// TestDetachOutlivesCaller: it begins when its caller has gone already, and its
// failure is logged, since nobody else hears of it.
func TestDetachOutlivesCaller(t *testing.T) {
	var logs logBuffer
	called := false
	s := New(fake{detach: func(ctx context.Context, _ api.AttachmentID) error {
		called = true
		if err := ctx.Err(); err != nil {
			t.Errorf("Detach is cancelled with its caller: %v", err)
		}
		if _, bounded := ctx.Deadline(); !bounded {
			t.Error("Detach has no bound")
		}
		return errors.New("server is silent")
	}}, logs.logger())
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	s.ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(ctx, "DELETE", "/v1/attachments/0a1b2c/net1", nil))
	if logs := logs.String(); !called || !strings.Contains(logs, "0a1b2c:net1") || !strings.Contains(logs, "server is silent") {
		t.Errorf("called: %v, log:\n%s", called, logs)
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
