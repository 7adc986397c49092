package engine

import (
	"net/netip"
	"time"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine/dhcp4"
	"github.com/dhcp-meta/dhcp-meta/pkg/engine/network"
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
	// Configure puts the address on the interface.
	Configure bool
	// Keep renews the lease for the life of the attachment.
	Keep bool
	// Release gives the lease back at Detach.
	Release bool
}

// planFor decides. A guest does for itself what the engine does for a container,
// and an address on its pod's interface would be in its way.
func planFor(w Workload) Plan {
	container := w == Container
	return Plan{Configure: container, Keep: container, Release: container}
}

// setupFor is what a lease means for an interface whose own MTU is linkMTU. The
// MTU goes only downwards: a server does not know what the link can carry.
func setupFor(set network.Settings, l dhcp4.Lease, linkMTU int) Setup {
	s := Setup{Addr: l.Addr}
	for _, r := range l.Routes {
		if r.Dst.Bits() == 0 && !set.DefaultRoute {
			continue
		}
		s.Routes = append(s.Routes, Route{Dst: r.Dst, Gateway: r.Gateway, Metric: set.RouteMetric})
	}
	if l.MTU > 0 && l.MTU < linkMTU {
		s.MTU, s.PriorMTU = l.MTU, linkMTU
	}
	return s
}

// gatewayOf is the first router that is on the link of the address; the zero
// Addr when there is none.
func gatewayOf(l dhcp4.Lease) netip.Addr {
	for _, r := range l.Routers {
		if l.Addr.Masked().Contains(r) {
			return r
		}
	}
	return netip.Addr{}
}

// lifetimeAt is how long the lease may still be used at now.
func lifetimeAt(l dhcp4.Lease, now time.Time) time.Duration {
	end := l.ExpireAt()
	if end.IsZero() {
		return dhcp4.Infinite
	}
	return max(end.Sub(now), 0)
}
