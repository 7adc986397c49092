package engine

import (
	"context"
	"errors"
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

	"github.com/insomniacslk/dhcp/dhcpv4"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine/api"
	"github.com/dhcp-meta/dhcp-meta/pkg/engine/dhcp4"
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
	open    int // ports
	ended   func(string)

	server    server
	putErr    func(Record) error
	cfgErr    error
	onNote    func(string)
	onSend    func() // before a message leaves
	noAnswer  bool   // of ARP: unicast cannot be sent
	workload  Workload
	audience  *audience
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
		Links: links{w}, Store: disk{w}, Workloads: workloads{w}, Now: time.Now, BootID: w.bootID,
		Protected: w.protected, ExchangesPerNetwork: 16, StartupSpread: 10 * time.Second,
		Rand:    func() *rand.Rand { return rand.New(rand.NewPCG(1, 2)) },
		Log:     slog.New(slog.NewTextHandler(w.t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug})),
		Metrics: NewMetrics(nil),
	}
	if w.audience != nil {
		cfg.Publisher, cfg.Reporter = w.audience, w.audience
	}
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

type workloads struct{ *world }

func (w workloads) Workload(context.Context, Attachment) (Workload, error) { return w.workload, nil }

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
	delete(d.records, id)
	delete(d.notesLeft, id)
	d.note("delete")
	return nil
}

func (d disk) Check() error { return nil }

func (d disk) Ended() ([]AttachmentID, error) { return slices.Collect(maps.Keys(d.notesLeft)), nil }

// links is the kernel.
type links struct{ *world }

var _ Links = links{}

// find returns the namespace of t, under the lock.
func (l links) find(t Target) (*space, error) {
	s := l.spaces[t.Netns.Path]
	if s == nil {
		return nil, fmt.Errorf("open netns %s: %w", t.Netns.Path, ErrGone)
	}
	if c := t.Netns.Cookie; c != 0 && c != s.cookie {
		return nil, fmt.Errorf("another netns at %s: %w", t.Netns.Path, ErrGone)
	}
	return s, nil
}

func (l links) Inspect(_ context.Context, t Target) (Link, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s, err := l.find(t)
	if err != nil {
		return Link{}, err
	}
	return s.link, nil
}

func (l links) Routes(_ context.Context, t Target) ([]netip.Prefix, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s, err := l.find(t)
	if err != nil {
		return nil, err
	}
	return s.routes, nil
}

func (l links) SetHardwareAddr(_ context.Context, t Target, mac net.HardwareAddr) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	s, err := l.find(t)
	if err != nil {
		return err
	}
	s.link.HardwareAddr = mac
	l.note("set mac")
	return nil
}

func (l links) Open(ctx context.Context, t Target) (Port, error) {
	l.mu.Lock()
	s, err := l.find(t)
	if err != nil {
		l.mu.Unlock()
		return nil, err
	}
	carrier := s.carrier
	l.mu.Unlock()
	select {
	case <-carrier:
	case <-ctx.Done():
		return nil, fmt.Errorf("%s has no carrier: %w", t.IfName, context.Cause(ctx))
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	p := &port{w: l.world, mac: s.link.HardwareAddr, c: make(chan dhcp4.Received, 16)}
	s.ports = append(s.ports, p)
	l.open++
	return p, nil
}

func (l links) Configure(_ context.Context, t Target, have, want Setup, lifetime time.Duration) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	s, err := l.find(t)
	if err != nil {
		return err
	}
	if l.cfgErr != nil {
		return l.cfgErr
	}
	if s.setup.Addr.IsValid() && s.setup.Addr != have.Addr && s.setup.Addr != want.Addr {
		l.t.Errorf("Configure: %s is on the interface and in no record", s.setup.Addr)
	}
	if rec := l.records[AttachmentID{ContainerID: t.Netns.Path, IfName: t.IfName}]; rec.Setup.Addr != want.Addr {
		l.t.Errorf("Configure(%s) is not in the record first: %+v", want.Addr, rec)
	}
	s.setup, s.until = want, time.Time{}
	if lifetime != dhcp4.Infinite {
		s.until = time.Now().Add(lifetime)
	}
	l.note("configure %s", want.Addr)
	return nil
}

func (l links) Clear(_ context.Context, t Target, have Setup) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	s, err := l.find(t)
	if err != nil {
		return nil
	}
	if s.setup.Addr == have.Addr {
		s.setup = Setup{}
	}
	l.note("clear %s", have.Addr)
	return nil
}

func (l links) Verify(_ context.Context, t Target, want Setup) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	s, err := l.find(t)
	if err != nil {
		return err
	}
	if s.setup.Addr != want.Addr {
		return fmt.Errorf("address %s is missing", want.Addr)
	}
	return nil
}

func (l links) Defend(ctx context.Context, t Target, addr netip.Addr) error {
	l.mu.Lock()
	s, err := l.find(t)
	if err != nil {
		l.mu.Unlock()
		return err
	}
	s.defended++
	l.mu.Unlock()
	defer l.change(func() { s.defended-- })
	select {
	case <-ctx.Done():
		return nil
	case owner := <-s.claimC:
		return &AddressConflict{addr, owner}
	}
}

func (l links) Watch(ctx context.Context, ended func(string)) error {
	l.mu.Lock()
	l.ended = ended
	l.mu.Unlock()
	<-ctx.Done()
	return nil
}

// port is an open port: what it sends goes to the server at once.
type port struct {
	w      *world
	mac    net.HardwareAddr
	c      chan dhcp4.Received
	closed bool
}

func (p *port) Received() <-chan dhcp4.Received { return p.c }

func (p *port) Send(ctx context.Context, s dhcp4.Send) error {
	p.w.mu.Lock()
	wait := p.w.onSend
	p.w.mu.Unlock()
	if wait != nil {
		wait()
	}
	if err := context.Cause(ctx); err != nil {
		return err
	}
	p.w.mu.Lock()
	defer p.w.mu.Unlock()
	if s.To.IsValid() && p.w.noAnswer {
		return errors.New("arp: nobody answers")
	}
	p.w.note("%s", describe(s))
	if m := p.w.server.answer(s.Msg); m != nil && !p.closed {
		p.c <- dhcp4.Received{Msg: m, From: p.w.server.id}
	}
	return nil
}

// Probe takes as long as the real one may.
func (p *port) Probe(ctx context.Context, addr netip.Addr, full bool) (net.HardwareAddr, error) {
	wait := 250 * time.Millisecond
	if full {
		wait = 7 * time.Second
	}
	p.w.change(func() { p.w.note("probe %s full=%t", addr, full) })
	select {
	case <-time.After(wait):
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	p.w.mu.Lock()
	defer p.w.mu.Unlock()
	return p.w.owners[addr], nil
}

func (p *port) Announce(_ context.Context, addr netip.Addr) error {
	p.w.change(func() { p.w.note("announce %s", addr) })
	return nil
}

func (p *port) Close() error {
	p.w.mu.Lock()
	defer p.w.mu.Unlock()
	if !p.closed {
		p.closed = true
		close(p.c)
		p.w.open--
	}
	return nil
}

func describe(s dhcp4.Send) string {
	to := "all"
	if s.To.IsValid() {
		to = s.To.String()
	}
	return fmt.Sprintf("%s to %s", s.Msg.MessageType(), to)
}

// server is a DHCP server with a pool. Clients are known by option 61, else by
// hardware address.
type server struct {
	w        *world
	id       netip.Addr
	first    netip.Addr
	lifetime time.Duration
	bits     int // of the mask
	mtu      uint16
	silent   bool
	nak      bool // refuses every REQUEST
	noMask   bool
	held     map[string]netip.Addr
	releases int
	declined map[netip.Addr]bool
	routes   []*dhcpv4.Route // option 121

	sawBroadcast bool // the BROADCAST flag
}

// answer is called under the world's lock.
func (s *server) answer(m *dhcpv4.DHCPv4) *dhcpv4.DHCPv4 {
	client := string(m.Options.Get(dhcpv4.OptionClientIdentifier))
	if client == "" {
		client = string(m.ClientHWAddr)
	}
	if m.MessageType() == dhcpv4.MessageTypeRelease {
		if ip, _ := netip.AddrFromSlice(m.ClientIPAddr.To4()); s.held[client] == ip {
			delete(s.held, client)
			s.releases++
		}
		return nil
	}
	if m.MessageType() == dhcpv4.MessageTypeDecline {
		asked, _ := netip.AddrFromSlice(m.RequestedIPAddress().To4())
		delete(s.held, client)
		s.declined[asked] = true
		return nil
	}
	s.sawBroadcast = s.sawBroadcast || m.IsBroadcast()
	if s.silent {
		return nil
	}
	switch m.MessageType() {
	case dhcpv4.MessageTypeDiscover:
		return s.reply(m, dhcpv4.MessageTypeOffer, s.addressFor(client))
	case dhcpv4.MessageTypeRequest:
		asked, _ := netip.AddrFromSlice(m.RequestedIPAddress().To4())
		if !asked.IsValid() {
			asked, _ = netip.AddrFromSlice(m.ClientIPAddr.To4())
		}
		if s.nak || asked != s.addressFor(client) {
			return s.reply(m, dhcpv4.MessageTypeNak, netip.Addr{})
		}
		s.held[client] = asked
		return s.reply(m, dhcpv4.MessageTypeAck, asked)
	}
	return nil
}

func (s *server) addressFor(client string) netip.Addr {
	if a, ok := s.held[client]; ok {
		return a
	}
	taken := maps.Clone(s.declined)
	for _, a := range s.held {
		taken[a] = true
	}
	a := s.first
	for taken[a] {
		a = a.Next()
	}
	return a
}

func (s *server) reply(m *dhcpv4.DHCPv4, t dhcpv4.MessageType, addr netip.Addr) *dhcpv4.DHCPv4 {
	r, err := dhcpv4.NewReplyFromRequest(m, dhcpv4.WithMessageType(t),
		dhcpv4.WithServerIP(s.id.AsSlice()), dhcpv4.WithOption(dhcpv4.OptServerIdentifier(s.id.AsSlice())))
	if err != nil {
		s.w.t.Errorf("reply: %v", err)
		return nil
	}
	if t == dhcpv4.MessageTypeNak {
		return r
	}
	r.YourIPAddr = addr.AsSlice()
	if !s.noMask {
		r.UpdateOption(dhcpv4.OptSubnetMask(net.CIDRMask(s.bits, 32)))
	}
	r.UpdateOption(dhcpv4.OptRouter(net.IPv4(10, 77, 0, 1)))
	r.UpdateOption(dhcpv4.OptDNS(net.IPv4(10, 77, 0, 3)))
	r.UpdateOption(dhcpv4.OptDomainName("site.example"))
	r.UpdateOption(dhcpv4.OptIPAddressLeaseTime(s.lifetime))
	if s.routes != nil {
		r.UpdateOption(dhcpv4.OptClasslessStaticRoute(s.routes...))
	}
	if s.mtu > 0 {
		r.UpdateOption(dhcpv4.OptGeneric(dhcpv4.OptionInterfaceMTU, []byte{byte(s.mtu >> 8), byte(s.mtu)}))
	}
	return r
}
