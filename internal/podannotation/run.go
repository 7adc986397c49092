package podannotation

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine"
)

// hands is how many pods are written side by side by Run.
const hands = 4

// Run writes what could not be written when it was told, and puts back what others
// have changed, until ctx ends; that is no error.
func (p *Publisher) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	freeC := make(chan struct{}, hands)
	for {
		pod, ok := p.agenda.next(ctx)
		if !ok {
			return nil
		}
		select {
		case freeC <- struct{}{}:
		case <-ctx.Done():
			return nil
		}
		wg.Go(func() {
			defer func() { <-freeC }()
			p.mend(ctx, pod)
		})
	}
}

// mend makes one attempt at a pod.
func (p *Publisher) mend(ctx context.Context, pod engine.Pod) {
	w := p.knownWork(pod)
	if w == nil {
		return
	}
	if w.busy() {
		p.agenda.add(pod, time.Now().Add(fastest<<maxShifts))
		return
	}
	limited, cancel := context.WithTimeout(ctx, 2*patience)
	defer cancel()
	err := p.step(limited, w, nil, w.failing())
	if ctx.Err() != nil || errors.Is(err, engine.ErrSuperseded) {
		return
	}
	failures := w.attempted(err)
	log := p.cfg.Log.With("pod", pod.Namespace+"/"+pod.Name)
	switch {
	case err == nil && failures > 0:
		log.Info("annotation of the pod is written after all", "tries", failures+1)
	case err == nil:
	case failures == 1:
		log.Warn("annotation of the pod cannot be written yet, trying again", "error", err)
	default:
		log.Debug("annotation of the pod cannot be written yet", "error", err, "tries", failures)
	}
	if err != nil {
		p.agenda.add(pod, time.Now().Add(interval(failures, err)))
	}
}

// interval is how long Run waits after so many failures in a row.
func interval(failures int, err error) time.Duration {
	var e *apiError
	switch {
	case errors.As(err, &e) && e.outcome == refused:
		// An API server that has just started refuses all until it knows its roles.
		return min(2*time.Second<<min(failures-1, 5), slowest)
	case lasting(err):
		return slowest // until the annotation changes
	}
	// An API server that comes back is a matter of seconds, and pods wait for it.
	return max(min(delay(1, err)<<min(failures, maxShifts), absence), delay(1, err))
}

// agenda says which pod is to be looked at when.
type agenda struct {
	mu    sync.Mutex
	due   map[engine.Pod]time.Time
	wakeC chan struct{} // has a token when something has been added
}

func newAgenda() *agenda {
	return &agenda{due: make(map[engine.Pod]time.Time), wakeC: make(chan struct{}, 1)}
}

// add puts a pod on the agenda; where it stands there already the earlier time
// counts.
func (a *agenda) add(pod engine.Pod, at time.Time) {
	a.mu.Lock()
	if before, there := a.due[pod]; !there || at.Before(before) {
		a.due[pod] = at
	}
	a.mu.Unlock()
	select {
	case a.wakeC <- struct{}{}:
	default:
	}
}

// next waits for the first pod that is due, and takes it off.
func (a *agenda) next(ctx context.Context) (engine.Pod, bool) {
	for {
		pod, wait, any := a.first(time.Now())
		if any && wait <= 0 {
			return pod, true
		}
		var dueC <-chan time.Time
		if any {
			dueC = time.After(wait)
		}
		select {
		case <-dueC:
		case <-a.wakeC:
		case <-ctx.Done():
			return engine.Pod{}, false
		}
	}
}

// first is the pod that is due first and the time until then; one that is due now
// is taken off.
func (a *agenda) first(now time.Time) (pod engine.Pod, wait time.Duration, any bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	var at time.Time
	for p, due := range a.due {
		if !any || due.Before(at) {
			pod, at, any = p, due, true
		}
	}
	if wait = at.Sub(now); any && wait <= 0 {
		delete(a.due, pod)
	}
	return pod, wait, any
}
