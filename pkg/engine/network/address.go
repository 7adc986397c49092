package network

import (
	"encoding/json"
	"net/netip"
	"slices"
)

// widest is the length of the shortest prefix that still is a network. Nobody
// was ever given more than a /8, and the largest private network is 10.0.0.0/8
// (RFC 1918, 3); a shorter prefix is a default route by another name, which
// routes has no say in.
const widest = 8

func (d *decoder) servers(path string, raw json.RawMessage, into *[]netip.Addr) {
	var servers []netip.Addr
	d.array(path, raw, func(path string, raw json.RawMessage) {
		a, ok := d.host(path, raw, "a server")
		switch {
		case !ok:
		case slices.Contains(servers, a):
			d.problem(path, "%s is there twice", a)
		default:
			servers = append(servers, a)
		}
	})
	*into = servers
}

// host decodes the IPv4 address of a host; whose is for messages.
func (d *decoder) host(path string, raw json.RawMessage, whose string) (netip.Addr, bool) {
	s, ok := d.string(path, raw)
	if !ok {
		return netip.Addr{}, false
	}
	a, err := netip.ParseAddr(s)
	switch {
	case err != nil || !a.Is4():
		d.problem(path, "%q is no IPv4 address", s)
	case a.IsUnspecified() || a.IsLoopback() || a.IsMulticast() || a.As4()[0] >= 240:
		d.problem(path, "%s cannot be the address of %s", a, whose)
	default:
		return a, true
	}
	return netip.Addr{}, false
}

// address decodes the address to ask for.
func (d *decoder) address(path string, raw json.RawMessage, into *netip.Addr) {
	if a, ok := d.host(path, raw, "a client"); ok {
		*into = a
	}
}

func (d *decoder) routes(path string, raw json.RawMessage, into *Routes) {
	d.object(path, raw, map[string]field{
		"allow": func(path string, v json.RawMessage) { d.prefixes(path, v, &into.Allow) },
		"deny":  func(path string, v json.RawMessage) { d.prefixes(path, v, &into.Deny) },
	})
}

func (d *decoder) prefixes(path string, raw json.RawMessage, into *[]netip.Prefix) {
	var prefixes []netip.Prefix
	d.array(path, raw, func(path string, raw json.RawMessage) {
		s, ok := d.string(path, raw)
		if !ok {
			return
		}
		p, err := netip.ParsePrefix(s)
		switch {
		case err != nil || !p.Addr().Is4():
			d.problem(path, `%q is no IPv4 prefix; write "10.9.0.0/16"`, s)
		case p != p.Masked():
			d.problem(path, "%s has bits behind its mask; is %s meant?", p, p.Masked())
		case slices.Contains(prefixes, p):
			d.problem(path, "%s is there twice", p)
		default:
			prefixes = append(prefixes, p)
		}
	})
	*into = prefixes
}

// contradictingRoutes refuses entries of routes that could never have an effect,
// or that forbid what another key asks for.
func (d *decoder) contradictingRoutes(s Settings) {
	for _, deny := range s.Routes.Deny {
		if s.DefaultRoute && deny.Bits() < widest {
			d.problem("dhcp.routes.deny", `%s denies a default route, and defaultRoute is "always"`, deny)
		}
	}
	for _, allow := range s.Routes.Allow {
		for _, deny := range s.Routes.Deny {
			if deny.Bits() <= allow.Bits() && deny.Contains(allow.Addr()) {
				d.problem("dhcp.routes.allow", "%s lies inside %s of deny: nothing of it would be allowed", allow, deny)
			}
		}
		for _, never := range []string{"0.0.0.0/8", "127.0.0.0/8", "224.0.0.0/4", "240.0.0.0/4"} {
			if p := netip.MustParsePrefix(never); p.Bits() <= allow.Bits() && p.Contains(allow.Addr()) {
				d.problem("dhcp.routes.allow", "%s lies inside %s, to which no route is ever installed", allow, p)
			}
		}
	}
}
