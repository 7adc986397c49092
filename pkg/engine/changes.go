package engine

import (
	"fmt"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine/dhcp4"
)

// change is one thing in which a lease differs from the one before it.
type change struct {
	what     string // a word for metrics: "address", "routes", ...
	from, to any
}

func (c change) String() string { return fmt.Sprintf("%s: %v, was %v", c.what, c.to, c.from) }

// changes tells what a server has changed in a lease, other than its times. A
// changed mask counts as the address, which is written with it.
func changes(old, l dhcp4.Lease) []change {
	var found []change
	compare := func(what string, from, to any) {
		// As text, since an empty list is the same as none.
		if fmt.Sprint(from) != fmt.Sprint(to) {
			found = append(found, change{what, from, to})
		}
	}
	compare("address", old.Addr, l.Addr)
	compare("routers", old.Routers, l.Routers)
	compare("routes", old.Routes, l.Routes)
	compare("dns", dnsOf(old), dnsOf(l))
	compare("ntp", old.NTP, l.NTP)
	compare("mtu", old.MTU, l.MTU)
	return found
}

// dnsOf is all that a lease says of DNS, as text.
func dnsOf(l dhcp4.Lease) string { return fmt.Sprint(l.DNS, l.Domain, l.Search) }
