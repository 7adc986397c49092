package dhcp4

import (
	"bytes"
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/insomniacslk/dhcp/dhcpv4"
)

// The tests of this file are named after the field cases that docs/coverage.md
// lists: what people have reported of DHCP clients for pods.

const (
	offerType = dhcpv4.MessageTypeOffer
	ackType   = dhcpv4.MessageTypeAck
	nakType   = dhcpv4.MessageTypeNak
)

func wantState(t *testing.T, m *Machine, want State) {
	t.Helper()
	if m.State() != want {
		t.Fatalf("state %s, want %s", m.State(), want)
	}
}

// TestB12SecondServer: the NAK of a server that was not chosen changes nothing,
// neither in REQUESTING nor in PROBING nor in RENEWING; in REBINDING and in
// INIT-REBOOT it counts.
func TestB12SecondServer(t *testing.T) {
	cfg := testConfig()
	cfg.Probe = true
	m := New(cfg)
	foreign := func() Received { return received(answer(nakType, m.xid, "0.0.0.0", optServerID, "10.78.0.1")) }
	m.Step(epoch, Start{})
	m.Step(epoch, received(answer(offerType, m.xid, "10.0.0.5", grant()...)))
	m.Step(epoch, foreign())
	wantState(t, m, Requesting)
	m.Step(epoch, received(answer(ackType, m.xid, "10.0.0.5", grant()...)))
	m.Step(epoch, foreign())
	wantState(t, m, Probing)
	m.Step(epoch, Probed{})
	m.Step(m.Deadline(), Elapsed{})
	m.Step(at(time.Hour/2), foreign())
	wantState(t, m, Renewing)
	l, held := m.Lease()
	if !held || l.Server != netip.MustParseAddr("10.0.0.1") {
		t.Errorf("lease %v of %v, held %v", l.Addr, l.Server, held)
	}
	m.Step(l.RebindAt(), Elapsed{})
	m.Step(l.RebindAt(), foreign())
	wantState(t, m, Selecting)

	m = New(cfg)
	m.Step(entered, Start{Previous: &l})
	m.Step(entered, foreign())
	wantState(t, m, Selecting)
}

// TestB15SilentServer: the machine goes on asking by the times of RFC 2131, 4.1, as
// long as its caller lets it; it says nothing of its own deadline.
func TestB15SilentServer(t *testing.T) {
	m := New(testConfig())
	m.Step(epoch, Start{})
	var asked []time.Duration
	for m.Deadline().Before(at(110 * time.Second)) {
		now := m.Deadline()
		asked = append(asked, now.Sub(epoch).Round(time.Millisecond))
		if s := sends(m.Step(now, Elapsed{})); len(s) != 1 || s[0].Msg.MessageType() != dhcpv4.MessageTypeDiscover {
			t.Fatalf("at %s: %v, want a DISCOVER", now.Sub(epoch), s)
		}
	}
	if diff := cmp.Diff([]time.Duration{4 * time.Second, 12 * time.Second, 28 * time.Second, 60 * time.Second}, asked); diff != "" {
		t.Errorf("DISCOVERs in the time of an ADD (-want +got):\n%s", diff)
	}
}

// TestB16RenewMessage: unicast to the server of the lease, source the leased
// address, no option 50 and no option 54.
func TestB16RenewMessage(t *testing.T) {
	m, l := boundMachine(testConfig())
	s := sends(m.Step(l.RenewAt(), Elapsed{}))
	if len(s) != 1 || s[0].To != l.Server || addr4(s[0].Msg.ClientIPAddr) != l.Addr.Addr() {
		t.Fatalf("sent %+v", s)
	}
	for _, code := range []uint8{optRequestedAddr, optServerID} {
		if v, ok := s[0].Msg.Options[code]; ok {
			t.Errorf("option %d is sent: %x", code, v)
		}
	}
	if s[0].Msg.IsBroadcast() {
		t.Error("the BROADCAST flag is set")
	}
}

// TestB19FarServer: the server's identifier is off the link and nothing leads there.
// The lease lives on until T2, and the relay's answer to the broadcast saves it.
func TestB19FarServer(t *testing.T) {
	m, l := boundMachine(testConfig(), optServerID, "172.31.255.1")
	for m.Deadline().Before(l.RebindAt()) {
		for _, s := range sends(m.Step(m.Deadline(), Elapsed{})) {
			if s.To != l.Server || s.Via != l.Server {
				t.Errorf("renewal to %s via %s, want %s, which nobody answers for", s.To, s.Via, l.Server)
			}
		}
		wantState(t, m, Renewing)
	}
	rebind := sends(m.Step(l.RebindAt(), Elapsed{}))
	if len(rebind) != 1 || rebind[0].To.IsValid() {
		t.Fatalf("at T2 %+v is sent, want a broadcast", rebind)
	}
	relayed := received(answer(ackType, m.xid, "10.0.0.5", grant(optServerID, "172.31.255.1")...))
	relayed.From = netip.MustParseAddr("10.0.0.2")
	acts := m.Step(l.RebindAt(), relayed)
	if use, ok := acts[0].(Use); len(acts) != 1 || !ok || use.Lease.Addr != l.Addr || use.Lease.Server != l.Server {
		t.Errorf("got %+v, want the same lease again and nothing else", acts)
	}
}

// TestB20NakInRenewing: the address is dropped in the step that reads the NAK, and
// the DISCOVER goes out in the same one.
func TestB20NakInRenewing(t *testing.T) {
	m, l := boundMachine(testConfig())
	m.Step(l.RenewAt(), Elapsed{})
	acts := m.Step(l.RenewAt(), received(answer(nakType, m.xid, "0.0.0.0", optServerID, "10.0.0.1", optMessage, []byte("gone"))))
	want := Drop{Lease: l, Reason: Nak, Detail: `nak from server 10.0.0.1: "gone"`}
	if len(acts) != 2 {
		t.Fatalf("%d actions, want Drop and Send: %+v", len(acts), acts)
	}
	if diff := cmp.Diff(Action(want), acts[0], equalAddrs); diff != "" {
		t.Errorf("first action (-want +got):\n%s", diff)
	}
	if s := sends(acts); len(s) != 1 || s[0].Msg.MessageType() != dhcpv4.MessageTypeDiscover {
		t.Errorf("sent %+v, want a DISCOVER", s)
	}
	if _, held := m.Lease(); held {
		t.Error("the lease may still be used")
	}
}

// TestB23RetrySchedule: three tries at least in RENEWING and in REBINDING, for
// leases of seconds and of days, and an ACK just before the end still counts.
func TestB23RetrySchedule(t *testing.T) {
	for _, seconds := range []int{10, 60, 120, 300, 600, 3600, 86400, 30 * 86400} {
		m, l := boundMachine(testConfig(), optLeaseTime, seconds)
		tries := map[State]int{}
		for m.Deadline().Before(l.ExpireAt()) {
			acts := m.Step(m.Deadline(), Elapsed{})
			tries[m.State()] += len(sends(acts))
		}
		if tries[Renewing] < 3 || tries[Rebinding] < 3 || tries[Renewing]+tries[Rebinding] > 40 {
			t.Errorf("lease of %d s: %d tries in RENEWING, %d in REBINDING", seconds, tries[Renewing], tries[Rebinding])
		}
		m.Step(l.ExpireAt().Add(-1), received(answer(ackType, m.xid, "10.0.0.5", grant(optLeaseTime, seconds)...)))
		wantState(t, m, Bound)
	}
}

// TestB26InfiniteLease: no timer at all, and no arithmetic that overflows one second
// below that.
func TestB26InfiniteLease(t *testing.T) {
	m, l := boundMachine(testConfig(), optLeaseTime, infiniteSeconds, optT1, 8, optT2, 16)
	if l.Lifetime != Infinite || l.T1 != Infinite || l.T2 != Infinite {
		t.Errorf("lifetime %d, T1 %d, T2 %d; want %d", l.Lifetime, l.T1, l.T2, Infinite)
	}
	if !m.Deadline().IsZero() || l.Expired(at(100*365*24*time.Hour)) {
		t.Errorf("deadline %s, expired %v", m.Deadline(), l.Expired(at(100*365*24*time.Hour)))
	}

	m, l = boundMachine(testConfig(), optLeaseTime, infiniteSeconds-1)
	const lifetime = (infiniteSeconds - 1) * time.Second
	if l.Lifetime != lifetime || l.T1 != lifetime/2 || l.T2 <= l.T1 || l.T2 >= l.Lifetime {
		t.Errorf("lifetime %s, T1 %s, T2 %s", l.Lifetime, l.T1, l.T2)
	}
	if want := epoch.Add(lifetime / 2); !m.Deadline().Equal(want) {
		t.Errorf("deadline %s, want %s", m.Deadline(), want)
	}
}

// TestB28RebindToOtherServer: in REBINDING any server's ACK counts, and the next
// renewal goes to that server.
func TestB28RebindToOtherServer(t *testing.T) {
	m, l := boundMachine(testConfig())
	rebind := sends(m.Step(l.RebindAt(), Elapsed{}))
	if len(rebind) != 1 || rebind[0].To.IsValid() || addr4(rebind[0].Msg.ClientIPAddr) != l.Addr.Addr() {
		t.Fatalf("rebinding sends %+v, want a broadcast with ciaddr", rebind)
	}
	m.Step(l.RebindAt(), received(answer(ackType, m.xid, "10.0.0.5", grant(optServerID, "10.0.0.2")...)))
	other := netip.MustParseAddr("10.0.0.2")
	if l, held := m.Lease(); !held || l.Server != other {
		t.Fatalf("server %s, held %v; want %s", l.Server, held, other)
	}
	if renew := sends(m.Step(m.Deadline(), Elapsed{})); len(renew) != 1 || renew[0].To != other {
		t.Errorf("renewal goes to %+v, want %s", renew, other)
	}
}

func TestB47ClasslessBeatsRouterAndStatic(t *testing.T) {
	_, l := boundMachine(testConfig(), optRouter, "10.0.0.1", optStaticRoute, "192.168.7.0,10.0.0.2",
		optClassless, []byte{16, 10, 9, 10, 0, 0, 3})
	if diff := cmp.Diff([]Route{route("10.9.0.0/16", "10.0.0.3")}, l.Routes, equalAddrs); diff != "" {
		t.Errorf("routes (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(addrs("10.0.0.1"), l.Routers, equalAddrs); diff != "" {
		t.Errorf("routers are still told (-want +got):\n%s", diff)
	}
}

func TestB49OnLinkRoute(t *testing.T) {
	_, l := boundMachine(testConfig(), optClassless, []byte{0, 10, 0, 0, 1, 32, 169, 254, 169, 254, 0, 0, 0, 0})
	want := []Route{route("0.0.0.0/0", "10.0.0.1"), route("169.254.169.254/32", "")}
	if diff := cmp.Diff(want, l.Routes, equalAddrs); diff != "" {
		t.Errorf("routes (-want +got):\n%s", diff)
	}
}

func TestB52BrokenClasslessRoutes(t *testing.T) {
	for name, broken := range map[string][]byte{
		"short":   {0x20, 0x0a, 0x09, 0x00, 0x01, 0x0a},
		"33 bits": {0x21, 0x0a, 0x09, 0x00, 0x01, 0x0a, 0x4d, 0x00, 0x01},
		"empty":   {},
	} {
		l, remarks, err := parse(t, netip.Prefix{}, "10.0.0.5", optRouter, "10.0.0.1", optStaticRoute, "192.168.7.0,10.0.0.2", optClassless, broken)
		if err != nil || len(remarks) != 1 {
			t.Errorf("%s: error %v, remarks %q; want one remark", name, err, remarks)
		}
		want := []Route{route("192.168.7.0/24", "10.0.0.2"), route("0.0.0.0/0", "10.0.0.1")}
		if diff := cmp.Diff(want, l.Routes, equalAddrs); diff != "" {
			t.Errorf("%s: routes (-want +got):\n%s", name, diff)
		}
	}
}

// TestB53MissingMaskOrRouter: without a router there is no default route; without a
// mask there is no lease, and what was acknowledged is given back.
func TestB53MissingMaskOrRouter(t *testing.T) {
	_, l := boundMachine(testConfig())
	if len(l.Routers) != 0 || len(l.Routes) != 0 {
		t.Errorf("routers %v, routes %v; want none", l.Routers, l.Routes)
	}

	m := New(testConfig())
	m.Step(epoch, Start{})
	bare := []any{optServerID, "10.0.0.1", optLeaseTime, 3600}
	acts := m.Step(epoch, received(answer(offerType, m.xid, "10.0.0.5", bare...)))
	if ign, ok := acts[0].(Ignore); len(acts) != 1 || !ok || ign.Reason != "offer of 10.0.0.5 has no subnet mask (option 1)" {
		t.Errorf("offer without a mask: %+v", acts)
	}
	m.Step(epoch, received(answer(offerType, m.xid, "10.0.0.5", grant()...)))
	acts = m.Step(epoch, received(answer(ackType, m.xid, "10.0.0.5", bare...)))
	s := sends(acts)
	if len(s) != 1 || s[0].Msg.MessageType() != dhcpv4.MessageTypeRelease || addr4(s[0].Msg.ClientIPAddr) != netip.MustParseAddr("10.0.0.5") {
		t.Fatalf("ack without a mask: %+v, want a RELEASE", acts)
	}
	if !bytes.Equal(s[0].Msg.Options[optClientID], testID) {
		t.Errorf("the RELEASE has client identifier %x", s[0].Msg.Options[optClientID])
	}
	if wait := m.Deadline().Sub(epoch); m.State() != Init || wait < 10*time.Second {
		t.Errorf("in %s for %s, want INIT for 10 s at least", m.State(), wait)
	}
	if claim, ok := m.Claim(); ok {
		t.Errorf("%v is claimed still", claim.Addr)
	}
}

func TestB54NamesReachTheLease(t *testing.T) {
	_, l := boundMachine(testConfig(), optDNS, "10.0.0.3,10.0.0.4", optDomain, []byte("site.example"),
		optSearch, []byte("\x03eng\x04site\x07example\x00\xc0\x04"), optNTP, "10.0.0.6")
	want := Lease{DNS: addrs("10.0.0.3,10.0.0.4"), Domain: "site.example", Search: []string{"eng.site.example", "site.example"}, NTP: addrs("10.0.0.6")}
	if diff := cmp.Diff(want, Lease{DNS: l.DNS, Domain: l.Domain, Search: l.Search, NTP: l.NTP}, equalAddrs); diff != "" {
		t.Errorf("names (-want +got):\n%s", diff)
	}
}

// TestB08ClientIdentifier: the same bytes in every message of a lease, also in those
// after an expiry.
func TestB08ClientIdentifier(t *testing.T) {
	cfg := testConfig()
	cfg.ClientID = bytes.Repeat([]byte{0xab}, 255)
	m, l := boundMachine(cfg)
	var seen []Send
	for m.Deadline().Before(l.ExpireAt().Add(time.Minute)) {
		seen = append(seen, sends(m.Step(m.Deadline(), Elapsed{}))...)
	}
	seen = append(seen, Release(cfg, l))
	kinds := map[dhcpv4.MessageType]bool{}
	for _, s := range seen {
		kinds[s.Msg.MessageType()] = true
		back, err := dhcpv4.FromBytes(s.Msg.ToBytes())
		if err != nil || !bytes.Equal(back.Options[optClientID], cfg.ClientID) {
			t.Errorf("%s has client identifier %x (%v)", s.Msg.MessageType(), back.Options[optClientID], err)
		}
	}
	if len(kinds) != 3 {
		t.Errorf("kinds of messages: %v, want DISCOVER, REQUEST and RELEASE", kinds)
	}
}
