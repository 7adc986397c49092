package podannotation

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/dhcp-meta/dhcp-meta/internal/publish"
	"github.com/dhcp-meta/dhcp-meta/pkg/engine"
)

// The rate at which what others change is put back.
const (
	debounce  = 200 * time.Millisecond // others write several times in a row
	quiet     = 10 * time.Minute       // after which a fight is over
	stubborn  = 5                      // times in a row are a fight
	maxShifts = 9                      // debounce << 9 is more than a minute
)

// work is what is known of a pod whose annotations are written.
type work struct {
	pod engine.Pod
	// turnC holds a token for the one who may write.
	turnC chan struct{}

	// last is what the API answered last; only with the turn. stale says that the
	// API must be asked, refusal what it did not want to have changed.
	last    *view
	stale   bool
	refusal string

	mu       sync.Mutex
	changedC chan struct{} // closed at the next change of the pod
	settled  map[publish.Slot]uint64
	// callers is how many calls write themselves at the moment.
	callers int
	// failures counts attempts in a row that failed; until refusedUntil there is no
	// sense in another one.
	failures     int
	refusedUntil time.Time
	// putBacks counts how often in a row somebody else's change was undone.
	putBacks int
	lastBack time.Time
}

func newWork(pod engine.Pod) *work {
	w := &work{pod: pod, turnC: make(chan struct{}, 1), changedC: make(chan struct{}), settled: make(map[publish.Slot]uint64)}
	w.turnC <- struct{}{}
	return w
}

// changes is closed at the next change of the pod.
func (w *work) changes() <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.changedC
}

func (w *work) wake() {
	w.mu.Lock()
	defer w.mu.Unlock()
	close(w.changedC)
	w.changedC = make(chan struct{})
}

func (w *work) isSettled(d publish.Desired) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.settled[d.Slot] == d.Revision
}

// settle notes that what is desired is written.
func (w *work) settle(list []publish.Desired, problems map[publish.Slot]error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, d := range list {
		if problems[d.Slot] == nil {
			w.settled[d.Slot] = d.Revision
		}
	}
}

// enter and leave are for a call that writes itself.
func (w *work) enter() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.callers++
}

func (w *work) leave() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.callers--
}

func (w *work) busy() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.callers > 0
}

// holdOff is how long to wait before something is put back: the longer, the more
// often it had to be. It is not sensible while a call writes itself, since that
// puts back too, and after a refusal.
func (w *work) holdOff(now time.Time) (wait time.Duration, sensible bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if now.Sub(w.lastBack) > quiet {
		w.putBacks = 0
	}
	return min(debounce<<min(w.putBacks, maxShifts), slowest), w.callers == 0 && !now.Before(w.refusedUntil)
}

// undone counts that something was put back, and tells whether that makes it a
// fight.
func (w *work) undone(now time.Time) (fight bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.putBacks, w.lastBack = w.putBacks+1, now
	return w.putBacks == stubborn
}

// attempted counts attempts of Run: the number of those that failed in a row, this
// one among them, or before this one where it did not.
func (w *work) attempted(err error) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.refusedUntil = time.Time{}
	if err != nil {
		var e *apiError
		if errors.As(err, &e) && e.outcome == refused {
			w.refusedUntil = time.Now().Add(slowest)
		}
		w.failures++
		return w.failures
	}
	before := w.failures
	w.failures = 0
	return before
}

func (w *work) failing() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.failures > 0
}

// step makes the pod's annotations as they should be, as far as that can be done
// now. The error is about d, or without one about all. With ask the cache will not
// do.
func (p *Publisher) step(ctx context.Context, w *work, d *publish.Desired, ask bool) error {
	select {
	case <-w.turnC:
	case <-ctx.Done():
		return fmt.Errorf("annotate pod %s/%s: wait for an earlier write: %w", w.pod.Namespace, w.pod.Name, context.Cause(ctx))
	}
	defer func() { w.turnC <- struct{}{} }()
	w.stale = w.stale || ask
	v, err := p.look(ctx, w)
	if err != nil {
		return p.ended(w, err)
	}
	for {
		// What is desired is read as late as can be, so that a sandbox that has been
		// superseded by now writes nothing.
		wanted := p.wanted(w)
		if d != nil && !p.table.Current(*d) {
			return fmt.Errorf("%s of pod %s/%s: %w", d.Owner.AttachmentID, d.Pod.Namespace, d.Pod.Name, engine.ErrSuperseded)
		}
		pl := planFor(v, wanted)
		if len(pl.changes) > 0 {
			if v, err = p.write(ctx, w, v, pl, wanted); err != nil {
				return p.ended(w, err)
			}
		}
		if pl.again {
			continue
		}
		w.settle(wanted, pl.problems)
		if d != nil {
			return pl.problems[d.Slot]
		}
		var all []error
		for _, err := range pl.problems {
			all = append(all, err)
		}
		return errors.Join(all...)
	}
}

// ended forgets the pod where the error says that it is gone.
func (p *Publisher) ended(w *work, err error) error {
	if errors.Is(err, engine.ErrSuperseded) {
		p.over(w.pod)
	}
	return err
}

// look is the pod as it was seen last: in the API's last answer or in the cache,
// whichever is newer, or by asking where neither will do.
func (p *Publisher) look(ctx context.Context, w *work) (view, error) {
	v, seen := view{}, false
	if w.last != nil {
		v, seen = *w.last, true
	}
	if cached, ok := p.cfg.Pods.Pod(w.pod.Namespace, w.pod.Name); ok {
		if c := viewOf(cached); !seen || c.version > v.version {
			v, seen = c, true
		}
	}
	if !seen || w.stale || w.pod.UID != "" && v.uid != w.pod.UID {
		var err error
		if v, err = p.read(ctx, w.pod); err != nil {
			return v, err
		}
	}
	w.last, w.stale = &v, false
	if w.pod.UID != "" && v.uid != w.pod.UID {
		return v, fmt.Errorf("pod %s/%s has UID %s now, not %s: %w", w.pod.Namespace, w.pod.Name, v.uid, w.pod.UID, engine.ErrSuperseded)
	}
	return v, nil
}

// write carries a plan out.
func (p *Publisher) write(ctx context.Context, w *work, v view, pl plan, wanted []publish.Desired) (view, error) {
	after, err := p.patch(ctx, w.pod, v, pl.changes)
	if err != nil {
		// Whether it was written is known only to who looks.
		w.stale = true
		var e *apiError
		if errors.As(err, &e) && apierrors.IsInvalid(e.err) {
			if w.refusal == based(v) {
				e.outcome = refused // no test can have failed: nobody has changed anything
			}
			w.refusal = based(v)
		}
		return v, err
	}
	w.last, w.refusal = &after, ""
	if !pl.again {
		p.putBack(w, pl, wanted)
	}
	return after, nil
}

// putBack tells people of what others had changed and we have written again.
func (p *Publisher) putBack(w *work, pl plan, wanted []publish.Desired) {
	undone := false
	for _, d := range wanted {
		for _, slot := range pl.touched {
			undone = undone || slot == d.Slot && w.isSettled(d)
		}
	}
	if !undone {
		return
	}
	p.metrics.putBack.Inc()
	log := p.cfg.Log.With("pod", w.pod.Namespace+"/"+w.pod.Name)
	if w.undone(time.Now()) {
		log.Warn("somebody else keeps changing the pod's annotation, putting it back more slowly")
		return
	}
	log.Debug("annotation of the pod is put back")
}
