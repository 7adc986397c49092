package cnidhcp

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"net/rpc"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/skel"
	current "github.com/containernetworking/cni/pkg/types/100"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine/api"
)

// engine is one that does as it is told.
type engine struct {
	attach func(context.Context, api.Request) (api.Lease, error)
	detach func(api.AttachmentID) error
}

func (e engine) Attach(ctx context.Context, r api.Request) (api.Lease, error) {
	return e.attach(ctx, r)
}
func (e engine) Detach(_ context.Context, id api.AttachmentID) error { return e.detach(id) }

func serve(t *testing.T, cfg Config) string {
	t.Helper()
	path, stop := serveUntil(t, cfg)
	t.Cleanup(func() {
		if err := <-stop(); err != nil {
			t.Error(err)
		}
	})
	return path
}

// serveUntil serves until stop is called, whose channel has what Serve returned.
func serveUntil(t *testing.T, cfg Config) (path string, stop func() <-chan error) {
	t.Helper()
	cfg.Log = slog.New(slog.DiscardHandler)
	dir, err := os.MkdirTemp("", "dm") // sockets have short paths
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	path = filepath.Join(dir, "d.sock")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	done := make(chan error, 1)
	go func() { done <- New(cfg).Serve(ctx, l) }()
	return path, func() <-chan error {
		cancel()
		return done
	}
}

func dial(t *testing.T, path string) *rpc.Client {
	t.Helper()
	c, err := rpc.DialHTTP("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func args(stdin string) *skel.CmdArgs {
	return &skel.CmdArgs{ContainerID: "c1", IfName: "net1", Netns: "/run/netns/a", Args: "K8S_POD_NAME=web", StdinData: []byte(stdin)}
}

const plain = `{"cniVersion": "1.0.0", "name": "site", "type": "macvlan", "ipam": {"type": "dhcp"}}`

func TestAllocateAndRelease(t *testing.T) {
	var asked api.Request
	var ended api.AttachmentID
	path := serve(t, Config{HostPrefix: "/host", Networks: Networks{"site": {"clientID": json.RawMessage(`"none"`)}}, Engine: engine{
		attach: func(_ context.Context, r api.Request) (api.Lease, error) {
			asked = r
			return api.Lease{Address: "10.77.0.50/24", Gateway: "10.77.0.1", Routes: []api.Route{
				{Dst: "0.0.0.0/0", Gateway: "10.77.0.1", Metric: 7}, {Dst: "10.9.0.0/16"}}}, nil
		},
		detach: func(id api.AttachmentID) error { ended = id; return nil },
	}})
	r := &current.Result{}
	if err := dial(t, path).Call("DHCP.Allocate", args(plain), r); err != nil {
		t.Fatal(err)
	}
	if len(r.IPs) != 1 || r.IPs[0].Address.String() != "10.77.0.50/24" || !r.IPs[0].Gateway.Equal(net.IPv4(10, 77, 0, 1)) || len(r.Routes) != 2 ||
		r.Routes[0].Priority != 7 || r.Routes[1].Scope == nil || *r.Routes[1].Scope != 253 {
		t.Errorf("result is %v", r)
	}
	if !asked.IPAM || asked.Netns != "/host/run/netns/a" || asked.Pod.Name != "web" ||
		string(asked.DHCP) != `{"clientID":"none","defaultRoute":"always","hostname":""}` {
		t.Errorf("asked for %+v", asked)
	}
	if err := dial(t, path).Call("DHCP.Release", args(plain), &struct{}{}); err != nil {
		t.Fatal(err)
	}
	if want := (api.AttachmentID{ContainerID: "c1", IfName: "net1"}); ended != want {
		t.Errorf("ended %v, want %v", ended, want)
	}
}

// TestCallerGone: the end of a connection ends the ADD that came over it.
func TestCallerGone(t *testing.T) {
	running, gone := make(chan struct{}), make(chan error, 1)
	path := serve(t, Config{Engine: engine{attach: func(ctx context.Context, _ api.Request) (api.Lease, error) {
		close(running)
		<-ctx.Done()
		gone <- context.Cause(ctx)
		return api.Lease{}, ctx.Err()
	}}})
	c := dial(t, path)
	c.Go("DHCP.Allocate", args(plain), &current.Result{}, nil)
	<-running
	c.Close()
	if err := <-gone; !errors.Is(err, errCallerGone) {
		t.Errorf("ended by %v, want %v", err, errCallerGone)
	}
}

// TestHarmlessRequests: what ends or hangs the reference is an error, and the next
// call is served.
func TestHarmlessRequests(t *testing.T) {
	path := serve(t, Config{Timeout: 50 * time.Millisecond, Engine: engine{attach: func(ctx context.Context, r api.Request) (api.Lease, error) {
		if r.Network == "panic" {
			panic("as asked")
		}
		<-ctx.Done()
		return api.Lease{}, ctx.Err()
	}}})
	for name, tt := range map[string]struct {
		args *skel.CmdArgs
		want string
	}{
		"no ipam":       {args(`{"name": "site"}`), "ipam: is missing"},
		"no JSON":       {args(`{`), "configuration"},
		"a panic":       {args(strings.Replace(plain, "site", "panic", 1)), "panicked"},
		"no server":     {args(plain), "no more tries"},
		"path as an id": {&skel.CmdArgs{ContainerID: "../x", IfName: "net1", Netns: "/a", StdinData: []byte(plain)}, "containerID"},
	} {
		err := dial(t, path).Call("DHCP.Allocate", tt.args, &current.Result{})
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: error is %v, want one with %q", name, err, tt.want)
		}
	}
}
