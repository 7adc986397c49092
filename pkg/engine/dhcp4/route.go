package dhcp4

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
)

// NextHop returns the address to ask for by ARP on the way to an address: itself
// when it is on the link, else the gateway of the longest matching route, else the
// first router, else itself. It goes by the lease alone: the routing table of the
// namespace may well have no route to the DHCP server (B19).
func (l Lease) NextHop(to netip.Addr) netip.Addr {
	best, hop := -1, to
	if len(l.Routers) > 0 {
		hop = l.Routers[0]
	}
	if l.Addr.Contains(to) {
		best, hop = l.Addr.Bits(), to
	}
	for _, r := range l.Routes {
		if r.Dst.Contains(to) && r.Dst.Bits() > best {
			best, hop = r.Dst.Bits(), r.Gateway
			if !r.Gateway.IsValid() {
				hop = to
			}
		}
	}
	return hop
}

// routes are those of option 121 when it is there and sound, and then no others;
// otherwise those of option 33 and a default route over the first router
// (RFC 3442; B47, B52).
func (o *options) routes(addr netip.Prefix, routers []netip.Addr) []Route {
	routes, ok := o.classless()
	if !ok {
		routes = o.classful(routers)
	}
	if addr.IsSingleIP() {
		routes = linksFirst(routes)
	}
	return routes
}

// classless reads option 121, or in its absence 249, which says the same. It is
// false when there is neither, or what there is cannot be used.
func (o *options) classless() (_ []Route, ok bool) {
	code := uint8(optClassless)
	v, ok := o.all[code]
	if !ok {
		code = optMSClassless
		v, ok = o.all[code]
	}
	if !ok {
		return nil, false
	}
	routes, err := parseClassless(v)
	if err != nil {
		o.remark("option %d (classless routes) %v: not used, options 3 and 33 count", code, err)
		return nil, false
	}
	return routes, true
}

// classful are the routes without option 121.
func (o *options) classful(routers []netip.Addr) (routes []Route) {
	if v, ok := o.all[optStaticRoute]; ok {
		var problems []string
		routes, problems = parseStatic(v)
		for _, p := range problems {
			o.remark("option 33 (static routes) %s", p)
		}
	}
	if len(routers) > 0 {
		routes = append(routes, Route{Dst: netip.PrefixFrom(netip.IPv4Unspecified(), 0), Gateway: routers[0]})
	}
	return routes
}

// linksFirst puts the routes of a /32 into an order in which they can be installed:
// first those that are on the link, and among them one to each router that no other
// makes reachable. With such a mask nothing but the client is on the link, and the
// kernel takes no route over a router that is not (B49).
func linksFirst(routes []Route) []Route {
	var links, over []Route
	for _, r := range routes {
		if r.Gateway.IsValid() {
			over = append(over, r)
		} else {
			links = append(links, r)
		}
	}
	for _, r := range over {
		covers := func(l Route) bool { return l.Dst.Contains(r.Gateway) }
		if !slices.ContainsFunc(links, covers) {
			links = append(links, Route{Dst: netip.PrefixFrom(r.Gateway, r.Gateway.BitLen())})
		}
	}
	return append(links, over...)
}

// parseClassless reads option 121. An error means that nothing of it is to be
// used: who cannot trust one length cannot trust what comes after it.
func parseClassless(v []byte) ([]Route, error) {
	if len(v) == 0 {
		return nil, errors.New("is empty")
	}
	var routes []Route
	for len(v) > 0 {
		bits := int(v[0])
		if bits > 32 {
			return nil, fmt.Errorf("has a destination of %d bits", bits)
		}
		// Of the destination only the octets that the mask reaches are sent.
		n := (bits + 7) / 8
		if len(v) < 1+n+4 {
			return nil, errors.New("ends within a route")
		}
		var dst [4]byte
		copy(dst[:], v[1:1+n])
		gateway := netip.AddrFrom4([4]byte(v[1+n:]))
		v = v[1+n+4:]
		switch {
		case gateway.IsUnspecified():
			gateway = netip.Addr{} // on the link (B49)
		case !isHost(gateway):
			return nil, fmt.Errorf("has the router %s", gateway)
		}
		// RFC 3442: host bits that were sent all the same are masked out.
		r := Route{Dst: netip.PrefixFrom(netip.AddrFrom4(dst), bits).Masked(), Gateway: gateway}
		if !slices.Contains(routes, r) {
			routes = append(routes, r)
		}
	}
	return routes, nil
}

// parseStatic reads option 33 (RFC 2132, 5.8), pairs of a destination and a
// router without a mask. The destination's class gives it, as in the days of the
// option; one with bits below its class mask cannot be meant so and is a host.
func parseStatic(v []byte) (routes []Route, problems []string) {
	if len(v) == 0 || len(v)%8 != 0 {
		return nil, []string{fmt.Sprintf("is %d bytes long, not a multiple of 8: not used", len(v))}
	}
	for ; len(v) > 0; v = v[8:] {
		dst, gateway := netip.AddrFrom4([4]byte(v)), netip.AddrFrom4([4]byte(v[4:]))
		if !isHost(dst) || !isHost(gateway) {
			// A default route is illegal here, says RFC 2132.
			problems = append(problems, fmt.Sprintf("has a route to %s over %s: left out", dst, gateway))
			continue
		}
		p := netip.PrefixFrom(dst, classBits(dst))
		if p != p.Masked() {
			p = netip.PrefixFrom(dst, 32)
		}
		if r := (Route{Dst: p, Gateway: gateway}); !slices.Contains(routes, r) {
			routes = append(routes, r)
		}
	}
	return routes, problems
}

// classBits is the length of the mask of class A, B and C.
func classBits(a netip.Addr) int {
	switch first := a.As4()[0]; {
	case first < 128:
		return 8
	case first < 192:
		return 16
	}
	return 24
}
