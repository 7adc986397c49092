package rig

import (
	"net"
	"net/netip"
	"os/exec"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/insomniacslk/dhcp/dhcpv4"
)

// The laboratory is proven without the programs that it is for: busybox's client
// gets an address from both servers and gives it back, and both the capture and
// the server's table show it.
func TestServersLendToBusybox(t *testing.T) {
	for name, start := range map[string]StartFunc{"dnsmasq": StartDnsmasq, "Kea": StartKea} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			Need(t)
			busybox, err := exec.LookPath("busybox")
			if err != nil {
				t.Fatalf("%v; `make deps` installs it", err)
			}
			lan := NewLAN(t)
			server := start(t, lan.Server, Pool(0, 0))
			client := lan.Node.Start(t, "udhcpc", exec.Command(busybox, "udhcpc", "-f", "-R", "-i", Uplink, "-s", "/bin/true"))

			ack, mark := lan.Capture.AwaitType(t, 0, Patience, dhcpv4.MessageTypeAck, nil)
			mac := ack.Msg.ClientHWAddr
			addr, _ := netip.AddrFromSlice(ack.Msg.YourIPAddr.To4())
			server.AwaitHeld(t, "the lease", Holds(mac, addr))

			// The script sets no address, so the RELEASE goes nowhere by unicast; that
			// it is sent is what the capture shows.
			client.Stop(t)
			if n := lan.Capture.Count(mark, Type(dhcpv4.MessageTypeNak, mac)); n != 0 {
				t.Errorf("%d NAKs", n)
			}
		})
	}
}

func TestParseDHCPEvent(t *testing.T) {
	addr := netip.MustParseAddr("10.77.0.50")
	for _, tt := range []struct {
		name, line string
		want       DHCPEvent
		ok         bool
	}{
		{"OK discover", "dnsmasq-dhcp: 3121 DHCPDISCOVER(v0) 02:00:00:00:00:01",
			DHCPEvent{Kind: "DHCPDISCOVER", MAC: "02:00:00:00:00:01"}, true},
		{"OK ack with name", "dnsmasq-dhcp: 3121 DHCPACK(v0) 10.77.0.50 02:00:00:00:00:01 web-0",
			DHCPEvent{Kind: "DHCPACK", MAC: "02:00:00:00:00:01", Addr: addr, Note: "web-0"}, true},
		{"OK nak with reason", "dnsmasq-dhcp: 3121 DHCPNAK(v0) 10.77.0.50 02:00:00:00:00:01 wrong network",
			DHCPEvent{Kind: "DHCPNAK", MAC: "02:00:00:00:00:01", Addr: addr, Note: "wrong network"}, true},
		{"bad other line", "dnsmasq-dhcp: 3121 client provides name: web-0", DHCPEvent{}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, ok := ParseDHCPEvent(tt.line)
			if ok != tt.ok {
				t.Fatalf("ok = %v, want %v", ok, tt.ok)
			}
			if diff := cmp.Diff(tt.want, got, cmpopts.EquateComparable(netip.Addr{})); diff != "" {
				t.Errorf("event (-want +got):\n%s", diff)
			}
		})
	}
}

func TestParseLeaseTables(t *testing.T) {
	lent := Held{MAC: "02:00:00:00:00:01", Addr: netip.MustParseAddr("10.77.0.50"), Hostname: "web-0"}
	other := Held{MAC: "02:00:00:00:00:02", Addr: netip.MustParseAddr("10.77.0.51")}
	with := func(h Held, id string) Held { h.ClientID = id; return h }
	for _, tt := range []struct {
		name  string
		parse func(string) []Held
		text  string
		want  []Held
	}{
		{"OK dnsmasq", parseDnsmasqLeases,
			"1796000000 02:00:00:00:00:02 10.77.0.51 * *\n" +
				"1796000000 02:00:00:00:00:01 10.77.0.50 web-0 01:02:00:00:00:00:01\nduid 00:01\n",
			[]Held{with(lent, "01:02:00:00:00:00:01"), with(other, "*")}},
		{"OK dnsmasq, empty", parseDnsmasqLeases, "", nil},
		{"OK Kea, later rows count", parseKeaLeases,
			"address,hwaddr,client_id,valid_lifetime,expire,subnet_id,fqdn_fwd,fqdn_rev,hostname,state,user_context\n" +
				"10.77.0.50,02:00:00:00:00:01,01:02,120,1796000000,1,0,0,web-0,0,\n" +
				"10.77.0.51,02:00:00:00:00:02,,120,1796000000,1,0,0,,0,\n" +
				"10.77.0.52,02:00:00:00:00:03,,120,1796000000,1,0,0,,0,\n" +
				"10.77.0.50,02:00:00:00:00:01,01:02,0,1796000000,1,0,0,web-0,0,\n" +
				"10.77.0.52,02:00:00:00:00:03,,120,1796000000,1,0,0,,2,\n",
			[]Held{other}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, tt.parse(tt.text), cmpopts.EquateComparable(netip.Addr{}), cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("table (-want +got):\n%s", diff)
			}
		})
	}
}

func TestStreamNextEndsWithTheStream(t *testing.T) {
	var s Stream[net.HardwareAddr]
	s.End()
	if _, _, err := s.Next(t.Context(), 0, func(net.HardwareAddr) bool { return true }); err == nil {
		t.Error("an ended stream gave an item")
	}
}

func TestStreamNextWaits(t *testing.T) {
	var s Stream[int]
	go func() {
		for i := range 5 {
			s.Add(i)
		}
	}()
	got, next := s.Await(t, "a 3", 0, time.Minute, func(i int) bool { return i == 3 })
	if got != 3 || next != 4 {
		t.Errorf("got %d, next %d; want 3, 4", got, next)
	}
}
