package ipamconf

import (
	"fmt"
	"net"

	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine/api"
)

// Pod is the pod that the runtime names; the zero value where it names none.
func (c Config) Pod() api.Pod {
	return api.Pod{Namespace: c.Args["K8S_POD_NAMESPACE"], Name: c.Args["K8S_POD_NAME"], UID: c.Args["K8S_POD_UID"]}
}

// Result is the result of an IPAM plugin for a lease.
func Result(l api.Lease, metric int) (*current.Result, error) {
	ip, network, err := net.ParseCIDR(l.Address)
	if err != nil {
		return nil, fmt.Errorf("address of the lease: %w", err)
	}
	out := &current.Result{CNIVersion: current.ImplementedSpecVersion}
	out.IPs = []*current.IPConfig{{
		Address: net.IPNet{IP: ip.To4(), Mask: network.Mask}, Gateway: net.ParseIP(l.Gateway).To4(),
	}}
	out.Routes = []*types.Route{}
	for _, r := range l.Routes {
		route, err := routeOf(r, metric)
		if err != nil {
			return nil, err
		}
		out.Routes = append(out.Routes, route)
	}
	out.DNS = types.DNS{Nameservers: l.DNS.Nameservers, Domain: l.DNS.Domain, Search: l.DNS.Search}
	return out, nil
}

func routeOf(r api.Route, metric int) (*types.Route, error) {
	_, dst, err := net.ParseCIDR(r.Dst)
	if err != nil {
		return nil, fmt.Errorf("route of the lease: %w", err)
	}
	out := &types.Route{Dst: *dst, Priority: r.Metric}
	if out.Priority == 0 {
		out.Priority = metric
	}
	if r.Gateway != "" {
		if out.GW = net.ParseIP(r.Gateway).To4(); out.GW == nil {
			return nil, fmt.Errorf("route of the lease to %s: %q is no address", r.Dst, r.Gateway)
		}
		return out, nil
	}
	// A route on the link. Without a gateway that says so, plugins take that of the
	// address.
	link := scopeLink
	out.GW, out.Scope = net.IPv4zero.To4(), &link
	return out, nil
}

// scopeLink is RT_SCOPE_LINK.
const scopeLink = 253
