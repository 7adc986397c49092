package dhcp4

import (
	"errors"
	"net"
	"net/netip"
	"testing"

	"github.com/insomniacslk/dhcp/dhcpv4"
)

// TestVet: what a message must be before any state looks at it. Each row changes a
// sound OFFER.
func TestVet(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(cfg *Config, in *Received)
		kind   Kind
		reason string // empty: it is taken
	}{
		{"OK", func(*Config, *Received) {}, "", ""},
		{"OK client identifier given back", func(_ *Config, in *Received) { in.Msg.Options[optClientID] = testID }, "", ""},
		{"OK client identifier of a client that sent none", func(cfg *Config, in *Received) {
			cfg.ClientID, in.Msg.Options[optClientID] = nil, testID
		}, "", ""},
		{"OK server that is allowed", func(cfg *Config, _ *Received) { cfg.Servers = addrs("10.0.0.9,10.0.0.1") }, "", ""},
		{"OK address of 16 bytes", func(_ *Config, in *Received) { in.Msg.YourIPAddr = net.ParseIP("10.0.0.5") }, "", ""},
		{"OK B19 server that is told to send another identifier sends both", func(_ *Config, in *Received) {
			in.Msg.Options[optServerID] = []byte{10, 0, 0, 9, 10, 0, 0, 1}
		}, "", ""},
		{"bad bytes", func(_ *Config, in *Received) { in.Msg, in.Err = nil, errors.New("unexpected end") }, KindMalformed, "unexpected end"},
		{"bad nothing", func(_ *Config, in *Received) { in.Msg = nil }, KindType, "empty message"},
		{"bad IPv6", func(_ *Config, in *Received) { in.From = netip.MustParseAddr("fe80::1") }, KindType, "message came from fe80::1, not over IPv4"},
		{"bad request", func(_ *Config, in *Received) { in.Msg.OpCode = dhcpv4.OpcodeBootRequest }, KindType, "message has op 1 and is no reply"},
		{"bad hardware address", func(_ *Config, in *Received) { in.Msg.ClientHWAddr = net.HardwareAddr{2, 0, 0, 0, 0, 6} }, KindHardwareAddr, "message is for hardware address 02:00:00:00:00:06"},
		{"bad length of the hardware address", func(_ *Config, in *Received) { in.Msg.ClientHWAddr = append(testMAC[:6:6], 0, 0) }, KindHardwareAddr, "message is for hardware address 02:00:00:00:00:05:00:00"},
		{"bad transaction", func(_ *Config, in *Received) { in.Msg.TransactionID = dhcpv4.TransactionID{1, 2, 3, 4} }, KindTransaction, "message is of transaction 0x01020304, not 0x80000001"},
		{"bad BOOTP", func(_ *Config, in *Received) { delete(in.Msg.Options, optMessageType) }, KindType, "message has no type (option 53): BOOTP, not DHCP"},
		{"bad type of two bytes", func(_ *Config, in *Received) { in.Msg.Options[optMessageType] = []byte{2, 2} }, KindType, "message has no type (option 53): BOOTP, not DHCP"},
		{"bad type", func(_ *Config, in *Received) { in.Msg.Options[optMessageType] = []byte{1} }, KindType, "message of type DISCOVER is not for a client"},
		{"bad no options at all", func(_ *Config, in *Received) { in.Msg.Options = nil }, KindType, "message has no type (option 53): BOOTP, not DHCP"},
		{"bad no server", func(_ *Config, in *Received) { delete(in.Msg.Options, optServerID) }, KindOptions, "offer from 10.0.0.1 has no valid server identifier (option 54)"},
		{"bad server of 16 bytes", func(_ *Config, in *Received) { in.Msg.Options[optServerID] = net.ParseIP("10.0.0.1") }, KindOptions, "offer from 10.0.0.1 has no valid server identifier (option 54)"},
		{"bad server", func(_ *Config, in *Received) { in.Msg.Options[optServerID] = []byte{255, 255, 255, 255} }, KindOptions, "offer from 10.0.0.1 has no valid server identifier (option 54)"},
		{"bad server that is not allowed", func(cfg *Config, _ *Received) { cfg.Servers = addrs("10.0.0.9") }, KindDenied, "offer of server 10.0.0.1, which is not in the list of allowed servers"},
		{"bad server that is denied", func(cfg *Config, _ *Received) { cfg.DenyServers = addrs("10.0.0.9,10.0.0.1") }, KindDenied, "offer of server 10.0.0.1, which is in the list of denied servers"},
		{"bad server that is allowed and denied", func(cfg *Config, _ *Received) { cfg.Servers, cfg.DenyServers = addrs("10.0.0.1"), addrs("10.0.0.1") }, KindDenied, "offer of server 10.0.0.1, which is in the list of denied servers"},
		{"bad client identifier", func(_ *Config, in *Received) { in.Msg.Options[optClientID] = []byte{0xff, 1} }, KindClientID, "offer from 10.0.0.1 is for client identifier ff01 (option 61)"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			cfg := testConfig()
			in := received(answer(offerType, dhcpv4.TransactionID{0x80, 0, 0, 1}, "10.0.0.5", grant()...))
			tt.change(&cfg, &in)
			m := New(cfg)
			m.Step(epoch, Start{})
			acts := m.Step(epoch, in)
			if tt.reason == "" {
				wantState(t, m, Requesting)
				return
			}
			wantState(t, m, Selecting)
			if ign, ok := acts[0].(Ignore); len(acts) != 1 || !ok || ign.Reason != tt.reason || ign.Kind != tt.kind {
				t.Errorf("got %+v, want Ignore %q, %q", acts, tt.kind, tt.reason)
			}
		})
	}
}

func TestStateString(t *testing.T) {
	for s, want := range map[State]string{
		Init: "INIT", Selecting: "SELECTING", Requesting: "REQUESTING", Probing: "PROBING", Rebooting: "REBOOTING", Bound: "BOUND",
		Renewing: "RENEWING", Rebinding: "REBINDING", Stopped: "STOPPED", Stopped + 1: "State(9)",
	} {
		if got := s.String(); got != want {
			t.Errorf("State(%d) is %q, want %q", uint8(s), got, want)
		}
	}
}

// TestIgnoreKinds: what is left aside later than vet, and whose it was.
func TestIgnoreKinds(t *testing.T) {
	requesting := func(m *Machine) {
		m.Step(epoch, Start{})
		m.Step(epoch, received(answer(offerType, m.xid, "10.0.0.5", grant()...)))
	}
	for _, tt := range []struct {
		name  string
		enter func(m *Machine)
		kind  dhcpv4.MessageType
		yi    string
		with  []any
		want  Kind
	}{
		{"no answer awaited", func(*Machine) {}, offerType, "10.0.0.5", grant(), KindState},
		{"ack of a discover", func(m *Machine) { m.Step(epoch, Start{}) }, ackType, "10.0.0.5", grant(), KindState},
		{"offer without a mask", func(m *Machine) { m.Step(epoch, Start{}) }, offerType, "10.0.0.5", []any{optServerID, "10.0.0.1"}, KindOptions},
		{"offer after the choice", requesting, offerType, "10.0.0.5", grant(), KindState},
		{"server that was not chosen", requesting, nakType, "0.0.0.0", []any{optServerID, "10.0.0.2"}, KindServer},
		{"nak", requesting, nakType, "0.0.0.0", []any{optServerID, "10.0.0.1"}, KindRefusal},
		{"ack of another address", requesting, ackType, "10.0.0.6", grant(), KindRefusal},
		{"ack that cannot be used", requesting, ackType, "10.0.0.5", []any{optServerID, "10.0.0.1"}, KindOptions},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m := New(testConfig())
			tt.enter(m)
			state := m.State()
			acts := m.Step(epoch, received(answer(tt.kind, m.xid, tt.yi, tt.with...)))
			ign, ok := acts[0].(Ignore)
			if !ok || ign.Kind != tt.want {
				t.Errorf("got %+v, want an Ignore of kind %q", acts, tt.want)
			}
			if server := addr4(wireValue(tt.with[1])); state != Init && ign.Server != server {
				t.Errorf("of server %v, want %v", ign.Server, server)
			}
		})
	}
}
