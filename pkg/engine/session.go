package engine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"reflect"
	"sync"
	"time"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine/api"
	"github.com/dhcp-meta/dhcp-meta/pkg/engine/dhcp4"
	"github.com/dhcp-meta/dhcp-meta/pkg/engine/network"
)

// releaseTime bounds what Detach and a failed Attach spend on giving a lease
// back: the runtime waits for them, and a DHCPRELEASE is a courtesy (CNI
// specification, DEL).
const releaseTime = 1800 * time.Millisecond

// session is the life of an attachment inside the engine. One goroutine at a
// time runs it: a verb of the API, or the goroutine that keeps its lease.
type session struct {
	cfg *Config
	log *slog.Logger
	// att never changes, nor does seq, which orders the sessions of one pod: a
	// later one supersedes an earlier one.
	att Attachment
	seq uint64

	// What follows belongs to whoever runs the session.
	rec      Record
	settings network.Settings
	plan     Plan
	link     Link
	machine  *dhcp4.Machine
	tally    tally

	// goneC says that the namespace may have ended; at most one such word waits.
	goneC chan struct{}

	// keeper is the goroutine that keeps the lease; nil while there is none. It
	// is used under the attachment's turn.
	keeper *keeper

	mu   sync.Mutex
	seen view
}

// view is what others see of a session.
type view struct {
	phase   Phase
	state   dhcp4.State
	lease   dhcp4.Lease // zero while there is none to use
	setup   Setup
	lastErr string

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
	v := view{phase: s.rec.Phase, setup: s.rec.Setup, state: dhcp4.Stopped,
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
	s.mu.Lock()
	again := s.seen.lastErr == err.Error()
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
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen.lastErr = ""
}

// identity is who the client is, for the network's templates.
func (s *session) identity() network.Identity {
	return network.Identity{
		Namespace: s.rec.Pod.Namespace, Pod: s.rec.Pod.Name, UID: s.rec.Pod.UID,
		Network: s.rec.Network, IfName: s.rec.IfName, ContainerID: s.rec.ContainerID,
		HardwareAddr: s.link.HardwareAddr,
	}
}

// identify settles under which identity the server will know the client.
func (s *session) identify() error {
	id, err := s.settings.ClientIdentifier(s.identity())
	if err != nil {
		return err
	}
	s.rec.HardwareAddr, s.rec.ClientID = s.link.HardwareAddr, id
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
		Options:      options,
		Broadcast:    s.settings.Broadcast,
		Servers:      s.settings.Servers,
		MTU:          s.link.MTU,
		Rand:         s.cfg.Rand(),
	})
}

// knownAs tells whether a server takes this session's client for the one of
// rec: by option 61 where it is sent, otherwise by hardware address (RFC 2131,
// 4.2).
func (s *session) knownAs(rec Record) bool {
	if len(s.rec.ClientID) > 0 || len(rec.ClientID) > 0 {
		return bytes.Equal(s.rec.ClientID, rec.ClientID)
	}
	return bytes.Equal(s.rec.HardwareAddr, rec.HardwareAddr)
}

// newWire returns the way to the session's interface; nothing is open yet.
func (s *session) newWire() *wire { return &wire{links: s.cfg.Links, target: s.rec.Target()} }

// prepare finds out what is to be done for the attachment, and under which
// identity.
func (s *session) prepare(ctx context.Context) error {
	if s.cfg.Workloads != nil {
		w, err := s.cfg.Workloads.Workload(ctx, s.att)
		if err != nil {
			return err
		}
		s.rec.Workload = w
	}
	s.plan = planFor(s.rec.Workload)
	if s.settings.DeriveMAC {
		if err := s.deriveMAC(ctx); err != nil {
			return err
		}
	}
	return api.WithCode(api.CodeConfig, s.identify())
}

// deriveMAC gives the interface the MAC that all sandboxes of the pod have.
func (s *session) deriveMAC(ctx context.Context) error {
	mac, err := network.DeriveMAC(s.identity())
	if err != nil {
		return api.WithCode(api.CodeConfig, err)
	}
	if !bytes.Equal(mac, s.link.HardwareAddr) {
		if err := s.cfg.Links.SetHardwareAddr(ctx, s.rec.Target(), mac); err != nil {
			return fmt.Errorf("give it the derived MAC %s: %w", mac, err)
		}
	}
	s.link.HardwareAddr = mac
	return nil
}

// acquire gets the interface its lease: from prior, which an older sandbox of
// the pod held, or from the start. On success the lease is persisted and
// configured, and the older sessions are superseded. On failure nothing is left
// of it.
func (s *session) acquire(ctx context.Context, prior *Record, older []*session) error {
	w := s.newWire()
	defer w.close()
	err := s.acquireOn(ctx, w, prior, older)
	if err == nil {
		// The caller may be gone since: then nobody will ever read the answer.
		err = context.Cause(ctx)
	}
	if err != nil {
		s.undo(ctx, w)
		return err
	}
	return nil
}

func (s *session) acquireOn(ctx context.Context, w *wire, prior *Record, older []*session) error {
	s.machine = s.newMachine()
	if err := w.openNow(ctx); err != nil {
		return err
	}
	start := dhcp4.Start{}
	if prior != nil {
		lease, err := s.inherit(ctx, w, *prior)
		if err != nil {
			return err
		}
		start.Previous = lease
	}
	for _, o := range older {
		o.supersede(ctx)
	}
	return s.exchange(ctx, w, start)
}

// inherit takes over what an older sandbox of the pod held. Where the server
// takes both for one client, the lease is claimed, to be confirmed by
// INIT-REBOOT; otherwise it is given back first, so that the pod never holds two.
func (s *session) inherit(ctx context.Context, w *wire, prior Record) (*dhcp4.Lease, error) {
	if !prior.Lease.Addr.IsValid() {
		return nil, nil
	}
	if !s.knownAs(prior) {
		s.log.Info("lease of the older sandbox is given back: it was held under another identity",
			"address", prior.Lease.Addr.Addr(), "older", prior.ContainerID)
		s.release(ctx, w, prior)
		return nil, context.Cause(ctx)
	}
	return &prior.Lease, s.claim(prior.Lease)
}

// releaseFor is the DHCPRELEASE for what a record holds, also where the machine
// that got it is gone.
func releaseFor(rec Record) dhcp4.Send {
	return dhcp4.Release(dhcp4.Config{HardwareAddr: rec.HardwareAddr, ClientID: rec.ClientID}, rec.Lease)
}

// claim makes durable that a lease was asked for.
func (s *session) claim(l dhcp4.Lease) error {
	rec := s.rec
	rec.Lease, rec.Setup = l, Setup{}
	if rec.Phase != Seeking {
		rec.Phase = Claimed
	}
	return s.put(rec)
}

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

// undo leaves nothing of an attempt: no lease, no address, no record. It has
// time of its own, since the caller's may be over.
func (s *session) undo(ctx context.Context, w *wire) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTime)
	defer cancel()
	s.giveBack(ctx, w)
	s.unconfigure(ctx)
	s.forget()
}

// giveBack sends the DHCPRELEASE for what the session's record holds, if it
// holds anything.
func (s *session) giveBack(ctx context.Context, w *wire) {
	if s.rec.Lease.Addr.IsValid() && !s.rec.Lease.Expired(s.cfg.Now()) {
		s.release(ctx, w, s.rec)
	}
}

// release sends the DHCPRELEASE for what rec holds. What cannot be sent is
// logged: the lease then lasts at the server until it expires.
func (s *session) release(ctx context.Context, w *wire, rec Record) {
	err := w.openNow(ctx)
	if err == nil {
		err = w.send(ctx, releaseFor(rec))
	}
	log := s.log.With("address", rec.Lease.Addr.Addr(), "server", rec.Lease.Server)
	if err != nil {
		s.cfg.Metrics.released.WithLabelValues("unsent").Inc()
		log.Warn("lease is not given back, it stays at the server until it expires", "error", err)
		return
	}
	s.cfg.Metrics.released.WithLabelValues("sent").Inc()
	log.Info("lease given back")
}

// unconfigure takes off the interface what the record lists.
func (s *session) unconfigure(ctx context.Context) {
	if !s.rec.Setup.Addr.IsValid() {
		return
	}
	if err := s.cfg.Links.Clear(ctx, s.rec.Target(), s.rec.Setup); err != nil {
		s.log.Warn("interface is not cleared", "address", s.rec.Setup.Addr, "error", err)
	}
}

// forget deletes the record. A Delete that fails is carried on: what the record
// describes is gone, and restore prunes it.
func (s *session) forget() {
	if err := s.cfg.Store.Delete(s.rec.AttachmentID); err != nil {
		s.cfg.Metrics.storeErrors.Inc()
		s.log.Warn("record is not deleted", "error", err)
	}
	s.rec.Lease, s.rec.Setup = dhcp4.Lease{}, Setup{}
	s.machine = nil
	s.show()
}

// end gives back all that the session holds and forgets it. What is in the way
// is logged; an attachment always ends.
func (s *session) end(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, releaseTime)
	defer cancel()
	w := s.newWire()
	defer w.close()
	if s.plan.Release && s.rec.Phase != Superseded {
		s.giveBack(ctx, w)
	}
	s.unconfigure(ctx)
	s.forget()
}

// supersede ends the session in favour of a newer sandbox of its pod, which has
// taken over or given back its lease already. Its record stays, so that its DEL
// is told from one of the new sandbox.
func (s *session) supersede(ctx context.Context) {
	s.unconfigure(ctx)
	rec := s.rec
	rec.Phase, rec.Lease, rec.Setup = Superseded, dhcp4.Lease{}, Setup{}
	if err := s.put(rec); err != nil {
		s.log.Warn("record of the older sandbox is not marked", "error", err)
		s.rec = rec
	}
	s.machine = nil
	s.show()
}

// tally counts what an attempt has sent and seen, for its error.
type tally struct {
	discovers, requests, naks int
	offered                   netip.Addr
	ignored                   string // the last reason
}

// explain turns the end of an attempt into the error that its caller reads.
func (s *session) explain(err error, took time.Duration) error {
	where := fmt.Sprintf("%s (%s) on network %s", s.rec.IfName, s.link.HardwareAddr, s.rec.Network)
	t := s.tally
	if !errors.Is(err, context.DeadlineExceeded) || t.discovers+t.requests == 0 {
		return fmt.Errorf("no lease for %s: %w", where, err)
	}
	took = took.Round(100 * time.Millisecond)
	switch {
	case t.naks > 0:
		err = fmt.Errorf("servers refused %d times within %s; look at the server's log for this hardware address", t.naks, took)
	case t.offered.IsValid():
		err = fmt.Errorf("%s was offered but no server acknowledged it within %s (%d DHCPREQUEST sent)", t.offered, took, t.requests)
	case t.ignored != "":
		err = fmt.Errorf("no usable offer within %s (%d DHCPDISCOVER sent); last reply left aside: %s", took, t.discovers, t.ignored)
	default:
		err = fmt.Errorf("no DHCP server answered within %s (%d DHCPDISCOVER sent); is there a server or relay on this network, and are UDP ports 67 and 68 open", took, t.discovers)
	}
	return fmt.Errorf("no lease for %s: %w", where, err)
}
