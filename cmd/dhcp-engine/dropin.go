package main

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strconv"

	"golang.org/x/sync/errgroup"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine/api/server"
	"github.com/dhcp-meta/dhcp-meta/pkg/engine/cnidhcp"
)

// dropIn is the place of the reference dhcp daemon; the zero value: it is not taken.
type dropIn struct {
	server *cnidhcp.Server
	socket net.Listener
}

// openDropIn opens the socket of --dhcp-socket, or takes the one that systemd has
// opened. api is served on it too, so that our own dhcp plugin needs no other.
func openDropIn(cfg dropInConfig, eng cnidhcp.Engine, networks cnidhcp.Networks, api http.Handler, log *slog.Logger) (d dropIn, err error) {
	if cfg.socket == "" {
		return d, nil
	}
	given, err := cnidhcp.Activated()
	switch {
	case err != nil:
		return d, fmt.Errorf("socket for the dhcp plugin: %w", err)
	case given != nil:
		d.socket = server.Inherited(given, log)
	default:
		if d.socket, err = server.Listen(cfg.socket, log); err != nil {
			return d, err
		}
	}
	log.Info("dhcp-engine serves the dhcp plugin", "socket", d.socket.Addr().String(), "activated", given != nil)
	d.server = cnidhcp.New(cnidhcp.Config{
		Engine: eng, API: api, HostPrefix: cfg.hostPrefix, Timeout: cfg.timeout, Networks: networks, Log: log,
	})
	return d, nil
}

// start serves until ctx ends.
func (d dropIn) start(ctx context.Context, g *errgroup.Group) {
	if d.server != nil {
		g.Go(func() error { return d.server.Serve(ctx, d.socket) })
	}
}

// writePID writes the file of --pidfile, and returns what removes it.
func writePID(path string) (remove func(), err error) {
	if path == "" {
		return func() {}, nil
	}
	if err := os.WriteFile(path, []byte(strconv.Itoa(os.Getpid())), 0o644); err != nil {
		return nil, fmt.Errorf("--pidfile: %w", err)
	}
	return func() { _ = os.Remove(path) }, nil // a stale one is overwritten
}
