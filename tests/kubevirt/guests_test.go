package kubevirt

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/dhcp-meta/dhcp-meta/internal/kube/podnetworks"
	"github.com/dhcp-meta/dhcp-meta/tests/rig"
)

// life is what the tests see of a virtual machine: what was reported for it and what
// its guest got, at its first start and at the next ones.
type life struct {
	reported, got []netip.Addr
}

// live starts a virtual machine twice: each time in a new pod with the MAC of its
// specification, and each time its guest asks for an address. It is switched off
// each time; no guest gives its lease back.
func (m *machine) live(t *testing.T, nad string, mac net.HardwareAddr, id identity) life {
	t.Helper()
	var l life
	for range 2 {
		s := m.launcher(t, "vm", nad, mac)
		s.Add(t)
		l.reported = append(l.reported, m.reported(t, s, nad))
		g := boot(t, plug(t, s, lanIface))
		c := g.udhcpc(t, id)
		l.got = append(l.got, c.bound(t, g))
		g.ping(t)
		c.Kill(t)
		s.Del(t)
		m.kube.DeletePod(t, s.Object)
		s.Delete(t)
	}
	return l
}

// steady tells whether guest and report agreed at each start, on one address.
func (l life) steady() bool {
	for i, addr := range l.reported {
		if l.got[i] != addr || addr != l.reported[0] {
			return false
		}
	}
	return true
}

// The guest's own client gets the address that was reported, at its first start and at
// the next one, whatever identifier it sends: with the network as it is by default on
// dnsmasq and on Kea, and on ISC dhcpd told to leave identifiers aside.
func TestK67B65GuestGetsWhatWasReported(t *testing.T) {
	t.Parallel()
	for name, start := range map[string]rig.StartFunc{
		"dnsmasq": rig.StartDnsmasq,
		"Kea":     rig.StartKea,
		"ISC dhcpd with ignore-client-uids": func(t testing.TB, n *rig.Netns, cfg rig.ServerConfig) rig.Server {
			return rig.RunDhcpd(t, n, cfg, "ignore-client-uids true;")
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newMachine(t)
			start(t, m.server, rig.Pool(0, 0))
			m.network(t, "lan", nil, nil)
			for _, id := range identities {
				t.Run(id.name, func(t *testing.T) {
					if l := m.live(t, "lan", newMAC(t), id); !l.steady() {
						t.Errorf("reported %v, the guest got %v", l.reported, l.got)
					}
				})
			}
		})
	}
}

// ISC dhcpd keys a lease by the identifier once a client has sent one, and then does not
// find it by the MAC alone. As it is by default, the second start of a guest that sends
// one is reported with an address that is not the guest's; "clientID": "mac" mends it
// for guests that send 01 and the MAC, and for no others. docs/kubevirt.md has the table.
func TestK67ISCByDefault(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	rig.StartDhcpd(t, m.server, rig.Pool(0, 0))
	m.network(t, "lan", nil, nil)
	m.network(t, "mac", object{"clientID": "mac"}, nil)
	duid, mac, none := identities[0], identities[1], identities[2]
	for _, c := range []struct {
		network       string
		id            identity
		first, second bool // the guest gets what is reported
	}{
		{"lan", duid, true, false},
		{"lan", mac, true, false},
		{"lan", none, true, true},
		{"mac", duid, false, false},
		{"mac", mac, true, true},
		{"mac", none, false, false},
	} {
		t.Run(c.network+" "+c.id.name, func(t *testing.T) {
			l := m.live(t, c.network, newMAC(t), c.id)
			if l.got[0] != l.got[1] {
				t.Errorf("the guest got %v", l.got)
			}
			if first, second := l.got[0] == l.reported[0], l.got[1] == l.reported[1]; first != c.first || second != c.second {
				t.Errorf("reported %v, the guest got %v; docs/kubevirt.md says otherwise", l.reported, l.got)
			}
		})
	}
}

// An address that the site has reserved for the MAC is reported and given at each
// start, whatever the guest sends and however the server keys its leases.
func TestK67ReservationByMAC(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	mac := newMAC(t)
	reserved := netip.MustParseAddr("10.77.0.70")
	rig.RunDhcpd(t, m.server, rig.Pool(0, 0), fmt.Sprintf("host vm { hardware ethernet %s; fixed-address %s; }", mac, reserved))
	m.network(t, "lan", nil, nil)
	for _, id := range identities {
		t.Run(id.name, func(t *testing.T) {
			if l := m.live(t, "lan", mac, id); !l.steady() || l.got[0] != reserved {
				t.Errorf("reported %v, the guest got %v, want %v", l.reported, l.got, reserved)
			}
		})
	}
}

// What is reported is what a server has acknowledged to a REQUEST of ours. A guest that
// uses another address, because it asks under another identity or because it just
// takes one, changes nothing of it.
func TestQ39GuestsWordIsNotReported(t *testing.T) {
	t.Parallel()
	for name, start := range map[string]rig.StartFunc{"dnsmasq": rig.StartDnsmasq, "Kea": rig.StartKea} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			guestsWord(t, start)
		})
	}
}

func guestsWord(t *testing.T, start rig.StartFunc) {
	m := newMachine(t)
	start(t, m.server, rig.Pool(0, 0))
	// With an identifier that is not the guest's, servers take it for another client.
	m.network(t, "lan", object{"clientID": "mac"}, nil)
	s := m.launcher(t, "vm1", "lan", newMAC(t))
	s.Add(t)
	addr := m.reported(t, s, "lan")
	before := m.kube.GetPod(t, m.ns, s.Pod).Annotations[podnetworks.OwnKey]
	g := boot(t, plug(t, s, lanIface))
	got := g.udhcpc(t, identities[0]).bound(t, g)
	if got == addr {
		t.Fatalf("the guest got the reported %v: this server cannot show the case", addr)
	}
	g.IP(t, "addr", "add", "10.77.0.200/24", "dev", "eth0")
	g.ping(t)

	// A later write of the engine on the node says that it would have been done by now.
	other := m.launcher(t, "vm2", "lan", newMAC(t))
	other.Add(t)
	m.reported(t, other, "lan")
	after := m.kube.GetPod(t, m.ns, s.Pod).Annotations[podnetworks.OwnKey]
	if after != before || strings.Contains(after, got.String()+"/") {
		t.Errorf("annotation was %s, and is %s", before, after)
	}
	if ips := s.StatusOf(t, lanIface).IPs; len(ips) != 1 || ips[0] != addr.String() {
		t.Errorf("network status has %v, want %v", ips, addr)
	}
}
