package engine

import (
	"context"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine/dhcp4"
)

// Publisher makes leases known outside the node. It is called by whoever runs
// the session, one call at a time for an attachment.
type Publisher interface {
	// Publish says that the attachment has l, which is on its interface: its
	// first lease, or one in which something has changed. It may be repeated.
	Publish(ctx context.Context, a Attachment, l dhcp4.Lease) error
	// Withdraw says that the attachment has no lease any longer.
	Withdraw(ctx context.Context, a Attachment) error
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
	LeaseChanged  EventReason = "LeaseChanged"    // the server changed something in a lease
	LeaseLost     EventReason = "LeaseLost"       // NAK or expiry
	ConflictFound EventReason = "AddressConflict" // somebody else uses the address
	ServerRefused EventReason = "ServerRefused"   // a server answered that may not
	RouteRefused  EventReason = "RouteRefused"    // a route of the lease is not safe to install
)

// report tells the reporter, if there is one.
func (s *session) report(reason EventReason, message string) {
	if r := s.cfg.Reporter; r != nil {
		r.Report(s.att, Event{reason, message})
	}
}

// publish tells the publisher of a lease. What goes wrong does not take the lease
// from the pod.
func (s *session) publish(ctx context.Context, l dhcp4.Lease) {
	if p := s.cfg.Publisher; p != nil {
		s.published = true
		if err := p.Publish(ctx, s.att, l); err != nil {
			s.trouble("lease is not published", err)
		}
	}
}

// withdraw tells the publisher that the lease is gone, if it was told of one.
func (s *session) withdraw(ctx context.Context) {
	if p := s.cfg.Publisher; p != nil && s.published {
		s.published = false
		if err := p.Withdraw(ctx, s.att); err != nil {
			s.trouble("lease is not withdrawn", err)
		}
	}
}
