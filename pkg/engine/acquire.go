package engine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine/api"
	"github.com/dhcp-meta/dhcp-meta/pkg/engine/dhcp4"
	"github.com/dhcp-meta/dhcp-meta/pkg/engine/network"
)

// prepare readies interface and identity. A device that is to be borrowed has
// neither before that.
func (s *session) prepare(ctx context.Context) error {
	if s.rec.Workload == VM {
		// Before an address is known, whoever starts the guest is to see that its
		// address comes by DHCP (B69).
		if err := s.resetEarly(ctx); err != nil {
			return err
		}
	}
	if s.plan.Borrow {
		return nil
	}
	if s.rec.IPAM {
		s.settings = forIPAM(s.settings, s.link)
	}
	if sharesMAC(s.link) && !(s.rec.IPAM && strings.HasPrefix(s.settings.ClientID, network.ClientIDHex)) {
		if err := s.settings.CheckSharedMAC(); err != nil {
			return api.WithCode(api.CodeConfig, fmt.Errorf("%s is of kind %s: %w", s.rec.IfName, s.link.Kind, err))
		}
	}
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
// the pod held, or from the start. On success the lease is persisted, configured
// and published, a borrowed device is back, and the older sessions are superseded.
// On failure nothing is left of it.
func (s *session) acquire(ctx context.Context, prior *Record, older []*session) error {
	if s.engine.ending(s.att.Pod) { // nobody was told while there was no session
		s.engine.giveUp(s.att.Pod)
	}
	s.adding = true
	defer func() { s.adding, s.wordAt = false, time.Time{} }()
	if s.plan.Borrow {
		return s.acquireBorrowed(ctx, prior, older)
	}
	w := s.newWire()
	if err := s.acquireOn(ctx, w, prior, older); err != nil {
		s.abandon(ctx, w, err)
		s.engine.closeLater(w)
		return err
	}
	s.leftOpen = w
	return nil
}

// abandon undoes an attempt that has ended with err. What a newer sandbox of the
// pod has published since is not touched.
func (s *session) abandon(ctx context.Context, w *wire, err error) {
	if errors.Is(err, ErrSuperseded) {
		s.forgetPublished()
	}
	s.undo(ctx, w)
}

// closeLeft closes what acquire left open: the kernel takes its time to end a
// packet socket, which is nothing that an answer to ADD has to wait for.
func (s *session) closeLeft() {
	if s.leftOpen != nil {
		s.leftOpen.close()
		s.leftOpen = nil
	}
}

func (s *session) acquireOn(ctx context.Context, w *wire, prior *Record, older []*session) error {
	s.machine = s.newMachine()
	s.tally = tally{begun: s.cfg.Now()}
	s.wordAt = s.tally.begun.Add(wordAfter)
	start := dhcp4.Start{}
	sent := true
	inherit := func() (err error) {
		start.Previous, sent, err = s.inherit(ctx, w, *prior)
		return err
	}
	own := prior != nil && prior.AttachmentID == s.rec.AttachmentID
	if own { // from here on nobody else has it, whether the port opens or not
		if err := inherit(); err != nil {
			return err
		}
	}
	if err := s.openForADD(ctx, w); err != nil {
		return err
	}
	if prior != nil && !own {
		if err := inherit(); err != nil {
			return err
		}
	}
	for _, o := range older {
		o.supersede(ctx, sent)
	}
	if err := s.exchange(ctx, w, start); err != nil {
		return err
	}
	// The caller may be gone since: then nobody will ever read the answer.
	return context.Cause(ctx)
}

// settle is the rest of an ADD whose lease nobody keeps: what is left of it is what
// others may see, and the record.
func (s *session) settle() {
	s.machine = nil
	s.engine.closeLater(s.leftOpen)
	s.leftOpen = nil
}

// claim makes durable that a lease was asked for.
func (s *session) claim(l dhcp4.Lease) error {
	rec := s.rec
	rec.Lease = l
	if rec.Phase != Seeking {
		rec.Phase = Claimed
	}
	if err := s.put(rec); err != nil {
		return err
	}
	s.show()
	s.engine.revoke(s, l.Addr.Addr())
	return nil
}

// disclaim forgets a claim that a server has refused, or that was declined: it is
// another host's address now, and a RELEASE of it would be wrong.
func (s *session) disclaim() {
	if s.rec.Phase == Leased || !s.rec.Lease.Addr.IsValid() {
		return
	}
	rec := s.rec
	rec.Lease = dhcp4.Lease{}
	if err := s.put(rec); err != nil {
		s.trouble("refused address is not forgotten", err)
		s.rec = rec
	}
}

// tally counts what an attempt has sent and seen, for its error.
type tally struct {
	begun                     time.Time
	discovers, requests, naks int
	offered                   netip.Addr
	ignored                   string // the last reason
	unsent                    string // why the last message was not sent that could not be
	conflict                  *AddressConflict
}

// sent is how many messages have asked for a lease.
func (t tally) sent() int { return t.discovers + t.requests }

// wordAfter is how long an ADD may have asked for an address before people hear that
// it waits: three DHCPDISCOVER without an answer. Its error comes with the end of its
// time only, and meanwhile nothing else shows why the pod does not start.
const wordAfter = 15 * time.Second

// openForADD waits until the port is open; where that takes long, people hear of it.
func (s *session) openForADD(ctx context.Context, w *wire) error {
	err := w.openFor(ctx, wordAfter)
	if errors.Is(err, errNotYet) {
		s.waits(err.Error())
		err = w.openNow(ctx)
	}
	return err
}

// lacking tells people what an ADD is waiting for. While an offered address is asked for
// that is put off, but not for long, and while it is probed.
func (s *session) lacking(w *wire) {
	const putOff = wordAfter / 3
	now := s.cfg.Now()
	switch s.machine.State() {
	case dhcp4.Probing:
		s.wordAt = now.Add(putOff)
		return
	case dhcp4.Requesting:
		if latest := s.tally.begun.Add(wordAfter + putOff); now.Before(latest) {
			s.wordAt = latest
			return
		}
	}
	switch t := s.tally; {
	case t.conflict != nil: // it has an event of its own
		s.wordAt = time.Time{}
	case t.naks > 0:
		s.waits("a DHCP server refuses; last: " + orNone(t.ignored))
	case t.offered.IsValid():
		s.waits(t.offered.String() + " was offered but no server acknowledged it")
	case t.ignored != "":
		s.waits("no usable offer; last reply left aside: " + t.ignored)
	default:
		text := s.unheard(w)
		if t.sent() > 0 {
			text += "; is there a server or relay on this network, and are UDP ports 67 and 68 open"
		}
		s.waits(text)
	}
}

// waits says once an ADD that it waits, and for what.
func (s *session) waits(text string) {
	s.wordAt = time.Time{}
	s.log.Warn("no address so far, asking on", "detail", text)
	s.report(StillWaiting, "no address from network "+s.rec.Network+" so far: "+text)
}

// explain turns the end of an attempt into the error that its caller reads.
func (s *session) explain(err error, took time.Duration) error {
	who := s.link.HardwareAddr.String()
	if who == "" {
		who = "device " + s.rec.DeviceID
	}
	where := fmt.Sprintf("%s (%s) on network %s", s.rec.IfName, who, s.rec.Network)
	t := s.tally
	took = took.Round(100 * time.Millisecond)
	switch {
	case s.outOfTime(err):
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("no lease for %s within %s: %w", where, took, err)
	default:
		return fmt.Errorf("no lease for %s: %w", where, err)
	}
	switch {
	case t.conflict != nil:
		err = fmt.Errorf("%w; every address offered within %s was declined", t.conflict, took)
	case t.naks > 0:
		err = fmt.Errorf("refused %d times within %s; last: %s; look at the server's log for this hardware address", t.naks, took, orNone(t.ignored))
	case t.offered.IsValid():
		err = fmt.Errorf("%s was offered but no server acknowledged it within %s (%d DHCPREQUEST sent); last reply left aside: %s",
			t.offered, took, t.requests, orNone(t.ignored))
	case t.ignored != "":
		err = fmt.Errorf("no usable offer within %s (%d DHCPDISCOVER sent); last reply left aside: %s", took, t.discovers, t.ignored)
	default:
		err = fmt.Errorf("no DHCP server answered within %s (%d DHCPDISCOVER sent); is there a server or relay on this network, and are UDP ports 67 and 68 open", took, t.discovers)
	}
	return fmt.Errorf("no lease for %s: %w", where, err)
}

// outOfTime tells whether an attempt has ended because no server gave a lease in
// the time that there was.
func (s *session) outOfTime(err error) bool {
	var unpublished *publishError
	var stranded *strandedError
	return errors.Is(err, context.DeadlineExceeded) && s.tally.sent() > 0 &&
		!errors.As(err, &unpublished) && !errors.As(err, &stranded)
}

// silent tells whether nobody has said a word in an attempt.
func (s *session) silent(err error) bool {
	t := s.tally
	return s.outOfTime(err) && t.conflict == nil && t.naks == 0 && !t.offered.IsValid() && t.ignored == ""
}
