package main

import (
	"context"
	crand "crypto/rand"
	"log/slog"
	"math/rand/v2"
	"net"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
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
	calls := watched{eng, newGarbage()}
	networks, err := cfg.dropIn.readNetworks()
	if err != nil {
		return err
	}
	api := server.New(cnidhcp.Completed{Backend: calls, Networks: networks}, log)

	metrics, err := listenFor("metrics", cfg.metricsAddress, metricsHandler(api, registry))
	if err != nil {
		return err
	}
	defer metrics.close()
	profiles, err := listenFor("profiles", cfg.pprofAddress, profilesHandler())
	if err != nil {
		return err
	}
	defer profiles.close()
	socket, err := server.Listen(cfg.socket, log)
	if err != nil {
		return err
	}
	plugin, err := openDropIn(cfg.dropIn, calls, networks, api, log)
	if err != nil {
		socket.Close()
		return err
	}
	log.Info("dhcp-engine listens", "version", build.Version(), "socket", cfg.socket, "stateDir", cfg.stateDir,
		"metrics", metrics.at(), "pprof", profiles.at(), "netnsRoots", cfg.netnsRoots, cfg.settings())

	err = running{eng, api, socket, plugin, []*listener{metrics, profiles}, around}.run(ctx)
	log.Info("dhcp-engine ends; leases stay")
	return err
}

// running is all that runs as long as the program does.
type running struct {
	engine *engine.Engine
	api    *server.Server
	socket net.Listener
	plugin dropIn
	// listeners may be nil.
	listeners []*listener
	around    outside
}

// run ends with ctx, or when a part breaks.
func (r running) run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	for _, l := range r.listeners {
		l.start(ctx, g)
	}
	// The engine goes on until the last request is answered: a Detach that runs
	// when the signal comes is carried to its end.
	engineCtx, stopEngine := context.WithCancel(context.WithoutCancel(ctx))
	callers, callersCtx := errgroup.WithContext(ctx)
	callers.Go(func() error { return r.api.Serve(callersCtx, r.socket) })
	r.plugin.start(callersCtx, callers)
	g.Go(func() error {
		defer stopEngine()
		return callers.Wait()
	})
	g.Go(func() error { return r.engine.Run(engineCtx) })
	r.around.start(engineCtx, g)
	return g.Wait()
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
