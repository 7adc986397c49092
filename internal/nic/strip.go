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
// of them where addrs is empty; the kernel takes the routes with them that have
// them as preferred source, and those to their subnets.
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
	var taken []netip.Prefix
	for _, a := range have {
		ip, ok := netip.AddrFromSlice(a.IP.To4())
		bits, _ := a.Mask.Size()
		p := netip.PrefixFrom(ip, bits)
		if !ok || a.Scope != unix.RT_SCOPE_UNIVERSE || len(addrs) > 0 && !slices.Contains(addrs, p) {
			continue
		}
		err := retry(func() error { return k.AddrDel(link, &a) })
		if err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) {
			return taken, k.wrap(fmt.Sprintf("take %s off", p), err)
		}
		taken = append(taken, p)
	}
	return taken, nil
}
