package engine

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine/api"
)

// world is all that an engine asks of its surroundings, simulated: namespaces
// with one interface each, a DHCP server on the wire, and a disk. It notes what
// happens in order, and outlives the engines that are started in it.
type world struct {
	t      *testing.T
	bootID string

	mu      sync.Mutex
	notes   []string
	spaces  map[string]*space
	records map[AttachmentID]Record
	cookies uint64
	open    int           // ports
	closing time.Duration // that it takes to close one
	ended   func(string)

	server    server
	putErr    func(Record) error
	watchErr  error
	openErr   error
	clearErr  error
	cfgErr    error
	stripErr  error
	onNote    func(string)
	onSend    func() // before a message leaves
	noAnswer  bool   // of ARP: unicast cannot be sent
	workload  Workload
	cluster   cluster
	devices   *devices // nil: the engine has none
	audience  *audience
	observer  Observer
	passedBy  map[AttachmentID]api.Request // ADDs without an engine
	passedC   func(AttachmentID)
	now       func() time.Time // the boot clock, if not the simulated one
	noteLeft  func(AttachmentID)
	notesLeft map[AttachmentID]bool // by DELs while no engine was there
	protected []netip.Prefix
	owners    map[netip.Addr]net.HardwareAddr // other hosts on the wire
}

// space is a network namespace with one interface.
type space struct {
	cookie  uint64
	link    Link
	setup   Setup
	until   time.Time // when the kernel takes the address away; zero: never
	carrier chan struct{}
	gone    bool
	noLink  bool           // its device is on vfio-pci
	foreign []netip.Prefix // addresses of the wrapped plugin
	ports   []*port
	routes  []netip.Prefix // to other interfaces

	defended int                   // Defend calls under way
	claimC   chan net.HardwareAddr // another host that claims the address
}

func newWorld(t *testing.T) *world {
	w := &world{t: t, bootID: "boot-1", spaces: map[string]*space{}, records: map[AttachmentID]Record{}}
	w.server = server{w: w, id: netip.MustParseAddr("10.77.0.1"), lifetime: time.Hour, bits: 24, held: map[string]netip.Addr{}, declined: map[netip.Addr]bool{}, first: netip.MustParseAddr("10.77.0.50")}
	return w
}

// simulate runs a test on simulated time.
func simulate(t *testing.T, f func(*testing.T, *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { f(t, newWorld(t)) })
}

// space makes a namespace with net1 in it.
func (w *world) space(path string, mac byte) *space {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cookies++
	up := make(chan struct{})
	close(up)
	s := &space{cookie: w.cookies, carrier: up, claimC: make(chan net.HardwareAddr), link: Link{
		Netns:        Netns{Path: path, Cookie: w.cookies},
		HardwareAddr: net.HardwareAddr{2, 0, 0, 0, 0, mac}, MTU: 1500, Kind: "veth"}}
	w.spaces[path] = s
	return s
}

// remove ends a namespace, as the kernel does when nothing holds it.
func (w *world) remove(path string) {
	w.mu.Lock()
	s, ended := w.spaces[path], w.ended
	s.gone = true
	delete(w.spaces, path)
	w.mu.Unlock()
	if ended != nil {
		ended(path)
	}
}

func (w *world) note(format string, args ...any) {
	n := fmt.Sprintf(format, args...)
	w.notes = append(w.notes, n)
	if w.onNote != nil {
		w.onNote(n)
	}
}

// change changes the world while an engine runs in it.
func (w *world) change(f func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f()
}

// carries is the address on the interface in the namespace.
func (w *world) carries(path string) netip.Prefix {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.spaces[path].setup.Addr
}

// since returns what was noted since the last call.
func (w *world) since() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := w.notes
	w.notes = nil
	return n
}

// start starts an engine; stop ends it and leaves the world as it is.
func (w *world) start() (e *Engine, stop func()) {
	cfg := Config{
		Links: links{w}, Store: disk{w}, Cluster: kubernetes{w}, Now: time.Now, BootID: w.bootID,
		Protected: w.protected, ExchangesPerNetwork: 16, StartupSpread: 10 * time.Second,
		Rand:    func() *rand.Rand { return rand.New(rand.NewPCG(1, 2)) },
		Log:     slog.New(slog.NewTextHandler(w.t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug})),
		Metrics: NewMetrics(nil),
	}
	if w.cluster.none {
		cfg.Cluster = nil
	}
	if w.devices != nil {
		cfg.Devices, cfg.Window = w.devices, 20*time.Second
	}
	if w.now != nil {
		cfg.Now = w.now
	}
	if w.audience != nil {
		cfg.Publisher, cfg.Reporter = w.audience, w.audience
	}
	cfg.Observer = w.observer
	e = New(cfg)
	ctx, cancel := context.WithCancel(w.t.Context())
	done := make(chan error, 1)
	go func() { done <- e.Run(ctx) }()
	synctest.Wait()
	var once sync.Once
	stop = func() {
		once.Do(func() {
			cancel()
			if err := <-done; err != nil {
				w.t.Errorf("Run: %v", err)
			}
		})
	}
	w.t.Cleanup(stop)
	return e, stop
}

// request is an ADD's request for net1 in the namespace of path.
func request(container, path string) api.Request {
	return api.Request{
		AttachmentID: AttachmentID{ContainerID: container, IfName: "net1"}, Netns: path, Network: "lan",
		Pod: Pod{Namespace: "shop", Name: "web-0", UID: "uid-1"}, Timeout: 100 * time.Second,
	}
}

// disk is a Store in memory.
type disk struct{ *world }

var _ Store = disk{}

func (d disk) Load() ([]Record, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	recs := make([]Record, 0, len(d.records))
	for _, r := range d.records {
		recs = append(recs, r)
	}
	slices.SortFunc(recs, func(a, b Record) int {
		if a.AttachmentID.String() < b.AttachmentID.String() {
			return -1
		}
		return 1
	})
	return recs, nil
}

func (d disk) Put(r Record) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.putErr != nil {
		if err := d.putErr(r); err != nil {
			d.note("put %s fails", r.Phase)
			return err
		}
	}
	d.records[r.AttachmentID] = r
	d.note("put %s %s", r.Phase, r.Lease.Addr)
	return nil
}

func (d disk) Delete(id AttachmentID) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, ok := d.records[id]; ok {
		d.note("delete")
	}
	delete(d.records, id)
	delete(d.notesLeft, id)
	return nil
}

func (d disk) Check() error { return nil }

func (d disk) Passed() ([]api.Request, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Collect(maps.Values(d.passedBy)), nil
}

func (d disk) ForgetPassed(id AttachmentID) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.passedBy, id)
	return nil
}

func (d disk) WatchPassed(ctx context.Context, passed func(AttachmentID)) error {
	d.change(func() { d.passedC = passed })
	<-ctx.Done()
	return nil
}

func (d disk) ForgetEnded(id AttachmentID) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.notesLeft, id)
	return nil
}

func (d disk) WatchEnded(ctx context.Context, ended func(AttachmentID)) error {
	d.change(func() { d.world.noteLeft = ended })
	<-ctx.Done()
	return nil
}

func (d disk) Ended() ([]AttachmentID, error) { return d.endedIDs(), nil }

func (w *world) endedIDs() []AttachmentID {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Collect(maps.Keys(w.notesLeft))
}
