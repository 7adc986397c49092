package delegate

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine/api"
)

// away is an engine without a socket, for a clock that does not run: it does not
// answer before up, and hangs on what is set to hang.
type away struct {
	Engine                   // nil: nothing else is called
	up           time.Time   // when it answers; zero: never
	hangs        bool        // a stopped process: the kernel takes connections, nobody answers
	detachHangs  bool        // health is answered, Detach is not
	detachErrors []error     // of each Detach, nil after the last
	detached     []time.Time // when Detach was called
}

func (a *away) Healthy(ctx context.Context) error {
	if a.hangs {
		<-ctx.Done()
		return ctx.Err()
	}
	if a.up.IsZero() || time.Now().Before(a.up) {
		return fmt.Errorf("%w: connection refused", api.ErrUnreachable)
	}
	return nil
}

func (a *away) Detach(ctx context.Context, _ api.AttachmentID) error {
	a.detached = append(a.detached, time.Now())
	if a.detachHangs {
		<-ctx.Done()
		return ctx.Err()
	}
	if len(a.detachErrors) == 0 {
		return nil
	}
	err := a.detachErrors[0]
	a.detachErrors = a.detachErrors[1:]
	return err
}

func TestDetach(t *testing.T) {
	refused := errors.New("device is busy")
	gone := fmt.Errorf("%w: broke off", api.ErrUnreachable)
	tests := []struct {
		name   string
		engine away
		upIn   time.Duration // 0: never, unless the engine hangs in Detach alone
		want   error
		took   time.Duration
		calls  int
	}{
		{name: "OK at once", upIn: time.Nanosecond, took: awayPoll, calls: 1},
		{name: "OK a restart that ends in time", upIn: 1500 * time.Millisecond, took: 1500 * time.Millisecond, calls: 1},
		{name: "OK an engine that ends in the middle and comes back", upIn: time.Nanosecond, engine: away{detachErrors: []error{gone}}, took: 2 * awayPoll, calls: 2},
		{name: "bad away: no more than 2 s", want: errAway, took: awayLimit},
		{name: "bad hangs: no more than 2 s", engine: away{hangs: true}, want: errAway, took: awayLimit},
		{name: "bad slow: up to 10 s", upIn: time.Nanosecond, engine: away{detachHangs: true}, want: errAway, took: awayPoll + detachLimit, calls: 1},
		{name: "bad an error of the engine", upIn: time.Nanosecond, engine: away{detachErrors: []error{refused}}, want: refused, took: awayPoll, calls: 1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				start := time.Now()
				if tt.upIn > 0 {
					tt.engine.up = start.Add(tt.upIn)
				}
				err := detach(t.Context(), &tt.engine, testID(), detachLimit)
				if !errors.Is(err, tt.want) {
					t.Errorf("got %v, want %v", err, tt.want)
				}
				if took := time.Since(start); took != tt.took {
					t.Errorf("took %s, want %s", took, tt.took)
				}
				if got := len(tt.engine.detached); got != tt.calls {
					t.Errorf("%d calls of Detach, want %d", got, tt.calls)
				}
			})
		})
	}
}

func TestAttachTimeout(t *testing.T) {
	tests := []struct {
		name    string
		network time.Duration
		left    time.Duration // 0: no deadline
		want    time.Duration
	}{
		{"OK no limit at all", 0, 0, 0},
		{"OK the network's", 30 * time.Second, 0, 30 * time.Second},
		{"OK the network's is shorter", 30 * time.Second, time.Minute, 30 * time.Second},
		{"OK what is left", 0, time.Minute, time.Minute},
		{"OK what is left is shorter", 2 * time.Minute, time.Minute, time.Minute},
		{"OK nothing is left", 30 * time.Second, -time.Second, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx := t.Context()
				if tt.left != 0 {
					var cancel context.CancelFunc
					ctx, cancel = context.WithTimeout(ctx, tt.left)
					defer cancel()
				}
				if got := attachTimeout(ctx, tt.network); got != tt.want {
					t.Errorf("got %s, want %s", got, tt.want)
				}
			})
		})
	}
}
