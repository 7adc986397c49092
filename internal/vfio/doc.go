// Package vfio borrows virtual functions that are on vfio-pci: it gives one to its
// kernel driver for as long as an exchange by DHCP takes, and back. It implements
// engine.Devices.
//
// # What it promises
//
// A device that must not be touched is not touched: one that a process has open,
// that another pod has, that is no virtual function of a network interface, or that
// the kernel has no driver for, is refused before the first write.
//
// Every way out ends on vfio-pci: success, an error of any step, the end of the
// caller, the window, and the death of the engine at any moment. An entry in the
// journal is durable before the first write and goes after the device was read back,
// and giving back (giveback.go) looks at what is there and does what is missing,
// wherever the way out began.
//
// The interface that appears is in sight of the node for a moment, without traffic.
// It is moved at once into a network namespace of its own, where there is no udev,
// no network manager and no IPv6, by its index: names change at any time.
//
// Nothing waits for ever. A write to sysfs that the kernel does not return from is
// left to a goroutine, which gives the device back when it does; nobody else gets
// the device before.
package vfio
