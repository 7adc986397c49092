package ovnkube

import (
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"

	"github.com/dhcp-meta/dhcp-meta/tests/rig"
	"github.com/dhcp-meta/dhcp-meta/tests/rig/kube"
)

// awaitRepair waits until the engine has found a port that ovnkube had computed from
// the annotation, and set it right again.
func (s *site) awaitRepair(t *testing.T, mark int, pod *kube.Sandbox, was string) {
	t.Helper()
	s.engine.Lines.Await(t, "the repair of "+pod.Pod, mark, rig.Patience, func(line string) bool {
		return strings.Contains(line, "is right again") && strings.Contains(line, s.portName(pod, "office")) &&
			strings.Contains(line, `was="[`+was+`]"`)
	})
}

// A restart of ovnkube computes all ports from the annotation: MAC and address, which
// cuts off IPv6, and a guest that has another address. Containers and VMs have theirs
// back as they were, and a pod that is started then gets its address (P08).
func TestP08P09RestartOfOVNKube(t *testing.T) {
	s := newSiteAlone(t)
	s.dnsmasq(t)
	s.marked(t, "office", "")
	pod, vm := s.pod(t, "office"), s.vm(t, "office")
	pod.Add(t)
	vm.Add(t)
	addr, mac := s.leased(t, pod, "office"), pod.HardwareAddr(t, "net1").String()
	guest := s.entry(t, vm, "office")
	guestPort := guest.MAC + " " + strings.TrimSuffix(guest.Addresses[0], "/24")
	s.awaitPort(t, vm, "office", guestPort, guest.MAC)

	mark := s.engine.Lines.Len()
	s.restartOVNKube(t)
	s.awaitRepair(t, mark, pod, both(mac, addr))
	s.awaitRepair(t, mark, vm, guestPort)
	s.awaitPort(t, pod, "office", both(mac, addr), pinned(mac, addr))
	s.awaitPort(t, vm, "office", guestPort, guest.MAC)
	s.ping(t, pod, addr)

	next := s.pod(t, "office")
	next.Add(t)
	s.leased(t, next, "office")
	for _, p := range []*kube.Sandbox{pod, vm, next} {
		p.Del(t)
		if left := s.inSwitch(t, p); len(left) > 0 {
			t.Errorf("ports in OVS after the DEL: %v", left)
		}
	}
}

// The lease changes its address while ovnkube is away.
func TestP09K80LeaseChangesWhileOVNKubeIsAway(t *testing.T) {
	s := newSiteAlone(t)
	s.marked(t, "office", "")
	server := rig.RunDnsmasq(t, s.lan.Server, rig.Pool(3*time.Second, 5*time.Second))
	pod := s.pod(t, "office")
	pod.Add(t)
	s.leased(t, pod, "office")
	mac := pod.HardwareAddr(t, "net1").String()
	s.ovnkube.Kill(t)
	addr := s.moveLease(t, server, pod)
	s.awaitEntry(t, pod, "office", "have the new address", func(e netEntry) bool { return e.carries(addr) })
	s.leased(t, pod, "office")
	mark := s.engine.Lines.Len()
	s.startOVNKube()
	s.awaitRepair(t, mark, pod, both(mac, addr))
	s.leased(t, pod, "office")
	s.ping(t, pod, addr)
}

// While the engine is away ovnkube starts again, and writes the pod's annotation. When
// the engine is back, annotation and port say what they should.
func TestP09K40EngineIsAwayWhileOVNKubeStarts(t *testing.T) {
	s := newSiteAlone(t)
	s.dnsmasq(t)
	s.marked(t, "office", "")
	pod := s.pod(t, "office")
	pod.Add(t)
	addr, mac := s.leased(t, pod, "office"), pod.HardwareAddr(t, "net1").String()
	s.engine.Kill(t)
	s.addLateNetwork(t, pod)
	s.awaitEntry(t, pod, "late", "be made", netEntry.bare)
	s.restartOVNKube(t)
	s.awaitPort(t, pod, "office", both(mac, addr), both(mac, addr))
	if e := s.entry(t, pod, "office"); e.Mode != "" {
		t.Errorf("the double leaves a key that it does not know: %+v", e)
	}
	mark := s.lan.Capture.Len()
	s.engine.Start(s.tb)
	s.awaitEntry(t, pod, "office", "have its mode back", func(e netEntry) bool { return e.carries(addr) })
	s.leased(t, pod, "office")
	s.noDHCP(t, mark) // the lease is before T1
}

// The engine is killed while an ADD waits for a server. Whatever comes of that ADD,
// the pod has one lease in the end, of which all say the same.
func TestEngineKilledDuringTheAdd(t *testing.T) {
	s := newSiteAlone(t)
	s.marked(t, "office", "")
	pod := s.pod(t, "office")
	mark := s.lan.Capture.Len()
	addedC := make(chan error, 1)
	go func() {
		_, err := pod.TryAdd(t.Context())
		addedC <- err
	}()
	s.lan.Capture.AwaitType(t, mark, rig.Patience, dhcpv4.MessageTypeDiscover, nil)
	s.restartEngine()
	server := s.dnsmasq(t)
	if err := <-addedC; err != nil {
		t.Logf("the ADD failed, and another sandbox follows: %v", err)
		pod.Del(t)
		s.awaitEntry(t, pod, "office", "be MAC-only", netEntry.bare)
		pod = s.again(t, pod.Object)
		pod.Add(t)
	}
	addr := s.leased(t, pod, "office")
	server.AwaitHeld(t, "one lease", rig.Holds(pod.HardwareAddr(t, "net1"), addr.Addr()))
}

// A pod ends while the engine is away: what it left in annotation, port and server is
// taken back when the engine is there again.
func TestDelWhileTheEngineIsAway(t *testing.T) {
	s := newSiteAlone(t)
	s.dnsmasq(t)
	s.marked(t, "office", "")
	pod := s.pod(t, "office")
	pod.Add(t)
	addr, mac := s.leased(t, pod, "office"), pod.HardwareAddr(t, "net1").String()
	s.engine.Kill(t)
	pod.Del(t)
	if e := s.entry(t, pod, "office"); !e.carries(addr) {
		t.Errorf("somebody else wrote the annotation: %+v", e)
	}
	s.engine.Start(s.tb)
	s.awaitEntry(t, pod, "office", "be MAC-only", netEntry.bare)
	s.awaitPort(t, pod, "office", mac, mac)
	if n := s.calls(t, pod, "DEL", "net1"); n != 1 {
		t.Errorf("the wrapped plugin had %d DELs of net1, want one", n)
	}
}

// The north database is away during an ADD, whose port the controller had made before.
// The pod gets its lease, since the exchange needs no port with an address; the port
// follows when the database is back.
func TestP27DatabaseAwayDuringTheAdd(t *testing.T) {
	s := newSiteAlone(t)
	s.dnsmasq(t)
	s.marked(t, "office", "")
	pod := s.pod(t, "office")
	mac := s.awaitMade(t, pod, "office")
	s.Sync(t)
	s.StopNorth(t)
	back := sync.OnceFunc(func() { s.StartNorth(s.tb) })
	defer back()
	pod.Add(t)
	addr := address(t, pod, "net1")
	if e := s.entry(t, pod, "office"); !e.carries(addr) {
		t.Errorf("entry %+v, want %v", e, addr)
	}
	back()
	s.awaitPort(t, pod, "office", both(mac, addr), pinned(mac, addr))
	s.ping(t, pod, addr)
}

// No server: the ADD fails within its time, and leaves the MAC in annotation and port,
// and nothing in OVS. The wrapped plugin is undone once, however often the runtime
// says DEL. The pod's next sandbox has the same MAC (P10), and gets its address.
func TestP10P26FailedAdd(t *testing.T) {
	s := newSite(t)
	s.marked(t, "office", `{"timeout":"8s"}`)
	pod := s.pod(t, "office")
	mac := s.awaitMade(t, pod, "office")
	mark := s.lan.Capture.Len()
	_, err := pod.TryAdd(t.Context())
	if err == nil || !strings.Contains(err.Error(), "net1") || !strings.Contains(err.Error(), mac) {
		t.Errorf("ADD without a server: %v", err)
	}
	if n := s.lan.Capture.Count(mark, rig.Type(dhcpv4.MessageTypeDiscover, nil)); n == 0 {
		t.Error("no DHCPDISCOVER was sent")
	}
	s.awaitEvent(t, pod, "NoDHCPServer", mac)
	for range 2 {
		pod.Del(t)
	}
	if n := s.calls(t, pod, "DEL", "net1"); n != 1 {
		t.Errorf("the wrapped plugin had %d DELs of net1, want one", n)
	}
	s.awaitEntry(t, pod, "office", "be MAC-only", netEntry.bare)
	s.awaitPort(t, pod, "office", mac, mac)
	if left := s.inSwitch(t, pod); len(left) > 0 {
		t.Errorf("ports in OVS: %v", left)
	}
	s.awaitNoRecord(t, pod)

	s.dnsmasq(t)
	next := s.again(t, pod.Object)
	next.Add(t)
	s.leased(t, next, "office")
	if got := next.HardwareAddr(t, "net1").String(); got != mac {
		t.Errorf("net1 has MAC %s, had %s", got, mac)
	}
}

// The target of a live migration is looked at again by ovnkube whenever its pod
// changes: its port, pinned then to the reported address, is its guest's again.
func TestP09TargetOfAMigration(t *testing.T) {
	s := newSite(t)
	s.dnsmasq(t)
	s.marked(t, "office", "")
	vm := s.sandbox(t, kube.PodSpec{
		Networks: "office",
		Labels:   map[string]string{"kubevirt.io": "virt-launcher", "vm.kubevirt.io/name": "guest"},
		Annotations: map[string]string{
			"kubevirt.io/migration-target-ready-timestamp":        "2026-11-30T12:00:00Z",
			"kubevirt.io/allow-pod-bridge-network-live-migration": "",
		},
	})
	vm.Add(t)
	e := s.entry(t, vm, "office")
	if len(e.Addresses) != 1 || len(vm.Addresses(t, "net1")) != 0 {
		t.Fatalf("entry %+v, interface %v", e, vm.Addresses(t, "net1"))
	}
	port := e.MAC + " " + strings.TrimSuffix(e.Addresses[0], "/24")
	s.awaitPort(t, vm, "office", port, e.MAC)
	mark, change := s.engine.Lines.Len(), "now"
	s.kube.Annotate(t, vm.Object, "example.com/change", &change)
	s.awaitRepair(t, mark, vm, port)
	s.awaitPort(t, vm, "office", port, e.MAC)
}
