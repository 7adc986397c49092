package handover

import (
	"net/netip"
	"testing"

	"github.com/insomniacslk/dhcp/dhcpv4"

	"github.com/dhcp-meta/dhcp-meta/tests/rig"
	"github.com/dhcp-meta/dhcp-meta/tests/vm/guest"
)

// discover serves a container as a VM is served, which needs no Kubernetes.
var discover = rig.Object{"vfioContainers": "discover"}

// A pod is a sandbox whose interface is a virtual function on vfio-pci.
type pod struct {
	*rig.Sandbox
	call rig.Call
}

// newPod is a pod whose wrapped plugin is the reference host-device.
func newPod(t testing.TB, l *guest.Lab, vf guest.Device, dhcp rig.Object) pod {
	t.Helper()
	conf := l.Delegate(rig.Object{"type": "host-device", "pciBusID": string(vf)}, dhcp)
	conf["deviceID"] = string(vf)
	s := rig.NewSandbox(t)
	return pod{s, s.Call("net1", conf)}
}

// mustHave sees that the result of an ADD has one address of the pool, on the pod's
// interface with the MAC of the virtual function, and that the server has lent it.
func mustHave(t testing.TB, l *guest.Lab, p pod, o rig.Outcome, vf int) netip.Addr {
	t.Helper()
	t.Logf("ADD took %v", o.Took)
	if len(o.Result.IPs) != 1 {
		t.Fatalf("the result has addresses %v, want one:\n%s", o.Result.IPs, o.Stdout)
	}
	ip := o.Result.IPs[0]
	addr, ok := netip.AddrFromSlice(ip.Address.IP)
	if addr = addr.Unmap(); !ok || !guest.Pool(addr) {
		t.Fatalf("the result has the address %v, which is not of the pool", ip.Address)
	}
	if ip.Interface == nil || *ip.Interface >= len(o.Result.Interfaces) {
		t.Fatalf("the address belongs to no interface:\n%s", o.Stdout)
	}
	i := o.Result.Interfaces[*ip.Interface]
	if i.Name != "net1" || i.Sandbox != p.Path || i.Mac != guest.MAC(vf).String() {
		t.Errorf("the address is on %+v, want net1 in %s with %v", i, p.Path, guest.MAC(vf))
	}
	l.Server.AwaitHeld(t, "a lease of "+guest.MAC(vf).String(), func(held []rig.Held) bool {
		for _, h := range held {
			if h.MAC == guest.MAC(vf).String() && h.Addr == addr {
				return true
			}
		}
		return false
	})
	return addr
}

// nothing sees that no frame of a kind has passed since mark.
func nothing(t testing.TB, c *rig.Capture, mark int, what string, match func(rig.Frame) bool) {
	t.Helper()
	for _, f := range c.Since(mark) {
		if match(f) {
			t.Errorf("%s: %v", what, f)
		}
	}
}

func isRelease(f rig.Frame) bool { return f.Type == dhcpv4.MessageTypeRelease }

// refuse sees that an ADD fails with the words in its message, and leaves nothing
// behind: no record once the runtime has sent its DEL, and, by the clean-up of
// guest.VF, the device as it was.
func refuse(t testing.TB, l *guest.Lab, p pod, code uint, words ...string) {
	t.Helper()
	o := l.Node.Refuse(t, "ADD", p.call, code, words...)
	t.Logf("refused after %v: %v", o.Took, o.Err)
	l.Node.Del(t, p.call)
	l.Engine.AwaitNoRecords(t)
}

func isAck(f rig.Frame) bool { return f.Type == dhcpv4.MessageTypeAck }
