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
	"os"
	"runtime/debug"
	"sync"
	"time"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine/api"
)

const (
	// maxCall bounds what is read from a connection, which carries one call.
	maxCall = 1 << 20
	// headerLimit is the time in which a connection must say what it wants. It does
	// not bound the calls.
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
	cfg Config

	mu sync.Mutex
	// callers are those of net/rpc that are served, conns their connections.
	callers int
	conns   map[net.Conn]bool
	// ended is closed when the last of callers has left; nil: they may come still.
	ended chan struct{}
}

// New returns a server that serves nobody before Serve.
func New(cfg Config) *Server { return &Server{cfg: cfg, conns: make(map[net.Conn]bool)} }

// Serve answers calls from l until ctx ends, and closes l. Then it takes no new ones,
// cancels each Allocate that runs, waits for all to answer, no longer than some 20 s,
// and returns nil. Any other end is an error.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	calls, end := context.WithCancelCause(context.WithoutCancel(ctx))
	defer end(nil)
	srv := &http.Server{
		Handler:        s,
		ReadTimeout:    headerLimit,
		MaxHeaderBytes: 16 << 10,
		BaseContext:    func(net.Listener) context.Context { return calls },
		ErrorLog:       slog.NewLogLogger(s.cfg.Log.Handler(), slog.LevelWarn),
	}
	ended := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(ended)
		end(errEnding)
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
	s.mu.Lock()
	s.ended = make(chan struct{})
	if s.callers == 0 {
		close(s.ended)
	}
	for c := range s.conns {
		s.noMore(c)
	}
	s.mu.Unlock()
	select {
	case <-s.ended:
	case <-ctx.Done():
		s.mu.Lock()
		s.cfg.Log.Warn("calls of the dhcp plugin broken off at shutdown", "calls", len(s.conns), "waited", shutdownLimit)
		for c := range s.conns {
			c.Close()
		}
		s.mu.Unlock()
		<-s.ended
	}
}

// enter counts a caller, unless it comes too late.
func (s *Server) enter() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended != nil {
		return false
	}
	s.callers++
	return true
}

func (s *Server) leave() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.callers--
	if s.callers == 0 && s.ended != nil {
		close(s.ended)
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
	if !s.enter() { // before the connection is out of the sight of http.Server
		http.Error(w, "dhcp-engine ends", http.StatusServiceUnavailable)
		return
	}
	defer s.leave()
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		s.cfg.Log.Warn("connection of the dhcp plugin is not served", "error", err)
		return
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Time{}); err != nil {
		return
	}
	s.keep(conn, true)
	defer s.keep(conn, false)
	if _, err := io.WriteString(conn, connected); err != nil {
		return // nobody is there any more
	}
	s.serveConn(r.Context(), conn)
}

func (s *Server) keep(conn net.Conn, open bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !open {
		delete(s.conns, conn)
		return
	}
	s.conns[conn] = true
	if s.ended != nil {
		s.noMore(conn)
	}
}

// noMore has net/rpc read no further call from a connection: it answers the one that
// runs, and ends.
func (s *Server) noMore(conn net.Conn) {
	_ = conn.SetReadDeadline(time.Unix(1, 0)) // an error means that it has ended
}

// errEnding ends an Allocate at the end of the engine: the caller's next try finds the
// next engine.
var errEnding = errors.New("canceled: dhcp-engine ends")

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
	server.ServeConn(&watched{Conn: conn, left: maxCall, gone: cancel})
}

// watched is a connection that tells when there is nothing more to read from it. It
// is read by one goroutine.
type watched struct {
	net.Conn
	left int
	gone func(error)
}

func (w *watched) Read(p []byte) (int, error) {
	if w.left <= 0 {
		w.gone(errCallerGone)
		return 0, fmt.Errorf("more than %d bytes in one connection", maxCall)
	}
	n, err := w.Conn.Read(p[:min(len(p), w.left)])
	w.left -= n
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded): // see noMore
		w.gone(errEnding)
	case err != nil:
		w.gone(errCallerGone)
	}
	return n, err
}
