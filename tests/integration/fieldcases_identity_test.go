package integration

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/insomniacslk/dhcp/dhcpv4"

	"github.com/dhcp-meta/dhcp-meta/tests/rig"
)

// policies are the client identifiers that a network can choose, and how each
// begins on the wire.
var policies = map[string][]byte{
	"mac":  {1},
	"duid": {255},
	"none": nil,
	"{namespace}/{network}/{pod}/{interface}": {0},
}

// Option 61 is the same bytes in every message of a lease, from DISCOVER over both
// kinds of renewal to RELEASE, and fits into one option, however long the names.
func TestB08ClientIdentifierIsConstant(t *testing.T) {
	t.Parallel()
	for policy, begin := range policies {
		t.Run(policy, func(t *testing.T) {
			t.Parallel()
			l := newLab(t)
			server := rig.StartDnsmasq(t, l.Server, rig.Pool(0, 0))
			pod := newSandbox(t)
			conf := l.Macvlan(object{"clientID": policy})
			conf["name"] = strings.Repeat("n", 200)
			const ifName = "a-long-ifname-0"
			call := pod.Call(ifName, conf)
			pod.mustAdd(t, l, call)
			mac := pod.HardwareAddr(t, ifName)
			l.Engine.MustCommand(t, "renew", pod.ID)
			l.Engine.MustCommand(t, "rebind", pod.ID)
			l.Node.Del(t, call)
			server.AwaitHeld(t, "empty", rig.Nothing)

			want := []string{"DISCOVER", "OFFER", "REQUEST", "ACK", "REQUEST", "ACK", "REQUEST", "ACK", "RELEASE"}
			if got := l.messages(0, mac); fmt.Sprint(got) != fmt.Sprint(want) {
				t.Errorf("messages %v, want %v", got, want)
			}
			expectClientID(t, l, begin)
		})
	}
}

func expectClientID(t testing.TB, l *lab, begin []byte) {
	t.Helper()
	var first []byte
	for i, f := range l.Capture.Since(0) {
		if !f.FromClient() {
			continue
		}
		id := f.Msg.Options.Get(dhcpv4.OptionClientIdentifier)
		if i == 0 {
			first = id
		}
		if !bytes.Equal(id, first) {
			t.Errorf("option 61 of %v is %x, and was %x", f.Type, id, first)
		}
		if !bytes.HasPrefix(id, begin) || (id == nil) != (begin == nil) || len(id) > 255 {
			t.Errorf("option 61 of %v is %x, want one that begins with %x, or none", f.Type, id, begin)
		}
	}
}

// reservedMAC is the one of the reservations; reserved the address for it.
const (
	reservedMAC = "02:00:00:00:10:01"
	reserved    = "10.77.0.55"
)

// reserving starts a server that has an address set aside for reservedMAC.
var reserving = map[string]func(t testing.TB, l *lab) rig.Server{
	"dnsmasq": func(t testing.TB, l *lab) rig.Server {
		cfg := rig.Pool(0, 0)
		cfg.Dnsmasq = []string{"--dhcp-host=" + reservedMAC + "," + reserved + ",printer"}
		return rig.StartDnsmasq(t, l.Server, cfg)
	},
	"Kea": func(t testing.TB, l *lab) rig.Server {
		kea := rig.StartKea(t, l.Server, rig.Pool(0, 0)).(*rig.Kea)
		kea.Reconfigure(t, func(dhcp4 rig.Object) {
			rig.KeaSubnet(dhcp4)["reservations"] = []object{{"hw-address": reservedMAC, "ip-address": reserved}}
		})
		return kea
	},
	"dhcpd": func(t testing.TB, l *lab) rig.Server {
		cfg := rig.Pool(0, 0)
		cfg.Last = cfg.First.Next()
		return rig.RunDhcpd(t, l.Server, cfg, "host printer { hardware ethernet "+reservedMAC+"; fixed-address "+reserved+"; }")
	},
}

// macvlanWith is a network whose interface has a MAC that the administrator chose.
func (l *lab) macvlanWith(mac string, settings object) object {
	return l.Delegate(object{"type": "macvlan", "master": rig.Uplink, "mode": "bridge", "mac": mac}, settings)
}

// A reservation by MAC counts whatever client identifier is sent, and for every
// pod that comes with this MAC. (U10, O15)
func TestB10ReservationByMAC(t *testing.T) {
	t.Parallel()
	for name, start := range reserving {
		for policy := range policies {
			t.Run(name+", "+policy, func(t *testing.T) {
				t.Parallel()
				l := newLab(t)
				server := start(t, l)
				conf := l.macvlanWith(reservedMAC, object{"clientID": policy})
				for range 2 {
					pod := newSandbox(t)
					call := pod.Call("net1", conf)
					if addr := leased(t, pod.mustAdd(t, l, call)).Addr().String(); addr != reserved {
						t.Errorf("got %s, want the reserved %s", addr, reserved)
					}
					l.Node.Del(t, call)
					server.AwaitHeld(t, "empty", rig.Nothing)
				}
			})
		}
	}
}

// The reservation counts too where the MAC still holds a lease under another
// client identifier.
func TestB10ReservationAfterALeftoverLease(t *testing.T) {
	t.Parallel()
	for policy := range policies {
		t.Run(policy, func(t *testing.T) {
			t.Parallel()
			l := newLab(t)
			kea := rig.StartKea(t, l.Server, rig.Pool(0, 0)).(*rig.Kea)
			gone := newSandbox(t)
			other := l.macvlanWith(reservedMAC, object{"clientID": "{uid}"})
			leftover := leased(t, gone.mustAdd(t, l, gone.Call("net1", other))).Addr()
			gone.ends(t, l)
			kea.Reconfigure(t, func(dhcp4 rig.Object) {
				rig.KeaSubnet(dhcp4)["reservations"] = []object{{"hw-address": reservedMAC, "ip-address": reserved}}
			})

			pod := newSandbox(t)
			call := pod.Call("net1", l.macvlanWith(reservedMAC, object{"clientID": policy}))
			addr := leased(t, pod.mustAdd(t, l, call)).Addr()
			if addr.String() != reserved || leftover == addr {
				t.Errorf("got %s, want the reserved %s (left over: %s)", addr, reserved, leftover)
			}
			kea.AwaitHeld(t, "the reserved address", holdsToo(pod.HardwareAddr(t, "net1"), addr))
		})
	}
}

// With `clientID: duid` a pod of the same name gets its address again, though it
// is another pod with another MAC, and no DEL of the old one has come: its node
// lost power, say. The server holds one lease for both. (O15)
func TestO15SameNameSameAddress(t *testing.T) {
	onThreeServers(t, func(t *testing.T, l *lab, start rig.StartFunc) {
		server := start(t, l.Server, rig.Pool(0, 0))
		conf := l.Macvlan(object{"clientID": "duid"})
		old := newSandbox(t)
		addr := leased(t, old.mustAdd(t, l, old.Call("net1", conf)))
		oldMAC := old.HardwareAddr(t, "net1")
		old.ends(t, l)

		next := newSandbox(t)
		next.Pod = old.Pod
		call := next.Call("net1", conf)
		if got := leased(t, next.mustAdd(t, l, call)); got != addr {
			t.Errorf("got %v, want %v again", got, addr)
		}
		mac := next.HardwareAddr(t, "net1")
		if mac.String() == oldMAC.String() {
			t.Fatal("both pods have one MAC: the case is not the one meant")
		}
		server.AwaitHeld(t, "one lease", rig.Holds(mac, addr.Addr()))
		// The DEL of the old pod is late, and frees nothing.
		mark := l.Capture.Len()
		l.Node.Del(t, old.Call("net1", conf))
		if n := l.Capture.Count(mark, rig.Type(dhcpv4.MessageTypeRelease, nil)); n != 0 {
			t.Errorf("the old pod's DEL sent %d RELEASEs", n)
		}
		server.AwaitHeld(t, "one lease", rig.Holds(mac, addr.Addr()))
		l.Node.Del(t, call)
		server.AwaitHeld(t, "empty", rig.Nothing)
	})
}

// After a DEL, a server that remembers its clients gives a pod of the same name
// its address again.
func TestO15SameNameAfterDel(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	server := rig.StartDhcpd(t, l.Server, rig.Pool(0, 0))
	conf := l.Macvlan(object{"clientID": "duid"})
	old, other := newSandbox(t), newSandbox(t)
	addr := leased(t, old.mustAdd(t, l, old.Call("net1", conf)))
	l.Node.Del(t, old.Call("net1", conf))
	server.AwaitHeld(t, "empty", rig.Nothing)
	other.mustAdd(t, l, other.Call("net1", conf))

	next := newSandbox(t)
	next.Pod = old.Pod
	if got := leased(t, next.mustAdd(t, l, next.Call("net1", conf))); got != addr {
		t.Errorf("got %v, want %v again", got, addr)
	}
}

// Two pods never share an address: where there is one, the second pod's ADD fails
// for now, and succeeds when the first has gone.
func TestO16OneAddressForTwo(t *testing.T) {
	onThreeServers(t, func(t *testing.T, l *lab, start rig.StartFunc) {
		cfg := rig.Pool(0, 0)
		cfg.Last = cfg.First
		server := start(t, l.Server, cfg)
		conf := l.Macvlan(object{"timeout": "4s"})
		first, second := newSandbox(t), newSandbox(t)
		addr := leased(t, first.mustAdd(t, l, first.Call("net1", conf)))
		l.Node.Refuse(t, "ADD", second.Call("net1", conf), 11, "no DHCP server answered")
		server.AwaitHeld(t, "the first pod's lease", rig.Holds(first.HardwareAddr(t, "net1"), addr.Addr()))

		l.Node.Del(t, first.Call("net1", conf))
		server.AwaitHeld(t, "empty", rig.Nothing)
		if got := leased(t, second.mustAdd(t, l, second.Call("net1", conf))); got != addr {
			t.Errorf("got %v, want %v", got, addr)
		}
		server.AwaitHeld(t, "the second pod's lease", rig.Holds(second.HardwareAddr(t, "net1"), addr.Addr()))
	})
}
