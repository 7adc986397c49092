package vfio

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/dhcp-meta/dhcp-meta/pkg/sriov"
)

// Heal implements engine.Devices: all that the journal has, and namespaces without
// an entry.
func (d *Devices) Heal(ctx context.Context) error {
	all, err := d.journal.devices()
	if err != nil {
		return err
	}
	var errs []error
	for _, address := range all {
		errs = append(errs, d.HealDevice(ctx, address))
	}
	return errors.Join(append(errs, d.sweep(all))...)
}

// sweep removes private namespaces of devices that are not borrowed. The entry goes
// after the namespace, so that there are none but after a reboot without one.
func (d *Devices) sweep(borrowed []string) error {
	files, err := os.ReadDir(d.netnsDir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look for namespaces that were left: %w", err)
	}
	var errs []error
	for _, f := range files {
		address, err := sriov.ParseAddress(f.Name())
		if err != nil || address != f.Name() || slices.Contains(borrowed, address) {
			continue
		}
		s := d.slot(address)
		select {
		case s.turn <- struct{}{}:
		default:
			continue // borrowed since
		}
		if _, found, err := d.journal.get(address); err == nil && !found {
			errs = append(errs, d.net.RemoveNamespace(filepath.Join(d.netnsDir, address)))
		}
		<-s.turn
	}
	return errors.Join(errs...)
}

// HealDevice implements engine.Devices. A device that a session of this engine has
// now is looked after by that; so a late DEL of an older pod changes nothing. What
// is no PCI address was never borrowed.
func (d *Devices) HealDevice(ctx context.Context, address string) error {
	address, err := sriov.ParseAddress(address)
	if err != nil {
		return nil
	}
	s := d.slot(address)
	if s.isLent() {
		return nil
	}
	if _, found, err := d.journal.get(address); err == nil && !found {
		return nil
	}
	done, err := d.enter(ctx, s, address)
	if err != nil {
		if s.isLent() {
			return nil // lent again before it was our turn
		}
		return fmt.Errorf("give device %s back: %w", address, err)
	}
	defer d.leave(s, done)
	return d.healLeft(ctx, s)
}

// healLeft gives the device back that an entry says is borrowed, unless it belongs
// to somebody else by now. The caller has the device's turn, so nobody borrows it.
func (d *Devices) healLeft(ctx context.Context, s *slot) error {
	address := s.address
	e, found, err := d.journal.get(address)
	if err != nil {
		d.log.Error("journal of a borrowed device cannot be read, giving it back by what is known otherwise", "device", address, "err", err)
		e, found = entry{Device: address, Netns: filepath.Join(d.netnsDir, address)}, true
	}
	if !found {
		return nil
	}
	defer d.countLeft()
	if err := d.heal(ctx, s, e); err != nil {
		d.metrics.failed(stepHeal)
		return err
	}
	return nil
}

// healLimit is how long healing a device may take. There is no exchange and no
// window then, but the look through the node's namespaces.
const healLimit = 2 * longestReturn

func (d *Devices) heal(ctx context.Context, s *slot, e entry) error {
	dev, err := d.host.Find(e.Device)
	if errors.Is(err, sriov.ErrNoDevice) {
		return d.giveBack(ctx, s, e)
	}
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, healLimit, errors.New("that takes too long"))
	defer cancel()
	whose, err := d.whose(ctx, e, dev)
	if err != nil {
		return fmt.Errorf("give device %s back: %w", e.Device, err)
	}
	if whose != "" {
		d.log.Warn("device that was borrowed belongs to somebody else by now and is left alone", e.attrs("why", whose)...)
		return d.forget(e)
	}
	if err := d.giveBack(ctx, s, e); err != nil {
		return err
	}
	d.log.Info("device that was left over is back on vfio-pci", e.attrs("driver", dev.Driver, "borrowed", e.Since)...)
	return nil
}

// whose says who else has a device that the journal names; empty: nobody has.
func (d *Devices) whose(ctx context.Context, e entry, dev sriov.Device) (string, error) {
	if e.ID != "" && e.ID != dev.ID.String() {
		return fmt.Sprintf("another kind of device is at its address: %s, not %s", dev.ID, e.ID), nil
	}
	switch {
	case dev.Driver == sriov.VFIOPCI:
		g, err := d.guard(dev)
		if g != nil {
			g.Close()
		}
		if errors.Is(err, errHeld) {
			return err.Error(), nil // a virtual machine runs on it
		}
		return "", nil
	case sriov.Userspace(dev.Driver):
		return "its driver is " + dev.Driver, nil
	case dev.Driver == "":
		return "", nil
	}
	owner, err := d.locks.owner(e.Device, e.PodNetns)
	if err != nil {
		return "", err
	}
	if owner != "" {
		return "sriov-cni gave it to the pod at " + owner, nil
	}
	// A pod that has its interface. One in the node's own namespace is ours: the
	// engine may have died before it was moved, or its namespace with the engine.
	where, err := d.net.Elsewhere(ctx, e.Device, e.Netns)
	if err != nil {
		return "", err
	}
	if where != "" {
		return "its interface is in the namespace at " + where, nil
	}
	return "", nil
}
