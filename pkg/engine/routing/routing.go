// Package routing decides which routes of a DHCP lease may be installed in a
// pod. Whoever answers first on a network is its DHCP server, so a route from
// there must not lead traffic away that the pod sends elsewhere: to other pods,
// to services, to its node, to the metadata service of a cloud.
//
// It promises: of what Admit returns no route reaches a protected network, no
// route takes precedence over one that the namespace has, and every router is on
// the link. The one exception is a default route that the network asks for
// (Policy.DefaultRoute), since that is what asking for it means.
//
// The package is pure: the same policy and lease give the same answer. It keeps
// nothing and changes nothing of what it is given, so all of it is safe for
// concurrent use.
package routing

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine/dhcp4"
)

// Policy is what routes are held against. All prefixes are of IPv4 and without
// host bits; an empty list is no restriction. The zero Policy admits what is
// harmless everywhere, and no default route.
type Policy struct {
	// DefaultRoute admits a default route, its halves, and any number of routes
	// that come to the same together.
	DefaultRoute bool
	// Allow and Deny are the network's words. An Allow inside 169.254.0.0/16
	// opens that much of the link-local range, which is closed otherwise; it opens
	// nothing else.
	Allow, Deny []netip.Prefix
	// Protected are the networks of pods, services and nodes. No word of a network
	// opens them.
	Protected []netip.Prefix
	// Existing are the destinations that the namespace routes already, without
	// what the engine itself put there and without the connected route of the
	// lease. Default routes and their halves may be among them and do not count.
	Existing []netip.Prefix
}

// Reason is a kind of refusal, fit for the label of a metric.
type Reason string

// The reasons. ReasonDefault is no news on a secondary network, where most
// servers send a router; all others are worth a look.
const (
	ReasonDefault    Reason = "default"
	ReasonWide       Reason = "wide"
	ReasonSpecial    Reason = "special"
	ReasonOwn        Reason = "own"
	ReasonProtected  Reason = "protected"
	ReasonExisting   Reason = "existing"
	ReasonDenied     Reason = "denied"
	ReasonNotAllowed Reason = "not-allowed"
	ReasonRouter     Reason = "router"
)

// Reasons returns all reasons, in the order in which a route is held against
// them.
func Reasons() []Reason {
	return []Reason{
		ReasonDefault, ReasonWide, ReasonOwn, ReasonSpecial, ReasonProtected, ReasonExisting,
		ReasonDenied, ReasonNotAllowed, ReasonRouter,
	}
}

// Refusal is why a route is not installed. It is comparable, so that who has
// reported one can tell whether the next lease brings another.
type Refusal struct {
	Route  dhcp4.Route
	Reason Reason
	// Text says why, for people; it continues a sentence about the route.
	Text string
}

// String is the whole sentence.
func (r Refusal) String() string {
	if !r.Route.Gateway.IsValid() {
		return fmt.Sprintf("route to %s on the link: %s", r.Route.Dst, r.Text)
	}
	return fmt.Sprintf("route to %s over %s: %s", r.Route.Dst, r.Route.Gateway, r.Text)
}

// Admit divides the routes of a lease into those that may be installed and the
// others; each is in exactly one of the results. Those that may are in the order
// in which they can be installed: on-link routes, then what goes over routers.
// Where a lease of mask /32 has a router of option 3 but no route to it, Admit
// adds the link route.
func Admit(p Policy, l dhcp4.Lease) (admitted []dhcp4.Route, refused []Refusal) {
	var links, over []dhcp4.Route
	for _, r := range l.Routes {
		switch reason, text := p.judge(r, l.Addr); {
		case reason != "":
			refused = append(refused, Refusal{r, reason, text})
		case r.Gateway.IsValid():
			over = append(over, r)
		default:
			links = append(links, r)
		}
	}
	if all := slices.Concat(links, over); !p.DefaultRoute && size(all) > mostTogether {
		for _, r := range all {
			refused = append(refused, Refusal{r, ReasonWide,
				"together with the other routes of the lease it takes the traffic of a default route (defaultRoute)"})
		}
		return nil, refused
	}
	for _, r := range over {
		link, text := p.reach(r.Gateway, links, l)
		if text != "" {
			refused = append(refused, Refusal{r, ReasonRouter, text})
			continue
		}
		if link.Dst.IsValid() {
			links = append(links, link)
		}
		admitted = append(admitted, r)
	}
	return slices.Concat(links, admitted), refused
}

// Connected judges the route that the kernel makes of the lease's own prefix. A
// server chooses the mask as it chooses the routes, so a lease of 10.96.0.9/8 may
// take the traffic of services as well as a route to 10.0.0.0/8 may. The result
// is false when there is nothing to object to. Whoever gets a refusal must not
// let the kernel make that route; a pod on the network of its node is the one
// case where ReasonProtected may be what the operator wants.
func Connected(p Policy, addr netip.Prefix) (Refusal, bool) {
	if addr.IsSingleIP() {
		return Refusal{}, false // the kernel makes none
	}
	// Where the network itself is, is not for the lists of routes to say, and no
	// link is so large that it is a default route.
	p.Allow, p.Deny, p.DefaultRoute = nil, nil, false
	r := dhcp4.Route{Dst: addr.Masked()}
	reason, text := p.judge(r, addr)
	return Refusal{r, reason, text}, reason != ""
}
