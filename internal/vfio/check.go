package vfio

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine"
	"github.com/dhcp-meta/dhcp-meta/pkg/engine/api"
	"github.com/dhcp-meta/dhcp-meta/pkg/sriov"
)

// A plan is what is known of a device that may be borrowed, before its first write.
type plan struct {
	device sriov.Device
	driver sriov.Driver
	// override is the driver_override while it is away.
	override string
	// mac is the MAC that the interface must have.
	mac net.HardwareAddr
	// pf is the interface of the physical function; empty: it cannot be seen.
	pf string
	// old is the MAC that the physical function has set, when it is to be given
	// mac in its place; nil: it is not changed.
	old net.HardwareAddr
	// guard keeps others from opening the device; nil where the kernel has no groups.
	guard *os.File
}

// check refuses what must not be touched, touching nothing. The caller closes the
// plan's guard.
func (d *Devices) check(ctx context.Context, l engine.Loan) (plan, step, error) {
	p := plan{}
	var err error
	if p.device, err = d.find(l.Device); err != nil {
		return p, stepCheck, err
	}
	refuse := func(s step, code uint, err error) (plan, step, error) {
		return p, s, api.WithCode(code, fmt.Errorf("it is not touched: %w", err))
	}
	if err := p.device.CheckVF(); err != nil {
		return refuse(stepCheck, api.CodeEnv, err)
	}
	if err := d.policy.Check(p.device); err != nil {
		return refuse(stepCheck, api.CodeEnv, err)
	}
	if p.device.Driver != sriov.VFIOPCI {
		return refuse(stepCheck, api.CodeEnv, fmt.Errorf("it is not on vfio-pci: its driver is %q", p.device.Driver))
	}
	owner, err := d.locks.owner(p.device.Address, l.Netns.Path)
	if err == nil && owner != "" {
		err = fmt.Errorf("it belongs to another pod: sriov-cni gave it to the one at %s", owner)
	}
	if err != nil {
		return refuse(stepCheck, api.CodeTryAgain, err)
	}
	if err := d.host.CheckWritable(p.device.Address); err != nil {
		return refuse(stepCheck, api.CodeEnv, err)
	}
	if err := d.chooseMAC(&p, l.HardwareAddr); err != nil {
		return refuse(stepMAC, api.CodeEnv, err)
	}
	if p.driver, err = d.ensureDriver(ctx, p.device); err != nil {
		return refuse(stepDriver, api.CodeEnv, err)
	}
	if !d.host.Autoprobe(p.device.PF) {
		p.override = p.driver.Name // or the kernel would offer it to nobody
	}
	if err := context.Cause(ctx); err != nil {
		return refuse(stepCheck, api.CodeTryAgain, err)
	}
	// Last, so that the device is kept from others for as short as possible.
	if p.guard, err = d.guard(p.device); err != nil {
		return refuse(stepCheck, api.CodeTryAgain, err)
	}
	return p, "", nil
}

// ensureDriver may load a module, whose start is not ours to end.
func (d *Devices) ensureDriver(ctx context.Context, dev sriov.Device) (sriov.Driver, error) {
	type found struct {
		sriov.Driver
		err error
	}
	c := make(chan found, 1)
	go func() {
		driver, err := d.host.EnsureDriver(dev)
		c <- found{driver, err}
	}()
	select {
	case f := <-c:
		return f.Driver, f.err
	case <-ctx.Done():
		return sriov.Driver{}, fmt.Errorf("find a driver: %w", context.Cause(ctx))
	}
}

// reserveMAC refuses a MAC that the interface of another borrowed device has: the
// physical function may not have been told yet.
func (d *Devices) reserveMAC(mac net.HardwareAddr, address string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if other := d.macs[mac.String()]; other != "" {
		return fmt.Errorf("device %s is borrowed with the same MAC %s", other, mac)
	}
	d.macs[mac.String()] = address
	return nil
}

func (d *Devices) freeMAC(mac net.HardwareAddr) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.macs, mac.String())
}

// chooseMAC finds out which MAC the interface must have, and whether the physical
// function has to be told.
func (d *Devices) chooseMAC(p *plan, want net.HardwareAddr) error {
	p.mac = want
	interfaces, err := d.host.Interfaces(p.device.PF)
	if err != nil {
		return err
	}
	if len(interfaces) == 0 {
		if want == nil {
			return fmt.Errorf("its MAC is not known: the physical function %s has no interface in this network namespace", p.device.PF)
		}
		return nil // the interface itself is asked to take it
	}
	p.pf = interfaces[0].Name
	f, err := d.net.Physical(p.pf)
	if err != nil {
		return fmt.Errorf("look at its physical function %s: %w", p.pf, err)
	}
	if !f.Up {
		return fmt.Errorf("its physical function %s is down, so that it would have no carrier", p.pf)
	}
	set, listed := f.MACs[p.device.VF]
	if want == nil {
		if p.mac = set; isZero(set) {
			return fmt.Errorf("it has no MAC of its own: the pod asks for none, and %s has set none for its virtual function %d, which would get another one each time", p.pf, p.device.VF)
		}
	}
	if bytes.Equal(p.mac, f.MAC) {
		return fmt.Errorf("its physical function %s has the same MAC %s", p.pf, p.mac)
	}
	for vf, mac := range f.MACs {
		if vf != p.device.VF && bytes.Equal(mac, p.mac) {
			return fmt.Errorf("virtual function %d of %s has the same MAC %s", vf, p.pf, mac)
		}
	}
	if listed && !bytes.Equal(set, p.mac) {
		p.old = set
	}
	return nil
}

func isZero(mac net.HardwareAddr) bool {
	return len(bytes.Trim(mac, "\x00")) == 0
}

// close ends the guard.
func (p *plan) close() error {
	if p.guard == nil {
		return nil
	}
	err := p.guard.Close()
	p.guard = nil
	if errors.Is(err, os.ErrClosed) {
		return nil
	}
	return err
}
