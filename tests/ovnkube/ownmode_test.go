package ovnkube

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"

	"github.com/dhcp-meta/dhcp-meta/tests/rig"
)

// ownMode is a network with OVN-Kubernetes' own ipam.mode: DHCP and settings of ours,
// as its ClusterUserDefinedNetwork hands them on. No mark: nobody stands in front of it.
func (s *site) ownMode(t *testing.T, name, settings string) {
	t.Helper()
	s.kube.NAD(t, s.ns, name, s.localnet(name, object{"ipam": object{"type": "dhcp"}}), map[string]string{"dhcp-meta.io/config": settings})
}

// OVN-Kubernetes asks for the address itself and makes it known; the settings of the
// network count, though it hands none on. When the lease changes its address, annotation
// and port follow, by our writes of the annotation and its own of the port. DEL gives the
// lease back while the port still stands.
func TestK53K58K78K79K80OwnModeFollowsTheLease(t *testing.T) {
	s := newSite(t)
	s.ownMode(t, "office", `{"hostname":"{pod}"}`)
	server := rig.RunDnsmasq(t, s.lan.Server, rig.Pool(3*time.Second, 5*time.Second))
	pod := s.pod(t, "office")
	pod.Add(t)
	old, hw := address(t, pod, "net1"), pod.HardwareAddr(t, "net1")
	mac := hw.String()
	if f, _ := s.lan.Capture.AwaitType(t, 0, rig.Patience, dhcpv4.MessageTypeRequest, hw); f.Msg.HostName() != pod.Pod {
		t.Errorf("host name %q", f.Msg.HostName())
	}
	if e := s.entry(t, pod, "office"); !e.carries(old) || e.MAC != mac {
		t.Errorf("entry %+v", e)
	}
	s.awaitPort(t, pod, "office", both(mac, old), both(mac, old)) // as its controller has it
	s.ping(t, pod, old)
	if status := pod.StatusOf(t, "net1"); !slices.Equal(status.IPs, []string{old.Addr().String()}) {
		t.Errorf("network status %+v", status)
	}
	_, mark := s.lan.Capture.AwaitType(t, 0, rig.Patience, dhcpv4.MessageTypeAck, hw)
	s.lan.Capture.AwaitType(t, mark, rig.Patience, dhcpv4.MessageTypeAck, hw) // a renewal
	if w := s.written(t, pod, "office"); len(w) > 0 {
		t.Errorf("written by the engine before anything has changed: %+v", w)
	}

	addr := s.moveLease(t, server, pod)
	s.awaitEntry(t, pod, "office", "have the new address", func(e netEntry) bool { return e.carries(addr) && e.MAC == mac })
	s.awaitPort(t, pod, "office", both(mac, addr), both(mac, addr))
	s.ping(t, pod, addr)
	var states []string
	for _, e := range s.written(t, pod, "office") {
		states = append(states, strings.Join(e.Addresses, " ")+" "+e.Mode)
	}
	if want := []string{" dhcp", addr.String() + " dhcp"}; !slices.Equal(states, want) {
		t.Errorf("the engine wrote %q, want %q", states, want)
	}

	mark = s.lan.Capture.Len()
	pod.Del(t)
	if f, _ := s.lan.Capture.AwaitType(t, mark, rig.Patience, dhcpv4.MessageTypeRelease, hw); f.Src.Addr() != addr.Addr() {
		t.Errorf("RELEASE %v", f)
	}
	e := s.awaitEntry(t, pod, "office", "be without an address", netEntry.bare)
	if e.Mode != "dhcp" || e.MAC != mac {
		t.Errorf("entry after DEL %+v", e)
	}
	s.awaitPort(t, pod, "office", mac, mac)
	s.awaitNoRecord(t, pod)

	// Its next sandbox has its MAC, and by that its address.
	next := s.again(t, pod.Object)
	next.Add(t)
	if got := address(t, next, "net1"); got != addr || next.HardwareAddr(t, "net1").String() != mac {
		t.Errorf("the next sandbox has %v with %v", got, next.HardwareAddr(t, "net1"))
	}
}

// OVN-Kubernetes sends a DEL for virtual machines too, whose address it asks for itself.
func TestK77OwnModeOfAVM(t *testing.T) {
	s := newSite(t)
	s.ownMode(t, "office", `{}`)
	s.dnsmasq(t)
	vm := s.vm(t, "office")
	vm.Add(t)
	vm.Del(t)
	s.noDHCP(t, 0)
	s.syncCalls(t)
	if n := s.ovnkube.Lines.Count(0, func(line string) bool { return strings.Contains(line, "DHCP plugin DEL failed") }); n > 0 {
		t.Errorf("%d DELs of the plugin dhcp have failed", n)
	}
}
