package engine

import (
	"context"
	"net"
)

// Devices is what the engine asks of the PCI devices of the node. All calls are
// safe for concurrent use.
type Devices interface {
	// Inspect tells what a device is, without touching it. The address is a PCI
	// address, "0000:3b:02.4"; what is none, or names nothing, is an error.
	Inspect(ctx context.Context, address string) (Device, error)
	// Borrow takes a virtual function off vfio-pci, gives it to its kernel driver
	// and moves the interface that appears into a private namespace, with the MAC
	// of the loan and up. It refuses, with the device untouched, what must not be
	// touched. When it fails, or ctx ends, the device is back where it was.
	Borrow(ctx context.Context, l Loan) (Borrowed, error)
	// Heal gives back what an earlier life of the engine left borrowed.
	Heal(ctx context.Context) error
	// HealDevice is Heal for one device.
	HealDevice(ctx context.Context, address string) error
}

// Device is what Inspect sees.
type Device struct {
	Address string
	// Driver is the kernel driver that has it; empty: none.
	Driver string
	// VFIO says that it is bound to vfio-pci, so that it has no netdev.
	VFIO bool
}

// Loan is what is to be borrowed, and for whom.
type Loan struct {
	Attachment
	// Device is the PCI address of the virtual function.
	Device string
	// HardwareAddr is the MAC that the guest will have; nil: the one that the
	// physical function has set.
	HardwareAddr net.HardwareAddr
}

// Borrowed is a device that the engine has for a moment. It is used by one
// goroutine.
type Borrowed interface {
	// Target is its interface.
	Target() Target
	// Return gives the device back to vfio-pci and sees that it is there. It works
	// also when ctx has ended: the way back has time of its own. It may be
	// repeated.
	Return(ctx context.Context) error
}
