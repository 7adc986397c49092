package engine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"net/netip"
	"sync"
	"time"
)

// Config is what an engine is made of. What may be missing says so.
type Config struct {
	Links Links
	Store Store
	// Cluster tells of pods and networks; nil: everything is a container, on the
	// network that the caller describes.
	Cluster Cluster
	// Devices borrows virtual functions; nil: those on vfio-pci are refused.
	Devices Devices
	// Window bounds the time for which a device is borrowed; 0: only its caller does.
	Window time.Duration
	// Publisher, Reporter and Observer make leases and what happens to them known;
	// nil: nobody is told.
	Publisher Publisher
	Reporter  Reporter
	Observer  Observer
	// Limited tells what keeps leases from being known outside the node while ADDs
	// work, OVN's database that is away for instance; nil: nothing ever does.
	Limited func() error
	// ExchangesPerNetwork bounds the questions of one network that wait for their
	// answers at one time; at least 1.
	ExchangesPerNetwork int
	// Protected are the networks of pods, services and nodes, to which no route of a
	// lease may lead.
	Protected []netip.Prefix
	// StartupSpread is the time over which the exchanges of leases that are past
	// their T1 spread after a start; 0: none.
	StartupSpread time.Duration
	// Now is the boot clock: time.Unix(0, CLOCK_BOOTTIME). Leases are counted on
	// it, so that neither a step of the wall clock nor a restart of the engine
	// moves their end. BootID names the boot in which it counts.
	Now    func() time.Time
	BootID string
	// Rand returns a new source of transaction ids and jitter.
	Rand    func() *rand.Rand
	Log     *slog.Logger
	Metrics *Metrics
}

// timer fires when the boot clock shows at; never for the zero time.
func (c *Config) timer(at time.Time) *time.Timer {
	if at.IsZero() {
		return time.NewTimer(math.MaxInt64)
	}
	return time.NewTimer(at.Sub(c.Now()))
}

// Engine holds the sessions. Its verbs (see api.Backend) are safe for concurrent
// use; they wait until Run has restored the records.
type Engine struct {
	cfg   Config
	turns turns
	gates gates

	keepC     chan keeping
	restoredC chan struct{} // closed when the records are loaded
	stoppedC  chan struct{} // closed when Run ends
	words     words
	lateC     chan struct{} // at most one word that notes are to be looked through
	closing   closing

	mu       sync.Mutex
	sessions map[AttachmentID]*session
	seq      uint64
}

// New returns an engine that does nothing before Run.
func New(cfg Config) *Engine {
	e := &Engine{
		cfg:       cfg,
		gates:     gates{width: cfg.ExchangesPerNetwork},
		keepC:     make(chan keeping),
		restoredC: make(chan struct{}),
		stoppedC:  make(chan struct{}),
		words:     newWords(),
		lateC:     make(chan struct{}, 1),
		sessions:  make(map[AttachmentID]*session),
	}
	cfg.Metrics.collect(e)
	return e
}

// keeping asks Run for a keeper.
type keeping struct {
	s      *session
	readyC chan<- *keeper
}

// Run restores the records and keeps the leases until ctx ends; then it returns
// nil, with all leases kept on disk and on their interfaces. It fails when the
// records cannot be read. It is called once.
func (e *Engine) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer e.closing.wait()
	defer wg.Wait()
	defer close(e.stoppedC)
	defer cancel()

	if e.cfg.Devices != nil {
		if err := e.cfg.Devices.Heal(ctx); err != nil {
			e.cfg.Log.Error("a device that was left borrowed does not go back to vfio-pci", "error", err)
		}
	}
	restored, err := e.restore(ctx)
	if err != nil {
		return fmt.Errorf("restore: %w", err)
	}
	e.listen(ctx, &wg)
	for _, s := range restored.keep {
		s.keeper.Store(e.startKeeper(ctx, &wg, s))
	}
	wg.Go(func() { e.publishRestored(ctx, restored.rest) })
	close(e.restoredC)
	for {
		select {
		case k := <-e.keepC:
			k.readyC <- e.startKeeper(ctx, &wg, k.s)
		case <-ctx.Done():
			return nil
		}
	}
}

// listen starts what hears of the world, and looks around by itself.
func (e *Engine) listen(ctx context.Context, wg *sync.WaitGroup) {
	wg.Go(func() {
		e.watch(ctx, func() error { return e.cfg.Links.Watch(ctx, e.ended) })
	})
	wg.Go(func() {
		noted := func(id AttachmentID) { wg.Go(func() { e.noted(ctx, id) }) }
		e.watch(ctx, func() error { return e.cfg.Store.WatchEnded(ctx, noted) })
	})
	wg.Go(func() { e.patrol(ctx) })
	if e.cfg.Cluster == nil {
		return
	}
	wg.Go(func() {
		e.watch(ctx, func() error { return e.cfg.Cluster.Watch(ctx, e.heard) })
	})
	wg.Go(func() {
		e.watch(ctx, func() error { return e.cfg.Store.WatchPassed(ctx, func(AttachmentID) { e.lookForLate() }) })
	})
	wg.Go(func() { e.serveLate(ctx) })
}

// watchAgain is the wait before a watch is tried again. What keeps it from working
// is mostly that others have used up the node's inotify instances.
const watchAgain = time.Minute

// watch keeps a watch going until ctx ends. Leases do not hang on it: it makes
// known soon what is found out later anyway.
func (e *Engine) watch(ctx context.Context, watch func() error) {
	for warned := false; ; {
		err := watch()
		if err == nil || ctx.Err() != nil {
			return
		}
		if !warned {
			e.cfg.Log.Warn("watch does not work, trying again every minute", "error", err)
			warned = true
		}
		timer := time.NewTimer(watchAgain)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
	}
}

func (e *Engine) startKeeper(ctx context.Context, wg *sync.WaitGroup, s *session) *keeper {
	ctx, cancel := context.WithCancelCause(ctx)
	k := &keeper{cancel: cancel, doneC: make(chan struct{})}
	wg.Go(func() {
		defer close(k.doneC)
		defer cancel(nil)
		if s.keep(ctx) {
			e.remove(s)
		}
	})
	return k
}

// errStopping is the answer to an ADD while the engine shuts down.
var errStopping = errors.New("dhcp-engine is shutting down")

// keep hands the session to a keeper.
func (e *Engine) keep(s *session) error {
	readyC := make(chan *keeper, 1)
	select {
	case e.keepC <- keeping{s, readyC}:
		s.keeper.Store(<-readyC)
		return nil
	case <-e.stoppedC:
		return errStopping
	}
}

// letGo takes the session out of the table, or hands it to a keeper when a
// RELEASE of it waits in the outbox.
func (e *Engine) letGo(s *session) error {
	if s.look().phase == Releasing {
		return e.keep(s)
	}
	e.remove(s)
	return nil
}

// ended is told that a namespace has ended.
func (e *Engine) ended(path string) {
	for _, s := range e.all() {
		if s.att.Netns.Path == path {
			s.poke()
		}
	}
}

// awaitRestored waits until the sessions are those of the store.
func (e *Engine) awaitRestored(ctx context.Context) error {
	select {
	case <-e.restoredC:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-e.stoppedC:
		return errStopping
	}
}

// newSession makes a session for rec and puts it into the table.
func (e *Engine) newSession(rec Record) *session {
	s := &session{
		engine: e,
		cfg:    &e.cfg,
		log: e.cfg.Log.With("attachment", rec.AttachmentID.String(), "network", rec.Network,
			"pod", rec.Pod.Namespace+"/"+rec.Pod.Name),
		att:       rec.Attachment,
		plan:      planFor(rec.Workload, rec.VFIO),
		effective: rec.effective(),
		rec:       rec,
		goneC:     make(chan struct{}, 1),
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.seq++
	s.seq = e.seq
	e.sessions[rec.AttachmentID] = s
	return s
}

// session returns the session of id; nil when there is none.
func (e *Engine) session(id AttachmentID) *session {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.sessions[id]
}

// remove takes the session out of the table.
func (e *Engine) remove(s *session) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.sessions[s.att.AttachmentID] == s {
		delete(e.sessions, s.att.AttachmentID)
	}
}

// all returns the sessions.
func (e *Engine) all() []*session {
	e.mu.Lock()
	defer e.mu.Unlock()
	all := make([]*session, 0, len(e.sessions))
	for _, s := range e.sessions {
		all = append(all, s)
	}
	return all
}
