package ovnkube

import (
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	"github.com/dhcp-meta/dhcp-meta/tests/rig"
	"github.com/dhcp-meta/dhcp-meta/tests/rig/kube"
)

// watchAddresses begins to watch a sandbox. The function that it returns tells which
// IPv4 addresses came to be there since, but for those of the default network.
func watchAddresses(t *testing.T, pod *kube.Sandbox) func() []netip.Prefix {
	t.Helper()
	ns, err := netns.GetFromPath(pod.Path)
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	changes, done := make(chan netlink.AddrUpdate, 1000), make(chan struct{})
	t.Cleanup(func() { close(done) })
	if err := netlink.AddrSubscribeAt(ns, changes, done); err != nil {
		t.Fatal(err)
	}
	return func() []netip.Prefix {
		// All that was there is told before this one.
		mark := netip.MustParsePrefix("127.9.9.9/32")
		pod.IP(t, "addr", "add", mark.String(), "dev", "lo")
		var seen []netip.Prefix
		for deadline := time.After(rig.Patience); ; {
			select {
			case u := <-changes:
				ip, _ := netip.AddrFromSlice(u.LinkAddress.IP)
				ones, _ := u.LinkAddress.Mask.Size()
				switch a := netip.PrefixFrom(ip.Unmap(), ones); {
				case a == mark:
					return seen
				case u.NewAddr && ip.Unmap().Is4() && !defaultNetwork.Contains(a.Addr()):
					seen = append(seen, a)
				}
			case <-deadline:
				t.Fatal("the watch of addresses tells nothing")
			}
		}
	}
}

var defaultNetwork = netip.MustParsePrefix("10.244.0.0/24")

// A virtual machine beside a pod on one network: both have addresses of the site's
// pool. The VM's is in annotation and network status and on its port, and at no moment
// on its interface; ipam_mode is there before the address is. Nothing is sent for it
// after the ACK: not while the pod renews, and not at its DEL. Its port stays with the
// MAC.
func TestK10K18K32K65K75VirtualMachine(t *testing.T) {
	s := newSite(t)
	s.marked(t, "office", "")
	vm := s.vm(t, "office")
	mac := s.awaitMade(t, vm, "office")
	hw, err := net.ParseMAC(mac)
	if err != nil {
		t.Fatal(err)
	}
	seen := watchAddresses(t, vm)
	addedC := make(chan error, 1)
	go func() {
		_, err := vm.TryAdd(t.Context())
		addedC <- err
	}()
	s.awaitEntry(t, vm, "office", "have its mode before its address", func(e netEntry) bool { return e.bare() && e.Mode == "dhcp" })
	server := rig.RunDnsmasq(t, s.lan.Server, rig.Pool(3*time.Second, 5*time.Second))
	if err := <-addedC; err != nil {
		t.Fatalf("ADD: %v", err)
	}
	e := s.entry(t, vm, "office")
	if len(e.Addresses) != 1 || e.MAC != mac || e.Mode != "dhcp" || len(e.Gateways) != 1 || e.Role != "secondary" {
		t.Fatalf("entry of the VM: %+v", e)
	}
	addr := netip.MustParsePrefix(e.Addresses[0])
	if status := vm.StatusOf(t, "net1"); !slices.Equal(status.IPs, []string{addr.Addr().String()}) {
		t.Errorf("network status %+v, want %v", status, addr)
	}
	s.awaitPort(t, vm, "office", both(mac, addr), mac)
	s.awaitEvent(t, vm, "AddressReported", addr.Addr().String())
	mark := s.lan.Capture.Len()

	pod := s.pod(t, "office")
	pod.Add(t)
	if other := s.leased(t, pod, "office"); other.Addr() == addr.Addr() || other.Masked() != addr.Masked() {
		t.Errorf("the pod has %v, the VM %v", other, addr)
	}
	s.awaitRenewalAfter(t, mark, 6*time.Second, pod) // past T1 and T2 of the VM's lease, which is older
	vm.Del(t)
	pod.Del(t)
	s.lan.Capture.AwaitType(t, mark, rig.Patience, dhcpv4.MessageTypeRelease, nil) // the pod's
	s.awaitEntry(t, vm, "office", "MAC-only after DEL", netEntry.bare)
	s.awaitPort(t, vm, "office", mac, mac)
	for _, f := range s.lan.Capture.Since(mark) {
		if f.Msg.ClientHWAddr.String() == mac {
			t.Errorf("sent for the VM after its ADD: %v", f)
		}
	}
	server.AwaitHeld(t, "the VM's lease", rig.Holds(hw, addr.Addr()))
	if all := seen(); len(all) > 0 {
		t.Errorf("on the VM's interface were %v", all)
	}
	if n := s.calls(t, vm, "DEL", "net1"); n != 1 {
		t.Errorf("the wrapped plugin had %d DELs of net1, want one", n)
	}
}

// awaitRenewalAfter waits for a renewal of a pod that is so much later than the first
// frame since mark.
func (s *site) awaitRenewalAfter(t *testing.T, mark int, later time.Duration, pod *kube.Sandbox) {
	t.Helper()
	first, _ := s.lan.Capture.Await(t, "frame", mark, rig.Patience, func(rig.Frame) bool { return true })
	renewal := rig.Type(dhcpv4.MessageTypeRequest, pod.HardwareAddr(t, "net1"))
	s.lan.Capture.Await(t, "renewal", mark, rig.Patience, func(f rig.Frame) bool {
		return renewal(f) && f.At.Sub(first.At) > later
	})
}
