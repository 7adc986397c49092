package ovn

import (
	"fmt"
	"testing"

	"github.com/dhcp-meta/dhcp-meta/tests/rig"
	"github.com/dhcp-meta/dhcp-meta/tests/rig/ovn"
)

// What each value of port_security lets out, on the OVN that is installed. The
// engine's choice for containers (auto) is the last row: IPv4 is pinned, and
// nothing else is.
func TestP29WhatPortSecurityLetsThrough(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	const leased, foreign, router6 = "10.77.0.50", "10.77.0.99", "2001:db8::1"
	router := rig.ServerAddr.Addr()
	s.lan.Server.IP(t, "addr", "add", router6+"/64", "dev", rig.ServerIface, "nodad")
	s.pod.IP(t, "addr", "add", leased+"/24", "dev", ifName)
	s.pod.IP(t, "addr", "add", foreign+"/24", "dev", ifName)
	linkLocal(t, s.pod.Netns, ifName)
	routerLL := linkLocal(t, s.lan.Server, rig.ServerIface)
	mac := s.port.MAC.String()

	type seen struct{ Leased, Foreign, Probe, LinkLocal, DAD bool }
	for _, row := range []struct {
		name, security string
		want           seen
	}{
		{"MAC only", mac, seen{true, true, true, true, true}},
		{"MAC and IPv4", mac + " " + leased, seen{Leased: true}},
		{"auto", mac + " " + leased + " 0.0.0.0 ::/0", seen{Leased: true, Probe: true, LinkLocal: true, DAD: true}},
	} {
		t.Run(row.name, func(t *testing.T) {
			s.set(t, mac+" "+leased, row.security)
			// The switch's cache of flows follows a moment later.
			ovn.Await(t, fmt.Sprintf("%q to let through %+v", row.security, row.want), func() (bool, string) {
				got := seen{
					Leased:    pings(s.pod, leased, router.String()),
					Foreign:   pings(s.pod, foreign, router.String()),
					Probe:     probe(t, s.pod, router) != nil,
					LinkLocal: pings(s.pod, ifName, routerLL),
					DAD:       !takesTaken(t, s, router6),
				}
				return got == row.want, fmt.Sprintf("%+v", got)
			})
		})
	}
}
