package engine

import (
	"context"
	"sync"
)

// turns lets one verb at a time work on an attachment, in the order in which
// they came.
type turns struct {
	mu sync.Mutex
	m  map[AttachmentID]*turn
}

type turn struct {
	sem    chan struct{}
	users  int // holder and waiters
	cancel context.CancelCauseFunc
}

// take waits for the turn of id. The context that it returns ends with ctx, and
// by interrupt; done gives the turn back.
func (t *turns) take(ctx context.Context, id AttachmentID) (held context.Context, done func(), err error) {
	t.mu.Lock()
	if t.m == nil {
		t.m = make(map[AttachmentID]*turn)
	}
	u := t.m[id]
	if u == nil {
		u = &turn{sem: make(chan struct{}, 1)}
		t.m[id] = u
	}
	u.users++
	t.mu.Unlock()

	err = context.Cause(ctx)
	if err == nil {
		select {
		case u.sem <- struct{}{}:
		case <-ctx.Done():
			err = context.Cause(ctx)
		}
	}
	if err != nil {
		t.leave(id, u)
		return nil, nil, err
	}
	held, cancel := context.WithCancelCause(ctx)
	t.mu.Lock()
	u.cancel = cancel
	t.mu.Unlock()
	return held, func() {
		cancel(nil)
		t.mu.Lock()
		u.cancel = nil
		t.mu.Unlock()
		<-u.sem
		t.leave(id, u)
	}, nil
}

func (t *turns) leave(id AttachmentID, u *turn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if u.users--; u.users == 0 {
		delete(t.m, id)
	}
}

// interrupt ends the context of the verb whose turn it is, if there is one.
func (t *turns) interrupt(id AttachmentID, cause error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if u := t.m[id]; u != nil && u.cancel != nil {
		u.cancel(cause)
	}
}
