package ovnkube

import (
	"testing"

	"github.com/dhcp-meta/dhcp-meta/tests/rig"
)

// A namespace that was gone before the DEL: its lease is given back over another
// pod's interface where the port of that is not pinned to an address.
func TestWaitingReleaseOverAnUnpinnedPort(t *testing.T) {
	s := newSite(t)
	server := s.dnsmasq(t)
	s.marked(t, "office", `{"portSecurity":"mac"}`)
	pod, other := s.pod(t, "office"), s.pod(t, "office")
	pod.Add(t)
	other.Add(t)
	addr, mac := address(t, other, "net1"), other.HardwareAddr(t, "net1")
	s.awaitPort(t, other, "office", both(mac.String(), addr), mac.String())
	pod.Delete(t)
	if err := s.call(t, "DEL", pod, pod.ID, pod.Path, s.localnet("office", nil)); err != nil {
		t.Fatalf("DEL: %v", err)
	}
	server.AwaitHeld(t, "the other pod's lease alone", rig.Holds(mac, addr.Addr()))
	s.awaitNoRecord(t, pod)
}
