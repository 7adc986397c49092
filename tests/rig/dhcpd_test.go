package rig

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

func TestParseDhcpdLeases(t *testing.T) {
	const text = `# comment
server-duid "\000\001";

lease 10.77.0.50 {
  starts 1 2026/11/30 01:00:00;
  cltt 1 2026/11/30 01:00:00;
  binding state active;
  next binding state free;
  hardware ethernet 02:00:00:00:00:01;
  uid "\001\002\000\"\000a\\";
  client-hostname "web-0";
}
lease 10.77.0.51 {
  binding state active;
  hardware ethernet 02:00:00:00:00:02;
}
lease 10.77.0.51 {
  binding state free;
  hardware ethernet 02:00:00:00:00:02;
}
lease 10.77.0.52 {
  binding state abandoned;
}
`
	want := []Held{{
		MAC: "02:00:00:00:00:01", Addr: netip.MustParseAddr("10.77.0.50"),
		Hostname: "web-0", ClientID: "01:02:00:22:00:61:5c",
	}}
	if diff := cmp.Diff(want, parseDhcpdLeases(text), cmpopts.EquateComparable(netip.Addr{})); diff != "" {
		t.Errorf("table (-want +got):\n%s", diff)
	}
}
