package engine

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine/api"
)

// Prepare tells whether Attach has a chance, before the wrapped plugin does
// anything: engine and store are ready, the settings, the namespace and the device
// are sound, and no address of an earlier sandbox is published that the wrapped
// plugin would take for its own.
func (e *Engine) Prepare(ctx context.Context, r api.Request) error {
	if err := e.awaitRestored(ctx); err != nil {
		return api.WithCode(api.CodeTryAgain, err)
	}
	if err := e.cfg.Store.Check(); err != nil {
		return api.WithCode(api.CodeTryAgain, err)
	}
	b, err := e.briefToAdd(ctx, r)
	if err != nil {
		return err
	}
	link, err := e.cfg.Links.Inspect(ctx, Target{Netns: Netns{Path: r.Netns}})
	if err != nil {
		return api.WithCode(codeOfLook(ctx), err)
	}
	if e.cfg.Publisher == nil {
		return nil
	}
	b.rec.Netns = link.Netns
	ctx, done, err := e.turns.take(ctx, r.AttachmentID)
	if err != nil {
		return api.WithCode(api.CodeTryAgain, fmt.Errorf("wait for an earlier call for %s: %w", r.AttachmentID, err))
	}
	defer done()
	return api.WithCode(api.CodeTryAgain, e.resetPublished(ctx, b.rec))
}

// briefToAdd is brief for a pod that shall have an address: one that is being deleted
// needs none, and what it has stays as it is.
func (e *Engine) briefToAdd(ctx context.Context, r api.Request) (briefing, error) {
	b, err := e.brief(ctx, r)
	if err == nil && e.ending(b.rec.Pod) {
		err = api.WithCode(api.CodeTryAgain, fmt.Errorf("no lease for %s of pod %s/%s: %w", r.IfName, b.rec.Pod.Namespace, b.rec.Pod.Name, errEnding))
	}
	return b, err
}

// codeOfLook is the code for an interface that could not be looked at: the caller
// named one that is wrong, unless it was the time that was over.
func codeOfLook(ctx context.Context) uint {
	if context.Cause(ctx) != nil {
		return api.CodeTryAgain
	}
	return api.CodeEnv
}

// Attach gives the interface its address, or returns the one that it has.
func (e *Engine) Attach(ctx context.Context, r api.Request) (api.Lease, error) {
	start := e.cfg.Now()
	ctx, cancel := withMargin(ctx, r.Timeout)
	defer cancel()
	if err := e.awaitRestored(ctx); err != nil {
		return api.Lease{}, api.WithCode(api.CodeTryAgain, err)
	}
	ctx, done, err := e.turns.take(ctx, r.AttachmentID)
	if err != nil {
		return api.Lease{}, api.WithCode(api.CodeTryAgain, fmt.Errorf("wait for an earlier call for %s: %w", r.AttachmentID, err))
	}
	defer done()
	l, err := e.attach(ctx, r, start, inTime)
	e.cfg.Metrics.attached(err, e.cfg.Now().Sub(start))
	if err != nil && !r.IPAM { // who asks for such an address says it with more
		log := e.cfg.Log.With("attachment", r.AttachmentID.String(), "network", r.Network, "pod", r.Pod.Namespace+"/"+r.Pod.Name, "error", err)
		if unwanted(err) {
			log.Info("ADD is canceled")
		} else {
			log.Warn("ADD has failed")
		}
	}
	return l, err
}

// unwanted tells whether an ADD has ended because nobody wants it any more.
func unwanted(err error) bool {
	return slices.ContainsFunc([]error{errDetached, errEnding, ErrSuperseded, context.Canceled}, func(over error) bool { return errors.Is(err, over) })
}

// withMargin bounds ctx by d, less what an answer needs on its way back; 0 is no
// bound.
func withMargin(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	if d <= 0 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, d-min(d/10, time.Second))
}

// When an Attach comes.
type moment bool

const (
	inTime moment = false // the plugin waits for it
	late   moment = true  // the pod was started without it
)

// attach is an Attach whose turn has come.
func (e *Engine) attach(ctx context.Context, r api.Request, start time.Time, when moment) (api.Lease, error) {
	b, err := e.briefToAdd(ctx, r)
	if err != nil {
		return api.Lease{}, err
	}
	if limit := b.settings.Timeout; limit > 0 {
		// The plugin cannot know it where the network says so in its definition.
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, limit)
		defer cancel()
	}
	link, err := e.cfg.Links.Inspect(ctx, b.target())
	if errors.Is(err, ErrGone) && r.DeviceID != "" && e.cfg.Devices == nil {
		err = fmt.Errorf("%w; if its device %s is on vfio-pci: this engine borrows none", err, r.DeviceID)
	}
	if err != nil {
		return api.Lease{}, api.WithCode(codeOfLook(ctx), err)
	}
	if when == late && link.Kind == kindDummy {
		return api.Lease{}, api.WithCode(api.CodeEnv, fmt.Errorf("%s is a dummy, which leads nowhere: KubeVirt has plugged the machine already, "+
			"and its address is found out at its next start", r.IfName))
	}
	b.rec.Netns = link.Netns
	if b.rec.VFIO {
		link.HardwareAddr = b.mac
	}
	old := e.session(r.AttachmentID)
	if err := e.strip(ctx, b, r, old, when); err != nil {
		return api.Lease{}, api.WithCode(api.CodeTryAgain, err)
	}
	// A note of a DEL is about what was there before this ADD.
	if err := e.cfg.Store.ForgetEnded(r.AttachmentID); err != nil {
		return api.Lease{}, api.WithCode(api.CodeTryAgain, err)
	}
	lease, err := e.attachTo(ctx, b, link, old, start)
	lease.Stripped = b.stripped(r)
	return lease, err
}

// attachTo gives the interface that was found its address. old is a session with
// the same id; nil: there is none.
func (e *Engine) attachTo(ctx context.Context, b briefing, link Link, old *session, start time.Time) (api.Lease, error) {
	var prior *Record
	var retired []*session
	if old != nil {
		if v := old.look(); e.stands(ctx, old, v, b.rec, link) {
			return answer(v), api.WithCode(api.CodeTryAgain, e.publishAgain(ctx, old, v))
		}
		if prior = e.retire(ctx, old, b.rec.Network); prior != nil {
			retired = []*session{old}
		}
		if prior != nil && prior.Netns == link.Netns {
			if err := e.inheritSetup(ctx, &b.rec, *prior); err != nil {
				return api.Lease{}, api.WithCode(api.CodeTryAgain, both(err, e.reinstate(retired)))
			}
		}
	}
	s := e.newSession(b.rec)
	s.settings, s.link, s.hostname = b.settings, link, b.hostname
	lease, err := e.establish(ctx, s, prior)
	if err != nil {
		silent := s.silent(err)
		err = both(err, e.letGo(s))
		if !s.inherited {
			err = both(err, e.reinstate(retired))
		}
		err = s.explain(err, e.cfg.Now().Sub(start))
		if silent {
			s.report(NoServer, err.Error())
		}
		return api.Lease{}, api.WithCode(api.CodeTryAgain, err)
	}
	return lease, nil
}

// kindDummy is the kind of the interface that KubeVirt leaves in the place of the one
// that it takes to the guest.
const kindDummy = "dummy"

// strip takes addresses off the interface that the wrapped plugin put there and
// that are not the pod's. For a VM that is the first thing of all: KubeVirt takes
// an address that it sees for its own to give to the guest. One that a session has
// put there stays.
func (e *Engine) strip(ctx context.Context, b briefing, r api.Request, old *session, when moment) error {
	var addrs []netip.Prefix // none: all
	switch {
	case b.rec.VFIO:
		return nil
	case b.rec.Workload == VM:
	case !b.rec.OVN:
		return nil
	case when == late:
		if old != nil {
			return nil
		}
	default:
		for _, text := range b.stripped(r) {
			addrs = append(addrs, netip.MustParsePrefix(text))
		}
		if old != nil {
			own := old.look().setup.Addr
			addrs = slices.DeleteFunc(addrs, func(p netip.Prefix) bool { return p == own })
		}
		if len(addrs) == 0 {
			return nil
		}
	}
	taken, err := e.cfg.Links.Strip(ctx, b.rec.Target(), addrs)
	if err != nil {
		return fmt.Errorf("take off %s what the wrapped plugin configured: %w", r.IfName, err)
	}
	if len(taken) > 0 {
		e.cfg.Log.Info("addresses of the wrapped plugin taken off", "attachment", r.AttachmentID.String(), "addresses", fmt.Sprint(taken))
	}
	return nil
}

// isIPv4 tells whether text is an IPv4 address with its mask.
func isIPv4(text string) bool {
	p, err := netip.ParsePrefix(text)
	return err == nil && p.Addr().Is4()
}

// establish takes a new session from nothing to a kept lease. prior is what a
// session with the same id held.
func (e *Engine) establish(ctx context.Context, s *session, prior *Record) (api.Lease, error) {
	if err := s.prepare(ctx); err != nil {
		return api.Lease{}, err
	}
	older, free, err := e.older(ctx, s)
	if err != nil {
		return api.Lease{}, err
	}
	defer free()
	for _, o := range older {
		o.stop()
		if held := o.rec; held.Lease.Addr.IsValid() {
			prior = &held
		}
	}
	if err := s.acquire(ctx, prior, older); err != nil {
		return api.Lease{}, both(err, e.goOn(older))
	}
	s.reportLeased()
	s.observe()
	if s.plan.Keep {
		err = e.keep(s)
	} else {
		s.settle()
	}
	if err = both(err, e.goOn(older)); err != nil {
		s.stop()
		s.closeLeft()
		s.undo(context.WithoutCancel(ctx), s.newWire())
		return api.Lease{}, err
	}
	return answer(s.look()), nil
}
