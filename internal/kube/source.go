package kube

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

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
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (list runtime.Object, err error) {
			err = s.insist(ctx, func() error {
				list, err = s.lw.ListWithContext(ctx, o)
				return err
			})
			return list, err
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (w watch.Interface, err error) {
			err = s.insist(ctx, func() error {
				w, err = s.lw.WatchWithContext(ctx, o)
				return err
			})
			return w, err
		},
	}
}

// The pauses between two attempts, of which a random part is waited: after an
// outage not all nodes come at once. The library's own grow to a minute, for which
// a pod's new annotation would not be seen.
const (
	firstPause = 500 * time.Millisecond
	lastPause  = 8 * time.Second
)

// insist makes a request again until the API answers, or ctx ends. What it answers
// is the library's to deal with.
func (s *source) insist(ctx context.Context, request func() error) error {
	for pause := firstPause; ; pause = min(2*pause, lastPause) {
		err := request()
		s.note(ctx, err)
		if err == nil || !isAway(err) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(pause/2 + rand.N(pause/2)):
		}
	}
}

// isAway tells of an error whether there is no API server to talk to, or only a
// part of one. A timeout is the library's: it may mean that the server is behind
// what was seen of it before.
func isAway(err error) bool {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return true
	}
	return apierrors.IsUnauthorized(err) || apierrors.IsForbidden(err) || apierrors.IsInternalError(err) || apierrors.IsServiceUnavailable(err)
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
