package aside

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine/api"
	"github.com/dhcp-meta/dhcp-meta/pkg/engine/api/server"
	"github.com/dhcp-meta/dhcp-meta/pkg/engine/network"
)

// What this package cannot import must be the same all the same.
func TestPlacesAreThoseOfTheOthers(t *testing.T) {
	want := []string{network.DefaultSocket, network.DefaultStateDir, api.NetworksFile, api.PassedFolder}
	if diff := cmp.Diff(want, []string{defaultSocket, defaultStateDir, networksFile, passedFolder}); diff != "" {
		t.Errorf("places (-want +got):\n%s", diff)
	}
	if codeConfig != api.CodeConfig || codeOther != api.CodeInternal {
		t.Error("the codes are not those of package api")
	}
}

func testEnvironment() surroundings {
	env := surroundings{container: "0123456789abcdef", ifName: "net1", netns: "/run/netns/\"a\\\x01"}
	env.setPod("IgnoreUnknown=1;K8S_POD_NAMESPACE=prod;K8S_POD_NAME=web-0;K8S_POD_UID=u1;X;=")
	return env
}

// The note and the question hold what the engine's own types say.
func TestEncodeRequest(t *testing.T) {
	n := testConf("prod/localnet-77")
	n.deviceID = "0000:03:02.1"
	var got api.Request
	if err := json.Unmarshal(encodeRequest(testEnvironment(), n), &got); err != nil {
		t.Fatal(err)
	}
	want := api.Request{
		AttachmentID: api.AttachmentID{ContainerID: "0123456789abcdef", IfName: "net1"},
		Netns:        "/run/netns/\"a\\\x01", Network: "localnet-77", NAD: "prod/localnet-77", Wrapped: "ovn",
		DeviceID: "0000:03:02.1", Pod: api.Pod{Namespace: "prod", Name: "web-0", UID: "u1"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("request (-want +got):\n%s", diff)
	}
}

func testConf(nad string) conf {
	return conf{valid: true, kind: "ovn", name: "localnet-77", nad: nad}
}

// backend is an engine that answers this question only.
type backend struct {
	api.Backend
	marked func(context.Context, api.Request) (bool, error)
}

func (b backend) Marked(ctx context.Context, r api.Request) (bool, error) { return b.marked(ctx, r) }

// engine serves b on a socket until the test ends.
func engine(t *testing.T, b backend) (socket string) {
	t.Helper()
	socket = filepath.Join(shortDir(t), "run", "s")
	l, err := server.Listen(socket, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- server.New(b, slog.New(slog.DiscardHandler)).Serve(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return socket
}

func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "dm") // t.TempDir can be too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func TestAsk(t *testing.T) {
	type answer struct{ Marked, Answered bool }
	tests := []struct {
		name   string
		marked func(context.Context, api.Request) (bool, error)
		want   answer
	}{
		{"OK yes", func(context.Context, api.Request) (bool, error) { return true, nil }, answer{true, true}},
		{"OK no", func(context.Context, api.Request) (bool, error) { return false, nil }, answer{false, true}},
		{"bad the API server is away", func(context.Context, api.Request) (bool, error) {
			return true, api.WithCode(api.CodeTryAgain, errors.New("no answer"))
		}, answer{}},
		{"bad slow", func(ctx context.Context, _ api.Request) (bool, error) { <-ctx.Done(); return true, nil }, answer{}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			asked := make(chan api.Request, 1)
			socket := engine(t, backend{marked: func(ctx context.Context, r api.Request) (bool, error) {
				asked <- r
				return tt.marked(ctx, r)
			}})
			limit := 30 * time.Second
			if tt.name == "bad slow" {
				limit = 100 * time.Millisecond
			}
			env := testEnvironment()
			marked, answered := ask(socket, questionPath(env), encodeRequest(env, testConf("prod/localnet-77")), limit)
			if diff := cmp.Diff(tt.want, answer{marked, answered}); diff != "" {
				t.Errorf("answer (-want +got):\n%s", diff)
			}
			if !answered {
				return // it may not have come to the question
			}
			if got := <-asked; got.NAD != "prod/localnet-77" {
				t.Errorf("the engine was asked %+v", got)
			}
		})
	}
}

// An engine that is down, hangs, or talks nonsense never says yes or no, and holds
// nobody for longer than the limit.
func TestAskNobody(t *testing.T) {
	listen := func(t *testing.T, serve func(net.Conn)) string {
		socket := filepath.Join(shortDir(t), "s")
		l, err := net.Listen("unix", socket)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
		if serve == nil {
			return socket // the kernel takes connections, and nobody reads
		}
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				go serve(c)
			}
		}()
		return socket
	}
	say := func(text string) func(net.Conn) {
		return func(c net.Conn) {
			_, _ = c.Read(make([]byte, 4096))
			_, _ = c.Write([]byte(text))
			c.Close()
		}
	}
	trickle := func(c net.Conn) {
		defer c.Close()
		for {
			if _, err := c.Write([]byte("x")); err != nil {
				return
			}
			time.Sleep(time.Millisecond) // the other end has a deadline, this one has nothing to wait for
		}
	}
	tests := []struct {
		name   string
		socket func(*testing.T) string
	}{
		{"down", func(t *testing.T) string { return filepath.Join(shortDir(t), "s") }},
		{"a path that is too long for a socket", func(t *testing.T) string { return "/" + string(make([]byte, 200)) }},
		{"hangs", func(t *testing.T) string { return listen(t, nil) }},
		{"hangs with a full backlog", fullBacklog},
		{"ends at once", func(t *testing.T) string { return listen(t, func(c net.Conn) { c.Close() }) }},
		{"never ends", func(t *testing.T) string { return listen(t, trickle) }},
		{"no HTTP", func(t *testing.T) string { return listen(t, say("{\"marked\":true}")) }},
		{"half an answer", func(t *testing.T) string { return listen(t, say("HTTP/1.1 200 OK\r\n\r\n{\"marked\":tr")) }},
		{"another answer", func(t *testing.T) string { return listen(t, say("HTTP/1.1 200 OK\r\n\r\n{\"marked\":1}")) }},
		{"an error", func(t *testing.T) string { return listen(t, say("HTTP/1.1 500 No\r\n\r\n{\"marked\":true}")) }},
	}
	for _, tt := range tests {
		t.Run("bad "+tt.name, func(t *testing.T) {
			socket := tt.socket(t)
			begin := time.Now()
			if marked, answered := ask(socket, "/x", []byte("{}"), 200*time.Millisecond); marked || answered {
				t.Errorf("marked %v, answered %v", marked, answered)
			}
			if took := time.Since(begin); took > 10*time.Second {
				t.Errorf("took %v", took)
			}
		})
	}
}

// fullBacklog is a socket to which no connection is accepted any more, not even by
// the kernel.
func fullBacklog(t *testing.T) string {
	socket := filepath.Join(shortDir(t), "s")
	fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { syscall.Close(fd) })
	if err := syscall.Bind(fd, &syscall.SockaddrUnix{Name: socket}); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Listen(fd, 0); err != nil {
		t.Fatal(err)
	}
	for range 8 {
		c, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC|syscall.SOCK_NONBLOCK, 0)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { syscall.Close(c) })
		if err := syscall.Connect(c, &syscall.SockaddrUnix{Name: socket}); err == syscall.EAGAIN {
			return socket
		}
	}
	t.Fatal("the backlog of the socket has no end")
	return ""
}
