package routing

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine/dhcp4"
)

const (
	// widest is the length of the shortest prefix that still is a network. Nobody
	// was ever given more than a /8, and the largest private network is 10.0.0.0/8
	// (RFC 1918, 3): what is shorter can only be meant as a default route in
	// pieces, which beats the pod's own by the longer match. Of such pieces 0.0.0.0/1
	// and 128.0.0.0/1 are the usual ones, but eight of /3 do the same.
	widest = 8
	// mostTogether is how many addresses the routes of a lease may cover together,
	// an eighth of all: more than all private ranges, and some of the public ones
	// besides. Pieces of /8 and longer, as many as it takes, end there.
	mostTogether = 1 << 29
	// half is the length of half a default route.
	half = 1
)

// linkLocal is the range of RFC 3927. Clouds have their metadata service in it,
// 169.254.169.254, and with it the credentials of the node.
var linkLocal = netip.MustParsePrefix("169.254.0.0/16")

// special are the ranges that mean the same on every host (RFC 6890), which no
// route of a network may change, with their names.
func special() []named {
	return []named{
		{netip.MustParsePrefix("0.0.0.0/8"), "this host (RFC 1122)"},
		{netip.MustParsePrefix("127.0.0.0/8"), "loopback"},
		{linkLocal, "link-local addresses and metadata services"},
		{netip.MustParsePrefix("224.0.0.0/4"), "multicast"},
		{netip.MustParsePrefix("240.0.0.0/4"), "reserved addresses and broadcast"},
	}
}

type named struct {
	netip.Prefix
	name string
}

// judge holds the destination of a route against the policy; addr is the leased
// address with its prefix. An empty reason: nothing to object to.
func (p Policy) judge(r dhcp4.Route, addr netip.Prefix) (Reason, string) {
	dst := r.Dst
	switch {
	case p.DefaultRoute && dst.Bits() <= half:
		return "", "" // covers every network there is: that is what was asked for
	case dst.Bits() == 0:
		return ReasonDefault, "no default route is wanted here (defaultRoute)"
	case !p.DefaultRoute && dst.Bits() < widest:
		return ReasonWide, fmt.Sprintf("a prefix shorter than /%d takes the traffic of a default route (defaultRoute)", widest)
	case dst.IsSingleIP() && dst.Addr() == addr.Addr():
		return ReasonOwn, "is the leased address itself"
	}
	for _, s := range special() {
		if s.Overlaps(dst) && !(s.Prefix == linkLocal && p.opens(dst)) {
			return ReasonSpecial, fmt.Sprintf("overlaps %s, %s", s.Prefix, s.name)
		}
	}
	if i := slices.IndexFunc(p.Protected, dst.Overlaps); i >= 0 {
		return ReasonProtected, fmt.Sprintf("overlaps the protected network %s", p.Protected[i])
	}
	if i := slices.IndexFunc(p.Existing, func(e netip.Prefix) bool { return e.Bits() > half && inside(dst, e) }); i >= 0 {
		return ReasonExisting, fmt.Sprintf("lies inside %s, to which the namespace has a route already", p.Existing[i])
	}
	if i := slices.IndexFunc(p.Deny, dst.Overlaps); i >= 0 {
		return ReasonDenied, fmt.Sprintf("overlaps %s of routes.deny", p.Deny[i])
	}
	if len(p.Allow) > 0 && !slices.ContainsFunc(p.Allow, func(a netip.Prefix) bool { return inside(dst, a) }) {
		return ReasonNotAllowed, "lies inside no prefix of routes.allow"
	}
	return "", ""
}

// opens tells whether the network asks for dst within the link-local range. A
// wider prefix of Allow does not: 0.0.0.0/0 means what is safe of everything.
func (p Policy) opens(dst netip.Prefix) bool {
	return slices.ContainsFunc(p.Allow, func(a netip.Prefix) bool { return inside(a, linkLocal) && inside(dst, a) })
}

// reach tells how a router is reached: over the lease's own prefix, over one of
// the links, or over a link route that must be added; otherwise the text says why
// it is not reached.
func (p Policy) reach(gw netip.Addr, links []dhcp4.Route, l dhcp4.Lease) (link dhcp4.Route, text string) {
	switch {
	case gw == l.Addr.Addr():
		return link, "the router is the leased address itself"
	case l.Addr.Contains(gw) && isEdge(gw, l.Addr):
		return link, fmt.Sprintf("the router is no host of %s", l.Addr.Masked())
	case l.Addr.Contains(gw),
		slices.ContainsFunc(links, func(r dhcp4.Route) bool { return r.Dst.Contains(gw) }):
		return link, ""
	case l.Addr.IsSingleIP() && slices.Contains(l.Routers, gw):
		// Option 3 has routers "on the client's subnet" (RFC 2132, 3.5). A mask of
		// /32 leaves no room for one there, so the server must mean the link.
		link.Dst = netip.PrefixFrom(gw, 32)
		// It is a means to routes that are allowed themselves; Allow, the last rule
		// of judge, need not name it.
		if reason, text := p.judge(link, l.Addr); reason != "" && reason != ReasonNotAllowed {
			return dhcp4.Route{}, fmt.Sprintf("the router needs a route of its own, which %s", text)
		}
		return link, ""
	}
	return link, fmt.Sprintf("the router is not on the link: neither in %s nor in an on-link route of the lease that was admitted", l.Addr.Masked())
}

// isEdge tells whether a is the first or the last address of the subnet, which
// are no hosts (RFC 1122, 3.2.1.3) but on a link of two (RFC 3021).
func isEdge(a netip.Addr, subnet netip.Prefix) bool {
	if subnet.Bits() >= 31 {
		return false
	}
	bits := a.As4()
	hosts := uint32(1)<<(32-subnet.Bits()) - 1
	host := binary.BigEndian.Uint32(bits[:]) & hosts
	return host == 0 || host == hosts
}

// inside tells whether every address of p is one of q.
func inside(p, q netip.Prefix) bool { return q.Bits() <= p.Bits() && q.Contains(p.Addr()) }

// size is how many addresses the destinations cover together.
func size(routes []dhcp4.Route) (n int64) {
	var dsts []netip.Prefix
	for _, r := range routes {
		dsts = append(dsts, r.Dst)
	}
	// Of two prefixes one contains the other or they are apart, so with the larger
	// one first each needs to be compared with the last that counted only.
	slices.SortFunc(dsts, func(a, b netip.Prefix) int {
		return cmp.Or(a.Addr().Compare(b.Addr()), cmp.Compare(a.Bits(), b.Bits()))
	})
	var last netip.Prefix
	for _, d := range dsts {
		if !last.IsValid() || !inside(d, last) {
			n += 1 << (32 - d.Bits())
			last = d
		}
	}
	return n
}
