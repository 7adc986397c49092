package ovnkube

import (
	"bytes"
	"context"
	"encoding/json"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/insomniacslk/dhcp/dhcpv4"

	"github.com/dhcp-meta/dhcp-meta/tests/rig"
	"github.com/dhcp-meta/dhcp-meta/tests/rig/kube"
	"github.com/dhcp-meta/dhcp-meta/tests/rig/node"
)

// call executes the interposed program for net1 as Multus does, with a sandbox id and
// namespace of the test's choice; nil when it succeeds.
func (s *site) call(t *testing.T, verb string, pod *kube.Sandbox, id, netns string, conf object) *types.Error {
	t.Helper()
	b, err := json.Marshal(conf)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), rig.Patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, node.Wrappers+"/"+plugin)
	cmd.Env = []string{
		"CNI_COMMAND=" + verb, "CNI_CONTAINERID=" + id, "CNI_NETNS=" + netns, "CNI_IFNAME=net1",
		"CNI_PATH=" + node.Wrappers + ":" + node.Plugins,
		"CNI_ARGS=IgnoreUnknown=true;K8S_POD_NAMESPACE=" + s.ns + ";K8S_POD_NAME=" + pod.Pod +
			";K8S_POD_INFRA_CONTAINER_ID=" + id + ";K8S_POD_UID=" + pod.UID,
	}
	var out, stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(b), &out, &stderr
	if err := s.node.Enter(cmd).Run(); err != nil {
		said := new(types.Error)
		if json.Unmarshal(out.Bytes(), said) != nil {
			t.Fatalf("%s of net1: %v\n%s%s", verb, err, &out, &stderr)
		}
		return said
	}
	return nil
}

// OVN-Kubernetes' second DEL of a secondary interface takes the pod's eth0 away. It
// gets one, however often the runtime calls.
func TestP26SecondDelLeavesTheDefaultNetworkAlone(t *testing.T) {
	s := newSite(t)
	server := s.dnsmasq(t)
	s.marked(t, "office", "")
	pod := s.pod(t, "office")
	pod.Add(t)
	eth0 := address(t, pod, "eth0")
	for range 3 {
		if err := s.call(t, "DEL", pod, pod.ID, pod.Path, s.localnet("office", nil)); err != nil {
			t.Fatalf("DEL: %v", err)
		}
	}
	server.AwaitHeld(t, "empty", rig.Nothing)
	if n := s.calls(t, pod, "DEL", "net1"); n != 1 {
		t.Errorf("the wrapped plugin had %d DELs, want one", n)
	}
	if got := address(t, pod, "eth0"); got != eth0 {
		t.Errorf("eth0 has %v, had %v", got, eth0)
	}
	if ports := s.inSwitch(t, pod); !slices.Equal(ports, []string{pod.ID[:15]}) {
		t.Errorf("ports in OVS: %v, want that of eth0", ports)
	}
	pod.Del(t) // Multus knows of no DEL yet, and calls once more
	if n := s.calls(t, pod, "DEL", "net1"); n != 1 {
		t.Errorf("the wrapped plugin had %d DELs, want one", n)
	}
}

// The double does what is guarded against: without us, eth0 would be gone.
func TestLaboratorySecondDelOfTheDouble(t *testing.T) {
	s := newSite(t)
	s.kube.NAD(t, s.ns, "plain", s.localnet("plain", nil), nil)
	pod := s.pod(t, "plain")
	pod.Add(t)
	for range 2 {
		if err := s.call(t, "DEL", pod, pod.ID, pod.Path, s.localnet("plain", nil)); err != nil {
			t.Fatalf("DEL: %v", err)
		}
	}
	if have := pod.Addresses(t, "eth0"); len(have) != 0 {
		t.Errorf("eth0 is there after the second DEL of net1: %v", have)
	}
}

// A network namespace that is gone makes OVN-Kubernetes' DEL fail for ever. It is
// left out, the lease ends, and what was published is taken back.
func TestDelWithoutNamespace(t *testing.T) {
	for _, path := range []string{"empty", "gone"} {
		t.Run(path, func(t *testing.T) {
			s := newSite(t)
			s.dnsmasq(t)
			s.marked(t, "office", "")
			pod := s.pod(t, "office")
			pod.Add(t)
			mac := s.entry(t, pod, "office").MAC
			pod.Delete(t)
			netns := ""
			if path == "gone" {
				netns = pod.Path
			}
			for range 2 {
				if err := s.call(t, "DEL", pod, pod.ID, netns, s.localnet("office", nil)); err != nil {
					t.Fatalf("DEL: %v", err)
				}
			}
			if n := s.calls(t, pod, "DEL", "net1"); n != 0 {
				t.Errorf("the wrapped plugin had %d DELs, want none", n)
			}
			s.awaitEntry(t, pod, "office", "MAC-only after DEL", netEntry.bare)
			s.awaitPort(t, pod, "office", mac, mac)
		})
	}
}

// A pod that was deleted by force is gone from the API while its sandbox lives:
// OVN-Kubernetes' DEL fails for ever then. The runtime's DEL succeeds.
func TestPodDeletedByForce(t *testing.T) {
	s := newSite(t)
	s.dnsmasq(t)
	s.marked(t, "office", "")
	pod := s.pod(t, "office")
	pod.Add(t)
	s.kube.DeletePod(t, pod.Object)
	port := s.portName(pod, "office")
	s.awaitNoPort(t, port)
	// Directly: Multus tells the runtime nothing of an error.
	for range 2 {
		if err := s.call(t, "DEL", pod, pod.ID, pod.Path, s.localnet("office", nil)); err != nil {
			t.Errorf("DEL: %v", err)
		}
	}
	s.ovnkube.Lines.Await(t, "the failure that is covered up", 0, rig.Patience, func(line string) bool {
		return strings.Contains(line, "command=DEL") && strings.Contains(line, pod.ID) && strings.Contains(line, "failed to find NAD key")
	})
	address(t, pod, "eth0")
	pod.Del(t)
	if out, err := pod.TryIP("link", "show", "dev", "eth0"); err == nil {
		t.Errorf("eth0 is left: %s", out)
	}
	pod.Delete(t)
	s.awaitNoRecord(t, pod)
	s.awaitNoPort(t, port) // nothing made it again
}

// What an older sandbox left in the annotation is configured by OVN-Kubernetes, and
// its gateway makes the ADD fail where eth0 has a default route. It is taken away
// before.
func TestStaleEntryBeforeTheAdd(t *testing.T) {
	for _, kind := range []string{"container", "vm"} {
		t.Run(kind, func(t *testing.T) {
			s := newSite(t)
			s.dnsmasq(t)
			s.marked(t, "office", "")
			pod := s.pod(t, "office")
			if kind == "vm" {
				pod = s.vm(t, "office")
			}
			s.awaitMade(t, pod, "office")
			stale := strings.Replace(s.kube.GetPod(t, s.ns, pod.Pod).Annotations[podNetworks],
				`"ip_addresses":null`, `"ip_addresses":["10.77.0.99/24"],"gateway_ips":["10.77.0.1"],"ipam_mode":"dhcp"`, 1)
			s.kube.Annotate(t, pod.Object, podNetworks, &stale)
			seen := watchAddresses(t, pod)
			pod.Add(t)
			for _, a := range seen() {
				if a.Addr().String() == "10.77.0.99" || kind == "vm" {
					t.Errorf("%v was on net1", a)
				}
			}
			e := s.entry(t, pod, "office")
			if len(e.Addresses) != 1 || e.Mode != "dhcp" || strings.Contains(e.Addresses[0], "10.77.0.99") {
				t.Errorf("entry %+v", e)
			}
			if kind == "container" {
				s.leased(t, pod, "office")
			}
		})
	}
}

// OVN-Kubernetes' CNI server crashes over a short sandbox id; it is not asked.
func TestShortSandboxID(t *testing.T) {
	s := newSite(t)
	s.dnsmasq(t)
	s.marked(t, "office", "")
	pod := s.pod(t, "office")
	s.awaitMade(t, pod, "office")
	mark := s.lan.Capture.Len()
	err := s.call(t, "ADD", pod, "short", pod.Path, s.localnet("office", nil))
	if err == nil || err.Code != 4 || !strings.Contains(err.Msg, "15 characters") {
		t.Errorf("ADD: %v", err)
	}
	s.syncCalls(t)
	if strings.Contains(strings.Join(s.ovnkube.Lines.Since(0), "\n"), "container=short") {
		t.Error("the wrapped plugin was called")
	}
	s.noDHCP(t, mark)
}

// A second sandbox of a pod takes over. The late DEL of the first writes nothing and
// gives nothing back.
func TestSupersededSandboxLateDel(t *testing.T) {
	s := newSite(t)
	server := s.dnsmasq(t)
	s.marked(t, "office", "")
	first := s.pod(t, "office")
	first.Add(t)
	was := s.leased(t, first, "office")
	second := s.again(t, first.Object)
	second.Add(t)
	addr := s.leased(t, second, "office")
	if addr != was {
		t.Errorf("the second sandbox has %v, the first had %v", addr, was) // P10
	}
	writes, mark := len(s.written(t, second, "office")), s.lan.Capture.Len()
	first.Del(t)
	s.awaitNoRecord(t, first)
	s.ping(t, second, addr)
	s.leased(t, second, "office")
	server.AwaitHeld(t, "the lease", rig.Holds(second.HardwareAddr(t, "net1"), addr.Addr()))
	if after := s.written(t, second, "office"); len(after) != writes {
		t.Errorf("the late DEL wrote: %+v", after[writes:])
	}
	if n := s.lan.Capture.Count(mark, rig.Type(dhcpv4.MessageTypeRelease, nil)); n != 0 {
		t.Errorf("the late DEL sent %d DHCPRELEASE", n)
	}
}

// An ADD whose runtime has given up, and started another sandbox, finishes late: what
// it would say is not written.
func TestSupersededSandboxLateAdd(t *testing.T) {
	s := newSite(t)
	s.marked(t, "office", "")
	first := s.pod(t, "office")
	mark := s.lan.Capture.Len()
	lateC := make(chan error, 1)
	go func() {
		_, err := first.TryAdd(t.Context())
		lateC <- err
	}()
	s.lan.Capture.AwaitType(t, mark, rig.Patience, dhcpv4.MessageTypeDiscover, nil)
	second := s.again(t, first.Object)
	doneC := make(chan error, 1)
	go func() {
		_, err := second.TryAdd(t.Context())
		doneC <- err
	}()
	// The second has begun when the double has made its interface.
	s.ovnkube.Lines.Await(t, "ADD of the second sandbox", 0, rig.Patience, func(line string) bool {
		return strings.Contains(line, "command=ADD") && strings.Contains(line, "ifname=net1") && strings.Contains(line, second.ID)
	})
	server := s.dnsmasq(t)
	if err := <-doneC; err != nil {
		t.Fatalf("ADD of the second sandbox: %v", err)
	}
	addr := s.leased(t, second, "office")
	if err := <-lateC; err == nil {
		t.Error("the ADD of the first sandbox succeeded after the second's")
	}
	first.Del(t)
	s.leased(t, second, "office")
	server.AwaitHeld(t, "one lease", rig.Holds(second.HardwareAddr(t, "net1"), addr.Addr()))
	s.ping(t, second, addr)
}
