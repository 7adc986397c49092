package ovnnb

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/dhcp-meta/dhcp-meta/internal/publish"
	"github.com/dhcp-meta/dhcp-meta/pkg/engine"
)

const (
	// firstRetry and lastRetry are the waits between two tries to connect: a socket
	// comes back in a moment when ovnkube or its database is restarted.
	firstRetry = 50 * time.Millisecond
	lastRetry  = 3 * time.Second
	// sweep is how often ports are looked at without an event; sooner, from soon on,
	// while one of them is not right.
	sweep = 30 * time.Second
	soon  = time.Second
	// idleTime is how long a slot without lease and port is kept: an ADD that was
	// begun and never came back.
	idleTime = 10 * time.Minute
)

// errFought says that another writer does not give up.
var errFought = errors.New("another writer changes the port of OVN again and again")

// Run keeps a connection, and the ports right, until ctx ends, which is no error.
// It is called once.
func (p *Ports) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return p.stayConnected(ctx) })
	g.Go(func() error { return p.keepRight(ctx) })
	return g.Wait()
}

// stayConnected makes a connection again whenever it has gone.
func (p *Ports) stayConnected(ctx context.Context) error {
	wait := firstRetry
	for ctx.Err() == nil {
		db, err := p.dial(ctx)
		if err == nil {
			wait = firstRetry
			p.connected(db)
			err = db.run(ctx)
		}
		if ctx.Err() != nil {
			break
		}
		p.disconnected(err)
		select {
		case <-time.After(wait):
		case <-ctx.Done():
		}
		wait = min(2*wait, lastRetry)
	}
	p.disconnected(context.Canceled)
	return nil
}

// dial tries all addresses in turn.
func (p *Ports) dial(ctx context.Context) (*database, error) {
	addresses := p.addresses
	if addresses == nil {
		for _, path := range autoSockets {
			path = filepath.Join(p.cfg.Root, path)
			if _, err := os.Stat(path); err == nil {
				addresses = []string{"unix:" + path}
				break
			}
		}
		if addresses == nil {
			return nil, errors.New("no such socket")
		}
	}
	var problems []error
	for _, a := range addresses {
		db, err := dial(ctx, a, p.cfg.TLS, len(addresses) > 1, p.kick)
		if err == nil {
			return db, nil
		}
		problems = append(problems, fmt.Errorf("connect to %s: %w", a, err))
	}
	return nil, errors.Join(problems...)
}

func (p *Ports) connected(db *database) {
	p.mu.Lock()
	away := time.Since(p.since)
	p.db, p.away = db, nil
	p.mu.Unlock()
	p.told = false
	p.metrics.connected.Set(1)
	p.log.Info("connected to the north database of OVN", "address", db.address, "away", away.Round(time.Millisecond))
	p.kick()
}

// disconnected notes why there is no connection; an outage is told of once, and
// not at all while nobody has need of the database.
func (p *Ports) disconnected(err error) {
	p.mu.Lock()
	if p.db != nil {
		p.db, p.since = nil, time.Now()
	}
	p.away = err
	p.mu.Unlock()
	p.metrics.connected.Set(0)
	if !errors.Is(err, context.Canceled) && !p.told && p.Limited() != nil {
		p.told = true
		p.log.Warn("the north database of OVN is away", "address", p.where(), "error", err)
	}
	p.kick()
}

// kick wakes Run and all calls that wait. It does not block.
func (p *Ports) kick() {
	p.mu.Lock()
	close(p.changed)
	p.changed = make(chan struct{})
	p.mu.Unlock()
	p.wake()
}

// wake wakes Run alone.
func (p *Ports) wake() {
	select {
	case p.work <- struct{}{}:
	default:
	}
}

// keepRight looks at all ports when one has changed, and now and then.
func (p *Ports) keepRight(ctx context.Context) error {
	wait := soon
	again := time.NewTimer(wait)
	defer again.Stop()
	for {
		select {
		case <-p.work:
		case <-again.C:
			wait = min(2*wait, sweep)
		case <-ctx.Done():
			return nil
		}
		pending := 0
		if db, _ := p.current(); db != nil {
			pending = p.round(ctx, db)
		} else {
			pending = p.unwritten()
		}
		p.metrics.pending.Set(float64(pending))
		if pending == 0 {
			wait = sweep
		} else if wait == sweep {
			wait = soon
		}
		again.Reset(wait)
	}
}

// round makes all ports right, and returns how many are not.
func (p *Ports) round(ctx context.Context, db *database) (pending int) {
	uids := map[string]bool{}
	for _, d := range p.table.All() {
		uids[d.Pod.UID] = true
		err := p.attempt(ctx, db, d)
		switch {
		case err == nil:
			if s, _ := p.note(d); d.Lease == nil && p.idle(s) {
				p.table.Forget(d.Owner)
			}
		case ctx.Err() != nil:
			return pending
		case !errors.Is(err, engine.ErrSuperseded):
			pending++
			p.tell(d, err)
		}
	}
	p.prune()
	if ended, left, err := db.keep(ctx, uids); ended > 0 || err != nil {
		p.log.Debug("monitors of pods that are gone have ended", "ended", ended, "left", left, "error", err)
	}
	return pending
}

// tell says once of a lease that it cannot be written.
func (p *Ports) tell(d publish.Desired, err error) {
	s, _ := p.note(d)
	p.mu.Lock()
	told := s.told == d.Revision
	s.told = d.Revision
	p.mu.Unlock()
	if !told {
		p.log.Warn("port of OVN does not carry what it should", "attachment", d.Owner.AttachmentID.String(), "error", err)
	}
}

func (p *Ports) idle(s *slot) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !s.idle.IsZero() && time.Since(s.idle) > idleTime
}

// unwritten counts what waits for a database.
func (p *Ports) unwritten() int {
	n := 0
	for _, d := range p.table.All() {
		s, _ := p.note(d)
		p.mu.Lock()
		if s.right != d.Revision {
			n++
		}
		p.mu.Unlock()
	}
	return n
}

// prune forgets slots of which the table knows nothing any longer.
func (p *Ports) prune() {
	known := map[publish.Slot]bool{}
	for _, d := range p.table.All() {
		known[d.Slot] = true
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for s := range p.slots {
		if !known[s] {
			delete(p.slots, s)
		}
	}
}
