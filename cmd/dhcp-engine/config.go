package main

import (
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine/api"
)

// config is what `dhcp-engine run` was told, checked and with all defaults.
type config struct {
	stateDir       string
	socket         string
	metricsAddress string // empty: off
	pprofAddress   string // empty: off
	netnsRoots     []string
	// protected are networks that no route of a lease may reach: IPv4, without
	// host bits.
	protected []netip.Prefix
	// exchangesPerNetwork is how many sessions of a network may be in an exchange
	// at once.
	exchangesPerNetwork int
	// startupSpread is the time over which renewals and reboots that are due at
	// the start are spread; 0: all at once.
	startupSpread time.Duration
	logLevel      slog.Level
	logFormat     string // "text" or "json"
	kubernetes    kubernetesConfig
	northbound    northboundConfig
	vfio          vfioConfig
	dropIn        dropInConfig
	pidFile       string // empty: none
	// changed are the settings that do not have their default, for the log.
	changed []slog.Attr
}

// settings is changed as a group of the log: none when all have their defaults.
func (c config) settings() slog.Attr { return slog.GroupAttrs("settings", c.changed...) }

// maxSocket is the longest path that fits into a struct sockaddr_un.
const maxSocket = 107

// The ranges of the flags against herds.
const (
	maxExchanges     = 1000
	maxStartupSpread = 10 * time.Minute
)

// noNetworks is the value of --protected-network for none.
const noNetworks = "none"

// raw is a config as it was written.
type raw struct {
	stateDir, socket             *string
	metricsAddress, pprofAddress *string
	netnsRoots, protected        *[]string
	exchanges, spread            *string
	logLevel, logFormat          *string
	pidFile                      *string
	cluster                      rawCluster
	dropIn                       rawDropIn
}

func declare(environment variables) (*input, raw) {
	in := newInput("run", environment)
	return in, declareEngine(in)
}

// declareEngine declares the settings of the engine.
func declareEngine(in *input) raw {
	return raw{
		stateDir:       in.text("state-dir", "/var/lib/dhcp-meta", "`folder` for what must survive a restart"),
		socket:         in.text("socket", api.DefaultSocket, "`path` of the unix socket that the plugin talks to"),
		metricsAddress: in.text("metrics-address", "off", "`host:port` for /metrics, /healthz and /readyz, or off"),
		pprofAddress:   in.text("pprof-address", "off", "`host:port` for profiles of the program itself, below /debug/pprof/, or off"),
		netnsRoots: in.list("netns-root", []string{"/run/netns", "/var/run/netns", "/proc"},
			"`folder` below which network namespaces may lie; repeatable, in the variable separated by colons"),
		protected: in.list("protected-network", []string{noNetworks},
			"`prefix` of pods, services or nodes that no route of a lease may reach; repeatable, in the variable separated by colons"),
		exchanges: in.text("exchanges-per-network", "16", "`number` of exchanges at once on a network, 1 to 1000"),
		spread:    in.text("startup-spread", "10s", "`duration` over which what is due at the start is spread, 0 to 10m"),
		logLevel:  in.text("log-level", "info", "`level`: debug, info, warn or error"),
		logFormat: in.text("log-format", "text", "`format`: text or json"),
		pidFile:   in.text("pidfile", "", "`file` for the process id, removed at the end"),
		cluster:   declareCluster(in),
		dropIn:    declareDropIn(in),
	}
}

// parseConfig makes a config of flags and environment: a flag wins over its
// variable, a variable over the default, an empty variable is none. It touches
// nothing; its error is a usageError with all problems, one a line, or the help.
func parseConfig(args []string, environment variables) (config, error) {
	in, r := declare(environment)
	if err := in.parse(args); err != nil {
		return config{}, err
	}
	cfg := in.config(r)
	if err := in.err(); err != nil {
		return config{}, err
	}
	cfg.changed = in.changed()
	return cfg, nil
}

// config checks what declareEngine declared.
func (in *input) config(r raw) config {
	cfg := config{stateDir: *r.stateDir, socket: *r.socket, netnsRoots: *r.netnsRoots, logFormat: *r.logFormat, pidFile: *r.pidFile}
	in.check("state-dir", absolute(cfg.stateDir))
	in.check("socket", absolute(cfg.socket))
	if len(cfg.socket) > maxSocket {
		in.check("socket", fmt.Errorf("%q has %d bytes, a socket's path at most %d", cfg.socket, len(cfg.socket), maxSocket))
	}
	cfg.metricsAddress = in.address("metrics-address", *r.metricsAddress)
	cfg.pprofAddress = in.address("pprof-address", *r.pprofAddress)
	for _, root := range cfg.netnsRoots {
		in.check("netns-root", absolute(root))
	}
	cfg.protected = in.protected(*r.protected)
	cfg.exchangesPerNetwork = in.exchanges(*r.exchanges)
	cfg.startupSpread = in.spread(*r.spread)
	if !slices.Contains([]string{"debug", "info", "warn", "error"}, *r.logLevel) {
		in.check("log-level", fmt.Errorf("%q is none of debug, info, warn, error", *r.logLevel))
	} else if err := cfg.logLevel.UnmarshalText([]byte(*r.logLevel)); err != nil {
		in.check("log-level", err)
	}
	if cfg.logFormat != "text" && cfg.logFormat != "json" {
		in.check("log-format", fmt.Errorf("%q is neither text nor json", cfg.logFormat))
	}
	cfg.kubernetes, cfg.northbound, cfg.vfio = in.cluster(r.cluster)
	cfg.dropIn = in.dropIn(r.dropIn)
	if cfg.pidFile != "" {
		in.check("pidfile", absolute(cfg.pidFile))
	}
	return cfg
}

func (in *input) protected(texts []string) []netip.Prefix {
	if slices.Equal(texts, []string{noNetworks}) {
		return nil
	}
	var networks []netip.Prefix
	for _, text := range texts {
		p, err := netip.ParsePrefix(text)
		switch {
		case err != nil || !p.Addr().Is4():
			hint := ""
			if strings.Contains(text, ",") {
				hint = "; a variable has colons between several"
			}
			in.check("protected-network", fmt.Errorf("%q is no IPv4 prefix such as 10.244.0.0/16%s", text, hint))
		case p != p.Masked():
			in.check("protected-network", fmt.Errorf("%s has bits behind its mask; is %s meant?", p, p.Masked()))
		case !slices.Contains(networks, p):
			networks = append(networks, p)
		}
	}
	return networks
}

func (in *input) exchanges(text string) int {
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 || n > maxExchanges {
		in.check("exchanges-per-network", fmt.Errorf("%q is no number from 1 to %d", text, maxExchanges))
	}
	return n
}

func (in *input) spread(text string) time.Duration {
	d, err := time.ParseDuration(text)
	if err != nil || d < 0 || d > maxStartupSpread {
		in.check("startup-spread", fmt.Errorf("%q is no duration from 0s to 10m", text))
	}
	return d
}

// address is where something is served; empty: nowhere.
func (in *input) address(name, text string) string {
	if text == "off" {
		return ""
	}
	in.check(name, hostPort(text))
	return text
}

func absolute(path string) error {
	if !filepath.IsAbs(path) {
		return fmt.Errorf("%q is no absolute path", path)
	}
	return nil
}

func hostPort(address string) error {
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		return fmt.Errorf("%q is not of the form host:port", address)
	}
	if _, err := strconv.ParseUint(port, 10, 16); err != nil {
		return fmt.Errorf("%q: port %q is no number up to 65535", address, port)
	}
	return nil
}
