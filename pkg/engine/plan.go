package engine

import (
	"time"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine/dhcp4"
)

// Workload is what runs behind an interface.
type Workload uint8

// The workloads. Container is what everything is where nobody can tell.
const (
	Container Workload = iota
	// VM is a virtual machine whose guest runs its own DHCP client.
	VM
)

// Plan is what the engine does for an attachment.
type Plan struct {
	// Borrow takes its device off vfio-pci for the time of the exchange.
	Borrow bool
	// Configure puts the address on the interface.
	Configure bool
	// Keep renews the lease for the life of the attachment.
	Keep bool
	// Release gives the lease back at Detach.
	Release bool
}

// planFor decides. A guest does for itself what the engine does for a container,
// and an address on its pod's interface would be in its way. A device on vfio-pci
// is somebody else's from the moment in which it is back.
func planFor(w Workload, vfio bool) Plan {
	serve := w == Container && !vfio
	return Plan{Borrow: vfio, Configure: serve, Keep: serve, Release: serve}
}

// leastMTU is what every host must be able to take (RFC 791, 3.1). With less, our
// own messages would not fit, and the lease could not be renewed.
const leastMTU = 576

// setupFor is what a lease, with those of its routes that may be installed, means
// for an interface whose own MTU is linkMTU. The MTU goes only downwards: a server
// does not know what the link can carry.
func setupFor(l dhcp4.Lease, routes []dhcp4.Route, metric, linkMTU int) Setup {
	s := Setup{Addr: l.Addr}
	for _, r := range routes {
		s.Routes = append(s.Routes, Route{Dst: r.Dst, Gateway: r.Gateway, Metric: metric})
	}
	if l.MTU >= leastMTU && l.MTU < linkMTU {
		s.MTU, s.PriorMTU = l.MTU, linkMTU
	}
	return s
}

// lifetimeAt is how long the lease may still be used at now.
func lifetimeAt(l dhcp4.Lease, now time.Time) time.Duration {
	end := l.ExpireAt()
	if end.IsZero() {
		return dhcp4.Infinite
	}
	return max(end.Sub(now), 0)
}
