package publish

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine"
)

// grace is how long a call goes on for the others when the first has done its part.
// They keep what they were told, so what is cut off is not lost.
const grace = 2 * time.Second

// Both is a publisher that tells several, side by side. The error of the first is
// the error of the call; those of the rest are logged, since they go on by
// themselves. Reset waits for all: whatever they take away must be gone before the
// wrapped plugin runs.
func Both(log *slog.Logger, first engine.Publisher, rest ...engine.Publisher) engine.Publisher {
	return both{log, first, rest}
}

type both struct {
	log   *slog.Logger
	first engine.Publisher
	rest  []engine.Publisher
}

func (b both) Reset(ctx context.Context, a engine.Attachment, w engine.Workload) error {
	return b.tell(ctx, a, false, func(ctx context.Context, p engine.Publisher) error { return p.Reset(ctx, a, w) })
}

func (b both) Publish(ctx context.Context, p engine.Publication) error {
	return b.tell(ctx, p.Attachment, true, func(ctx context.Context, to engine.Publisher) error { return to.Publish(ctx, p) })
}

func (b both) Withdraw(ctx context.Context, a engine.Attachment) error {
	return b.tell(ctx, a, true, func(ctx context.Context, p engine.Publisher) error { return p.Withdraw(ctx, a) })
}

func (b both) Forget(a engine.Attachment) {
	b.first.Forget(a)
	for _, p := range b.rest {
		p.Forget(a)
	}
}

// tell makes a call to all. Where it is hasty, the rest has not much longer than
// the first.
func (b both) tell(ctx context.Context, a engine.Attachment, hasty bool, call func(context.Context, engine.Publisher) error) error {
	restCtx, cancel := context.WithCancel(ctx)
	defer cancel()
	var wg sync.WaitGroup
	for _, p := range b.rest {
		wg.Go(func() {
			if err := call(restCtx, p); err != nil && !errors.Is(err, engine.ErrSuperseded) {
				b.log.Warn("lease is not published everywhere yet", "attachment", a.AttachmentID.String(), "error", err)
			}
		})
	}
	err := call(ctx, b.first)
	if hasty {
		defer time.AfterFunc(grace, cancel).Stop()
	}
	wg.Wait()
	return err
}

var _ engine.Publisher = both{}
