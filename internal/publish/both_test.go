package publish

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine"
)

// listener is a publisher that takes its time and notes how its calls ended.
type listener struct {
	takes time.Duration
	err   error

	mu    sync.Mutex
	notes []string
}

func (l *listener) hear(ctx context.Context, what string) error {
	err := l.err
	select {
	case <-time.After(l.takes):
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	l.note(what, err)
	return err
}

func (l *listener) note(what string, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err != nil {
		what += ": " + err.Error()
	}
	l.notes = append(l.notes, what)
}

func (l *listener) Reset(ctx context.Context, _ engine.Attachment, _ engine.Workload) error {
	return l.hear(ctx, "reset")
}

func (l *listener) Publish(ctx context.Context, _ engine.Publication) error {
	return l.hear(ctx, "publish")
}

func (l *listener) Withdraw(ctx context.Context, _ engine.Attachment) error {
	return l.hear(ctx, "withdraw")
}

func (l *listener) Forget(engine.Attachment) { l.note("forget", nil) }

// tellAll makes all calls, and returns how long they took together, their errors,
// and the log.
func tellAll(t *testing.T, first, second *listener) (took time.Duration, errs []string, log string) {
	t.Helper()
	var buf bytes.Buffer
	p := Both(slog.New(slog.NewTextHandler(&buf, nil)), first, second)
	a := attachment("c1", "web", "default/lan")
	begin := time.Now()
	for _, err := range []error{
		p.Reset(t.Context(), a, engine.Container),
		p.Publish(t.Context(), engine.Publication{Attachment: a}),
		p.Withdraw(t.Context(), a),
	} {
		if err != nil {
			errs = append(errs, err.Error())
		}
	}
	took = time.Since(begin)
	p.Forget(a)
	return took, errs, buf.String()
}

func TestBothSideBySide(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first, second := &listener{takes: time.Second}, &listener{takes: time.Second}
		took, errs, log := tellAll(t, first, second)
		if took != 3*time.Second || len(errs) > 0 || log != "" {
			t.Errorf("took %s, errors %q, log %q", took, errs, log)
		}
		want := []string{"reset", "publish", "withdraw", "forget"}
		for i, l := range []*listener{first, second} {
			if diff := cmp.Diff(want, l.notes); diff != "" {
				t.Errorf("listener %d (-want +got):\n%s", i, diff)
			}
		}
	})
}

func TestBothErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		if _, errs, log := tellAll(t, &listener{err: errors.New("no")}, &listener{}); len(errs) != 3 || log != "" {
			t.Errorf("the first: errors %q, log %q", errs, log)
		}
		_, errs, log := tellAll(t, &listener{}, &listener{err: errors.New("database is away")})
		if len(errs) > 0 || strings.Count(log, "database is away") != 3 || !strings.Contains(log, "attachment=c1:net1") {
			t.Errorf("the second: errors %q, log %q", errs, log)
		}
		if _, errs, log = tellAll(t, &listener{}, &listener{err: engine.ErrSuperseded}); len(errs) > 0 || log != "" {
			t.Errorf("superseded at the second: errors %q, log %q", errs, log)
		}
	})
}

// A publisher that hangs holds an ADD up for a moment only; but what it takes away
// must be away before the wrapped plugin runs.
func TestBothWaitsForResetOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		second := &listener{takes: time.Minute}
		took, errs, _ := tellAll(t, &listener{takes: time.Second}, second)
		if want := time.Minute + 2*(time.Second+grace); took != want || len(errs) > 0 {
			t.Errorf("took %s, want %s; errors %q", took, want, errs)
		}
		want := []string{"reset", "publish: context canceled", "withdraw: context canceled", "forget"}
		if diff := cmp.Diff(want, second.notes); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
}
