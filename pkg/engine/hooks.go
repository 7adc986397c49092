package engine

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine/dhcp4"
	"github.com/dhcp-meta/dhcp-meta/pkg/engine/network"
)

// Publisher makes leases known outside the node. It is called by whoever runs
// the session, one call at a time for an attachment; calls for several
// attachments come side by side.
//
// It is level-driven: what Publish was told last is kept, also when the call
// failed, and put back when somebody else changes it, until Withdraw or Forget.
type Publisher interface {
	// Reset is called before the wrapped plugin runs: an address that an earlier
	// sandbox of the pod left published must not be read by that plugin. Where
	// nothing of the kind is published it writes nothing.
	Reset(ctx context.Context, a Attachment, w Workload) error
	// Publish says that the attachment has a lease: its first one, one in which
	// something has changed, or one from before a restart. It may be repeated. It
	// tries until ctx ends; ErrSuperseded says that there is nothing to try for:
	// the pod is gone, or has a newer sandbox.
	Publish(ctx context.Context, p Publication) error
	// Withdraw says that the attachment has no lease any longer; its interface
	// keeps what it is known by without one.
	Withdraw(ctx context.Context, a Attachment) error
	// Forget says that the attachment is nobody's business any longer. Nothing is
	// written.
	Forget(a Attachment)
}

// ErrSuperseded is returned by Publish for an attachment whose pod is gone or has
// a newer sandbox.
var ErrSuperseded = errors.New("the pod is gone or has a newer sandbox")

// Publication is what is known of a lease outside the node.
type Publication struct {
	Attachment
	Workload Workload
	// HardwareAddr is the MAC that the lease was got with.
	HardwareAddr net.HardwareAddr
	// Addr is the leased address with the mask of option 1.
	Addr netip.Prefix
	// Gateways are the routers on the link of Addr.
	Gateways []netip.Addr
	// OVN says that OVN-Kubernetes plugs the interface.
	OVN bool
	// ByCaller says that whoever asked for the address makes this lease known itself;
	// what becomes of it later is the publisher's to tell.
	ByCaller bool
	// PortSecurity is how far the port of the interface is pinned to Addr. For a VM
	// it is never network.PortSecurityAuto; for a container that pins IPv4 and leaves
	// IPv6 as it is.
	PortSecurity network.PortSecurity
}

// Observer is told what has become of the lease of each attachment, for those who
// show it. A call must not block. Those about one attachment come one after the
// other, those about several side by side.
type Observer interface {
	// Observe is told when something may have changed, at each step of a renewal
	// too; of an ADD not before it has succeeded.
	Observe(o Observation)
	// Restored is called once: all that is left from before a restart has been told.
	Restored()
}

// Observation is what is to be seen of an attachment.
type Observation struct {
	Attachment
	// Phase is how far it has come; empty: it is over.
	Phase Phase
	// State is the client's; it means nothing where Kept is false.
	State dhcp4.State
	// Kept says that the engine renews the lease; otherwise it is its guest's.
	Kept         bool
	HardwareAddr net.HardwareAddr
	// Lease is what the record holds: see Phase. Granted is its start on the wall
	// clock.
	Lease   dhcp4.Lease
	Granted time.Time
}

// Reporter is told what people should know of an attachment. A call must not
// block, and is made from several goroutines.
type Reporter interface {
	Report(a Attachment, e Event)
}

// Event is something that people should know.
type Event struct {
	Reason  EventReason
	Message string
}

// EventReason is the kind of an event, one word.
type EventReason string

// The reasons of events.
const (
	AddressLeased EventReason = "AddressLeased"     // the pod has its address
	AddressFound  EventReason = "AddressReported"   // a server would give a VM this address
	StillWaiting  EventReason = "WaitingForAddress" // an ADD has asked for some time, and asks on
	NoServer      EventReason = "NoDHCPServer"      // nobody answered in time
	LateLease     EventReason = "LateLease"         // a pod that was started without us has its lease now
	LeaseChanged  EventReason = "LeaseChanged"      // the server changed something in a lease
	LeaseLost     EventReason = "LeaseLost"         // NAK or expiry
	LeaseReleased EventReason = "LeaseReleased"     // given back by hand, of a pod that goes on to run
	ConflictFound EventReason = "AddressConflict"   // somebody else uses the address
	ServerRefused EventReason = "ServerRefused"     // a server answered that may not
	RouteRefused  EventReason = "RouteRefused"      // a route of the lease is not safe to install
)

// observe tells the observer, if there is one, how things stand. What was never told
// of needs no end.
func (s *session) observe() {
	to := s.cfg.Observer
	if to == nil || s.adding || !s.observed && (s.rec.Phase == "" || s.rec.Phase == Claimed) {
		return
	}
	s.observed = s.rec.Phase != ""
	v := s.look()
	o := Observation{Attachment: s.rec.Attachment, Phase: s.rec.Phase, State: v.state, Kept: s.plan.Keep,
		HardwareAddr: s.rec.HardwareAddr, Lease: s.rec.Lease}
	if at := s.cfg.wall(o.Lease.Start); at != nil {
		o.Granted = *at
	}
	to.Observe(o)
}

// observeEnd tells the observer that the attachment is over, whatever its record says.
func (s *session) observeEnd() {
	if s.observed {
		s.observed = false
		s.cfg.Observer.Observe(Observation{Attachment: s.att})
	}
}

// report tells the reporter, if there is one.
func (s *session) report(reason EventReason, message string) {
	if r := s.cfg.Reporter; r != nil {
		r.Report(s.att, Event{reason, message})
	}
}

// reportLeased tells the reporter which address the attachment has now.
func (s *session) reportLeased() {
	l, wish := s.rec.Lease, ""
	if a := s.settings.Address; a.IsValid() && a != l.Addr.Addr() {
		wish = fmt.Sprintf(", and not %s, which was asked for", a)
	}
	if s.plan.Configure {
		s.report(AddressLeased, fmt.Sprintf("address %s from DHCP server %s%s", l.Addr, l.Server, wish))
		return
	}
	s.report(AddressFound, fmt.Sprintf("DHCP server %s has address %s for the guest%s", l.Server, l.Addr, wish))
}
