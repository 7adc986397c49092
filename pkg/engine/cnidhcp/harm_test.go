package cnidhcp

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/skel"
	current "github.com/containernetworking/cni/pkg/types/100"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine/api"
)

// patience is the time for what takes a moment.
const patience = 30 * time.Second

// connect dials and writes, and returns the connection with its end for writing
// closed where that is said.
func connect(t *testing.T, path, text string, close bool) *net.UnixConn {
	t.Helper()
	c, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	if call, ok := strings.CutPrefix(text, hello); ok { // net/rpc's client waits for the answer, too
		if _, err := io.WriteString(c, hello); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(c, make([]byte, len(connected))); err != nil {
			t.Fatal(err)
		}
		text = call
	}
	if _, err := io.WriteString(c, text); err != nil && !errors.Is(err, syscall.EPIPE) && !errors.Is(err, syscall.ECONNRESET) {
		t.Fatal(err) // where it is one of those, the server has had enough
	}
	u := c.(*net.UnixConn)
	if close {
		_ = u.CloseWrite()
	}
	return u
}

const hello = "CONNECT /_goRPC_ HTTP/1.0\n\n"

// TestGarbage: whatever comes over a connection ends that connection and no more.
func TestGarbage(t *testing.T) {
	path := serve(t, Config{Engine: engine{detach: func(api.AttachmentID) error { return nil }}})
	for name, tt := range map[string]struct {
		text  string
		close bool
	}{
		"no HTTP":                {"\x00\x01\x02\x03\r\n\r\n", false},
		"another path":           {"CONNECT /other HTTP/1.0\n\n", true},
		"no gob":                 {hello + strings.Repeat("\xff", 600), false},
		"a gob of no end":        {hello + "\xf8\x7f\xff\xff\xff\xff\xff\xff\xff", false},
		"a cut gob":              {hello + "\x20\xff", true},
		"nothing after CONNECT":  {hello, true},
		"nothing at all":         {"", true},
		"more than a call holds": {hello + strings.Repeat("\x7e"+strings.Repeat("a", 126), maxCall/127+2), false},
	} {
		c := connect(t, path, tt.text, tt.close)
		if _, err := io.ReadAll(c); errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%s: the connection stays open", name)
		}
		if err := dial(t, path).Call("DHCP.Release", args(""), &struct{}{}); err != nil {
			t.Errorf("after %s: %v", name, err)
		}
	}
	for method, args := range map[string]any{"DHCP.Nothing": args(plain), "Other.Allocate": args(plain), "DHCP.Allocate": 7} {
		if err := dial(t, path).Call(method, args, &current.Result{}); err == nil {
			t.Errorf("%s with %v succeeded", method, args)
		}
	}
}

// TestOneConnectionDoesNotHoldAnother: a caller that says nothing, and calls that run,
// hold nobody up.
func TestOneConnectionDoesNotHoldAnother(t *testing.T) {
	path := serve(t, Config{Engine: engine{
		attach: func(ctx context.Context, _ api.Request) (api.Lease, error) {
			<-ctx.Done()
			return api.Lease{}, ctx.Err()
		},
		detach: func(api.AttachmentID) error { return nil },
	}})
	for range 50 {
		connect(t, path, hello, false)
		dial(t, path).Go("DHCP.Allocate", args(plain), &current.Result{}, nil)
	}
	if err := dial(t, path).Call("DHCP.Release", args(plain), &struct{}{}); err != nil {
		t.Error(err)
	}
}

// TestReleaseDuringAllocate: a DEL is served while the ADD of its attachment runs, also
// over the same connection, and the ADD hears of its end.
func TestReleaseDuringAllocate(t *testing.T) {
	for _, same := range []bool{false, true} {
		running, ended := make(chan struct{}), make(chan struct{})
		detached := errors.New("attachment c1:net1 was detached")
		path := serve(t, Config{Engine: engine{
			attach: func(ctx context.Context, _ api.Request) (api.Lease, error) {
				close(running)
				select {
				case <-ended:
					return api.Lease{}, detached
				case <-ctx.Done():
					return api.Lease{}, ctx.Err()
				}
			},
			detach: func(api.AttachmentID) error { close(ended); return nil },
		}})
		adder := dial(t, path)
		add := adder.Go("DHCP.Allocate", args(plain), &current.Result{}, nil)
		<-running
		deleter := adder
		if !same {
			deleter = dial(t, path)
		}
		if err := deleter.Call("DHCP.Release", args(plain), &struct{}{}); err != nil {
			t.Errorf("same connection %v: DEL: %v", same, err)
		}
		if <-add.Done; add.Error == nil || add.Error.Error() != detached.Error() {
			t.Errorf("same connection %v: ADD ended with %v, want %v", same, add.Error, detached)
		}
	}
}

// TestReleaseOutlivesItsCaller: a plugin that is killed during its DEL has said what
// it wants.
func TestReleaseOutlivesItsCaller(t *testing.T) {
	running, gone, done := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	path := serve(t, Config{Engine: detacher{func(ctx context.Context) error {
		close(running)
		<-gone
		done <- ctx.Err()
		return nil
	}}})
	c := dial(t, path)
	c.Go("DHCP.Release", args(plain), &struct{}{}, nil)
	<-running
	c.Close()
	close(gone)
	if err := <-done; err != nil {
		t.Errorf("Detach was ended: %v", err)
	}
}

// detacher is an engine of which only Detach counts.
type detacher struct{ detach func(context.Context) error }

func (detacher) Attach(context.Context, api.Request) (api.Lease, error) { return api.Lease{}, nil }
func (d detacher) Detach(ctx context.Context, _ api.AttachmentID) error { return d.detach(ctx) }

// TestAPIOnTheSameSocket: our own plugin, and programs for people, need no other.
func TestAPIOnTheSameSocket(t *testing.T) {
	path := serve(t, Config{API: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, "api "+r.URL.Path) })})
	answer, err := io.ReadAll(connect(t, path, "GET /v1/x HTTP/1.0\n\n", false))
	if err != nil || !strings.HasSuffix(string(answer), "api /v1/x") {
		t.Errorf("answer is %q, %v", answer, err)
	}
}

// TestShutdown: a DEL that runs at the end is carried out, and no new call is taken.
func TestShutdown(t *testing.T) {
	running, finish := make(chan struct{}), make(chan struct{})
	var once sync.Once
	path, stop := serveUntil(t, Config{Engine: detacher{func(ctx context.Context) error {
		once.Do(func() { close(running) })
		<-finish
		return ctx.Err()
	}}})
	c := dial(t, path)
	call := c.Go("DHCP.Release", args(plain), &struct{}{}, nil)
	<-running
	ended := stop()
	for { // the listener closes in a moment
		conn, err := net.Dial("unix", path)
		if err != nil {
			break
		}
		conn.Close()
	}
	select {
	case <-ended:
		t.Fatal("Serve returned with a call running")
	default:
	}
	close(finish)
	if <-call.Done; call.Error != nil {
		t.Errorf("the DEL that ran: %v", call.Error)
	}
	c.Close()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// TestShutdownBreaksOff: an ADD that runs is told that the engine ends, and a
// connection without a call holds nothing up.
func TestShutdownBreaksOff(t *testing.T) {
	running := make(chan struct{})
	path, stop := serveUntil(t, Config{Engine: engine{attach: func(ctx context.Context, _ api.Request) (api.Lease, error) {
		close(running)
		<-ctx.Done()
		return api.Lease{}, ctx.Err()
	}}})
	idle := connect(t, path, hello, false)
	call := dial(t, path).Go("DHCP.Allocate", args(plain), &current.Result{}, nil)
	<-running
	begun := time.Now()
	ended := stop()
	if <-call.Done; call.Error == nil || call.Error.Error() != errEnding.Error() {
		t.Errorf("the ADD that ran ended with %v, want %v", call.Error, errEnding)
	}
	if _, err := io.ReadAll(idle); errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error("the connection without a call stays open")
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if took := time.Since(begun); took >= shutdownLimit {
		t.Errorf("the end took %s", took)
	}
}

func TestRefusedArguments(t *testing.T) {
	path := serve(t, Config{Engine: engine{detach: func(api.AttachmentID) error { t.Error("detached"); return nil }}})
	for name, a := range map[string]*skel.CmdArgs{
		"no namespace":         {ContainerID: "c1", IfName: "net1", StdinData: []byte(plain)},
		"a relative namespace": {ContainerID: "c1", IfName: "net1", Netns: "netns/a", StdinData: []byte(plain)},
		"no container":         {IfName: "net1", Netns: "/a", StdinData: []byte(plain)},
		"no interface":         {ContainerID: "c1", Netns: "/a", StdinData: []byte(plain)},
		"a path as interface":  {ContainerID: "c1", IfName: "../n", Netns: "/a", StdinData: []byte(plain)},
		"nothing":              {},
	} {
		if err := dial(t, path).Call("DHCP.Allocate", a, &current.Result{}); err == nil {
			t.Errorf("ADD with %s succeeded", name)
		}
		if a.ContainerID != "" && a.IfName == "net1" {
			continue
		}
		if err := dial(t, path).Call("DHCP.Release", a, &struct{}{}); err == nil {
			t.Errorf("DEL with %s succeeded", name)
		}
	}
}
