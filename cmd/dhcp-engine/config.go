package main

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine/api"
)

// config is what `dhcp-engine run` was told, checked and with all defaults.
type config struct {
	stateDir       string
	socket         string
	metricsAddress string // empty: off
	netnsRoots     []string
	logLevel       slog.Level
	logFormat      string // "text" or "json"
}

// maxSocket is the longest path that fits into a struct sockaddr_un.
const maxSocket = 107

var errKubernetes = errors.New("this build works without Kubernetes only: say --no-kubernetes")

// raw is a config as it was written.
type raw struct {
	stateDir, socket, metricsAddress *string
	netnsRoots                       *[]string
	logLevel, logFormat              *string
	noKubernetes                     *string
}

func declare(getenv func(string) string) (*input, raw) {
	in := newInput("run", getenv)
	return in, raw{
		stateDir:       in.text("state-dir", "/var/lib/dhcp-meta", "`folder` for what must survive a restart"),
		socket:         in.text("socket", api.DefaultSocket, "`path` of the unix socket that the plugin talks to"),
		metricsAddress: in.text("metrics-address", "off", "`host:port` for /metrics, /healthz and /readyz, or off"),
		netnsRoots: in.list("netns-root", []string{"/run/netns", "/var/run/netns", "/proc"},
			"`folder` below which network namespaces may lie; repeatable, in the variable separated by colons"),
		logLevel:     in.text("log-level", "info", "`level`: debug, info, warn or error"),
		logFormat:    in.text("log-format", "text", "`format`: text or json"),
		noKubernetes: in.boolean("no-kubernetes", "do without the Kubernetes API; required in this release"),
	}
}

// parseConfig makes a config of flags and environment: a flag wins over its
// variable, a variable over the default, an empty variable is none. It touches
// nothing; its error is a usageError with all problems, one a line, or the help.
func parseConfig(args []string, getenv func(string) string) (config, error) {
	in, r := declare(getenv)
	if err := in.parse(args); err != nil {
		return config{}, err
	}

	cfg := config{stateDir: *r.stateDir, socket: *r.socket, netnsRoots: *r.netnsRoots, logFormat: *r.logFormat}
	in.check("state-dir", absolute(cfg.stateDir))
	in.check("socket", absolute(cfg.socket))
	if len(cfg.socket) > maxSocket {
		in.check("socket", fmt.Errorf("%q has %d bytes, a socket's path at most %d", cfg.socket, len(cfg.socket), maxSocket))
	}
	if *r.metricsAddress != "off" {
		cfg.metricsAddress = *r.metricsAddress
		in.check("metrics-address", hostPort(cfg.metricsAddress))
	}
	for _, root := range cfg.netnsRoots {
		in.check("netns-root", absolute(root))
	}
	if !slices.Contains([]string{"debug", "info", "warn", "error"}, *r.logLevel) {
		in.check("log-level", fmt.Errorf("%q is none of debug, info, warn, error", *r.logLevel))
	} else if err := cfg.logLevel.UnmarshalText([]byte(*r.logLevel)); err != nil {
		in.check("log-level", err)
	}
	if cfg.logFormat != "text" && cfg.logFormat != "json" {
		in.check("log-format", fmt.Errorf("%q is neither text nor json", cfg.logFormat))
	}
	if on, err := strconv.ParseBool(*r.noKubernetes); err != nil {
		in.check("no-kubernetes", fmt.Errorf("%q is neither true nor false", *r.noKubernetes))
	} else if !on {
		in.problems = append(in.problems, errKubernetes)
	}
	if err := in.err(); err != nil {
		return config{}, err
	}
	return cfg, nil
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
