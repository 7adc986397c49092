package delegate

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"

	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/types/create"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine/api"
)

// scopeLink is the scope of a route whose destination is on the link
// (rtnetlink's RT_SCOPE_LINK, as the CNI specification has it).
const scopeLink = 253

// decodeResult reads a result of any version. One that does not name its
// version has that of the configuration, which old plugins left out (cni#895).
func decodeResult(raw []byte, confVersion string) (*current.Result, error) {
	if len(strings.TrimSpace(string(raw))) == 0 {
		return nil, errors.New("is empty")
	}
	o, err := decodeObject("result", raw)
	if err != nil {
		return nil, err
	}
	if err := refuseNulls(raw); err != nil {
		return nil, err
	}
	v := o.text("cniVersion")
	if v == "" {
		v = confVersion
		if o["cniVersion"], err = json.Marshal(v); err != nil {
			return nil, err
		}
		if raw, err = o.encode(); err != nil {
			return nil, err
		}
	}
	r, err := create.Create(v, raw)
	if err != nil {
		return nil, err
	}
	return current.GetResult(r)
}

// encodeResult writes a result in the given version.
func encodeResult(r *current.Result, version string) ([]byte, error) {
	v, err := r.GetAsVersion(version)
	if err != nil {
		return nil, err
	}
	return json.MarshalIndent(v, "", "    ")
}

// asAttached is the delegate's own result with what attaching has changed on
// interface at, for its later verbs: plugins compare MAC and MTU at CHECK.
func asAttached(r *current.Result, at int, lease api.Lease) *current.Result {
	out := *r
	out.Interfaces = slices.Clone(r.Interfaces)
	itf := r.Interfaces[at].Copy()
	if lease.HardwareAddr != "" {
		itf.Mac = lease.HardwareAddr
	}
	if itf.Mtu != 0 && lease.MTU != 0 {
		itf.Mtu = lease.MTU
	}
	out.Interfaces[at] = itf
	return &out
}

// merge adds a lease on interface at to the result of the wrapped plugin, whose
// own addresses, routes and servers stay in front. version is the one that the
// result is for: what it does not know yet is left out.
func merge(r *current.Result, at int, lease api.Lease, c conf) (*current.Result, error) {
	addr, err := types.ParseCIDR(lease.Address)
	if err != nil {
		return nil, fmt.Errorf("address of the lease: %w", err)
	}
	ip := &current.IPConfig{Interface: current.Int(at), Address: *addr}
	if lease.Gateway != "" {
		if ip.Gateway = net.ParseIP(lease.Gateway); ip.Gateway == nil {
			return nil, fmt.Errorf("gateway of the lease: %q is no address", lease.Gateway)
		}
	}
	out := asAttached(r, at, lease)
	if lease.MTU != 0 && c.atLeast("1.1.0") {
		out.Interfaces[at].Mtu = lease.MTU
	}
	kept, routes := withoutStripped(r, at, lease.Stripped)
	out.IPs = append(kept, ip)
	if out.Routes, err = mergeRoutes(routes, lease.Routes, c); err != nil {
		return nil, err
	}
	out.DNS = mergeDNS(r.DNS, lease.DNS)
	return out, nil
}

func mergeRoutes(own []*types.Route, leased []api.Route, c conf) ([]*types.Route, error) {
	out := slices.Clone(own)
	for _, l := range leased {
		_, dst, err := net.ParseCIDR(l.Dst)
		if err != nil {
			return nil, fmt.Errorf("route of the lease: %w", err)
		}
		r := &types.Route{Dst: *dst}
		if l.Gateway != "" {
			if r.GW = net.ParseIP(l.Gateway); r.GW == nil {
				return nil, fmt.Errorf("route of the lease to %s: %q is no address", l.Dst, l.Gateway)
			}
		}
		if c.atLeast("1.1.0") {
			r.Priority = l.Metric
			if l.Gateway == "" {
				// Without the scope, a route without a gateway may be taken as
				// one over the gateway of ips.
				scope := scopeLink
				r.Scope = &scope
			}
		}
		out = append(out, r)
	}
	return out, nil
}

func mergeDNS(own types.DNS, leased api.DNS) types.DNS {
	out := *own.Copy()
	if out.Domain == "" {
		out.Domain = leased.Domain
	}
	out.Nameservers = union(out.Nameservers, leased.Nameservers)
	out.Search = union(out.Search, leased.Search)
	return out
}

// union appends what is not there yet.
func union(have, more []string) []string {
	for _, m := range more {
		if !slices.Contains(have, m) {
			have = append(have, m)
		}
	}
	return have
}

// holdsAddress tells whether an address with its mask is among the ips of r.
func holdsAddress(r *current.Result, address string) bool {
	return slices.ContainsFunc(r.IPs, func(ip *current.IPConfig) bool { return ip.Address.String() == address })
}
