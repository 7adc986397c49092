package vfio

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/dhcp-meta/dhcp-meta/pkg/sriov"
)

// giveBack makes the device what the entry says it was, from whatever it is now,
// and forgets the entry when it has seen that it is so. It may be repeated.
func (d *Devices) giveBack(ctx context.Context, s *slot, e entry) error {
	wrap := func(err error) error { return fmt.Errorf("give device %s back to vfio-pci: %w", e.Device, err) }
	if _, err := d.host.Find(e.Device); errors.Is(err, sriov.ErrNoDevice) && s.stuck == nil {
		d.log.Warn("borrowed device is no longer there, nothing is given back", e.attrs()...)
		return d.forget(e)
	}
	if err := s.do(ctx, func() error { return d.toVFIO(e.Device) }); err != nil {
		return wrap(err)
	}
	now, err := d.host.Override(e.Device)
	if err != nil {
		return wrap(err)
	}
	if now != e.Override {
		if err := s.do(ctx, func() error { return d.host.SetOverride(e.Device, e.Override) }); err != nil {
			return wrap(err)
		}
	}
	if err := d.restoreMAC(e); err != nil {
		return wrap(err)
	}
	if driver := d.host.Driver(e.Device); driver != sriov.VFIOPCI {
		return wrap(fmt.Errorf("its driver is %q at the end", driver))
	}
	return d.forget(e)
}

// toVFIO puts the device on vfio-pci, and reads that it is.
func (d *Devices) toVFIO(address string) error {
	start := time.Now()
	defer func() {
		d.log.Debug("step of a hand-over", "device", address, "step", stepReturn, "took", time.Since(start))
	}()
	if d.host.Driver(address) == sriov.VFIOPCI {
		return nil
	}
	// Before the unbind: from then on any driver that comes may take the device.
	if err := d.host.SetOverride(address, sriov.VFIOPCI); err != nil {
		return err
	}
	if err := d.host.Unbind(address); err != nil {
		return err
	}
	driver, err := d.host.Probe(address)
	if err != nil {
		return err
	}
	if driver != sriov.VFIOPCI {
		return fmt.Errorf("vfio-pci did not take it (its driver is %q): is its module loaded, is the IOMMU on?", driver)
	}
	return nil
}

// restoreMAC gives the virtual function the MAC that the physical one had for it,
// unless somebody has set another one meanwhile.
func (d *Devices) restoreMAC(e entry) error {
	if e.SetMAC == "" {
		return nil
	}
	interfaces, err := d.host.Interfaces(e.PF)
	if err != nil {
		return err
	}
	if len(interfaces) == 0 {
		return nil // it went, and what it had set with it
	}
	f, err := d.net.Physical(interfaces[0].Name)
	if err != nil {
		return err
	}
	old, err := net.ParseMAC(e.OldMAC)
	if err != nil {
		return err
	}
	if f.MACs[e.VF].String() != e.SetMAC {
		return nil
	}
	return d.net.SetMAC(interfaces[0].Name, e.VF, old)
}

// forget removes what is left of a loan: its namespace, and the entry.
func (d *Devices) forget(e entry) error {
	if e.Netns != "" {
		if err := d.net.RemoveNamespace(e.Netns); err != nil {
			return err
		}
	}
	return d.journal.remove(e.Device)
}

// leave gives the turn of a device to the next one. Where the kernel has not
// returned from a write, that waits, and the device is given back first.
func (d *Devices) leave(s *slot, done func()) {
	if s.stuck == nil {
		done()
		return
	}
	go func() {
		defer done()
		<-s.stuck
		s.stuck = nil
		if err := d.healLeft(context.Background(), s); err != nil {
			d.log.Error("device that was left over is not back on vfio-pci, trying again", "device", s.address, "err", err)
		}
	}()
}

// countLeft sets the gauge of devices that wait to be given back.
func (d *Devices) countLeft() {
	all, err := d.journal.devices()
	if err != nil {
		return // who needs the journal says so
	}
	n := 0
	for _, address := range all {
		if !d.slot(address).isLent() {
			n++
		}
	}
	d.metrics.left.Set(float64(n))
}

// Run tries again what could not be given back, until ctx ends.
func (d *Devices) Run(ctx context.Context) error {
	again := time.NewTicker(healEvery)
	defer again.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-again.C:
			if err := d.Heal(ctx); err != nil && ctx.Err() == nil {
				d.log.Debug("not all devices are back on vfio-pci", "err", err)
			}
		}
	}
}
