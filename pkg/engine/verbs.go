package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine/api"
)

var _ api.Backend = (*Engine)(nil)

// errDetached ends an ADD whose DEL came while it ran.
var errDetached = errors.New("canceled: DEL came while ADD was running")

// Marked tells whether the network of r is one of ours by its definition's
// annotation.
func (e *Engine) Marked(ctx context.Context, r api.Request) (bool, error) {
	if e.cfg.Cluster == nil || r.NAD == "" {
		return false, nil
	}
	marked, err := e.cfg.Cluster.Marked(ctx, r.NAD)
	return marked, api.WithCode(api.CodeTryAgain, err)
}

// both is errors.Join in one line, for people.
func both(a, b error) error {
	switch {
	case a == nil:
		return b
	case b == nil:
		return a
	}
	return fmt.Errorf("%w; %w", a, b)
}

// Check compares the interface with the lease; it changes and acquires nothing.
func (e *Engine) Check(ctx context.Context, r api.Request) (api.Lease, error) {
	if err := e.awaitRestored(ctx); err != nil {
		return api.Lease{}, api.WithCode(api.CodeTryAgain, err)
	}
	s := e.session(r.AttachmentID)
	if s == nil {
		return api.Lease{}, fmt.Errorf("no lease is kept for %s: its ADD was not served by this engine, or its record is lost", r.AttachmentID)
	}
	v := s.look()
	where := fmt.Sprintf("%s on network %s", r.AttachmentID, s.att.Network)
	switch {
	case !v.lease.Addr.IsValid():
		return api.Lease{}, fmt.Errorf("%s has no lease (%s); last error: %s", where, v.state, orNone(v.lastErr))
	case v.kept && v.lease.Expired(e.cfg.Now()):
		return api.Lease{}, fmt.Errorf("lease of %s for %s has expired", v.lease.Addr.Addr(), where)
	}
	var err error
	switch {
	case !v.setup.Addr.IsValid():
	case v.placed:
		err = e.cfg.Links.Verify(ctx, s.att.Target(), v.setup)
	default: // the address is its caller's, who may want it nowhere
		_, err = e.cfg.Links.Inspect(ctx, s.att.Target())
	}
	if err != nil {
		return api.Lease{}, fmt.Errorf("%s: %w", where, err)
	}
	return answer(v), nil
}

func orNone(s string) string {
	if s == "" {
		return "none"
	}
	return s
}

// Detach ends the attachment, also an ADD of it that is still running. It is
// carried through when its caller goes away.
func (e *Engine) Detach(ctx context.Context, id api.AttachmentID) error {
	if err := e.awaitRestored(ctx); err != nil {
		return api.WithCode(api.CodeTryAgain, err)
	}
	e.turns.interrupt(id, errDetached)
	return e.detach(ctx, id, func() bool { return true })
}

// detach ends the attachment if, when its turn has come, that is still wanted.
func (e *Engine) detach(ctx context.Context, id AttachmentID, wanted func() bool) error {
	// What is on its way out goes on when the caller goes away, and when another
	// DEL interrupts whose turn it is.
	ctx = context.WithoutCancel(ctx)
	_, done, err := e.turns.take(ctx, id)
	if err != nil {
		return err
	}
	defer done()
	if !wanted() {
		return nil
	}
	e.forgetPassed(id)
	s := e.session(id)
	switch {
	case s == nil:
		return e.cfg.Store.Delete(id) // a record may have come back with its disk
	case s.look().phase == Releasing: // its DEL has come before
		return e.cfg.Store.ForgetEnded(id)
	}
	s.stop()
	s.healDevice(ctx)
	s.end(ctx)
	return e.letGo(s)
}

// noted ends an attachment whose DEL found no engine that answered, and left a
// note; unless a new ADD has come since.
func (e *Engine) noted(ctx context.Context, id AttachmentID) {
	err := e.detach(ctx, id, func() bool {
		ended, err := e.cfg.Store.Ended()
		return err == nil && slices.Contains(ended, id)
	})
	if err != nil {
		e.cfg.Log.Warn("attachment whose DEL left a note is not ended", "attachment", id, "error", err)
	}
}

// sweepers is how many attachments a Sweep ends at once.
const sweepers = 8

// Sweep ends the attachments of a network that the runtime no longer knows.
func (e *Engine) Sweep(ctx context.Context, w api.Sweep) error {
	if err := e.awaitRestored(ctx); err != nil {
		return api.WithCode(api.CodeTryAgain, err)
	}
	var g errgroup.Group
	g.SetLimit(sweepers)
	for _, s := range e.all() {
		if s.att.Network != w.Network || slices.Contains(w.Valid, s.att.AttachmentID) {
			continue
		}
		s.log.Info("attachment is no longer valid, ending it")
		g.Go(func() error { return e.Detach(ctx, s.att.AttachmentID) })
	}
	return g.Wait()
}

// List returns what can be said of all attachments.
func (e *Engine) List(ctx context.Context) ([]api.Status, error) {
	if err := e.awaitRestored(ctx); err != nil {
		return nil, api.WithCode(api.CodeTryAgain, err)
	}
	sessions := e.all()
	slices.SortFunc(sessions, func(a, b *session) int {
		return cmp.Or(cmp.Compare(a.att.ContainerID, b.att.ContainerID), cmp.Compare(a.att.IfName, b.att.IfName))
	})
	list := make([]api.Status, 0, len(sessions))
	for _, s := range sessions {
		list = append(list, s.status(s.look()))
	}
	return list, nil
}

// Ready tells whether an ADD can be served now.
func (e *Engine) Ready() error {
	select {
	case <-e.restoredC:
	default:
		return errors.New("records are not restored yet")
	}
	select {
	case <-e.stoppedC:
		return errStopping
	default:
	}
	return e.cfg.Store.Check()
}

// Limited tells what keeps leases from being known outside the node.
func (e *Engine) Limited() error {
	if e.cfg.Limited == nil {
		return nil
	}
	return e.cfg.Limited()
}
