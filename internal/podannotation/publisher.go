// Package podannotation publishes leases in annotations of their pods: in
// OVN-Kubernetes' own where that plugs the interface, so that all who read it see
// the address, and in one of ours elsewhere.
//
// A Publisher writes when it is told of a lease, by one JSON patch that applies
// only to the very pod and the very text that it was made for, and so keeps what
// others write at the same time. What it could not write, and what others have
// changed since, it writes from Run, until it is told otherwise. Writes of one pod
// come one after the other, those of several pods side by side.
package podannotation

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/kubernetes"

	"github.com/dhcp-meta/dhcp-meta/internal/publish"
	"github.com/dhcp-meta/dhcp-meta/pkg/engine"
)

// Pods knows the pods of this node, as they were a moment ago.
type Pods interface {
	Pod(namespace, name string) (*corev1.Pod, bool)
}

// Config is what a Publisher needs.
type Config struct {
	// Client may get and patch pods; it needs no other right.
	Client kubernetes.Interface
	// Pods spares a Publisher to ask the API what it is about to change.
	Pods Pods
	Log  *slog.Logger
	// Metrics may be nil.
	Metrics prometheus.Registerer
}

// Publisher implements engine.Publisher. Its methods are safe for concurrent use.
type Publisher struct {
	cfg     Config
	table   publish.Table
	agenda  *agenda
	metrics *metrics

	mu    sync.Mutex
	works map[engine.Pod]*work
}

var _ engine.Publisher = (*Publisher)(nil)

// New makes a Publisher. PodChanged must be told of the pods' changes, and Run must
// run.
func New(cfg Config) *Publisher {
	p := &Publisher{cfg: cfg, agenda: newAgenda(), works: make(map[engine.Pod]*work)}
	p.metrics = newMetrics(cfg.Metrics, p.pending)
	return p
}

// Reset takes what an earlier sandbox of the pod has left out of the annotation,
// before the wrapped plugin reads it, and says of a virtual machine already that
// its address will come by DHCP. An entry that is not there yet is waited for by
// the wrapped plugin, not here. Our own annotation is read by no plugin, so that
// nobody waits for it.
func (p *Publisher) Reset(ctx context.Context, a engine.Attachment, w engine.Workload) error {
	if a.Pod.Name == "" {
		return nil
	}
	d, err := p.table.Reset(a, w)
	if err != nil {
		return err
	}
	if !d.OVN {
		p.workOf(d.Pod)
		p.agenda.add(d.Pod, time.Now())
		return nil
	}
	err = p.settle(ctx, d)
	if errors.Is(err, errNoEntry) {
		return nil // PodChanged will tell when it is there
	}
	return err
}

// Publish writes a lease into the annotation of its pod.
func (p *Publisher) Publish(ctx context.Context, pub engine.Publication) error {
	if pub.Pod.Name == "" {
		return nil
	}
	d, err := p.table.Publish(pub)
	if err != nil {
		return err
	}
	if pub.ByCaller {
		p.workOf(d.Pod).settle([]publish.Desired{d}, nil)
		return nil
	}
	return p.settle(ctx, d)
}

// Withdraw takes a lease out of the annotation of its pod. A pod that is gone has
// none.
func (p *Publisher) Withdraw(ctx context.Context, a engine.Attachment) error {
	if a.Pod.Name == "" {
		return nil
	}
	d, owner := p.table.Withdraw(a)
	if !owner {
		return nil
	}
	err := p.settle(ctx, d)
	if errors.Is(err, engine.ErrSuperseded) {
		return nil
	}
	return err
}

// Forget ends what is done for the attachment. Nothing is written.
func (p *Publisher) Forget(a engine.Attachment) {
	p.table.Forget(a)
	if a.Pod.Name != "" {
		p.tidy(a.Pod)
	}
}

// PodChanged is told of each change of a pod of this node: old is nil for a new
// one, pod for one that is gone. It does not block.
func (p *Publisher) PodChanged(old, pod *corev1.Pod) {
	if old != nil && (pod == nil || pod.UID != old.UID) {
		p.over(podOf(old))
	}
	if pod == nil {
		return
	}
	for _, key := range []engine.Pod{podOf(pod), {Namespace: pod.Namespace, Name: pod.Name}} {
		w := p.knownWork(key)
		if w == nil {
			continue
		}
		w.wake()
		now := time.Now()
		wait, sensible := w.holdOff(now)
		if pl := planFor(viewOf(pod), p.wanted(w)); sensible && len(pl.changes) > 0 {
			p.agenda.add(key, now.Add(wait))
		}
	}
}

func podOf(pod *corev1.Pod) engine.Pod {
	return engine.Pod{Namespace: pod.Namespace, Name: pod.Name, UID: string(pod.UID)}
}

// over forgets a pod that is gone.
func (p *Publisher) over(pod engine.Pod) {
	p.table.ForgetPod(pod)
	if w := p.knownWork(pod); w != nil {
		w.wake()
	}
	p.tidy(pod)
}

// workOf is the work on a pod, new if there is none yet.
func (p *Publisher) workOf(pod engine.Pod) *work {
	p.mu.Lock()
	defer p.mu.Unlock()
	w := p.works[pod]
	if w == nil {
		w = newWork(pod)
		p.works[pod] = w
	}
	return w
}

func (p *Publisher) knownWork(pod engine.Pod) *work {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.works[pod]
}

// tidy drops the work on a pod for which nothing is desired any longer.
func (p *Publisher) tidy(pod engine.Pod) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.ofPod(pod)) == 0 {
		delete(p.works, pod)
	}
}

// ofPod is what is desired for just this pod.
func (p *Publisher) ofPod(pod engine.Pod) []publish.Desired {
	var list []publish.Desired
	for _, d := range p.table.OfPod(pod) {
		if d.Pod == pod {
			list = append(list, d)
		}
	}
	return list
}

// wanted is what the annotations are to be held against: all that is desired for
// the pod but what has been withdrawn, and is out of them, and what stands in an entry
// that OVN-Kubernetes keeps itself: that gets what changes, and nothing is put back.
func (p *Publisher) wanted(w *work) []publish.Desired {
	var list []publish.Desired
	for _, d := range p.ofPod(w.pod) {
		if !d.Withdrawn && !keptByOVN(d) || !w.isSettled(d) {
			list = append(list, d)
		}
	}
	return list
}

// pending counts what is not written yet.
func (p *Publisher) pending() float64 {
	n := 0
	for _, d := range p.table.All() {
		if w := p.knownWork(d.Pod); w == nil || !w.isSettled(d) {
			n++
		}
	}
	return float64(n)
}

// settle writes until d is what the annotation says, or ctx ends, or there is
// nothing to try for. What is left then is done by Run.
func (p *Publisher) settle(ctx context.Context, d publish.Desired) error {
	w := p.workOf(d.Pod)
	w.enter()
	defer w.leave()
	began, ask := time.Now(), false
	var before error
	away := false // one that has just started refuses all until it knows its roles
	for tries := 1; ; tries++ {
		changedC := w.changes()
		err := p.step(ctx, w, &d, ask)
		if err != nil && ctx.Err() != nil && before != nil && !errors.Is(err, engine.ErrSuperseded) {
			err = before // this try was cut off, and says nothing
		}
		before = err
		var e *apiError
		away = away || errors.As(err, &e) && e.outcome == unavailable
		switch {
		case err == nil, errors.Is(err, engine.ErrSuperseded):
			return err
		case lasting(err) && !(away && apierrors.IsForbidden(err)):
			p.agenda.add(d.Pod, time.Now().Add(interval(w.attempted(err), err)))
			return err
		case !errors.Is(err, errNoEntry):
			changedC = nil // a change of the pod mends nothing
		case d.Lease == nil:
			return err
		}
		retry := time.NewTimer(delay(tries, err))
		select {
		case <-retry.C:
			ask = true // in case that the watch has ended
			continue
		case <-changedC:
			retry.Stop()
			ask = false
			continue
		case <-ctx.Done():
		}
		retry.Stop()
		p.agenda.add(d.Pod, time.Now().Add(delay(tries, err)))
		return fmt.Errorf("%w (tried %d times in %s: %w)", err, tries, time.Since(began).Round(100*time.Millisecond), context.Cause(ctx))
	}
}
