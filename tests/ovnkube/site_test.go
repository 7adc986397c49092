package ovnkube

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/dhcp-meta/dhcp-meta/tests/rig"
	"github.com/dhcp-meta/dhcp-meta/tests/rig/kube"
	"github.com/dhcp-meta/dhcp-meta/tests/rig/node"
	"github.com/dhcp-meta/dhcp-meta/tests/rig/ovn"
	"github.com/dhcp-meta/dhcp-meta/tests/rig/ovnk"
)

// site is what a test has of its own: a VLAN, with a namespace for its server, and a
// Kubernetes namespace for pods and networks.
type site struct {
	*lab
	lan  *rig.LAN
	vlan int
	ns   string
}

var vlans atomic.Int64

// newSite is for tests that leave the node as it is. They run side by side.
func newSite(t *testing.T) *site {
	t.Helper()
	t.Parallel()
	theLab.alone.RLock()
	t.Cleanup(theLab.alone.RUnlock)
	return makeSite(t)
}

// newSiteAlone is for tests that take something of the node away, and bring it back.
func newSiteAlone(t *testing.T) *site {
	t.Helper()
	t.Parallel()
	theLab.alone.Lock()
	t.Cleanup(theLab.alone.Unlock)
	return makeSite(t)
}

func makeSite(t *testing.T) *site {
	t.Helper()
	l := shared(t)
	s := &site{lab: l, vlan: int(100 + vlans.Add(1)), ns: l.kube.Namespace(t)}
	engine, double := len(l.engine.Log()), l.ovnkube.Lines.Len()
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("dhcp-engine said:\n%s", s.about(l.engine.Log()[engine:]))
			t.Logf("the double said:\n%s", s.about(l.ovnkube.Lines.Since(min(double, l.ovnkube.Lines.Len()))))
		}
	})
	s.lan = l.ProviderVLAN(t, s.vlan)
	return s
}

// about are the lines that name the test's namespace, and warnings.
func (s *site) about(lines []string) string {
	var b strings.Builder
	for _, line := range lines {
		if strings.Contains(line, s.ns) || strings.Contains(line, "level=WARN") || strings.Contains(line, "level=ERROR") {
			b.WriteString("\t" + line + "\n")
		}
	}
	return b.String()
}

// localnet is a network as OVN-Kubernetes wants it, in the site's VLAN.
func (s *site) localnet(name string, more object) object {
	o := object{
		"cniVersion": "1.0.0", "name": s.ns + "-" + name, "type": plugin, "netAttachDefName": s.ns + "/" + name,
		"topology": "localnet", "role": "secondary", "physicalNetworkName": ovn.Physical, "vlanID": s.vlan,
	}
	maps.Copy(o, more)
	return o
}

// marked makes a network that is ours by its definition's annotations alone.
func (s *site) marked(t *testing.T, name, settings string) {
	t.Helper()
	s.kube.NAD(t, s.ns, name, s.localnet(name, nil), marks(settings))
}

func marks(settings string) map[string]string {
	m := map[string]string{"dhcp-meta.io/ipam": "dhcp"}
	if settings != "" {
		m["dhcp-meta.io/config"] = settings
	}
	return m
}

// pod makes a sandbox of a new pod on networks.
func (s *site) pod(t *testing.T, networks string) *kube.Sandbox {
	t.Helper()
	return s.sandbox(t, kube.PodSpec{Networks: networks})
}

func (s *site) vm(t *testing.T, networks string) *kube.Sandbox {
	t.Helper()
	return s.sandbox(t, kube.PodSpec{Networks: networks, Labels: map[string]string{
		"kubevirt.io": "virt-launcher", "vm.kubevirt.io/name": "guest",
	}})
}

func (s *site) sandbox(t *testing.T, spec kube.PodSpec) *kube.Sandbox {
	t.Helper()
	spec.Node = s.node.Name
	return s.again(t, s.kube.Pod(t, s.ns, spec))
}

// again makes a further sandbox of a pod. What its test leaves is taken down, since
// the next test is on the same node.
func (s *site) again(t *testing.T, pod *corev1.Pod) *kube.Sandbox {
	t.Helper()
	sandbox := s.runtime.Sandbox(t, pod)
	t.Cleanup(func() {
		if _, err := sandbox.TryIP("link", "show", "dev", "eth0"); err == nil {
			if err := sandbox.TryDel(s.tb.Context()); err != nil {
				t.Logf("DEL at the test's end: %v", err)
			}
		}
		atOnce := *metav1.NewDeleteOptions(0)
		if err := s.kube.Client.CoreV1().Pods(pod.Namespace).Delete(s.tb.Context(), pod.Name, atOnce); err != nil && !apierrors.IsNotFound(err) {
			t.Errorf("delete pod %s: %v", pod.Name, err)
		}
	})
	return sandbox
}

// netEntry is what a reader of the annotation sees of an interface.
type netEntry struct {
	Addresses []string `json:"ip_addresses"`
	MAC       string   `json:"mac_address"`
	Gateways  []string `json:"gateway_ips"`
	Mode      string   `json:"ipam_mode"`
	Role      string   `json:"role"`
	Address   string   `json:"ip_address"`
}

// carries tells whether an entry has just this address.
func (e netEntry) carries(addr netip.Prefix) bool {
	return len(e.Addresses) == 1 && e.Addresses[0] == addr.String() && e.Mode == "dhcp"
}

// bare tells whether it has the MAC only.
func (e netEntry) bare() bool {
	return e.MAC != "" && len(e.Addresses) == 0 && len(e.Gateways) == 0 && e.Address == ""
}

func parseEntries(t *testing.T, text string) map[string]netEntry {
	t.Helper()
	if text == "" {
		return nil
	}
	var all map[string]netEntry
	if err := json.Unmarshal([]byte(text), &all); err != nil {
		t.Fatalf("%v in %s", err, text)
	}
	return all
}

// entry is a pod's entry for a network now.
func (s *site) entry(t *testing.T, pod *kube.Sandbox, name string) netEntry {
	t.Helper()
	return parseEntries(t, s.kube.GetPod(t, s.ns, pod.Pod).Annotations[podNetworks])[s.ns+"/"+name]
}

// awaitEntry waits until the pod's entry for a network is as wanted.
func (s *site) awaitEntry(t *testing.T, pod *kube.Sandbox, name, what string, ok func(netEntry) bool) netEntry {
	t.Helper()
	var found netEntry
	s.kube.AwaitPod(t, s.ns, pod.Pod, name+": "+what, func(p *corev1.Pod) bool {
		e, there := parseEntries(t, p.Annotations[podNetworks])[s.ns+"/"+name]
		found = e
		return there && ok(e)
	})
	return found
}

// written are the entries for a network in the engine's writes of a pod, in their
// order.
func (s *site) written(t *testing.T, pod *kube.Sandbox, name string) []netEntry {
	t.Helper()
	var all []netEntry
	for _, text := range s.annotations(t, pod, "dhcp-engine") {
		all = append(all, parseEntries(t, text)[s.ns+"/"+name])
	}
	return all
}

// annotations are the values of the annotation in successful writes of a pod by an
// agent whose name begins so.
func (s *site) annotations(t *testing.T, pod *kube.Sandbox, agent string) []string {
	t.Helper()
	var all []string
	for _, r := range s.kube.PodWrites(t, pod.Object) {
		if !strings.HasPrefix(r.Agent, agent) || r.Code != 200 {
			continue
		}
		var ops []struct {
			Op, Path string
			Value    any
		}
		if err := json.Unmarshal(r.Body, &ops); err != nil {
			continue // no JSON patch, so none of the annotation
		}
		for _, op := range ops {
			if text, ok := op.Value.(string); ok && op.Op != "test" && strings.HasSuffix(op.Path, "pod-networks") {
				all = append(all, text)
			}
		}
	}
	return all
}

// portName is the logical port of the pod's interface on a network.
func (s *site) portName(pod *kube.Sandbox, name string) string {
	return ovnk.PortName(s.ns+"/"+name, s.ns, pod.Pod)
}

// awaitPort waits until the pod's port has these values.
func (s *site) awaitPort(t *testing.T, pod *kube.Sandbox, name, addresses, security string) {
	t.Helper()
	s.AwaitLSP(t, s.portName(pod, name), "addresses ["+addresses+"], port security ["+security+"]", func(p ovn.LSP) bool {
		return slices.Equal(p.Addresses, []string{addresses}) && slices.Equal(p.PortSecurity, []string{security})
	})
}

// awaitMade waits until the controller has made the pod's port and entry, as it does
// before the runtime calls.
func (s *site) awaitMade(t *testing.T, pod *kube.Sandbox, name string) (mac string) {
	t.Helper()
	mac = s.awaitEntry(t, pod, name, "be made", netEntry.bare).MAC
	s.awaitPort(t, pod, name, mac, mac)
	return mac
}

// both and pinned are the columns of a container's port with a lease.
func both(mac string, addr netip.Prefix) string { return mac + " " + addr.Addr().String() }

func pinned(mac string, addr netip.Prefix) string { return both(mac, addr) + " 0.0.0.0 ::/0" }

// address is the only one on the interface.
func address(t *testing.T, pod *kube.Sandbox, ifName string) netip.Prefix {
	t.Helper()
	have := pod.Addresses(t, ifName)
	if len(have) != 1 {
		t.Fatalf("%s carries %v, want one address", ifName, have)
	}
	return have[0].Addr
}

// leased checks that interface, annotation and port say the same of a container, and
// returns it.
func (s *site) leased(t *testing.T, pod *kube.Sandbox, name string) netip.Prefix {
	t.Helper()
	addr, mac := address(t, pod, "net1"), pod.HardwareAddr(t, "net1").String()
	if e := s.entry(t, pod, name); !e.carries(addr) || e.MAC != mac {
		t.Errorf("entry %+v, want %s with MAC %s", e, addr, mac)
	}
	s.awaitPort(t, pod, name, both(mac, addr), pinned(mac, addr))
	return addr
}

// dnsmasq serves the site.
func (s *site) dnsmasq(t *testing.T) *rig.Dnsmasq {
	t.Helper()
	return rig.RunDnsmasq(t, s.lan.Server, rig.Pool(0, 0))
}

// noDHCP checks that nothing of DHCP was on the site's wire since mark.
func (s *site) noDHCP(t *testing.T, mark int) {
	t.Helper()
	for _, f := range s.lan.Capture.Since(mark) {
		t.Errorf("on the wire: %v", f)
	}
}

// ping waits until the pod reaches the server from an address: the switch's cache
// follows the flows a moment later.
func (s *site) ping(t *testing.T, pod *kube.Sandbox, from netip.Prefix) {
	t.Helper()
	ovn.Await(t, pod.Pod+" to reach the server from "+from.String(), func() (bool, string) {
		out, err := s.pinger(pod, from, "-c1", "-W2").CombinedOutput()
		return err == nil, string(out)
	})
}

// pinger is a ping of the server, to be started.
func (s *site) pinger(pod *kube.Sandbox, from netip.Prefix, flags ...string) *exec.Cmd {
	args := append([]string{"--net=" + pod.Path, "ping", "-I", from.Addr().String()}, flags...)
	return s.node.Enter(exec.Command("nsenter", append(args, rig.ServerAddr.Addr().String())...))
}

// calls counts what the double's CNI server was asked for an interface of a sandbox
// since its start.
func (s *site) calls(t *testing.T, pod *kube.Sandbox, verb, ifName string) int {
	t.Helper()
	s.syncCalls(t)
	return s.ovnkube.Lines.Count(0, func(line string) bool {
		return strings.Contains(line, fmt.Sprintf(`msg="CNI call" command=%s `, verb)) &&
			strings.Contains(line, "ifname="+ifName+" ") && strings.Contains(line, "container="+pod.ID)
	})
}

// syncCalls waits until all calls that were answered are in what the double has said.
func (s *site) syncCalls(t *testing.T) {
	t.Helper()
	mark := rig.RandomHex(16)
	cmd := exec.Command(node.Plugins + "/" + plugin)
	cmd.Env = []string{"CNI_COMMAND=STATUS", "CNI_CONTAINERID=" + mark, "CNI_ARGS=IgnoreUnknown=true"}
	cmd.Stdin = strings.NewReader(`{"cniVersion":"1.1.0","name":"mark","type":"` + plugin + `"}`)
	if out, err := s.node.Enter(cmd).CombinedOutput(); err != nil {
		t.Fatalf("STATUS of the double: %v\n%s", err, out)
	}
	s.ovnkube.Lines.Await(t, "the mark", 0, rig.Patience, func(line string) bool { return strings.Contains(line, "container="+mark) })
}

// awaitNoRecord waits until the engine has nothing of a sandbox on disk.
func (s *site) awaitNoRecord(t *testing.T, pod *kube.Sandbox) {
	t.Helper()
	err := rig.AwaitFolder(t.Context(), s.engine.StateDir+"/attachments", rig.Patience, func() bool {
		return !slices.ContainsFunc(s.engine.Records(t), func(name string) bool { return strings.HasPrefix(name, pod.ID) })
	})
	if err != nil {
		t.Errorf("records of %s are left: %v: %v", pod.ID, s.engine.Records(t), err)
	}
}

// inSwitch are the node's ports of a sandbox.
func (s *site) inSwitch(t *testing.T, pod *kube.Sandbox) []string {
	t.Helper()
	return slices.DeleteFunc(strings.Fields(s.VSwitch(t, "list-ports", ovn.Integration)), func(port string) bool {
		return !strings.HasPrefix(port, pod.ID[:13])
	})
}

func hasSecurity(want string) func(ovn.LSP) bool {
	return func(p ovn.LSP) bool { return slices.Equal(p.PortSecurity, []string{want}) }
}

// awaitNoPort waits until the controller has removed a logical port.
func (s *site) awaitNoPort(t *testing.T, name string) {
	t.Helper()
	ovn.Await(t, "the end of port "+name, func() (bool, string) {
		p, there := s.LSP(t, name)
		return !there, fmt.Sprintf("%+v", p)
	})
}

// awaitEvent waits for an event on a pod, whose message says word.
func (s *site) awaitEvent(t *testing.T, pod *kube.Sandbox, reason, word string) {
	t.Helper()
	of := metav1.ListOptions{FieldSelector: "involvedObject.name=" + pod.Pod}
	ovn.Await(t, "event "+reason+" that says "+word, func() (bool, string) {
		list, err := s.kube.Client.CoreV1().Events(s.ns).List(t.Context(), of)
		if err != nil {
			return false, err.Error()
		}
		var said []string
		for _, e := range list.Items {
			said = append(said, e.Reason+": "+e.Message)
			if e.Reason == reason && strings.Contains(e.Message, word) && string(e.InvolvedObject.UID) == pod.UID {
				return true, ""
			}
		}
		return false, strings.Join(said, "\n")
	})
}
