package dhcp4

import (
	"bytes"
	"maps"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/insomniacslk/dhcp/iana"
)

// question are the options of each DISCOVER and REQUEST of a client that has
// everything set.
var question = []uint8{optHostname, optMessageType, optParameterList, optMaxMessageSize, optVendorClass, optClientID, 77, 200}

func fullConfig() Config {
	cfg := testConfig()
	cfg.Hostname, cfg.VendorClass = "web-0", "dhcp-meta"
	cfg.Request = []uint8{252, 3, 43, 252}
	cfg.RapidCommit = true
	cfg.Options = []Option{
		{77, []byte("class")}, {200, nil},
		// None of these may get through.
		{optHostname, []byte("other")}, {optRequestedAddr, []byte{6, 6, 6, 6}}, {optMessageType, []byte{8}},
		{optServerID, []byte{6, 6, 6, 6}}, {optParameterList, []byte{1}}, {optMaxMessageSize, []byte{0, 1}},
		{optClientID, []byte("other")}, {optRapidCommit, nil}, {optRelayAgent, []byte{1, 1, 1}}, {optEnd, nil}, {optPad, nil},
		{201, make([]byte, 256)},
	}
	cfg.Broadcast = true
	cfg.MTU = 9000
	return cfg
}

// TestTable5 goes through all seven messages of the client and compares each field
// and option with tables 4 and 5 of RFC 2131.
func TestTable5(t *testing.T) {
	const discover, request = dhcpv4.MessageTypeDiscover, dhcpv4.MessageTypeRequest
	const decline, release = dhcpv4.MessageTypeDecline, dhcpv4.MessageTypeRelease
	declined := []uint8{optMessageType, optRequestedAddr, optServerID, optClientID, optMessage}
	addr, server := netip.MustParseAddr("10.0.0.5"), netip.MustParseAddr("10.0.0.1")
	for _, tt := range []struct {
		name    string
		run     func(m *Machine) []Action
		kind    dhcpv4.MessageType
		flag    bool
		ciaddr  bool
		options []uint8
		unicast bool
	}{
		{"DISCOVER", func(m *Machine) []Action { return m.Step(entered, Start{}) },
			discover, true, false, append(slices.Clone(question), optRapidCommit), false},
		{"REQUEST in SELECTING", func(m *Machine) []Action {
			m.Step(entered, Start{})
			return m.Step(entered, received(answer(dhcpv4.MessageTypeOffer, m.xid, "10.0.0.5", grant()...)))
		}, request, true, false, append(slices.Clone(question), optRequestedAddr, optServerID), false},
		{"REQUEST in INIT-REBOOT", func(m *Machine) []Action { return m.Step(entered, Start{Previous: &testLease}) },
			request, true, false, append(slices.Clone(question), optRequestedAddr), false},
		{"REQUEST in RENEWING", func(m *Machine) []Action {
			m.Step(epoch, Resume{testLease})
			return m.Step(testLease.RenewAt(), Elapsed{})
		}, request, false, true, question, true},
		{"REQUEST in REBINDING", func(m *Machine) []Action {
			m.Step(epoch, Resume{testLease})
			return m.Step(testLease.RebindAt(), Elapsed{})
		}, request, true, true, question, false},
		{"DECLINE in PROBING", func(m *Machine) []Action {
			m.cfg.Probe = true
			m.Step(entered, Start{Previous: &testLease})
			m.Step(entered, received(answer(dhcpv4.MessageTypeAck, m.xid, "10.0.0.5", grant()...)))
			return m.Step(entered, Probed{Owner: otherMAC})
		}, decline, false, false, declined, false},
		{"DECLINE of a lease in use", func(m *Machine) []Action {
			m.Step(epoch, Resume{testLease})
			return m.Step(entered, Conflict{Owner: otherMAC})
		}, decline, false, false, declined, false},
		{"RELEASE", func(m *Machine) []Action {
			m.Step(epoch, Resume{testLease})
			return m.Step(entered, Stop{Release: true})
		}, release, false, true, []uint8{optMessageType, optServerID, optClientID}, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := sends(tt.run(New(fullConfig())))
			if len(got) != 1 {
				t.Fatalf("%d messages, want 1", len(got))
			}
			msg := got[0].Msg
			want := &dhcpv4.DHCPv4{
				OpCode: dhcpv4.OpcodeBootRequest, HWType: iana.HWTypeEthernet, ClientHWAddr: testMAC,
				TransactionID: msg.TransactionID, Options: msg.Options,
				ClientIPAddr: []byte{0, 0, 0, 0}, YourIPAddr: []byte{0, 0, 0, 0}, ServerIPAddr: []byte{0, 0, 0, 0}, GatewayIPAddr: []byte{0, 0, 0, 0},
			}
			if tt.flag {
				want.SetBroadcast()
			}
			if tt.ciaddr {
				want.ClientIPAddr = addr.AsSlice()
			}
			if diff := cmp.Diff(want, msg); diff != "" {
				t.Errorf("header (-want +got):\n%s", diff)
			}
			if msg.TransactionID == (dhcpv4.TransactionID{}) {
				t.Error("no transaction id")
			}
			if msg.MessageType() != tt.kind {
				t.Errorf("type %s, want %s", msg.MessageType(), tt.kind)
			}
			if diff := cmp.Diff(slices.Sorted(slices.Values(tt.options)), slices.Sorted(maps.Keys(msg.Options))); diff != "" {
				t.Errorf("options (-want +got):\n%s", diff)
			}
			wantSend := Send{Msg: msg}
			if tt.unicast {
				wantSend.To, wantSend.Via = server, server
			}
			if diff := cmp.Diff(wantSend, got[0], equalAddrs); diff != "" {
				t.Errorf("way (-want +got):\n%s", diff)
			}
			for code, value := range map[uint8][]byte{
				optRequestedAddr: addr.AsSlice(), optServerID: server.AsSlice(), optClientID: testID,
				optHostname: []byte("web-0"), optVendorClass: []byte("dhcp-meta"), optMaxMessageSize: {0x23, 0x28},
				optMessage:       []byte("in use by 02:00:00:00:00:09"),
				optParameterList: {1, 121, 249, 3, 6, 15, 26, 33, 42, 51, 54, 58, 59, 119, 252, 43},
			} {
				if v, ok := msg.Options[code]; ok && !bytes.Equal(v, value) {
					t.Errorf("option %d is %x, want %x", code, v, value)
				}
			}
			if back, err := dhcpv4.FromBytes(msg.ToBytes()); err != nil || back.TransactionID != msg.TransactionID {
				t.Errorf("the message does not come back from the wire: %v", err)
			}
		})
	}
}

// TestOptionsFromNetwork: 12 and 60 may come from the network's list when the
// machine has none of its own.
func TestOptionsFromNetwork(t *testing.T) {
	cfg := testConfig()
	cfg.Options = []Option{{optHostname, []byte("other")}, {optVendorClass, []byte("class")}}
	msg := sends(New(cfg).Step(epoch, Start{}))[0].Msg
	if got := string(msg.Options[optHostname]) + " " + string(msg.Options[optVendorClass]); got != "other class" {
		t.Errorf("options 12 and 60 are %q", got)
	}
}

func TestMaxMessageSize(t *testing.T) {
	for mtu, want := range map[int][]byte{0: {0x05, 0xdc}, 68: {0x02, 0x40}, 1400: {0x05, 0x78}, 70000: {0xff, 0xff}} {
		if got := maxMessageSize(mtu); !bytes.Equal(got, want) {
			t.Errorf("MTU %d: option 57 is %x, want %x", mtu, got, want)
		}
	}
}

func TestSeconds(t *testing.T) {
	for d, want := range map[time.Duration]uint16{-time.Hour: 0, 0: 0, 1999 * time.Millisecond: 1, 100 * time.Hour: 65535} {
		if got := secondsSince(epoch, at(d)); got != want {
			t.Errorf("secs after %s is %d, want %d", d, got, want)
		}
	}
}

// TestRelease: the message that gives back what a record holds needs no machine
// and no randomness, and is the same one when it is sent again.
func TestRelease(t *testing.T) {
	far := testLease
	far.Server, far.Routers = netip.MustParseAddr("172.31.255.1"), addrs("10.0.0.1")
	cfg := Config{HardwareAddr: testMAC, ClientID: testID}
	s := Release(cfg, far)
	if s.To != far.Server || s.Via != far.Routers[0] {
		t.Errorf("goes to %s via %s, want %s via %s", s.To, s.Via, far.Server, far.Routers[0])
	}
	if diff := cmp.Diff(s, Release(cfg, far), equalAddrs); diff != "" {
		t.Errorf("another message the second time:\n%s", diff)
	}
	if other := Release(Config{HardwareAddr: []byte{2, 0, 0, 0, 0, 6}}, far); other.Msg.TransactionID == s.Msg.TransactionID {
		t.Error("two clients have one transaction")
	}
	Release(Config{}, Lease{}).Msg.ToBytes() // a record may hold anything
}
