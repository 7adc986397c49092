package engine

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine/dhcp4"
)

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
	if t.IfName == "" {
		return Link{Netns: s.link.Netns}, nil
	}
	if s.noLink {
		return Link{}, fmt.Errorf("%s is not in netns %s: %w", t.IfName, t.Netns.Path, ErrGone)
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
	if err == nil {
		err = l.openErr
	}
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

func (l links) Clear(ctx context.Context, t Target, have Setup) error {
	if err := context.Cause(ctx); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.clearErr != nil {
		return l.clearErr
	}
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
	err := l.watchErr
	l.ended = ended
	l.mu.Unlock()
	if err != nil {
		return err
	}
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
	wait := p.w.closing
	p.w.mu.Unlock()
	if wait > 0 {
		time.Sleep(wait)
	}
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

// Strip takes addresses that the wrapped plugin has put there.
func (l links) Strip(_ context.Context, t Target, addrs []netip.Prefix) ([]netip.Prefix, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s, err := l.find(t)
	if err != nil {
		return nil, err
	}
	if l.stripErr != nil {
		return nil, l.stripErr
	}
	var taken []netip.Prefix
	s.foreign = slices.DeleteFunc(s.foreign, func(p netip.Prefix) bool {
		if len(addrs) > 0 && !slices.Contains(addrs, p) {
			return false
		}
		taken = append(taken, p)
		return true
	})
	if len(addrs) == 0 && s.setup.Addr.IsValid() {
		l.t.Errorf("Strip takes %s, which the engine has put there", s.setup.Addr)
	}
	if len(taken) > 0 {
		l.note("strip %v", taken)
	}
	return taken, nil
}
