package leaseobjects

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine"
	"github.com/dhcp-meta/dhcp-meta/pkg/engine/dhcp4"
)

// State is what has become of a lease, in a word for people.
type State string

// The states.
const (
	Bound     State = "Bound"     // the interface has its address
	Rebinding State = "Rebinding" // and its server is silent: all servers are asked
	Lost      State = "Lost"      // it has none any longer, and asks for another
	Orphaned  State = "Orphaned"  // the interface went without a DEL; the pod's next sandbox may have the address
	Reported  State = "Reported"  // a virtual machine's: its guest asks for it
)

// statusOf is what an object says of an attachment; false: there is to be none.
func statusOf(o engine.Observation, node string, now metav1.Time) (Status, bool) {
	s := Status{Pod: o.Pod.Name, Interface: o.IfName, Network: o.NAD, Node: node, MACAddress: o.HardwareAddr.String(), Since: now}
	if s.Network == "" {
		s.Network = o.Network
	}
	switch o.Phase {
	case engine.Seeking:
		s.State = Lost
		return s, true
	case engine.Leased:
		s.State = Bound
		switch {
		case !o.Kept:
			s.State = Reported
		case o.State == dhcp4.Rebinding:
			s.State = Rebinding
		}
	case engine.Orphaned:
		s.State = Orphaned
	default: // it has ended, or another sandbox has taken its place
		return Status{}, false
	}
	s.Address, s.Server = o.Lease.Addr.String(), o.Lease.Server.String()
	if o.Kept { // how long a guest has it is between the two of them
		s.LeaseTime = "infinite"
		if o.Lease.Lifetime != dhcp4.Infinite {
			s.LeaseTime = o.Lease.Lifetime.String()
		}
	}
	if !o.Granted.IsZero() {
		s.Since = metav1.NewTime(o.Granted)
	}
	return s, true
}
