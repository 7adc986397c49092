package nic

import (
	"fmt"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine"
)

// A route is an IPv4 route of the main table, as far as it matters here.
type route struct {
	dst    netip.Prefix
	gw     netip.Addr // zero: on the link
	metric int
	src    netip.Addr // preferred source; zero: none
	link   int        // interface index; 0 for a route without one single next hop
	proto  int        // RTPROT_*
	onlink bool       // the gateway is reached directly whatever its address says
}

func (r route) String() string {
	s := r.dst.String()
	if r.dst.Bits() == 0 {
		s = "default"
	}
	if r.gw.IsValid() {
		s += " via " + r.gw.String()
	}
	if r.onlink {
		s += " onlink"
	}
	if r.src.IsValid() {
		s += " src " + r.src.String()
	}
	if r.metric != 0 {
		s += fmt.Sprintf(" metric %d", r.metric)
	}
	return s
}

// sameSlot tells whether the kernel has room for only one of the two.
func (r route) sameSlot(o route) bool { return r.dst == o.dst && r.metric == o.metric }

// serves tells whether r on the interface makes o superfluous. Who put it there
// does not matter: a route that goes with the same address does the same.
func (r route) serves(o route) bool {
	return r.sameSlot(o) && r.link == o.link && r.gw == o.gw && r.src == o.src
}

// An address is an IPv4 address of the interface.
type address struct {
	prefix netip.Prefix
	// secondary: an older address of the same subnet is the primary one, and
	// the kernel takes this one away together with that.
	secondary bool
}

// state is what the kernel holds: the interface with its addresses, and the
// main table of its namespace.
type state struct {
	link      int
	up        bool
	mtu       int
	addresses []address
	routes    []route
}

// A step is one change of the interface.
type step interface{ String() string }

type (
	linkUp   struct{}
	setMTU   struct{ mtu int }
	delRoute struct{ route }
	delAddr  struct{ prefix netip.Prefix }
	// putAddr adds an address, or refreshes its lifetime.
	putAddr  struct{ prefix netip.Prefix }
	addRoute struct{ route }
	// takeRoute puts a route in the place of one that somebody else put there to the
	// same end.
	takeRoute struct{ route }
	// keepAddr puts an address of somebody else back that went with ours.
	keepAddr struct{ prefix netip.Prefix }
)

func (linkUp) String() string      { return "link up" }
func (s setMTU) String() string    { return fmt.Sprintf("set mtu %d", s.mtu) }
func (s delRoute) String() string  { return "delete route " + s.route.String() }
func (s delAddr) String() string   { return "delete address " + s.prefix.String() }
func (s putAddr) String() string   { return "put address " + s.prefix.String() }
func (s addRoute) String() string  { return "add route " + s.route.String() }
func (s takeRoute) String() string { return "take over route " + s.route.String() }
func (s keepAddr) String() string  { return "keep address " + s.prefix.String() }

// A conflict is a wanted route whose place somebody else's route has.
type conflict struct{ want, found route }

// plan tells how to come from now, where an earlier call put have, to want. It
// assumes of have no more than that each part may be there.
func plan(have, want engine.Setup, now state) ([]step, []conflict) {
	p := planner{have: have, want: want, now: now}
	p.now.addresses = slices.Clone(now.addresses)
	p.now.routes = slices.Clone(now.routes)
	wanted := routesOf(want, now.link)

	if want.Addr.IsValid() && !now.up {
		p.steps = append(p.steps, linkUp{})
	}
	p.dropRoutes(wanted)
	lost := p.dropAddr()
	p.fitMTU()
	if want.Addr.IsValid() {
		p.steps = append(p.steps, putAddr{want.Addr})
		p.now.routes = append(p.now.routes, connected(want.Addr, now.link)...)
	}
	p.addRoutes(wanted)
	for _, prefix := range lost {
		p.steps = append(p.steps, keepAddr{prefix})
	}
	return p.steps, p.conflicts
}

type planner struct {
	have, want engine.Setup
	now        state // as it will be after the steps
	steps      []step
	conflicts  []conflict
}

// dropRoutes takes away the routes of have that are not wanted, before the
// address: then nothing depends on which of them the kernel takes with it.
func (p *planner) dropRoutes(wanted []route) {
	for _, old := range routesOf(p.have, p.now.link) {
		if !slices.ContainsFunc(wanted, old.serves) {
			p.dropRoute(old)
		}
	}
	// What stands in the place of a wanted route and is ours as well is from a
	// life that the records have forgotten.
	for _, w := range wanted {
		for _, r := range slices.Clone(p.now.routes) {
			if r.sameSlot(w) && !r.serves(w) && p.ours(r) {
				p.dropRoute(r)
			}
		}
	}
}

func (p *planner) dropRoute(old route) {
	for i, r := range p.now.routes {
		if r.serves(old) && p.ours(r) {
			p.steps = append(p.steps, delRoute{r})
			p.now.routes = slices.Delete(p.now.routes, i, i+1)
			return
		}
	}
}

// ours tells whether the route is one that this package put there.
func (p *planner) ours(r route) bool {
	return r.proto == unix.RTPROT_DHCP && r.link == p.now.link && r.src.IsValid() &&
		(r.src == p.have.Addr.Addr() || r.src == p.want.Addr.Addr())
}

// dropAddr takes the address of have away unless it is wanted. It must be gone
// before the new one comes: the kernel makes a new address of the same subnet a
// secondary one and takes it away together with its primary. Returned are the
// addresses of others to which that happens now; where the sysctl
// promote_secondaries is set, they stay by themselves.
func (p *planner) dropAddr() (lost []netip.Prefix) {
	old := p.have.Addr
	i := slices.IndexFunc(p.now.addresses, func(a address) bool { return a.prefix == old })
	if i < 0 || old == p.want.Addr {
		return nil
	}
	p.steps = append(p.steps, delAddr{old})
	gone := []netip.Addr{old.Addr()}
	if !p.now.addresses[i].secondary {
		for _, a := range p.now.addresses {
			if !a.secondary || a.prefix == old || a.prefix.Masked() != old.Masked() {
				continue
			}
			gone = append(gone, a.prefix.Addr())
			if a.prefix != p.want.Addr {
				lost = append(lost, a.prefix)
			}
		}
	}
	// Routes go with their preferred source.
	p.now.routes = slices.DeleteFunc(p.now.routes, func(r route) bool {
		return r.link == p.now.link && slices.Contains(gone, r.src)
	})
	return lost
}

// fitMTU lowers the MTU to what is wanted. It is raised again only where it is
// still the one set for have, and no higher than it was before that.
func (p *planner) fitMTU() {
	ceiling := p.now.mtu
	if p.have.MTU != 0 && p.have.MTU == p.now.mtu && p.have.PriorMTU > p.now.mtu {
		ceiling = p.have.PriorMTU
	}
	mtu := ceiling
	if p.want.MTU != 0 {
		mtu = min(p.want.MTU, ceiling)
	}
	if mtu != p.now.mtu {
		p.steps = append(p.steps, setMTU{mtu})
	}
}

func (p *planner) addRoutes(wanted []route) {
	for _, w := range wanted {
		if p.want.Adopt && p.takeOver(w) {
			continue
		}
		if slices.ContainsFunc(p.now.routes, func(r route) bool { return r.serves(w) }) {
			continue
		}
		if i := slices.IndexFunc(p.now.routes, w.sameSlot); i >= 0 {
			p.conflicts = append(p.conflicts, conflict{want: w, found: p.now.routes[i]})
			continue
		}
		p.steps = append(p.steps, addRoute{w})
		p.now.routes = append(p.now.routes, w)
	}
}

// takeOver puts w in the place of its twins: routes that lead to the same place the
// same way, and were put there by somebody who names no preferred source, so that
// they would outlive the address. It is false when w has still to be added.
func (p *planner) takeOver(w route) bool {
	there := slices.ContainsFunc(p.now.routes, func(r route) bool { return r.serves(w) })
	for i := 0; i < len(p.now.routes); {
		r := p.now.routes[i]
		if !r.twinOf(w) {
			i++
			continue
		}
		// The kernel replaces the first route of a slot.
		first := slices.IndexFunc(p.now.routes, w.sameSlot) == i
		if !there && first {
			p.steps = append(p.steps, takeRoute{w})
			p.now.routes[i] = w
			there = true
			continue
		}
		p.steps = append(p.steps, delRoute{r})
		p.now.routes = slices.Delete(p.now.routes, i, i+1)
	}
	return there
}

// twinOf tells whether r is what a CNI plugin makes of w in a result.
func (r route) twinOf(w route) bool {
	return r.sameSlot(w) && r.link == w.link && r.gw == w.gw && !r.src.IsValid() && r.proto == unix.RTPROT_BOOT
}

// routesOf returns the routes of a setup as they are installed: on-link ones
// first, since a gateway may be reached over one of them. Of two routes to one
// destination with one metric the kernel takes but one: the first.
func routesOf(s engine.Setup, link int) []route {
	if !s.Addr.IsValid() {
		return nil
	}
	var onLink, over []route
	for _, r := range s.Routes {
		w := route{
			dst:    r.Dst.Masked(),
			gw:     r.Gateway,
			metric: r.Metric,
			src:    s.Addr.Addr(),
			link:   link,
			proto:  unix.RTPROT_DHCP,
		}
		switch {
		case slices.ContainsFunc(onLink, w.sameSlot), slices.ContainsFunc(over, w.sameSlot):
		case w.gw.IsValid():
			over = append(over, w)
		default:
			onLink = append(onLink, w)
		}
	}
	for i, w := range over {
		covers := func(r route) bool { return r.dst.Contains(w.gw) }
		// Clouds give a /32 with a router outside it: field case B49.
		over[i].onlink = !slices.ContainsFunc(append(connected(s.Addr, link), onLink...), covers)
	}
	return append(onLink, over...)
}

// connected returns the route that the kernel makes with an address.
func connected(addr netip.Prefix, link int) []route {
	if addr.IsSingleIP() {
		return nil
	}
	return []route{{dst: addr.Masked(), src: addr.Addr(), link: link, proto: unix.RTPROT_KERNEL}}
}

// missing tells in words what of want is not there.
func missing(want engine.Setup, now state) []string {
	var words []string
	if !now.up {
		words = append(words, "the link is down")
	}
	if want.MTU != 0 && now.mtu > want.MTU {
		words = append(words, fmt.Sprintf("the mtu is %d instead of %d", now.mtu, want.MTU))
	}
	if want.Addr.IsValid() && !slices.ContainsFunc(now.addresses, func(a address) bool { return a.prefix == want.Addr }) {
		words = append(words, fmt.Sprintf("address %s is missing", want.Addr))
	}
	for _, w := range routesOf(want, now.link) {
		if !slices.ContainsFunc(now.routes, func(r route) bool { return r.serves(w) }) {
			words = append(words, fmt.Sprintf("route %s is missing", w))
		}
	}
	return words
}
