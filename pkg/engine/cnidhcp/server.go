package cnidhcp

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/rpc"
	"runtime/debug"
	"sync"
	"time"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine/api"
)

const (
	// maxCall bounds what is read from a connection, which carries one call.
	maxCall = 1 << 20
	// headerLimit is the time in which a connection must say what it wants.
	headerLimit = 10 * time.Second
	// shutdownLimit is what Serve grants to running calls at its end.
	shutdownLimit = 20 * time.Second
)

// Engine is what is asked of the engine.
type Engine interface {
	Attach(ctx context.Context, r api.Request) (api.Lease, error)
	Detach(ctx context.Context, id api.AttachmentID) error
}

// Config is what a Server is made of.
type Config struct {
	Engine Engine
	// API serves what is not of this language on the same socket; nil: nothing is.
	API http.Handler
	// HostPrefix is where the host's root is mounted here; empty: it is ours.
	HostPrefix string
	// Timeout bounds an Allocate; 0: only its caller does.
	Timeout  time.Duration
	Networks Networks
	Log      *slog.Logger
}

// Server serves the plugin's calls. It is safe for concurrent use.
type Server struct {
	cfg   Config
	mu    sync.Mutex
	conns map[net.Conn]bool
	calls sync.WaitGroup
}

// New returns a server that serves nobody before Serve.
func New(cfg Config) *Server { return &Server{cfg: cfg, conns: make(map[net.Conn]bool)} }

// Serve answers calls from l until ctx ends; running ones are then given a moment to
// end by themselves. It closes l.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	srv := &http.Server{
		Handler:           s,
		ReadHeaderTimeout: headerLimit,
		MaxHeaderBytes:    16 << 10,
		// What runs when ctx ends goes on, like the engine, to its end.
		BaseContext: func(net.Listener) context.Context { return context.WithoutCancel(ctx) },
		ErrorLog:    slog.NewLogLogger(s.cfg.Log.Handler(), slog.LevelWarn),
	}
	ended := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(ended)
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownLimit)
		defer cancel()
		if err := srv.Shutdown(ctx); err != nil {
			srv.Close()
		}
		s.drain(ctx)
	})
	err := srv.Serve(l)
	if stop() { // not cancelled: the listener broke
		srv.Close()
		return fmt.Errorf("serve the dhcp plugin: %w", err)
	}
	<-ended
	return nil
}

// drain waits for the calls that run, and breaks off those that do not end.
func (s *Server) drain(ctx context.Context) {
	done := make(chan struct{})
	go func() {
		s.calls.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-ctx.Done():
		s.mu.Lock()
		s.cfg.Log.Warn("calls of the dhcp plugin broken off at shutdown", "calls", len(s.conns), "waited", shutdownLimit)
		for c := range s.conns {
			c.Close()
		}
		s.mu.Unlock()
		<-done
	}
}

// connected is what the client of net/rpc waits for.
const connected = "HTTP/1.0 200 Connected to Go RPC\n\n"

// ServeHTTP makes a connection for net/rpc of a request as its client makes it.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch {
	case r.Method == http.MethodConnect && r.URL.Path == rpc.DefaultRPCPath:
	case s.cfg.API != nil:
		s.cfg.API.ServeHTTP(w, r)
		return
	default:
		http.NotFound(w, r)
		return
	}
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		s.cfg.Log.Warn("connection of the dhcp plugin is not served", "error", err)
		return
	}
	s.calls.Add(1)
	defer s.calls.Done()
	s.keep(conn, true)
	defer s.keep(conn, false)
	defer conn.Close()
	if err := conn.SetDeadline(time.Time{}); err != nil {
		return
	}
	if _, err := io.WriteString(conn, connected); err != nil {
		return // nobody is there any more
	}
	s.serveConn(r.Context(), conn)
}

func (s *Server) keep(conn net.Conn, open bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if open {
		s.conns[conn] = true
	} else {
		delete(s.conns, conn)
	}
}

// errCallerGone ends an Allocate whose caller has closed its connection.
var errCallerGone = errors.New("canceled: the dhcp plugin that asked has gone")

// serveConn serves the calls of a connection until its other end is closed. That is
// seen by reading the next call, which net/rpc does while one runs.
func (s *Server) serveConn(ctx context.Context, conn net.Conn) {
	defer func() {
		if v := recover(); v != nil {
			s.cfg.Log.Error("panic in a call of the dhcp plugin", "panic", v, "stack", string(debug.Stack()))
		}
	}()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	server := rpc.NewServer()
	if err := server.RegisterName("DHCP", &Calls{s: s, ctx: ctx}); err != nil {
		panic("cnidhcp: register: " + err.Error()) // it has the two methods, or no test passes
	}
	server.ServeConn(&watched{Conn: conn, left: maxCall, gone: func() { cancel(errCallerGone) }})
}

// watched is a connection that tells when there is nothing more to read from it. It
// is read by one goroutine.
type watched struct {
	net.Conn
	left int
	gone func()
}

func (w *watched) Read(p []byte) (int, error) {
	if w.left <= 0 {
		w.gone()
		return 0, fmt.Errorf("more than %d bytes in one connection", maxCall)
	}
	n, err := w.Conn.Read(p[:min(len(p), w.left)])
	w.left -= n
	if err != nil {
		w.gone()
	}
	return n, err
}
