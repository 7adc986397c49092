package handover

import (
	"strings"
	"testing"

	"github.com/insomniacslk/dhcp/dhcpv4"

	"github.com/dhcp-meta/dhcp-meta/tests/rig"
	"github.com/dhcp-meta/dhcp-meta/tests/vm/guest"
)

// A node that gives each interface that appears a DHCP client may see this one for a
// moment, and says nothing on it.
func TestK73HostClientSendsNothing(t *testing.T) {
	vf := guest.VF(t, 0)
	l := guest.NewLab(t)
	h := guest.StartHotplug(t)
	p := newPod(t, l, vf, discover)
	mustHave(t, l, p, l.Node.Add(t, p.call), 0)
	l.Node.Del(t, p.call)
	// An interface that stays is asked on; by then all others have been asked on too.
	control := guest.VF(t, 1)
	control.Bind(t, "")
	l.Capture.Await(t, "DISCOVER of the node's client on "+control.Netdev(t), 0, rig.Patience, guest.OfHotplug)
	control.Bind(t, "vfio-pci")
	guest.Write(t, control.Path("driver_override"), "\n")
	nothing(t, l.Capture, 0, "the node's client has spoken on the borrowed device", func(f rig.Frame) bool {
		return guest.OfHotplug(f) && f.Msg.ClientHWAddr.String() == guest.MAC(0).String()
	})
	t.Logf("interfaces of the node: %v", h.Saw())
}

// udev renames interfaces as they appear. The device is found by its address each
// time, whatever its interface is called, and nothing of it stays on the node.
func TestK73B76UdevRenames(t *testing.T) {
	vf := guest.VF(t, 0)
	l := guest.NewLab(t)
	guest.StartUdev(t)
	before := guest.Run(t, "ip", "-o", "-br", "link")
	for range 3 {
		p := newPod(t, l, vf, discover)
		mustHave(t, l, p, l.Node.Add(t, p.call), 0)
		vf.MustBeBack(t)
		l.Node.Del(t, p.call)
	}
	if after := guest.Run(t, "ip", "-o", "-br", "link"); after != before {
		t.Errorf("the node's interfaces were\n%s\nand are\n%s", before, after)
	}
}

// The name that the device's interface would get is taken by another one, and the
// interface of another virtual function is there too: neither is touched.
func TestB76AnotherInterfaceOfThatName(t *testing.T) {
	vf, other := guest.VF(t, 0), guest.VF(t, 1)
	other.Bind(t, "")
	name := other.Netdev(t)
	l := guest.NewLab(t)
	for i := range 6 {
		_, _ = guest.Node.TryIP("link", "add", "eth"+string(rune('0'+i)), "type", "dummy")
	}
	t.Cleanup(func() {
		for _, line := range strings.Split(guest.Run(t, "ip", "-o", "link", "show", "type", "dummy"), "\n") {
			if f := strings.Fields(line); len(f) > 1 {
				guest.Run(t, "ip", "link", "del", strings.TrimSuffix(f[1], ":"))
			}
		}
		other.Bind(t, "vfio-pci")
		guest.Write(t, other.Path("driver_override"), "\n")
	})
	p := newPod(t, l, vf, discover)
	mustHave(t, l, p, l.Node.Add(t, p.call), 0)
	l.Node.Del(t, p.call)
	if other.Driver() != "igbvf" || other.Netdev(t) != name {
		t.Errorf("the other virtual function is %v, with the interface %q that was %q", other, other.Netdev(t), name)
	}
	nothing(t, l.Capture, 0, "a message of another interface", func(f rig.Frame) bool {
		return f.FromClient() && f.Msg.ClientHWAddr.String() != guest.MAC(0).String() && f.Type != dhcpv4.MessageTypeNone
	})
}
