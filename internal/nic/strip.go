package nic

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine"
)

// Strip implements engine.Links. Only IPv4 addresses of global scope are taken, all
// of them where addrs is empty. The kernel takes the routes with them that have them
// as preferred source, and those to their subnets; routes over gateways in those
// subnets would stay, and go too.
func (l *Links) Strip(ctx context.Context, t engine.Target, addrs []netip.Prefix) ([]netip.Prefix, error) {
	k, err := l.dial(ctx, t)
	if err != nil {
		return nil, err
	}
	defer k.Close()
	link, err := k.link()
	if err != nil {
		return nil, err
	}
	var have []netlink.Addr
	err = retry(func() (err error) {
		have, err = k.AddrList(link, netlink.FAMILY_V4)
		return err
	})
	if err != nil {
		return nil, k.wrap("list the addresses of", err)
	}
	var taken, left []netip.Prefix
	for _, a := range have {
		ip, ok := netip.AddrFromSlice(a.IP.To4())
		bits, _ := a.Mask.Size()
		p := netip.PrefixFrom(ip, bits)
		if !ok || a.Scope != unix.RT_SCOPE_UNIVERSE || len(addrs) > 0 && !slices.Contains(addrs, p) {
			left = append(left, p)
			continue
		}
		err := retry(func() error { return k.AddrDel(link, &a) })
		if err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) {
			return taken, k.wrap(fmt.Sprintf("take %s off", p), err)
		}
		taken = append(taken, p)
	}
	if len(taken) == 0 {
		return nil, nil
	}
	if err := k.dropRoutesOver(link.Attrs().Index, taken, left); err != nil {
		return taken, k.wrap("take routes off", err)
	}
	return taken, nil
}

// dropRoutesOver deletes the routes of an interface whose gateway was on the link by
// one of the addresses gone, and is by none of those that are left.
func (k *rtnl) dropRoutesOver(link int, gone, left []netip.Prefix) error {
	routes, err := k.routes()
	if err != nil {
		return err
	}
	for _, r := range routes {
		over := func(p netip.Prefix) bool { return p.IsValid() && p.Masked().Contains(r.gw) }
		if r.link != link || !r.gw.IsValid() || r.src.IsValid() || !slices.ContainsFunc(gone, over) || slices.ContainsFunc(left, over) {
			continue
		}
		if err := retry(func() error { return absent(k.RouteDel(r.netlink())) }); err != nil {
			return err
		}
	}
	return nil
}
