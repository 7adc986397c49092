package kube

import (
	"context"
	"fmt"
	"log/slog"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/transport"
	"k8s.io/klog/v2"

	"github.com/dhcp-meta/dhcp-meta/internal/build"
)

// A node that starts sixty pods writes some two hundred requests; the API server
// has its own fairness besides.
const (
	requestsPerSecond = 50
	requestsAtOnce    = 100
)

// Connect returns how to reach the API server: by a kubeconfig file, or, when its
// path is empty, as a pod of the cluster. Nothing is sent.
func Connect(kubeconfig string) (*rest.Config, error) {
	var cfg *rest.Config
	var err error
	if kubeconfig == "" {
		if cfg, err = rest.InClusterConfig(); err != nil {
			return nil, fmt.Errorf("find the API server as a pod of the cluster: %w", err)
		}
	} else if cfg, err = clientcmd.BuildConfigFromFlags("", kubeconfig); err != nil {
		return nil, fmt.Errorf("read kubeconfig %s: %w", kubeconfig, err)
	}
	cfg.UserAgent = "dhcp-engine/" + build.Version()
	cfg.QPS, cfg.Burst = requestsPerSecond, requestsAtOnce
	return cfg, nil
}

// withFreshTokens has a token file read again every minute, as the library does by
// itself, and besides when the API server does not take the token any longer: an
// ADD that comes then needs no minute.
func withFreshTokens(cfg *rest.Config) *rest.Config {
	cfg = rest.CopyConfig(cfg)
	if cfg.BearerTokenFile == "" {
		return cfg
	}
	cfg.Wrap(transport.ResettableTokenSourceWrapTransport(transport.NewCachedFileTokenSource(cfg.BearerTokenFile)))
	cfg.BearerToken, cfg.BearerTokenFile = "", ""
	return cfg
}

// RedirectClientLog sends what the client library writes to standard error by
// itself to log, at debug. What matters of it is an error that somebody returns.
// What it writes for its own developers, the bodies of all answers among it, and so
// whatever stands in a pod, goes nowhere. It is for the whole process.
func RedirectClientLog(log *slog.Logger) { klog.SetSlogLogger(slog.New(quiet{log.Handler()})) }

// quiet is a handler that takes everything for debug, and what is below info for
// nothing: klog's verbosity n is the level -n.
type quiet struct{ slog.Handler }

func (q quiet) Enabled(ctx context.Context, level slog.Level) bool {
	return level >= slog.LevelInfo && q.Handler.Enabled(ctx, slog.LevelDebug)
}

func (q quiet) Handle(ctx context.Context, r slog.Record) error {
	r.Level = slog.LevelDebug
	return q.Handler.Handle(ctx, r)
}

func (q quiet) WithAttrs(attrs []slog.Attr) slog.Handler { return quiet{q.Handler.WithAttrs(attrs)} }
func (q quiet) WithGroup(name string) slog.Handler       { return quiet{q.Handler.WithGroup(name)} }
