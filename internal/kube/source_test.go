package kube

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine/api"
)

// An outage is said once, and its end; that a kind is unknown is no outage.
func TestSourceSaysEachThingOnce(t *testing.T) {
	var log bytes.Buffer
	m := newMetrics(nil)
	s := &source{what: "networks", log: slog.New(slog.NewTextHandler(&log, nil)), failed: m.watchErrors.WithLabelValues("networks")}
	down := errors.New("connection refused")
	unknown := apierrors.NewNotFound(schema.GroupResource{}, "")
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for _, step := range []struct {
		ctx  context.Context
		err  error
		says string
	}{
		{t.Context(), nil, ""},
		{t.Context(), down, "cannot be watched"},
		{t.Context(), down, ""},
		{ended, nil, ""}, // the engine ends: it tells nothing of the API
		{t.Context(), nil, "is watched again"},
		{t.Context(), nil, ""},
		{t.Context(), apierrors.NewResourceExpired("too old"), ""},
		{t.Context(), unknown, "does not know such objects"},
		{t.Context(), unknown, ""},
		{t.Context(), down, "cannot be watched"},
		{t.Context(), unknown, "does not know such objects"},
		{t.Context(), nil, "is watched again"},
	} {
		log.Reset()
		s.note(step.ctx, step.err)
		if said := log.String(); (step.says == "") != (said == "") || !strings.Contains(said, step.says) {
			t.Errorf("after %v it says %q, want %q", step.err, said, step.says)
		}
	}
	if got := counted(t, s.failed); got != 3 {
		t.Errorf("%v failures counted, want 3", got)
	}
}

// Without an API nothing is known, and whoever asks may try again.
func TestWithoutAnAPI(t *testing.T) {
	c := alone(t)
	if err := c.Ready(); err == nil {
		t.Error("ready")
	}
	_, err := c.Facts(t.Context(), attachment("net1", ""))
	if api.CodeOf(err) != api.CodeTryAgain {
		t.Errorf("Facts: code %d, %v", api.CodeOf(err), err)
	}
	if marked, err := c.Marked(t.Context(), "lab/office"); marked || api.CodeOf(err) != api.CodeTryAgain {
		t.Errorf("Marked: %v, %v", marked, err)
	}
	if gone, err := c.Gone(t.Context(), attachment("net1", "").Pod); gone || err == nil {
		t.Errorf("Gone: %v, %v", gone, err)
	}
	for _, nad := range []string{"", "office", "/office", "lab/", "a/b/c"} {
		marked, err := c.Marked(t.Context(), nad)
		refused(t, err, "is no NetworkAttachmentDefinition")
		if marked {
			t.Errorf("%q is marked", nad)
		}
	}
}

// Who is away is asked again; what is answered is handed on, whatever it is.
func TestSourceInsists(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMetrics(nil)
		s := &source{what: "pods", log: silent(), failed: m.watchErrors.WithLabelValues("pods")}
		behind := apierrors.NewTimeoutError("Too large resource version", 1)
		answers := []error{
			errors.New("connection refused"),
			apierrors.NewServiceUnavailable("starting"),
			apierrors.NewUnauthorized("expired"),
			apierrors.NewInternalError(errors.New("etcd is away")),
			behind,
		}
		asked := 0
		begin := time.Now()
		err := s.insist(t.Context(), func() error {
			asked++
			return answers[asked-1]
		})
		if !errors.Is(err, behind) || asked != len(answers) {
			t.Errorf("%v after %d requests, want %v after %d", err, asked, behind, len(answers))
		}
		if took := time.Since(begin); took < 7*firstPause || took > 15*firstPause {
			t.Errorf("that took %v", took)
		}

		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
		defer cancel()
		asked = 0
		if err := s.insist(ctx, func() error { asked++; return answers[0] }); err == nil {
			t.Error("no error, and nobody answered")
		}
		if least := int(10 * time.Minute / lastPause); asked < least || asked > 2*least+5 {
			t.Errorf("asked %d times in ten minutes", asked)
		}
	})
}
