package dhcp4

import (
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/insomniacslk/dhcp/dhcpv4"
)

// TestDiscoverAsksOnly: the message of a look around is that of a machine, without
// what would make a server give an address at once.
func TestDiscoverAsksOnly(t *testing.T) {
	cfg := fullConfig()
	cfg.Address = netip.MustParseAddr("10.0.0.50")
	got := Discover(cfg)
	want := sends(New(cfg).Step(epoch, Start{}))[0]
	delete(want.Msg.Options, optRapidCommit)
	want.Msg.TransactionID = got.Msg.TransactionID
	if diff := cmp.Diff(want, got, equalAddrs); diff != "" {
		t.Errorf("message (-machine +look):\n%s", diff)
	}
	if again := Discover(cfg); again.Msg.TransactionID == got.Msg.TransactionID {
		t.Error("the second one is of the same transaction")
	}
}

func TestParseOffer(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(cfg *Config, in *Received)
		want   func(o *Offer)
		err    string
	}{
		{name: "OK", change: func(*Config, *Received) {}, want: func(*Offer) {}},
		{
			name: "OK over a relay",
			change: func(_ *Config, in *Received) {
				in.Msg.GatewayIPAddr = []byte{10, 0, 0, 2}
				in.From = netip.MustParseAddr("10.0.0.2")
			},
			want: func(o *Offer) { o.Relay, o.From = netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("10.0.0.2") },
		},
		{
			name: "OK with options",
			change: func(_ *Config, in *Received) {
				in.Msg.Options[optDNS], in.Msg.Options[43], in.Msg.Options[optMTU] = []byte{10, 0, 0, 3}, []byte("site"), []byte{1}
			},
			want: func(o *Offer) {
				o.Lease.DNS = addrs("10.0.0.3")
				o.Options = []uint8{optSubnetMask, optDNS, optMTU, 43, optLeaseTime, optMessageType, optServerID}
				o.Remarks = []string{"option 26 (mtu) is 01, not two bytes of 68 or more: not used"}
			},
		},
		{
			name:   "OK of a server that is denied",
			change: func(cfg *Config, _ *Received) { cfg.DenyServers = addrs("10.0.0.1") },
			want:   func(o *Offer) { o.Denied = "in the list of denied servers" },
		},
		{
			name:   "OK of a server that is not allowed",
			change: func(cfg *Config, _ *Received) { cfg.Servers = addrs("10.0.0.9") },
			want:   func(o *Offer) { o.Denied = "not in the list of allowed servers" },
		},
		{
			name:   "bad no mask",
			change: func(_ *Config, in *Received) { delete(in.Msg.Options, optSubnetMask) },
			want: func(o *Offer) {
				o.Lease = Lease{Server: testLease.Server}
				o.Options = []uint8{optLeaseTime, optMessageType, optServerID}
			},
			err: "offer of 10.0.0.5 has no subnet mask (option 1)",
		},
		{
			name:   "bad ack",
			change: func(_ *Config, in *Received) { in.Msg.Options[optMessageType] = []byte{byte(ackType)} },
			err:    "no offer: ack from 10.0.0.1",
		},
		{
			name:   "bad no server",
			change: func(_ *Config, in *Received) { delete(in.Msg.Options, optServerID) },
			err:    "no offer: 10.0.0.1 has no valid server identifier (option 54)",
		},
		{
			name:   "bad transaction",
			change: func(_ *Config, in *Received) { in.Msg.TransactionID = dhcpv4.TransactionID{1, 2, 3, 4} },
			err:    "no offer: message is of transaction 0x01020304, not 0x80000001",
		},
		{
			name:   "bad nothing",
			change: func(_ *Config, in *Received) { in.Msg = nil },
			err:    "no offer: empty message",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			cfg := testConfig()
			discover := Discover(cfg)
			in := received(answer(offerType, discover.Msg.TransactionID, "10.0.0.5", grant()...))
			tt.change(&cfg, &in)
			var want Offer
			if tt.want != nil {
				want = Offer{
					Lease: Lease{
						Addr: testLease.Addr, Server: testLease.Server,
						Lifetime: time.Hour, T1: testLease.T1, T2: testLease.T2,
					},
					From:    netip.MustParseAddr("10.0.0.1"),
					Options: []uint8{optSubnetMask, optLeaseTime, optMessageType, optServerID},
				}
				tt.want(&want)
			}
			got, err := ParseOffer(cfg, discover, in)
			if text := errorText(err); text != tt.err {
				t.Errorf("error %q, want %q", text, tt.err)
			}
			if diff := cmp.Diff(want, got, equalAddrs); diff != "" {
				t.Errorf("offer (-want +got):\n%s", diff)
			}
		})
	}
}
