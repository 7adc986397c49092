package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/pprof"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"golang.org/x/sync/errgroup"
)

// listener serves one handler over TCP. A nil one serves nothing.
type listener struct {
	what    string
	socket  net.Listener
	handler http.Handler
}

// listenFor opens the listener for what; without an address it is nil.
func listenFor(what, address string, handler http.Handler) (*listener, error) {
	if address == "" {
		return nil, nil
	}
	socket, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("serve %s: %w", what, err)
	}
	return &listener{what, socket, handler}, nil
}

// at tells where it serves, for people, with the port that :0 became.
func (l *listener) at() string {
	if l == nil {
		return "off"
	}
	return l.socket.Addr().String()
}

func (l *listener) close() {
	if l != nil {
		l.socket.Close()
	}
}

// start serves in g until ctx ends.
func (l *listener) start(ctx context.Context, g *errgroup.Group) {
	if l == nil {
		return
	}
	g.Go(func() error {
		srv := &http.Server{Handler: l.handler, ReadHeaderTimeout: 10 * time.Second}
		stop := context.AfterFunc(ctx, func() { srv.Close() })
		defer stop()
		if err := srv.Serve(l.socket); ctx.Err() == nil {
			return fmt.Errorf("serve %s: %w", l.what, err)
		}
		return nil
	})
}

// metricsHandler serves /metrics, and the probes of api where kubelet reaches them.
func metricsHandler(api http.Handler, registry *prometheus.Registry) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	mux.Handle("GET /healthz", api)
	mux.Handle("GET /readyz", api)
	return mux
}

// profilesHandler serves what `go tool pprof` asks for. The package registers it
// with http.DefaultServeMux too, which nobody serves.
func profilesHandler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	return mux
}
