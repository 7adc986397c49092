package vfio

import (
	"context"
	"net"
)

// network is what is asked of the network stack. The one of the node is kernel;
// tests have one that goes with sysfstest.
type network interface {
	// Physical tells of the physical function with that interface in the engine's
	// namespace.
	Physical(ifname string) (physical, error)
	// SetMAC gives virtual function vf of an interface a MAC, by the physical one.
	SetMAC(ifname string, vf int, mac net.HardwareAddr) error
	// Watch sends whenever something has changed about the interfaces of the
	// engine's namespace, until stop.
	Watch() (changed <-chan struct{}, stop func(), err error)
	// MakeNamespace makes an empty network namespace without IPv6 and names it.
	MakeNamespace(path string) (cookie uint64, err error)
	// RemoveNamespace takes the name away, and the namespace with it. What is not
	// there is no error.
	RemoveNamespace(path string) error
	// Move takes an interface of the engine's namespace into another one, where it
	// gets name and MAC and is brought up.
	Move(index int, namespace, name string, mac net.HardwareAddr) error
	// Elsewhere returns a namespace, but for the engine's own and the one at except,
	// that has an interface of the device; empty: none has.
	Elsewhere(ctx context.Context, address, except string) (string, error)
}

// physical is a physical function.
type physical struct {
	// Up says that it is up: without that its virtual functions have no carrier.
	Up  bool
	MAC net.HardwareAddr
	// MACs are those of its virtual functions by number. One that is all zero has
	// none: the driver makes up another one each time.
	MACs map[int]net.HardwareAddr
}

// ifName is what the interface of a borrowed device is called in its namespace,
// where there is none but it and lo.
const ifName = "vf0"
