package ovnnb

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/dhcp-meta/dhcp-meta/internal/publish"
	"github.com/dhcp-meta/dhcp-meta/pkg/engine"
)

// ovnPlugin is the type of the plugin whose interfaces have a port.
const ovnPlugin = "ovn-k8s-cni-overlay"

// patience is how long a call waits for a database that has gone away. The lease is
// kept, and written when it is back, so nobody has to wait for that.
const patience = 2 * time.Second

var (
	errNoPort  = errors.New("OVN has no port of the pod on this network: is this the database of the pod's zone?")
	errAway    = errors.New("the north database of OVN is away")
	errChanged = errors.New("the port of OVN was made anew meanwhile")
)

// Ports keeps the ports of pods in step with their leases.
type Ports struct {
	cfg       Config
	addresses []string // nil: Auto
	log       *slog.Logger
	metrics   metrics
	table     publish.Table
	// turn is held by whoever works on ports: what two writers read and wrote would
	// mix otherwise.
	turn chan struct{}
	// work wakes Run.
	work chan struct{}
	// told says that this outage was told of; it is of the goroutine that connects.
	told bool

	mu sync.Mutex
	db *database // nil: away
	// since is when it went away, and away why.
	since time.Time
	away  error
	// changed is closed when something has changed that calls wait for.
	changed chan struct{}
	slots   map[publish.Slot]*slot
}

// slot is what is known of a place beside what is desired there.
type slot struct {
	// mac is that of the last lease.
	mac net.HardwareAddr
	// right is the revision that the port has carried.
	right uint64
	// told is the revision of which it was said that it cannot be written.
	told uint64
	// repairs bounds how often another writer is corrected.
	repairs *rate.Limiter
	// idle is since when there is neither lease nor port; zero: there is one.
	idle time.Time
}

// Another writer may change a port a few times in a row, as a controller that
// starts does; one that never gives up is answered twice a minute.
const (
	repairBurst = 5
	repairEvery = 30 * time.Second
)

var _ engine.Publisher = (*Ports)(nil)

// New checks cfg. It connects to nothing: Run does.
func New(cfg Config) (*Ports, error) {
	addresses, err := cfg.addresses()
	if err != nil {
		return nil, err
	}
	p := &Ports{
		cfg: cfg, addresses: addresses, log: cfg.Log, metrics: newMetrics(cfg.Metrics),
		turn: make(chan struct{}, 1), work: make(chan struct{}, 1),
		since: time.Now(), away: errors.New("no connection has been tried yet"),
		changed: make(chan struct{}), slots: map[publish.Slot]*slot{},
	}
	if p.log == nil {
		p.log = slog.New(slog.DiscardHandler)
	}
	return p, nil
}

// concerns tells whether an attachment has a port that is to be kept. One that
// OVN-Kubernetes has asked an address for itself is kept by its controller, which goes
// by the pod's annotation then (OKEP-6224).
func concerns(a engine.Attachment) bool { return a.Wrapped == ovnPlugin && a.Pod.UID != "" && !a.IPAM }

// Reset implements engine.Publisher: the pod's ports on the network hold their MAC
// only, so that an answer with any address reaches the pod.
func (p *Ports) Reset(ctx context.Context, a engine.Attachment, w engine.Workload) error {
	if !concerns(a) {
		return nil
	}
	d, err := p.table.Reset(a, w)
	if err != nil {
		return err
	}
	return p.reach(ctx, d)
}

// Publish implements engine.Publisher. It does nothing for interfaces that have no
// port in OVN.
func (p *Ports) Publish(ctx context.Context, l engine.Publication) error {
	if !l.OVN || l.IPAM {
		return nil
	}
	if l.Pod.UID == "" || len(l.HardwareAddr) == 0 || !l.Addr.IsValid() {
		return fmt.Errorf("port of %s: pod UID, MAC and address must be known", l.AttachmentID)
	}
	d, err := p.table.Publish(l)
	if err != nil {
		return err
	}
	return p.reach(ctx, d)
}

// Withdraw implements engine.Publisher.
func (p *Ports) Withdraw(ctx context.Context, a engine.Attachment) error {
	if _, known := p.table.Of(a); !known && !concerns(a) {
		return nil
	}
	d, ok := p.table.Withdraw(a)
	if !ok {
		return nil
	}
	if err := p.reach(ctx, d); !errors.Is(err, engine.ErrSuperseded) {
		return err
	}
	return nil
}

// Forget implements engine.Publisher.
func (p *Ports) Forget(a engine.Attachment) {
	p.table.Forget(a)
	p.kick()
}

// Limited tells what keeps leases from ports: a database that is away, unless
// nobody has need of it.
func (p *Ports) Limited() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.db != nil || p.addresses == nil && len(p.table.All()) == 0 {
		return nil
	}
	return fmt.Errorf("%w: %s, for %s: %w", errAway, p.where(), time.Since(p.since).Round(time.Second), p.away)
}

// where names the database for people.
func (p *Ports) where() string {
	if p.addresses == nil {
		return "none of " + strings.Join(autoSockets, ", ")
	}
	return p.cfg.Address
}

// note makes the slot and remembers the lease's MAC, which it returns too.
func (p *Ports) note(d publish.Desired) (*slot, net.HardwareAddr) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.slots[d.Slot]
	if s == nil {
		s = &slot{repairs: rate.NewLimiter(rate.Every(repairEvery), repairBurst)}
		p.slots[d.Slot] = s
	}
	if d.HardwareAddr != nil {
		s.mac = d.HardwareAddr
	}
	return s, s.mac
}

// reach tries until the port carries what is desired.
func (p *Ports) reach(ctx context.Context, d publish.Desired) error {
	var wait <-chan time.Time
	for first := true; ; first = false {
		db, changed := p.current()
		err := errAway
		if db != nil {
			err, wait = p.attempt(ctx, db, d), nil
		} else if wait == nil {
			wait = time.After(patience)
		}
		if err == nil {
			return nil
		}
		if !p.table.Current(d) {
			return fmt.Errorf("port of %s: %w", d.Owner.AttachmentID, engine.ErrSuperseded)
		}
		if first {
			p.wake() // Run goes on with it when this call has to give up
		}
		select {
		case <-changed:
		case <-wait:
			if err := p.Limited(); err != nil {
				return err
			}
			wait = nil
		case <-ctx.Done():
			return fmt.Errorf("port of %s: %w: %w", d.Owner.AttachmentID, context.Cause(ctx), err)
		}
	}
}

// current is the connection, and what is closed when anything changes.
func (p *Ports) current() (*database, <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.db, p.changed
}

// attempt makes a port carry what is desired, once.
func (p *Ports) attempt(ctx context.Context, db *database, d publish.Desired) error {
	select {
	case p.turn <- struct{}{}:
		defer func() { <-p.turn }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if !p.table.Current(d) {
		return engine.ErrSuperseded
	}
	if err := db.watch(ctx, d.Pod.UID); err != nil {
		return err
	}
	all, err := db.ports(ctx, d.Pod.UID)
	if err != nil {
		return err
	}
	s, mac := p.note(d)
	ports, err := choose(all, d.Slot, mac, p.others(d), d.Lease != nil)
	if err != nil {
		return err
	}
	for _, row := range ports {
		if err := p.write(ctx, db, row, d, s); err != nil {
			return err
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	s.right = d.Revision
	if len(ports) > 0 {
		s.idle = time.Time{}
	} else if s.idle.IsZero() {
		s.idle = time.Now()
	}
	return nil
}

// others are the MACs of leases that the pod's other interfaces on the network have.
func (p *Ports) others(d publish.Desired) []net.HardwareAddr {
	var macs []net.HardwareAddr
	for _, o := range p.table.OfPod(d.Pod) {
		if o.Slot != d.Slot && o.NAD == d.NAD && o.Lease != nil {
			macs = append(macs, o.Lease.HardwareAddr)
		}
	}
	return macs
}

// write writes one port, if it is not right already.
func (p *Ports) write(ctx context.Context, db *database, row port, d publish.Desired, s *slot) error {
	want := row.withoutLease()
	if d.Lease != nil {
		want = row.withLease(*d.Lease)
	}
	if row.has(want) {
		return nil
	}
	log := p.log.With("attachment", d.Owner.AttachmentID.String(), "port", row.Name)
	p.mu.Lock()
	repair := s.right == d.Revision
	p.mu.Unlock()
	if repair && !s.repairs.Allow() {
		return errFought
	}
	hit, err := db.write(ctx, row, want)
	switch {
	case err != nil:
		p.metrics.writes.WithLabelValues(failed).Inc()
		return err
	case !hit:
		p.metrics.writes.WithLabelValues(missed).Inc()
		return errChanged
	case repair:
		p.metrics.writes.WithLabelValues(repaired).Inc()
		log.Info("port of OVN was changed by another writer and is right again",
			"was", row.PortSecurity, "addresses", want.addresses, "portSecurity", want.security)
	default:
		p.metrics.writes.WithLabelValues(written).Inc()
		log.Debug("port of OVN is written", "addresses", want.addresses, "portSecurity", want.security)
	}
	return nil
}
