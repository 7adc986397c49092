package server

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine/api"
)

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
	{"bad id of a renewal", "POST", "/v1/attachments/a:b/net1/renew", "", 400, 4, "containerID"},
	{"bad id of a rebinding", "POST", "/v1/attachments/a/net%2F1/rebind", "", 400, 4, "interface name"},
	{"bad id of a release", "POST", "/v1/attachments/..%2Fa/net1/release", "", 400, 4, "containerID"},
	{"bad probe without a body", "POST", "/v1/probe", "", 400, 6, "decode the request"},
	{"bad probe of no namespace", "POST", "/v1/probe", `{"ifName":"net1"}`, 400, 6, "netns"},
	{"bad probe of no interface", "POST", "/v1/probe", `{"netns":"/run/netns/a"}`, 400, 6, "ifName"},
	{"bad probe without patience", "POST", "/v1/probe", `{"netns":"/run/netns/a","ifName":"net1","timeout":-1}`, 400, 6, "timeout"},
	{"bad probe without end", "POST", "/v1/probe", `{"netns":"/run/netns/a","ifName":"net1","timeout":60000000001}`, 400, 6, "1m0s"},
	{"bad method", "PATCH", "/v1/attachments/0a1b2c/net1", "", 404, 999, "PATCH"},
	{"bad path", "GET", "/v2/attachments", "", 404, 999, "/v2/attachments"},
	{"bad huge body", "POST", "/v1/sweep", `{"network":"` + strings.Repeat("x", maxBody) + `"}`, 413, 6, "too large"},
}

// An attachment that is not there is told apart, for people with curl.
func TestUnknownAttachment(t *testing.T) {
	s := New(fake{release: func(context.Context, api.AttachmentID) error {
		return api.WithCode(api.CodeUnknown, errors.New("no attachment 0a1b2c:net1"))
	}}, slog.New(slog.DiscardHandler))
	w := httptest.NewRecorder()
	s.ServeHTTP(w, httptest.NewRequest("POST", "/v1/attachments/0a1b2c/net1/release", nil))
	if w.Code != http.StatusNotFound || !strings.Contains(w.Body.String(), `"code":3`) {
		t.Errorf("answer is %d %s", w.Code, w.Body)
	}
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

// deadlineConn notes the read deadlines that it is given.
type deadlineConn struct {
	net.Conn
	mu        sync.Mutex
	deadlines []time.Time
}

func (c *deadlineConn) SetReadDeadline(t time.Time) error {
	c.mu.Lock()
	c.deadlines = append(c.deadlines, t)
	c.mu.Unlock()
	return c.Conn.SetReadDeadline(t)
}

// connections is a listener of what is in the channel.
type connections chan net.Conn

func (c connections) Accept() (net.Conn, error) {
	if conn, ok := <-c; ok {
		return conn, nil
	}
	return nil, net.ErrClosed
}

func (c connections) Close() error { close(c); return nil }
func (connections) Addr() net.Addr { return &net.UnixAddr{} }

// TestNoDeadlineOnWork: the time to read a request is bounded, the work is not.
// The end of the caller is noticed by reading, so a deadline that stays would
// cancel an ADD that takes longer.
func TestNoDeadlineOnWork(t *testing.T) {
	ours, theirs := net.Pipe()
	defer ours.Close()
	conn := &deadlineConn{Conn: theirs}
	seenC := make(chan []time.Time, 1)
	s := New(fake{attach: func(context.Context, api.Request) (api.Lease, error) {
		conn.mu.Lock()
		defer conn.mu.Unlock()
		seenC <- slices.Clone(conn.deadlines)
		return lease, nil
	}}, slog.New(slog.DiscardHandler))
	l := make(connections, 1)
	l <- conn
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(ctx, l) }()

	body, err := json.Marshal(request)
	if err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequest("PUT", "http://engine/v1/attachments/0a1b2c/net1", bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Close = true
	if err := req.Write(ours); err != nil {
		t.Fatal(err)
	}
	seen := <-seenC
	if !slices.ContainsFunc(seen, func(t time.Time) bool { return !t.IsZero() }) {
		t.Error("reading had no deadline")
	}
	if last := seen[len(seen)-1]; !last.IsZero() {
		t.Errorf("the work has the deadline %v", last)
	}
	if _, err := http.ReadResponse(bufio.NewReader(ours), req); err != nil {
		t.Error(err)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
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
	f.Add([]byte(`{"netns":"/run/netns/pod","ifName":"net1","timeout":5000000000,"clientID":"none"}`))
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
			probe: func(_ context.Context, p api.ProbeRequest) (api.ProbeReport, error) {
				if p.Netns == "" || p.IfName == "" || p.Timeout < 0 || p.Timeout > api.MaxProbe {
					t.Errorf("backend got %+v", p)
				}
				return report, nil
			},
		}, logs.logger())
		for _, call := range [][2]string{{"PUT", "/v1/attachments/0a1b2c/net1"}, {"POST", "/v1/sweep"}, {"POST", "/v1/probe"}} {
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
