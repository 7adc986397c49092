package kube

import (
	"context"
	"log/slog"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
)

// source is what a cache is filled from. It sees each request that the cache
// makes, so that it can say once that the API is away, and that it is back: the
// library tells of some of its failures only, and of no success.
type source struct {
	what   string
	lw     *cache.ListWatch
	log    *slog.Logger
	failed prometheus.Counter

	mu sync.Mutex
	// err is how the last request failed; nil when it did not. unknown says that
	// it failed since the API server does not know the kind at all.
	err     error
	unknown bool
}

func (c *Cluster) newSource(what string, lw *cache.ListWatch) *source {
	return &source{what: what, lw: lw, log: c.log, failed: c.metrics.watchErrors.WithLabelValues(what)}
}

func (s *source) listWatch() *cache.ListWatch {
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			list, err := s.lw.ListWithContext(ctx, o)
			s.note(ctx, err)
			return list, err
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			w, err := s.lw.WatchWithContext(ctx, o)
			s.note(ctx, err)
			return w, err
		},
	}
}

// note takes the outcome of a request. That a resource version has become too old
// is daily business: the cache lists anew.
func (s *source) note(ctx context.Context, err error) {
	if ctx.Err() != nil || apierrors.IsResourceExpired(err) || apierrors.IsGone(err) {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	unknown := apierrors.IsNotFound(err)
	switch news := s.err == nil || s.unknown != unknown; {
	case unknown && news:
		s.log.Warn("the Kubernetes API does not know such objects; looking for them now and then", "what", s.what)
	case err != nil && news:
		s.log.Warn("the Kubernetes API cannot be watched; going on with what is known", "what", s.what, "error", err)
	case err == nil && s.err != nil:
		s.log.Info("the Kubernetes API is watched again", "what", s.what)
	}
	if err != nil && !unknown {
		s.failed.Inc()
	}
	s.err, s.unknown = err, unknown
}

func (s *source) trouble() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

func (s *source) isUnknown() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.unknown
}
