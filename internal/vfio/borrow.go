package vfio

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"sync"
	"time"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine"
	"github.com/dhcp-meta/dhcp-meta/pkg/engine/api"
	"github.com/dhcp-meta/dhcp-meta/pkg/sriov"
)

// errWindow is why something ended that took longer than a device may be away.
var errWindow = errors.New("the device has been away from vfio-pci for as long as it may (--vfio-window)")

// interfacePoll is how often the interface is looked for although nothing was told
// of a change: messages may be lost.
const interfacePoll = 200 * time.Millisecond

// loan is a borrowed device.
type loan struct {
	d     *Devices
	slot  *slot
	entry entry
	plan  plan
	// cookie is the private namespace's.
	cookie uint64
	// changed tells of interfaces, until stop.
	changed <-chan struct{}
	stop    func()
	// away is since when the device is on its way; zero: it is not.
	away time.Time
	// end is when the way back begins, whoever uses it.
	end time.Time
	// done gives the turn and the locks back.
	done func()

	mu      sync.Mutex
	expires *time.Timer
	over    bool
	err     error // of the way back
}

// Borrow implements engine.Devices. Its errors speak of the device as "it": the
// caller names it.
func (d *Devices) Borrow(ctx context.Context, l engine.Loan) (engine.Borrowed, error) {
	address, err := sriov.ParseAddress(l.Device)
	if err != nil {
		d.metrics.failed(stepCheck)
		return nil, api.WithCode(api.CodeConfig, err)
	}
	l.Device = address
	b := &loan{d: d, slot: d.slot(address), stop: func() {}}
	if b.done, err = d.enter(ctx, b.slot, address); err != nil {
		d.metrics.failed(stepCheck)
		return nil, api.WithCode(api.CodeTryAgain, fmt.Errorf("it is not touched: %w", err))
	}
	if err := d.healLeft(ctx, b.slot); err != nil {
		b.leave()
		return nil, api.WithCode(api.CodeTryAgain, fmt.Errorf("it was borrowed before and is not back yet: %w", err))
	}
	s, err := b.begin(ctx, l)
	if err != nil {
		b.leave()
		d.metrics.failed(s)
		return nil, err
	}
	if s, err = b.carryOut(ctx); err != nil {
		d.metrics.failed(s)
		err = api.WithCode(api.CodeTryAgain, err)
		if back := b.giveBack(ctx); back != nil {
			return nil, fmt.Errorf("%w; and %w", err, back)
		}
		return nil, err
	}
	return b, nil
}

// enter takes the turn of a device, and the lock that sriov-cni knows.
func (d *Devices) enter(ctx context.Context, s *slot, address string) (done func(), err error) {
	turn, err := s.take(ctx)
	if err != nil {
		return nil, err
	}
	unlock, err := d.locks.take(ctx, address)
	if err != nil {
		turn()
		return nil, err
	}
	return func() { unlock(); turn() }, nil
}

// leave gives the device's place to the next one, when the kernel has returned from
// all that it was asked.
func (b *loan) leave() { b.d.leave(b.slot, b.done) }

// begin checks, and writes the journal.
func (b *loan) begin(ctx context.Context, l engine.Loan) (step, error) {
	var s step
	var err error
	if b.plan, s, err = b.d.check(ctx, l); err != nil {
		return s, err
	}
	p := &b.plan
	if err := b.d.reserveMAC(p.mac, p.device.Address); err != nil {
		p.close()
		return stepMAC, api.WithCode(api.CodeEnv, fmt.Errorf("it is not touched: %w", err))
	}
	b.entry = entry{
		Version: entryVersion, Device: p.device.Address, ID: p.device.ID.String(), Override: p.device.Override,
		PF: p.device.PF, VF: p.device.VF, Netns: filepath.Join(b.d.netnsDir, p.device.Address),
		Container: l.ContainerID, Interface: l.IfName, PodNetns: l.Netns.Path, BootID: b.d.bootID, Since: time.Now(),
	}
	if l.Pod.Name != "" {
		b.entry.Pod = l.Pod.Namespace + "/" + l.Pod.Name
	}
	if p.old != nil {
		b.entry.SetMAC, b.entry.OldMAC = p.mac.String(), p.old.String()
		b.d.log.Warn("physical function has another MAC for a device than the one it is asked for with, set for the exchange",
			"device", p.device.Address, "interface", p.pf, "vf", p.device.VF, "has", p.old.String(), "asked", p.mac.String())
	}
	b.slot.setLent(true)
	if err := b.d.journal.put(b.entry); err != nil {
		b.slot.setLent(false)
		p.close()
		b.d.freeMAC(p.mac)
		return stepJournal, api.WithCode(api.CodeTryAgain, err)
	}
	b.d.metrics.borrowed.Inc()
	return "", nil
}

// carryOut is the way from vfio-pci to an interface in the private namespace. After
// an error the way back begins wherever it ended.
func (b *loan) carryOut(ctx context.Context) (step, error) {
	// The way back is part of the window. That it begins a little early does no harm.
	b.end = time.Now().Add(b.d.window - b.d.reserve())
	ctx, cancel := context.WithDeadlineCause(ctx, b.end, errWindow)
	defer cancel()
	for _, s := range []struct {
		step
		run func(context.Context) error
	}{
		{stepNamespace, b.makeNamespace},
		{stepMAC, b.setMAC},
		{stepUnbind, b.unbind},
		{stepProbe, b.probe},
		{stepInterface, b.takeInterface},
	} {
		start := time.Now()
		if s.step == stepUnbind {
			b.away = start // what came before has not touched the device
		}
		err := context.Cause(ctx)
		if err == nil {
			err = s.run(ctx)
		}
		if err != nil {
			return s.step, err
		}
		b.d.log.Debug("step of a hand-over", "device", b.entry.Device, "step", s.step, "took", time.Since(start))
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.expires = time.AfterFunc(time.Until(b.end), b.expire)
	return "", nil
}

// reserve is the part of the window that the way back may need.
func (d *Devices) reserve() time.Duration { return min(longestReturn, d.window/2) }

func (b *loan) makeNamespace(context.Context) error {
	if err := b.d.net.RemoveNamespace(b.entry.Netns); err != nil {
		return err
	}
	var err error
	b.cookie, err = b.d.net.MakeNamespace(b.entry.Netns)
	return err
}

func (b *loan) setMAC(context.Context) error {
	if b.plan.old == nil {
		return nil
	}
	return b.d.net.SetMAC(b.plan.pf, b.plan.device.VF, b.plan.mac)
}

func (b *loan) unbind(ctx context.Context) error {
	address := b.plan.device.Address
	if b.plan.device.Override != b.plan.override {
		if err := b.slot.do(ctx, func() error { return b.d.host.SetOverride(address, b.plan.override) }); err != nil {
			return err
		}
	}
	if err := b.slot.do(ctx, func() error { return b.d.host.Unbind(address) }); err != nil {
		return err
	}
	return b.plan.close()
}

// probe lets the kernel choose. A driver that was told of the device by its ids
// (new_id), vfio-pci above all, may come before the right one: then that is named.
func (b *loan) probe(ctx context.Context) error {
	address, host := b.plan.device.Address, b.d.host
	var err error
	if b.changed, b.stop, err = b.d.net.Watch(); err != nil {
		b.stop = func() {}
		return err
	}
	var driver string
	try := func() (err error) { driver, err = host.Probe(address); return err }
	if err := b.slot.do(ctx, try); err != nil {
		return err
	}
	if driver == sriov.VFIOPCI {
		again := func() error {
			return errors.Join(host.SetOverride(address, b.plan.driver.Name), host.Unbind(address))
		}
		if err := errors.Join(b.slot.do(ctx, again), b.slot.do(ctx, try)); err != nil {
			return err
		}
	}
	switch driver {
	case "":
		return fmt.Errorf("driver %s did not take the device: the kernel's log (dmesg) says why", b.plan.driver.Name)
	case sriov.VFIOPCI:
		return fmt.Errorf("vfio-pci took the device again, in place of %s", b.plan.driver.Name)
	}
	return nil
}

// takeInterface waits for the interface and moves it out of the node's sight.
func (b *loan) takeInterface(ctx context.Context) error {
	defer b.stop()
	address := b.plan.device.Address
	look := time.NewTicker(interfacePoll)
	defer look.Stop()
	for {
		found, err := b.d.host.Interfaces(address)
		if err != nil {
			return err
		}
		if len(found) > 1 {
			return fmt.Errorf("driver %s makes %d interfaces of it, which of them is not known", b.d.host.Driver(address), len(found))
		}
		if len(found) == 1 {
			return b.slot.do(ctx, func() error { return b.d.net.Move(found[0].Index, b.entry.Netns, ifName, b.plan.mac) })
		}
		if b.d.host.Driver(address) == "" {
			return fmt.Errorf("wait for the interface of %s: its driver has let it go again, or it is gone", address)
		}
		select {
		case <-b.changed:
		case <-look.C:
		case <-ctx.Done():
			return fmt.Errorf("driver %q has the device, and no interface has appeared (does the engine run in the node's network namespace?): %w",
				b.d.host.Driver(address), context.Cause(ctx))
		}
	}
}

// Target implements engine.Borrowed.
func (b *loan) Target() engine.Target {
	return engine.Target{Netns: engine.Netns{Path: b.entry.Netns, Cookie: b.cookie}, IfName: ifName}
}

// HardwareAddr is the MAC that the interface has.
func (b *loan) HardwareAddr() net.HardwareAddr { return b.plan.mac }

// Deadline is when the device is taken back, whoever uses it.
func (b *loan) Deadline() time.Time { return b.end }

// Return implements engine.Borrowed.
func (b *loan) Return(ctx context.Context) error {
	b.mu.Lock()
	if !b.over {
		defer b.mu.Unlock()
		return b.giveBackLocked(ctx)
	}
	err := b.err
	b.mu.Unlock()
	if err == nil {
		return nil
	}
	return b.d.HealDevice(context.WithoutCancel(ctx), b.entry.Device)
}

// expire takes the device back at the end of its window.
func (b *loan) expire() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.over {
		return
	}
	b.d.metrics.failed(stepWindow)
	b.d.log.Warn("borrowed device was not given back in time, taking it back", b.entry.attrs("window", b.d.window)...)
	b.giveBackLocked(context.Background())
}

func (b *loan) giveBack(ctx context.Context) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.giveBackLocked(ctx)
}

// giveBackLocked ends the loan, with time of its own: the caller's may be over.
func (b *loan) giveBackLocked(ctx context.Context) error {
	if b.expires != nil {
		b.expires.Stop()
	}
	b.over = true
	b.stop()
	b.plan.close()
	ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), b.d.reserve(), errWindow)
	defer cancel()
	b.err = b.d.giveBack(ctx, b.slot, b.entry)
	var took time.Duration
	if !b.away.IsZero() {
		took = time.Since(b.away)
		b.d.metrics.away(took)
	}
	b.d.metrics.borrowed.Dec()
	b.d.freeMAC(b.plan.mac)
	b.slot.setLent(false)
	if b.err == nil {
		b.d.log.Info("borrowed device is back on vfio-pci", b.entry.attrs("driver", b.plan.driver.Name, "took", took)...)
	} else {
		b.d.metrics.failed(stepReturn)
		b.d.log.Error("borrowed device is not back on vfio-pci, trying again", b.entry.attrs("err", b.err)...)
	}
	b.d.countLeft()
	b.leave()
	return b.err
}

// attrs are what a log line about an entry says.
func (e entry) attrs(more ...any) []any {
	all := []any{"device", e.Device, "attachment", e.Container + ":" + e.Interface}
	if e.Pod != "" {
		all = append(all, "pod", e.Pod)
	}
	return append(all, more...)
}
