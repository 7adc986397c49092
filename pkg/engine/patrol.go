package engine

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
)

// The patrol finds attachments that are over and that nobody ended: Multus sends
// neither GC nor CHECK to the plugins of secondary networks, a DEL may never come,
// and a namespace may go without a word. An attachment ends because its pod is
// gone or its namespace, never because somebody cannot be asked.

// patrolEvery is the time between two rounds.
const patrolEvery = 30 * time.Second

// goneTime bounds one question whether a pod is gone.
const goneTime = 10 * time.Second

// patrol makes rounds until ctx ends, and looks at once at attachments of pods of
// which the cluster says that they are gone.
func (e *Engine) patrol(ctx context.Context) {
	ticker := time.NewTicker(patrolEvery)
	defer ticker.Stop()
	seen := e.readClocks()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			seen = e.wake(seen)
			e.round(ctx, func(*session) bool { return true })
		case <-e.words.c:
			gone := e.words.take()
			e.round(ctx, func(s *session) bool { return gone[named(s.att.Pod)] })
		}
	}
}

// round looks at those attachments that are wanted.
func (e *Engine) round(ctx context.Context, wanted func(*session) bool) {
	var g errgroup.Group
	g.SetLimit(sweepers)
	for _, s := range e.all() {
		if wanted(s) {
			g.Go(func() error { e.inspect(ctx, s); return nil })
		}
	}
	_ = g.Wait()
}

// inspect ends an attachment that is over.
func (e *Engine) inspect(ctx context.Context, s *session) {
	v := s.look()
	switch {
	case v.phase == Releasing: // it has ended, and goes by the rules of the outbox
	case e.podGone(ctx, s.att.Pod):
		s.log.Info("pod is gone without DEL, ending its attachment", "address", v.held)
		e.cfg.Metrics.dead.WithLabelValues("pod").Inc()
		e.turns.interrupt(s.att.AttachmentID, fmt.Errorf("canceled: %w", ErrSuperseded))
		e.endDead(ctx, s)
	case v.phase == Orphaned, e.cfg.Cluster == nil && s.plan.Keep:
	case !e.namespaceGone(ctx, s.att):
	case v.phase == Superseded, !s.plan.Keep && v.phase == Leased:
		s.log.Info("network namespace is gone without DEL, ending the attachment", "address", v.held)
		e.cfg.Metrics.dead.WithLabelValues("namespace").Inc()
		e.endDead(ctx, s)
	default:
		s.poke() // it sees for itself, and keeps its lease for the pod's next sandbox
	}
}

// endDead ends the attachment of a session, unless another one is there meanwhile.
func (e *Engine) endDead(ctx context.Context, s *session) {
	id := s.att.AttachmentID
	if err := e.detach(ctx, id, func() bool { return e.session(id) == s }); err != nil {
		s.log.Warn("attachment that is over is not ended", "error", err)
	}
}

// podGone asks the cluster; that it cannot answer decides nothing.
func (e *Engine) podGone(ctx context.Context, pod Pod) bool {
	if e.cfg.Cluster == nil || pod.Name == "" {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, goneTime)
	defer cancel()
	gone, err := e.cfg.Cluster.Gone(ctx, pod)
	if err != nil {
		e.cfg.Log.Debug("cannot tell whether a pod is gone", "pod", pod.Namespace+"/"+pod.Name, "error", err)
		return false
	}
	return gone
}

// namespaceGone tells whether the namespace of an attachment has ended, or another
// one stands at its path.
func (e *Engine) namespaceGone(ctx context.Context, a Attachment) bool {
	_, err := e.cfg.Links.Inspect(ctx, Target{Netns: a.Netns})
	return errors.Is(err, ErrGone)
}

// poke has whoever keeps the session look at its interface and at the clock.
func (s *session) poke() {
	select {
	case s.goneC <- struct{}{}:
	default: // one word is waiting already
	}
}

// named is a pod without its UID, of which runtimes and API may have different ones.
func named(pod Pod) Pod { return Pod{Namespace: pod.Namespace, Name: pod.Name} }

// words are the pods, by name, of which the cluster has said that they are gone.
type words struct {
	c    chan struct{} // there are some
	mu   sync.Mutex
	pods map[Pod]bool
}

func newWords() words { return words{c: make(chan struct{}, 1)} }

func (w *words) say(pod Pod) {
	w.mu.Lock()
	if w.pods == nil {
		w.pods = make(map[Pod]bool)
	}
	w.pods[named(pod)] = true
	w.mu.Unlock()
	select {
	case w.c <- struct{}{}:
	default:
	}
}

func (w *words) take() map[Pod]bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	pods := w.pods
	w.pods = nil
	return pods
}

// heard takes what Cluster.Watch says.
func (e *Engine) heard(pod Pod) {
	switch {
	case pod == (Pod{}):
		e.lookForLate()
	case e.ending(pod):
		e.giveUp(pod)
	default:
		e.words.say(pod)
	}
}

// clocks are the boot clock and the one of Go's timers, which stands still while
// the machine is suspended.
type clocks struct{ boot, timers time.Time }

func (e *Engine) readClocks() clocks { return clocks{e.cfg.Now(), time.Now()} }

// maxDrift is how far the clocks may drift apart before leases are looked at.
const maxDrift = 5 * time.Second

// wake has all keepers look at the clock again when the machine was suspended: their
// timers are late by that time.
func (e *Engine) wake(before clocks) clocks {
	now := e.readClocks()
	slept := now.boot.Sub(before.boot) - now.timers.Sub(before.timers)
	if slept > maxDrift {
		e.cfg.Log.Info("machine was suspended, looking at all leases", "slept", slept.Round(time.Second))
		for _, s := range e.all() {
			s.poke()
		}
	}
	return now
}
