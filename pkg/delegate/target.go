package delegate

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
)

// withTarget finds the attachment's interface in a result. A plugin may leave out a
// device that it hands to the pod without an interface, on vfio-pci say; then it is
// added.
func (c *call) withTarget(r *current.Result) (full *current.Result, at int, err error) {
	at, err = target(r, c.id.IfName, c.netns)
	if err == nil || c.device == "" {
		return r, at, err
	}
	out := *r
	out.Interfaces = append(slices.Clone(r.Interfaces), &current.Interface{Name: c.id.IfName, Sandbox: c.netns})
	return &out, len(r.Interfaces), nil
}

// target finds the interface that the attachment is about: the one with its
// name in a sandbox. The sandbox need not be written as in CNI_NETNS (a plugin
// may have resolved a link), but where one is, it is preferred.
func target(r *current.Result, ifName, netns string) (int, error) {
	found := -1
	for i, itf := range r.Interfaces {
		if itf.Name != ifName || itf.Sandbox == "" {
			continue
		}
		if itf.Sandbox == netns {
			return i, nil
		}
		if found < 0 {
			found = i
		}
	}
	if found < 0 {
		return 0, fmt.Errorf("its result has no interface %s with a sandbox: %s", ifName, describe(r.Interfaces))
	}
	return found, nil
}

// describe lists interfaces for an error.
func describe(interfaces []*current.Interface) string {
	if len(interfaces) == 0 {
		return "it has no interface at all"
	}
	var words []string
	for _, itf := range interfaces {
		where := "on the host"
		if itf.Sandbox != "" {
			where = "in " + itf.Sandbox
		}
		words = append(words, itf.Name+" "+where)
	}
	return "it has " + strings.Join(words, ", ")
}

// isOf tells whether an address belongs to the interface at that place. Plugins that
// make one interface may leave out which.
func isOf(ip *current.IPConfig, at int) bool { return ip.Interface == nil || *ip.Interface == at }

// addressesOf are the addresses of an interface, with their masks.
func addressesOf(r *current.Result, at int) []string {
	var out []string
	for _, ip := range r.IPs {
		if isOf(ip, at) {
			out = append(out, ip.Address.String())
		}
	}
	return out
}

// withoutStripped is what is left of a result's addresses and routes when some of
// the interface's addresses are gone: with them go the routes over their gateways,
// and those over a router on their links, unless another address has it on its own.
func withoutStripped(r *current.Result, at int, stripped []string) ([]*current.IPConfig, []*types.Route) {
	if len(stripped) == 0 {
		return slices.Clone(r.IPs), r.Routes
	}
	var kept, gone []*current.IPConfig
	for _, ip := range r.IPs {
		if isOf(ip, at) && slices.Contains(stripped, ip.Address.String()) {
			gone = append(gone, ip)
		} else {
			kept = append(kept, ip)
		}
	}
	reaches := func(ips []*current.IPConfig, route *types.Route) bool {
		return slices.ContainsFunc(ips, func(ip *current.IPConfig) bool {
			return route.GW.Equal(ip.Gateway) || prefixOf(ip).Contains(addrOf(route))
		})
	}
	var routes []*types.Route
	for _, route := range r.Routes {
		if route.GW == nil || !reaches(gone, route) || reaches(kept, route) {
			routes = append(routes, route)
		}
	}
	return kept, routes
}

func prefixOf(ip *current.IPConfig) netip.Prefix {
	addr, _ := netip.AddrFromSlice(ip.Address.IP)
	ones, _ := ip.Address.Mask.Size()
	return netip.PrefixFrom(addr.Unmap(), ones)
}

func addrOf(route *types.Route) netip.Addr {
	addr, _ := netip.AddrFromSlice(route.GW)
	return addr.Unmap()
}
