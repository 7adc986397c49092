package nic

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine"
	"github.com/dhcp-meta/dhcp-meta/pkg/engine/dhcp4"
)

// Configure implements engine.Links. A route of somebody else in the place of a
// wanted one stays, and is an error after all the rest has been done.
func (l *Links) Configure(ctx context.Context, t engine.Target, have, want engine.Setup, lifetime time.Duration) error {
	return l.change(ctx, t, have, want, lifetime)
}

// Clear implements engine.Links.
func (l *Links) Clear(ctx context.Context, t engine.Target, have engine.Setup) error {
	err := l.change(ctx, t, have, engine.Setup{}, 0)
	if errors.Is(err, engine.ErrGone) {
		return nil
	}
	return err
}

// Verify implements engine.Links. An MTU that is lower than wanted is fine: it
// is only ever lowered.
func (l *Links) Verify(ctx context.Context, t engine.Target, want engine.Setup) error {
	k, err := l.dial(ctx, t)
	if err != nil {
		return err
	}
	defer k.Close()
	now, err := k.snapshot()
	if err != nil {
		return err
	}
	if words := missing(want, now.state); words != nil {
		return fmt.Errorf("%s in %s: %s", t.IfName, t.Netns.Path, strings.Join(words, ", "))
	}
	return nil
}

// change carries out what plan says. A step that fails does not keep the others
// from being tried, except that no route can be added without the address.
func (l *Links) change(ctx context.Context, t engine.Target, have, want engine.Setup, lifetime time.Duration) error {
	k, err := l.dial(ctx, t)
	if err != nil {
		return err
	}
	defer k.Close()
	now, err := k.snapshot()
	if err != nil {
		return err
	}
	steps, conflicts := plan(have, want, now.state)
	var all error
	for _, s := range steps {
		err := retry(func() error { return k.do(s, now, lifetime) })
		if err == nil {
			continue
		}
		all = and(all, k.wrap(s.String()+" on", err))
		if _, ok := s.(putAddr); ok {
			break
		}
	}
	for _, c := range conflicts {
		all = and(all, k.wrap("add route "+c.want.String()+" on", k.occupied(c.found)))
	}
	return all
}

// and puts a further error behind err, in one line: it ends up in a CNI error.
func and(err, further error) error {
	if err == nil {
		return further
	}
	return fmt.Errorf("%w; %w", err, further)
}

// snapshot is the state that plan is made from, with what the kernel needs to
// be told again of it.
type snapshot struct {
	state
	device netlink.Link
	addrs  map[netip.Prefix]netlink.Addr
}

func (k *rtnl) snapshot() (snapshot, error) {
	device, err := k.link()
	if err != nil {
		return snapshot{}, err
	}
	attrs := device.Attrs()
	s := snapshot{
		state: state{
			link: attrs.Index,
			up:   attrs.RawFlags&unix.IFF_UP != 0,
			mtu:  attrs.MTU,
		},
		device: device,
		addrs:  make(map[netip.Prefix]netlink.Addr),
	}
	var addrs []netlink.Addr
	err = retry(func() (err error) {
		addrs, err = k.AddrList(device, unix.AF_INET)
		return err
	})
	if err != nil {
		return snapshot{}, k.wrap("list addresses of", err)
	}
	for _, a := range addrs {
		prefix := prefixOf(a.IPNet)
		s.addrs[prefix] = a
		s.addresses = append(s.addresses, address{prefix: prefix, secondary: a.Flags&unix.IFA_F_SECONDARY != 0})
	}
	s.routes, err = k.routes()
	return s, err
}

// routes returns the main table, without routes for a certain TOS: they live
// beside ours.
func (k *rtnl) routes() ([]route, error) {
	var table []netlink.Route
	err := retry(func() (err error) {
		table, err = k.RouteListFiltered(unix.AF_INET, &netlink.Route{}, 0)
		return err
	})
	if err != nil {
		return nil, k.wrap("list routes beside", err)
	}
	var routes []route
	for _, r := range table {
		if r.Tos == 0 {
			routes = append(routes, route{
				dst:    prefixOf(r.Dst),
				gw:     addrOf(r.Gw),
				metric: r.Priority,
				src:    addrOf(r.Src),
				link:   r.LinkIndex,
				proto:  int(r.Protocol),
				onlink: r.Flags&unix.RTNH_F_ONLINK != 0,
			})
		}
	}
	return routes, nil
}

// do carries out one step. What is already as the step would make it is no
// error.
func (k *rtnl) do(s step, now snapshot, lifetime time.Duration) error {
	switch s := s.(type) {
	case linkUp:
		return k.LinkSetUp(now.device)
	case setMTU:
		return k.LinkSetMTU(now.device, s.mtu)
	case delRoute:
		return absent(k.RouteDel(s.route.netlink()))
	case delAddr:
		return absent(k.AddrDel(now.device, &netlink.Addr{IPNet: ipNetOf(s.prefix)}))
	case putAddr:
		seconds := lifetimeOf(lifetime)
		return k.AddrReplace(now.device, &netlink.Addr{
			IPNet:       ipNetOf(s.prefix),
			ValidLft:    seconds,
			PreferedLft: seconds,
		})
	case takeRoute:
		return k.RouteReplace(s.route.netlink())
	case addRoute:
		return k.addRoute(s.route)
	case keepAddr:
		addr := now.addrs[s.prefix]
		if addr.Broadcast == nil {
			addr.Broadcast = net.IPv4zero // otherwise the library makes one up
		}
		err := k.AddrAdd(now.device, &addr)
		if errors.Is(err, unix.EEXIST) {
			return nil // the kernel promoted it
		}
		return err
	}
	panic(fmt.Sprintf("nic: unknown step %T", s))
}

// addRoute adds a route for which plan saw room. The room may have been taken
// since, or a route that was thought to go with an address has stayed.
func (k *rtnl) addRoute(r route) error {
	err := k.RouteAdd(r.netlink())
	if !errors.Is(err, unix.EEXIST) {
		return err
	}
	routes, err := k.routes()
	if err != nil {
		return err
	}
	if slices.ContainsFunc(routes, func(found route) bool { return found.serves(r) }) {
		return nil
	}
	if i := slices.IndexFunc(routes, r.sameSlot); i >= 0 {
		return k.occupied(routes[i])
	}
	return unix.EEXIST
}

// occupied is the error for a route that is not ours.
func (k *rtnl) occupied(r route) error {
	dev := ""
	if link, err := k.LinkByIndex(r.link); err == nil {
		dev = " dev " + link.Attrs().Name
	}
	return fmt.Errorf("%s%s exists and is not ours (protocol %s)", r, dev, netlink.RouteProtocol(r.proto))
}

// netlink returns the route for the kernel: all that tells it from others is
// said, so that no other is deleted in its place.
func (r route) netlink() *netlink.Route {
	nr := &netlink.Route{
		LinkIndex: r.link,
		Dst:       ipNetOf(r.dst),
		Src:       r.src.AsSlice(),
		Priority:  r.metric,
		Protocol:  netlink.RouteProtocol(r.proto),
		Table:     unix.RT_TABLE_MAIN,
		Type:      unix.RTN_UNICAST,
		Scope:     unix.RT_SCOPE_LINK,
	}
	if r.gw.IsValid() {
		nr.Gw = r.gw.AsSlice()
		nr.Scope = unix.RT_SCOPE_UNIVERSE
	}
	if r.onlink {
		nr.Flags = unix.RTNH_F_ONLINK
	}
	return nr
}

// absent turns the answers that mean "it is not there" into success.
func absent(err error) error {
	if errors.Is(err, unix.ESRCH) || errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EADDRNOTAVAIL) {
		return nil
	}
	return err
}

// lifetimeOf returns valid_lft in seconds. It is rounded down, so that the
// kernel never keeps an address longer than the server does. 0 stands for a
// lifetime that is not sent, which is for ever; what the kernel would take for
// that, 0xffffffff, is not sent either.
func lifetimeOf(d time.Duration) int {
	if d == dhcp4.Infinite {
		return 0
	}
	return int(min(max(d/time.Second, 1), math.MaxUint32-1))
}

func ipNetOf(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// prefixOf is the way back; nil is the default route.
func prefixOf(n *net.IPNet) netip.Prefix {
	if n == nil {
		return netip.PrefixFrom(netip.IPv4Unspecified(), 0)
	}
	bits, _ := n.Mask.Size()
	return netip.PrefixFrom(addrOf(n.IP), bits)
}

// addrOf returns the zero Addr for none.
func addrOf(ip net.IP) netip.Addr {
	addr, _ := netip.AddrFromSlice(ip)
	return addr.Unmap()
}
