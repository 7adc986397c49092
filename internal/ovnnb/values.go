package ovnnb

import (
	"bytes"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/dhcp-meta/dhcp-meta/internal/publish"
	"github.com/dhcp-meta/dhcp-meta/pkg/engine"
	"github.com/dhcp-meta/dhcp-meta/pkg/engine/network"
)

// Keys that OVN-Kubernetes writes into options and external_ids of a port.
const (
	optionUID = "iface-id-ver"
	idNAD     = "k8s.ovn.org/nad"
)

// pinned follows MAC and leased address where the port is pinned in IPv4 only: a
// list with an IPv4 address in it bars all other IPv4, and without one of IPv6 all
// IPv6. 0.0.0.0 is the sender of probes for conflicts (RFC 5227), ::/0 all of IPv6.
// Tried on OVN 23.03; the tests do so again.
const pinned = " 0.0.0.0 ::/0"

// port is a row of Logical_Switch_Port, as far as we have to do with it.
type port struct {
	UUID         string            `ovsdb:"_uuid"`
	Name         string            `ovsdb:"name"`
	Addresses    []string          `ovsdb:"addresses"`
	PortSecurity []string          `ovsdb:"port_security"`
	Options      map[string]string `ovsdb:"options"`
	ExternalIDs  map[string]string `ovsdb:"external_ids"`
}

// columns are what is written of a port.
type columns struct{ addresses, security []string }

// has tells whether the port carries c; the database keeps no order.
func (p port) has(c columns) bool {
	return same(p.Addresses, c.addresses) && same(p.PortSecurity, c.security)
}

func same(a, b []string) bool {
	return slices.Equal(slices.Sorted(slices.Values(a)), slices.Sorted(slices.Values(b)))
}

// of tells whether it is a port of the pod on the network. The number behind the
// name of a NAD tells several interfaces of one pod on one NAD apart.
func (p port) of(pod engine.Pod, nad string) bool {
	if pod.UID == "" || p.Options[optionUID] != pod.UID {
		return false
	}
	if !strings.HasSuffix(p.Name, "_"+pod.Namespace+"_"+pod.Name) {
		return false
	}
	key := p.ExternalIDs[idNAD]
	if parts := strings.Split(key, "/"); len(parts) == 3 {
		key = parts[0] + "/" + parts[1]
	}
	return key == nad
}

// hardwareAddr is the MAC of the port; nil where it has none.
func (p port) hardwareAddr() net.HardwareAddr {
	for _, e := range p.Addresses {
		if mac, _ := element(e); mac != nil {
			return mac
		}
	}
	return nil
}

// element takes an element of addresses or port_security apart, "MAC IP IP..."; a
// nil MAC means that it is a word of OVN's own, such as unknown or dynamic, and not
// for us to change.
func element(e string) (net.HardwareAddr, []string) {
	words := strings.Fields(e)
	if len(words) == 0 || slices.Contains(words, "dynamic") {
		return nil, nil
	}
	mac, err := net.ParseMAC(words[0])
	if err != nil || len(mac) != 6 {
		return nil, nil
	}
	return mac, words[1:]
}

// withoutLease is what the port carries without a lease: its MAC, nothing pinned.
func (p port) withoutLease() columns {
	only := func(mac string, _ []string) string { return mac }
	return columns{
		// IPv6 addresses in addresses pin nothing, and are none of ours.
		addresses: mapped(p.Addresses, func(mac string, ips []string) string { return join(mac, only6(ips)) }),
		security:  mapped(p.PortSecurity, only),
	}
}

// withLease is what the port carries with a lease. A port on which port security is
// switched off stays so, unless the network itself says that it wants it: nothing
// that worked before may be cut off.
func (p port) withLease(l engine.Publication) columns {
	ip := l.Addr.Addr().String()
	security := l.PortSecurity
	if security == network.PortSecurityAuto && l.Workload == engine.VM {
		// The guest has a client of its own, which may be given another address.
		security = network.PortSecurityMAC
	}
	var six []string
	c := columns{addresses: mapped(p.Addresses, func(mac string, ips []string) string {
		six = only6(ips)
		return join(mac, append([]string{ip}, six...))
	})}
	want := p.hardwareAddr().String()
	switch security {
	case network.PortSecurityAddress:
		want = join(want, append([]string{ip}, six...))
	case network.PortSecurityMAC:
	default:
		want += " " + ip + pinned
	}
	if len(p.PortSecurity) == 0 && security != network.PortSecurityAddress {
		return c
	}
	c.security = []string{want}
	return c
}

// mapped changes the elements that have a MAC and leaves the others as they are.
func mapped(list []string, change func(mac string, ips []string) string) []string {
	var out []string
	for _, e := range list {
		if mac, ips := element(e); mac != nil {
			e = change(strings.Fields(e)[0], ips)
		}
		if !slices.Contains(out, e) {
			out = append(out, e)
		}
	}
	return out
}

func join(mac string, ips []string) string { return strings.Join(append([]string{mac}, ips...), " ") }

// only6 are the IPv6 addresses among ips, without what stands for more than one
// host, which is ours (pinned).
func only6(ips []string) []string {
	var six []string
	for _, ip := range ips {
		if a, err := netip.ParseAddr(ip); err == nil && a.Is6() {
			six = append(six, ip)
		}
	}
	return six
}

// choose finds the port of a slot among those of its pod. Without a lease there may
// be several: those that no other slot of the pod has a lease on. mac is that of the
// lease, or of the last one; nil: none is known.
func choose(ports []port, slot publish.Slot, mac net.HardwareAddr, others []net.HardwareAddr, lease bool) ([]port, error) {
	var ours, candidates []port
	for _, p := range ports {
		if !p.of(slot.Pod, slot.NAD) {
			continue
		}
		candidates = append(candidates, p)
		has := p.hardwareAddr()
		taken := slices.ContainsFunc(others, func(o net.HardwareAddr) bool { return bytes.Equal(o, has) })
		if mac == nil && !taken || mac != nil && bytes.Equal(has, mac) {
			ours = append(ours, p)
		}
	}
	switch {
	case !lease:
		return ours, nil
	case len(candidates) == 0:
		return nil, errNoPort
	case len(ours) == 0:
		return nil, fmt.Errorf("port %s of OVN has the MAC %s, the lease was got with %s: has somebody changed the MAC of the interface?",
			candidates[0].Name, candidates[0].hardwareAddr(), mac)
	case len(ours) > 1:
		return nil, fmt.Errorf("ports %s and %s of OVN both have the MAC %s", ours[0].Name, ours[1].Name, mac)
	}
	return ours, nil
}
