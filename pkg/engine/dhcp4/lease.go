package dhcp4

import (
	"math"
	"net/netip"
	"time"
)

// Infinite is the duration of a lease that never expires: 0xffffffff on the
// wire (RFC 2131, 3.3).
const Infinite = time.Duration(math.MaxInt64)

// Lease is what a server granted, in the form in which it is used. The zero
// value is no lease.
type Lease struct {
	// Addr is the leased address with the mask of option 1.
	Addr netip.Prefix
	// Server is the server identifier, option 54. It need not be on the link.
	Server netip.Addr
	// Routers are the routers of option 3 in the server's order, without
	// unspecified addresses.
	Routers []netip.Addr
	// Routes are the routes by RFC 3442: those of option 121 alone where it was
	// sent, otherwise those of option 33 and a default route over the first
	// router. Nothing is left out by policy here; a default route may be among
	// them.
	Routes []Route
	// DNS, Domain, Search and NTP are options 6, 15, 119 and 42.
	DNS    []netip.Addr
	Domain string
	Search []string
	NTP    []netip.Addr
	// MTU is option 26 in bytes; 0 when it was not sent or is below 68.
	MTU int

	// Start is when the REQUEST was sent that the server answered: all times
	// count from there (RFC 2131, 4.4.1).
	Start time.Time
	// Lifetime, T1 and T2 count from Start; Infinite when the lease never ends.
	// For a finite lease 0 < T1 <= T2 <= Lifetime holds.
	Lifetime, T1, T2 time.Duration
}

// Route is a route of a lease.
type Route struct {
	Dst netip.Prefix
	// Gateway is the router; the zero Addr means that Dst is on the link
	// (RFC 3442, router 0.0.0.0).
	Gateway netip.Addr
}

// RenewAt, RebindAt and ExpireAt are the times of T1, T2 and the end; the zero
// time means never.
func (l Lease) RenewAt() time.Time { return l.after(l.T1) }

// RebindAt: see RenewAt.
func (l Lease) RebindAt() time.Time { return l.after(l.T2) }

// ExpireAt: see RenewAt.
func (l Lease) ExpireAt() time.Time { return l.after(l.Lifetime) }

func (l Lease) after(d time.Duration) time.Time {
	if d == Infinite {
		return time.Time{}
	}
	return l.Start.Add(d)
}

// Expired tells whether the lease has ended at now.
func (l Lease) Expired(now time.Time) bool {
	end := l.ExpireAt()
	return !end.IsZero() && !now.Before(end)
}
