// Package server serves the engine's HTTP interface on its unix socket; package
// api says what is spoken there and has the client.
//
// The interface has no versions to negotiate and no authentication of its own:
// the socket lies in a folder that only root may change, has mode 0600 from its
// first moment, and a connection whose peer is neither root nor the engine's
// own user is closed before a byte of it is read.
//
// The work for a request ends with its caller: a plugin that its runtime kills
// closes the connection, and the context of the Backend's call is cancelled.
// Detach alone is carried on with, for what it takes away is wanted by nobody.
package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"runtime/debug"
	"strconv"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine/api"
)

const (
	// maxBody bounds a request; the largest is a Sweep, some 90 bytes an
	// attachment.
	maxBody = 4 << 20
	// readLimit is the time in which a request must have come, which is written
	// at once. It does not bound the work.
	readLimit = 10 * time.Second
	// detachLimit bounds a Detach whose caller may have gone.
	detachLimit = 30 * time.Second
	// shutdownLimit is what Serve grants to running requests at its end. It is
	// below the 30 s that Kubernetes grants to a pod.
	shutdownLimit = 20 * time.Second
)

// Server is the http.Handler of the interface. It is safe for concurrent use.
type Server struct {
	backend api.Backend
	log     *slog.Logger
	mux     *http.ServeMux
	// detach and shutdown are detachLimit and shutdownLimit but in tests.
	detach, shutdown time.Duration
}

// New returns a server for b. It logs panics and peers that misbehave; errors
// of b go to the caller alone, who is the one to log them.
func New(b api.Backend, log *slog.Logger) *Server {
	s := &Server{backend: b, log: log, mux: http.NewServeMux(), detach: detachLimit, shutdown: shutdownLimit}
	for pattern, h := range map[string]handler{
		"POST /v1/attachments/{container}/{ifname}/prepare": s.prepareAttachment,
		"POST /v1/attachments/{container}/{ifname}/marked":  s.marked,
		"PUT /v1/attachments/{container}/{ifname}":          s.attach,
		"POST /v1/attachments/{container}/{ifname}/check":   s.check,
		"DELETE /v1/attachments/{container}/{ifname}":       s.detachAttachment,
		"POST /v1/attachments/{container}/{ifname}/renew":   s.renew,
		"POST /v1/attachments/{container}/{ifname}/rebind":  s.rebind,
		"POST /v1/attachments/{container}/{ifname}/release": s.release,
		"GET /v1/attachments":                               s.list,
		"POST /v1/probe":                                    s.probe,
		"POST /v1/sweep":                                    s.sweep,
		"GET /v1/status":                                    s.status,
		"GET /healthz":                                      s.healthy,
		"GET /readyz":                                       s.ready,
	} {
		s.mux.Handle(pattern, s.answer(h))
	}
	s.mux.Handle("/", s.answer(unknown))
	return s
}

// ServeHTTP answers one request.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) { s.mux.ServeHTTP(w, r) }

// Serve serves connections of l until ctx ends, and closes l. Then it takes no
// new ones, cancels the running requests but Detach, waits for all to answer,
// no longer than some 20 s, and returns nil. Any other end is an error.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	srv := &http.Server{
		Handler:        s,
		ReadTimeout:    readLimit,
		MaxHeaderBytes: 16 << 10,
		BaseContext:    func(net.Listener) context.Context { return ctx },
		ErrorLog:       slog.NewLogLogger(s.log.Handler(), slog.LevelWarn),
	}
	ended := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(ended)
		// ctx has ended, the wait for the requests must not have.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.shutdown)
		defer cancel()
		if err := srv.Shutdown(ctx); err != nil {
			s.log.Warn("requests broken off at shutdown", "waited", s.shutdown)
			srv.Close()
		}
	})
	err := srv.Serve(l)
	if stop() { // not cancelled: the listener broke
		srv.Close()
		return err
	}
	<-ended
	return nil
}

// handler does the work for a request: a value to be sent as JSON, nil for none.
type handler func(r *http.Request, body []byte) (any, error)

// answer makes an http.Handler of h. Every answer with a body has a length, for
// the client asks for one, and every failure is a CNI error.
func (s *Server) answer(h handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		status, body := s.run(h, w, r)
		if body != nil {
			w.Header().Set("Content-Type", "application/json")
			w.Header().Set("Content-Length", strconv.Itoa(len(body)))
		}
		w.WriteHeader(status)
		// An error means that the caller has gone; nobody is left to be told.
		_, _ = w.Write(body)
	})
}

// run calls h and returns what to answer. A panic costs the request, not the
// leases of the node.
func (s *Server) run(h handler, w http.ResponseWriter, r *http.Request) (status int, body []byte) {
	defer func() {
		if v := recover(); v != nil {
			s.log.Error("panic in a request", "method", r.Method, "path", r.URL.Path, "panic", v, "stack", string(debug.Stack()))
			status, body = failure(errors.New("dhcp-engine panicked: its log has the stack"))
		}
	}()
	in, err := readBody(w, r)
	if err != nil {
		return failure(err)
	}
	out, err := h(r, in)
	if err != nil {
		return failure(err)
	}
	if out == nil {
		return http.StatusNoContent, nil
	}
	if body, err = json.Marshal(out); err != nil {
		return failure(fmt.Errorf("encode the answer: %w", err))
	}
	return http.StatusOK, body
}

// readBody reads the body to its end, which is also when net/http begins to
// watch whether the caller is still there.
func readBody(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		return nil, badRequest(fmt.Errorf("read the request: %w", err))
	}
	return body, nil
}

// failure turns err into a status and a CNI error. The code is what counts; the
// status is for people with curl.
func failure(err error) (int, []byte) {
	e, ok := err.(*types.Error) // not errors.As: what wraps one has more to say
	if !ok {
		e = &types.Error{Code: codeOf(err), Msg: err.Error()}
	}
	body, err2 := json.Marshal(e)
	if err2 != nil {
		panic("server: encode a CNI error: " + err2.Error()) // two strings and a number
	}
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		return http.StatusRequestEntityTooLarge, body
	case errors.Is(err, errUnknown), e.Code == api.CodeUnknown:
		return http.StatusNotFound, body
	}
	switch e.Code {
	case api.CodeConfig, api.CodeEnv, types.ErrDecodingFailure:
		return http.StatusBadRequest, body
	case api.CodeTryAgain, api.CodeNotReady, api.CodeLimited:
		return http.StatusServiceUnavailable, body
	}
	return http.StatusInternalServerError, body
}

func codeOf(err error) uint {
	code := api.CodeOf(err)
	// Work that was cancelled while its caller still listens was cancelled by a
	// shutdown.
	if code == api.CodeInternal && (errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)) {
		return api.CodeTryAgain
	}
	return code
}
