package engine

import (
	"context"
	"errors"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine/api"
)

// A pod that was started while no engine answered, on a network of which the plugin
// could not know that it is marked, runs without an address, and the plugin has
// left a note. The engine gives it its lease late.

// lateTime bounds an attempt whose note names no time.
const lateTime = time.Minute

// The waits between two attempts for one note.
const (
	firstLate = 5 * time.Second
	lastLate  = 5 * time.Minute
)

// attempt is what has come of a note so far.
type attempt struct {
	next  time.Time // not before
	wait  time.Duration
	error string // that was logged last
}

// lookForLate has the notes looked through at once.
func (e *Engine) lookForLate() {
	select {
	case e.lateC <- struct{}{}:
	default: // it will be
	}
}

// serveLate looks through the notes until ctx ends: when one comes, when a mark may
// have changed, and from time to time.
func (e *Engine) serveLate(ctx context.Context) {
	tried := make(map[AttachmentID]*attempt)
	for {
		next := e.lateRound(ctx, tried)
		timer := time.NewTimer(next)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-e.lateC:
			timer.Stop()
		case <-timer.C:
		}
	}
}

// lateRound serves the notes whose time has come, and returns when the next one is
// due.
func (e *Engine) lateRound(ctx context.Context, tried map[AttachmentID]*attempt) time.Duration {
	passed, err := e.cfg.Store.Passed()
	if err != nil {
		e.cfg.Log.Warn("cannot tell which pods were started without dhcp-engine", "error", err)
		return patrolEvery
	}
	next := patrolEvery
	var g errgroup.Group
	g.SetLimit(sweepers)
	for id := range tried {
		if !slices.ContainsFunc(passed, func(r api.Request) bool { return r.AttachmentID == id }) {
			delete(tried, id)
		}
	}
	for _, r := range passed {
		t := tried[r.AttachmentID]
		if t == nil {
			t = &attempt{wait: firstLate}
			tried[r.AttachmentID] = t
		}
		if left := time.Until(t.next); left > 0 {
			next = min(next, left)
			continue
		}
		g.Go(func() error { e.serveNote(ctx, r, t); return nil })
	}
	_ = g.Wait()
	for _, t := range tried {
		if left := time.Until(t.next); left > 0 {
			next = min(next, left)
		}
	}
	return next
}

// serveNote does what is to be done about a note now.
func (e *Engine) serveNote(ctx context.Context, r api.Request, t *attempt) {
	if e.session(r.AttachmentID) != nil {
		return // it has been served; its end takes the note along
	}
	if e.podGone(ctx, r.Pod) || e.namespaceGone(ctx, Attachment{Netns: Netns{Path: r.Netns}}) {
		e.forgetPassed(r.AttachmentID)
		return
	}
	marked, err := e.Marked(ctx, r)
	if err == nil && marked {
		err = e.attachLate(ctx, r)
	}
	if err == nil || ctx.Err() != nil {
		t.wait, t.next, t.error = firstLate, time.Time{}, ""
		return
	}
	t.next = time.Now().Add(t.wait)
	t.wait = min(2*t.wait, lastLate)
	if text := err.Error(); text != t.error {
		t.error = text
		e.cfg.Log.Warn("pod that was started without dhcp-engine has no lease yet", "attachment", r.AttachmentID.String(),
			"pod", r.Pod.Namespace+"/"+r.Pod.Name, "nad", r.NAD, "error", err)
	}
}

// attachLate is an Attach that nobody waits for.
func (e *Engine) attachLate(ctx context.Context, r api.Request) error {
	if r.Timeout <= 0 {
		r.Timeout = lateTime
	}
	ctx, cancel := context.WithTimeout(ctx, r.Timeout)
	defer cancel()
	ctx, done, err := e.turns.take(ctx, r.AttachmentID)
	if err != nil {
		return err
	}
	defer done()
	if !e.isPassed(r.AttachmentID) || e.session(r.AttachmentID) != nil {
		return nil // its DEL has come, or it is served
	}
	l, err := e.attach(ctx, r, e.cfg.Now(), late)
	switch {
	case errors.Is(err, errDetached), errors.Is(err, errEnding):
		return nil
	case err != nil:
		return err
	}
	s := e.session(r.AttachmentID)
	s.log.Warn("pod was started without dhcp-engine, its lease comes late", "address", l.Address)
	s.report(LateLease, "address "+l.Address+" comes late: the pod was started while no dhcp-engine answered")
	return nil
}

// isPassed tells whether the note of an attachment is still there.
func (e *Engine) isPassed(id AttachmentID) bool {
	passed, err := e.cfg.Store.Passed()
	return err == nil && slices.ContainsFunc(passed, func(r api.Request) bool { return r.AttachmentID == id })
}

// forgetPassed removes the note of an attachment that is over.
func (e *Engine) forgetPassed(id AttachmentID) {
	if err := e.cfg.Store.ForgetPassed(id); err != nil {
		e.cfg.Log.Warn("note of an ended attachment is not deleted", "attachment", id, "error", err)
	}
}
