package main

import (
	"context"
	crand "crypto/rand"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"golang.org/x/sync/errgroup"

	"github.com/dhcp-meta/dhcp-meta/internal/boot"
	"github.com/dhcp-meta/dhcp-meta/internal/build"
	"github.com/dhcp-meta/dhcp-meta/internal/nic"
	"github.com/dhcp-meta/dhcp-meta/pkg/engine"
	"github.com/dhcp-meta/dhcp-meta/pkg/engine/api/server"
	"github.com/dhcp-meta/dhcp-meta/pkg/engine/cnidhcp"
	"github.com/dhcp-meta/dhcp-meta/pkg/engine/store"
)

// serve builds the parts and runs them until ctx ends or one of them breaks.
// Then no lease is given back: records and addresses stay for the next engine.
func serve(ctx context.Context, cfg config, log *slog.Logger) error {
	// The lock of the state folder comes first: behind it, nobody else is at work
	// on these leases.
	records, err := store.Open(cfg.stateDir, log)
	if err != nil {
		return err
	}
	defer records.Close()
	removePID, err := writePID(cfg.pidFile)
	if err != nil {
		return err
	}
	defer removePID()
	links, err := nic.Open(nic.Config{Roots: append(cfg.dropIn.roots(cfg.netnsRoots), borrowedNetns), Logger: log})
	if err != nil {
		return err
	}
	registry := newRegistry()
	parts, err := newParts(cfg, log, registry)
	if err != nil {
		return err
	}
	parts.Links, parts.Store = kernel{links}, records
	var around outside
	if err := around.connect(cfg, &parts, registry); err != nil {
		return err
	}
	eng := engine.New(parts)
	networks, err := cfg.dropIn.readNetworks()
	if err != nil {
		return err
	}
	api := server.New(cnidhcp.Completed{Backend: eng, Networks: networks}, log)

	metrics, metricsAt, err := listenMetrics(cfg.metricsAddress)
	if err != nil {
		return err
	}
	if metrics != nil {
		defer metrics.Close()
	}
	socket, err := server.Listen(cfg.socket, log)
	if err != nil {
		return err
	}
	plugin, err := openDropIn(cfg.dropIn, eng, networks, api, log)
	if err != nil {
		socket.Close()
		return err
	}
	log.Info("dhcp-engine listens", "version", build.Version(), "socket", cfg.socket, "stateDir", cfg.stateDir,
		"metrics", metricsAt, "netnsRoots", cfg.netnsRoots)

	g, ctx := errgroup.WithContext(ctx)
	if metrics != nil {
		g.Go(func() error { return serveMetrics(ctx, metrics, api, registry) })
	}
	// The engine goes on until the last request is answered: a Detach that runs
	// when the signal comes is carried to its end.
	engineCtx, stopEngine := context.WithCancel(context.WithoutCancel(ctx))
	callers, callersCtx := errgroup.WithContext(ctx)
	callers.Go(func() error { return api.Serve(callersCtx, socket) })
	plugin.start(callersCtx, callers)
	g.Go(func() error {
		defer stopEngine()
		return callers.Wait()
	})
	g.Go(func() error { return eng.Run(engineCtx) })
	around.start(engineCtx, g)
	err = g.Wait()
	log.Info("dhcp-engine ends; leases stay")
	return err
}

// newParts are the parts of the engine that nothing has to be opened for.
func newParts(cfg config, log *slog.Logger, registry *prometheus.Registry) (engine.Config, error) {
	bootID, err := boot.ID()
	return engine.Config{
		Now: boot.Now, BootID: bootID,
		Protected: cfg.protected, ExchangesPerNetwork: cfg.exchangesPerNetwork, StartupSpread: cfg.startupSpread,
		Rand:    newRand,
		Log:     log,
		Metrics: engine.NewMetrics(registry),
	}, err
}

// newRand returns a source that nobody can guess: who knows the next transaction
// id can answer before the server.
func newRand() *rand.Rand {
	var seed [32]byte
	_, _ = crand.Read(seed[:]) // never fails, since Go 1.24
	return rand.New(rand.NewChaCha8(seed))
}

func newRegistry() *prometheus.Registry {
	info := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "dhcp_engine_build_info", Help: "Always 1; the version is its label.",
		ConstLabels: prometheus.Labels{"version": build.Version()},
	})
	info.Set(1)
	r := prometheus.NewRegistry()
	r.MustRegister(info, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return r
}

// listenMetrics returns where /metrics is served, for people too; nil: nowhere.
func listenMetrics(address string) (net.Listener, string, error) {
	if address == "" {
		return nil, "off", nil
	}
	l, err := net.Listen("tcp", address)
	if err != nil {
		return nil, "", fmt.Errorf("serve metrics: %w", err)
	}
	return l, l.Addr().String(), nil // with the port that :0 became
}

// serveMetrics serves /metrics, and the probes of api where kubelet reaches
// them, until ctx ends.
func serveMetrics(ctx context.Context, l net.Listener, api http.Handler, registry *prometheus.Registry) error {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	mux.Handle("GET /healthz", api)
	mux.Handle("GET /readyz", api)
	srv := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	stop := context.AfterFunc(ctx, func() { srv.Close() })
	defer stop()
	if err := srv.Serve(l); ctx.Err() == nil {
		return fmt.Errorf("serve metrics: %w", err)
	}
	return nil
}
