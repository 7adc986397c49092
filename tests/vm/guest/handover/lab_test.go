package handover

import (
	"testing"

	"github.com/insomniacslk/dhcp/dhcpv4"

	"github.com/dhcp-meta/dhcp-meta/tests/rig"
	"github.com/dhcp-meta/dhcp-meta/tests/vm/guest"
)

func TestMain(m *testing.M) { guest.Main(m) }

// The hardware does what the tests need of it: a virtual function goes from vfio-pci
// to its driver, gets an address from the server, and comes back.
func TestLaboratoryVFAsksForAnAddress(t *testing.T) {
	server, capture := guest.StartServer(t), guest.Capture(t)
	vf := guest.VF(t, 0)
	vf.Bind(t, "")
	if vf.Driver() != "igbvf" {
		t.Fatalf("the kernel chose %q", vf.Driver())
	}
	guest.Run(t, "ip", "link", "set", vf.Netdev(t), "up")
	guest.Run(t, "busybox", "udhcpc", "-i", vf.Netdev(t), "-f", "-q", "-n", "-t", "10", "-s", "/bin/true")
	capture.AwaitType(t, 0, rig.Patience, dhcpv4.MessageTypeAck, guest.MAC(0))
	if held := server.Held(t); len(held) != 1 || held[0].MAC != guest.MAC(0).String() {
		t.Errorf("the server holds %v", held)
	}
	vf.Bind(t, "vfio-pci")
	guest.Write(t, vf.Path("driver_override"), "\n")
}

// A group that somebody holds cannot be opened, and a device that somebody holds is
// seen.
func TestLaboratoryHeldGroup(t *testing.T) {
	vf := guest.VF(t, 0)
	g := guest.Hold(t, vf)
	if f, err := guest.OpenGroup(vf); err == nil {
		f.Close()
		t.Error("a second open of the group succeeded")
	}
	g.Release()
}
