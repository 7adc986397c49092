package sriov

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// VFIOPCI is the driver that hands a device to a process.
const VFIOPCI = "vfio-pci"

// CheckWritable tells whether the writes that give a device another driver would
// be let through, without writing.
func (h *Host) CheckWritable(address string) error {
	paths := []string{h.device(address, "driver_override"), h.path("sys/bus/pci/drivers_probe")}
	if driver := h.Driver(address); driver != "" {
		paths = append(paths, h.device(address, "driver/unbind"))
	}
	for _, path := range paths {
		err := unix.Faccessat(unix.AT_FDCWD, path, unix.W_OK, unix.AT_EACCESS)
		switch {
		case errors.Is(err, unix.EROFS):
			return fmt.Errorf("sysfs is read-only here (%s): the engine's container needs /sys mounted read-write", path)
		case err != nil:
			return fmt.Errorf("sysfs cannot be written: %s: %w", path, err)
		}
	}
	return nil
}

// SetOverride makes name the only driver that may take the device from now on;
// empty: any driver may. It changes nothing for the driver that has it now.
func (h *Host) SetOverride(address, name string) error {
	if err := h.write(h.device(address, "driver_override"), []byte(name+"\n")); err != nil {
		return fmt.Errorf("set driver_override of %s to %q: %w", address, name, err)
	}
	if got, err := h.Override(address); err != nil || got != name {
		return errors.Join(fmt.Errorf("set driver_override of %s to %q: it reads %q afterwards", address, name, got), err)
	}
	return nil
}

// Unbind takes the device from its driver; it is no error when it has none. It
// blocks for as long as a process holds a device on vfio-pci open, and then the
// process that writes cannot be killed either: see who holds it before.
func (h *Host) Unbind(address string) error {
	driver := h.Driver(address)
	if driver == "" {
		return nil
	}
	if err := h.write(h.path("sys/bus/pci/drivers", driver, "unbind"), []byte(address)); err != nil {
		return fmt.Errorf("unbind %s from %s: %w", address, driver, err)
	}
	if now := h.Driver(address); now == driver {
		return fmt.Errorf("unbind %s from %s: it has the device still", address, driver)
	}
	return nil
}

// Probe lets the kernel choose a driver for a device that has none, and returns
// it. The kernel says that the write succeeded also when no driver wanted the
// device, or the one that did failed: the device tells.
func (h *Host) Probe(address string) (driver string, err error) {
	if err := h.write(h.path("sys/bus/pci/drivers_probe"), []byte(address)); err != nil {
		return "", fmt.Errorf("look for a driver for %s: %w", address, err)
	}
	return h.Driver(address), nil
}
