package engine

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"reflect"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine/dhcp4"
	"github.com/dhcp-meta/dhcp-meta/pkg/engine/network"
	"github.com/dhcp-meta/dhcp-meta/pkg/engine/routing"
)

// session is the life of an attachment inside the engine. One goroutine at a
// time runs it: a verb of the API, or the goroutine that keeps its lease.
type session struct {
	engine *Engine
	cfg    *Config // the engine's
	log    *slog.Logger
	// att never changes, nor does seq, which orders the sessions of one pod: a
	// later one supersedes an earlier one.
	att Attachment
	seq uint64
	// plan and effective follow from the record that the session began with.
	plan      Plan
	effective json.RawMessage

	// What follows belongs to whoever runs the session.
	rec      Record
	settings network.Settings
	hostname string // of a VM's guest, in an ADD: nothing is asked for it later
	link     Link
	machine  *dhcp4.Machine
	answered Setup // what ADD put on the interface, or was there at a restart
	judged   bool  // the record's setup has been held against what is there
	kept     error // why the interface differs from the lease on purpose

	adding     bool              // an ADD waits for the session
	wordAt     time.Time         // when people are to hear that it waits; zero: they have, or need not
	inherited  bool              // what was held before has been taken over, or given back
	published  bool              // a lease was given to the publisher and not withdrawn
	observed   bool              // the observer was told of it, and not that it is over
	restored   bool              // from before a restart; not published since
	toldRoutes []routing.Refusal // refusals that were told of
	tally      tally
	asked      asked
	refused    map[netip.Addr]bool // servers that were told of
	remarks    []string            // on the lease, that were told of
	before     net.HardwareAddr    // of the sandbox that was taken over; nil: none
	leftOpen   *wire               // by the ADD, for the keeper to close
	// announceAt is when the second announcement is due, mendAt when the interface
	// is to be configured again that could not be; zero: they are not.
	announceAt, mendAt time.Time
	// lookAt is when the interface of an attachment with IPAM is looked at next, for
	// what its caller puts there; looks counts how often it was since the answer.
	lookAt   time.Time
	looks    int
	troubles int           // how often trouble was called
	told     string        // the last trouble, while it lasts
	ended    bool          // DEL came while the engine was away
	spread   time.Duration // over which a restored session may wait before it sends
	passed   chan struct{} // the gate in which the session has a place; nil: none

	// goneC says that the namespace may have ended; at most one such word waits.
	goneC chan struct{}

	// keeper is the goroutine that keeps the lease; nil while there is none. It
	// is set and stopped under the attachment's turn.
	keeper atomic.Pointer[keeper]

	mu   sync.Mutex
	seen view
}

// view is what others see of a session.
type view struct {
	phase Phase
	state dhcp4.State
	lease dhcp4.Lease // zero while there is none to use
	// held is what a server may hold for the client, also without a lease, and
	// until when; zero for ever.
	held      netip.Prefix
	heldUntil time.Time
	setup     Setup
	lastErr   string
	kept      bool // the engine renews the lease; otherwise it is its guest's
	placed    bool // setup is on the interface by the engine's doing

	hardwareAddr net.HardwareAddr
	clientID     []byte
}

// look returns what may be seen of the session now. It may be called by anybody.
func (s *session) look() view {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.seen
}

// show makes the session's state visible to others.
func (s *session) show() {
	s.see()
	s.observe()
}

func (s *session) see() {
	v := view{phase: s.rec.Phase, setup: s.rec.Setup, state: dhcp4.Stopped, kept: s.plan.Keep, placed: s.rec.placed(), held: s.rec.Lease.Addr, heldUntil: s.rec.Lease.ExpireAt(),
		hardwareAddr: s.rec.HardwareAddr, clientID: s.rec.ClientID}
	if s.machine != nil {
		v.state = s.machine.State()
		v.lease, _ = s.machine.Lease()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	v.lastErr = s.seen.lastErr
	s.seen = v
}

// trouble remembers and logs what went wrong and is not passed on.
func (s *session) trouble(msg string, err error) {
	s.troubles++
	again := s.told == err.Error()
	s.told = err.Error()
	s.mu.Lock()
	s.seen.lastErr = err.Error()
	s.mu.Unlock()
	if again { // say each fact once
		s.log.Debug(msg, "error", err)
		return
	}
	s.log.Warn(msg, "error", err)
}

// wellAgain forgets the last trouble.
func (s *session) wellAgain() {
	s.told = ""
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen.lastErr = ""
}

// identity is who the client is, for the network's templates.
func (s *session) identity() network.Identity {
	return network.Identity{
		Namespace: s.rec.Pod.Namespace, Pod: s.rec.Pod.Name, UID: s.rec.Pod.UID, Hostname: s.hostname,
		Network: s.rec.Network, IfName: s.rec.IfName, ContainerID: s.rec.ContainerID,
		HardwareAddr: s.link.HardwareAddr,
	}
}

// sharesMAC tells whether other interfaces have the same MAC: all of one parent.
func sharesMAC(l Link) bool { return l.Kind == "ipvlan" || l.Kind == "ipvtap" }

// probes tells whether an address is looked for on the link before it is used. On
// an interface that shares its MAC that shows nothing: the kernel gives an ARP
// answer to the interface that has its target address, which none has yet.
func (s *session) probes() bool {
	return s.settings.ConflictDetection != network.ConflictDetectionOff && !sharesMAC(s.link)
}

// identify settles under which identity the server will know the client.
func (s *session) identify() error {
	if s.rec.IPAM {
		s.settings = forIPAM(s.settings, s.link)
	}
	id, err := s.settings.ClientIdentifier(s.identity())
	if err != nil {
		return err
	}
	s.rec.HardwareAddr, s.rec.ClientID = s.link.HardwareAddr, id
	s.show()
	s.engine.revoke(s, netip.Addr{})
	return nil
}

// newMachine returns a machine for the identity in the record.
func (s *session) newMachine() *dhcp4.Machine {
	options := make([]dhcp4.Option, 0, len(s.settings.Options))
	for _, o := range s.settings.Options {
		options = append(options, dhcp4.Option{Code: o.Code, Value: o.Value})
	}
	return dhcp4.New(dhcp4.Config{
		HardwareAddr: s.rec.HardwareAddr,
		ClientID:     s.rec.ClientID,
		Hostname:     s.settings.HostnameFor(s.identity()),
		VendorClass:  s.settings.VendorClass,
		Request:      s.settings.Request,
		Require:      s.settings.Require,
		Options:      options,
		Broadcast:    s.settings.Broadcast || sharesMAC(s.link),
		Servers:      s.settings.Servers,
		DenyServers:  s.settings.DenyServers,
		RapidCommit:  s.settings.RapidCommit,
		Probe:        s.probes(),
		Address:      s.settings.Address,
		MTU:          s.link.MTU,
		Rand:         s.cfg.Rand(),
	})
}

// newWire returns the way to the session's interface; nothing is open yet.
func (s *session) newWire() *wire { return &wire{links: s.cfg.Links, target: s.rec.Target()} }

// put makes rec durable and then the session's own.
func (s *session) put(rec Record) error {
	if err := s.cfg.Store.Put(rec); err != nil {
		s.cfg.Metrics.storeErrors.Inc()
		return fmt.Errorf("keep the record of %s: %w", rec.AttachmentID, err)
	}
	s.rec = rec
	return nil
}

// putChanged is put for a record that may be on disk already, as after a restart.
func (s *session) putChanged(rec Record) error {
	if reflect.DeepEqual(rec, s.rec) {
		return nil
	}
	return s.put(rec)
}
