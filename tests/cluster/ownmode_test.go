package cluster

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/insomniacslk/dhcp/dhcpv4"
	corev1 "k8s.io/api/core/v1"

	"github.com/dhcp-meta/dhcp-meta/tests/rig"
	"github.com/dhcp-meta/dhcp-meta/tests/rig/kube"
	"github.com/dhcp-meta/dhcp-meta/tests/rig/node"
)

// ownLab is a node whose network has OVN-Kubernetes' own DHCP mode (OKEP-6224). The
// test does what its node server does around its calls of the plugin dhcp, which is
// ours. tests/ovnkube has the double do it.
type ownLab struct {
	*lab
}

func newOwnLab(t *testing.T, config string) *ownLab {
	t.Helper()
	c := kube.Shared(t)
	lan := rig.NewLAN(t)
	l := &ownLab{&lab{LAN: lan, kube: c, ns: c.Namespace(t), node: node.New(t, lan.Node)}}
	l.node.Install(t, rig.Program("dhcp-meta"), filepath.Join(node.Plugins, "dhcp"))
	annotations := map[string]string{}
	if config != "" {
		annotations["dhcp-meta.io/config"] = config
	}
	l.network(t, "office", localnet(l.ns+"/office", object{"name": "office-lan", "ipam": object{"type": "dhcp"}}), annotations)
	c.Join(t, l.node)
	const networks = "/etc/dhcp-meta/networks.json"
	l.node.Write(t, networks, []byte(`{"office-lan": {"vendorClass": "by-the-node", "hostname": "by-the-node", "clientID": "none"}}`))
	l.engine = c.Engine(t, l.node, "--dhcp-socket=/run/cni/dhcp.sock", "--dhcp-networks="+networks)
	l.engine.Start(t)
	return l
}

// object is a pod with the entry that OVN-Kubernetes writes before it asks for the
// address, and a host name of its own.
func (l *ownLab) object(t *testing.T, mac string) *corev1.Pod {
	t.Helper()
	return l.kube.Pod(t, l.ns, kube.PodSpec{Node: l.node.Name, Networks: "office",
		Annotations: map[string]string{podNetworks: l.entry(mac, ""), "office." + l.ns + ".dhcp-meta.io/hostname": "{pod}"}})
}

// plug makes a sandbox of a pod, with its net1.
func (l *ownLab) plug(t *testing.T, pod *corev1.Pod, mac string) *ownPod {
	t.Helper()
	s := rig.NewSandbox(t)
	l.Node.IP(t, "link", "add", "net1", "netns", s.Name, "link", rig.Uplink, "address", mac, "type", "macvlan", "mode", "bridge")
	s.IP(t, "link", "set", "net1", "up")
	return &ownPod{Sandbox: s, Object: pod, lab: l, mac: mac}
}

// entry is the annotation; without an address as it is before there is one.
func (l *ownLab) entry(mac, addr string) string {
	ips, gateways := "null", ""
	if addr != "" {
		ips, gateways = `["`+addr+`"]`, fmt.Sprintf(`,"gateway_ips":[%q]`, rig.ServerAddr.Addr())
	}
	return fmt.Sprintf(`{"default":{"mac_address":"0a:58:0a:f4:00:05"},"%s/office":{"ip_addresses":%s,"mac_address":%q,"role":"secondary","ipam_mode":"dhcp"%s}}`,
		l.ns, ips, mac, gateways)
}

// ownPod is a sandbox on such a network.
type ownPod struct {
	*rig.Sandbox
	Object *corev1.Pod
	lab    *ownLab
	mac    string
}

// dhcp runs the plugin as OVN-Kubernetes does: it names no pod, and the configuration
// has these keys only.
func (p *ownPod) dhcp(t *testing.T, verb string) []byte {
	t.Helper()
	cmd := exec.Command(filepath.Join(node.Plugins, "dhcp"))
	cmd.Env = append(os.Environ(), "CNI_COMMAND="+verb, "CNI_CONTAINERID="+p.ID, "CNI_NETNS="+p.Path, "CNI_IFNAME=net1", "CNI_PATH="+node.Plugins)
	cmd.Stdin = strings.NewReader(`{"cniVersion":"1.1.0","name":"office-lan","type":"ovn-k8s-cni-overlay","ipam":{"type":"dhcp"}}`)
	var out bytes.Buffer
	cmd.Stdout = &out
	if err := p.lab.node.Enter(cmd).Run(); err != nil {
		t.Fatalf("dhcp %s: %v: %s", verb, err, out.String())
	}
	return out.Bytes()
}

// add is an ADD to its end: address on the interface, and in the annotation.
func (p *ownPod) add(t *testing.T) netip.Prefix {
	t.Helper()
	var r current.Result
	if out := p.dhcp(t, "ADD"); json.Unmarshal(out, &r) != nil || len(r.IPs) != 1 {
		t.Fatalf("the result is %s", out)
	}
	addr := r.IPs[0].Address.String()
	p.IP(t, "address", "add", addr, "dev", "net1")
	text := p.lab.entry(p.mac, addr)
	p.lab.kube.Annotate(t, p.Object, podNetworks, &text)
	return netip.MustParsePrefix(addr)
}

// says waits until the pod's annotation is this, and the engine has written so often.
func (p *ownPod) says(t *testing.T, addr string, writes int) {
	t.Helper()
	want := p.lab.entry(p.mac, addr)
	p.lab.kube.AwaitPod(t, p.lab.ns, p.Object.Name, "annotation "+want, func(pod *corev1.Pod) bool {
		return sameObject(pod.Annotations[podNetworks], want)
	})
	if w := p.lab.kube.PodWrites(t, p.Object); len(w) != writes {
		t.Errorf("%d writes, want %d: %v", len(w), writes, w)
	}
}

// sameObject compares but for the order of keys.
func sameObject(a, b string) bool {
	var x, y any
	if json.Unmarshal([]byte(a), &x) != nil || json.Unmarshal([]byte(b), &y) != nil {
		return a == b
	}
	left, _ := json.Marshal(x) // maps are sorted
	right, _ := json.Marshal(y)
	return bytes.Equal(left, right)
}

// Settings of network and pod count though OVN-Kubernetes names neither. Nothing is
// written in the ADD; another address is, and the end of the lease.
func TestK55K80OwnModeOfOVNKubernetes(t *testing.T) {
	t.Parallel()
	l := newOwnLab(t, `{"clientID":"duid","hostname":"by-the-network"}`)
	server := rig.RunDnsmasq(t, l.Server, rig.Pool(3*time.Second, 5*time.Second))
	pod := l.plug(t, l.object(t, "02:00:00:00:62:01"), "02:00:00:00:62:01")
	addr := pod.add(t)
	f, _ := l.Capture.AwaitType(t, 0, rig.Patience, dhcpv4.MessageTypeRequest, pod.HardwareAddr(t, "net1"))
	// What the node says, over it the network, over that the pod.
	if id := f.Msg.Options.Get(dhcpv4.OptionClientIdentifier); f.Msg.ClassIdentifier() != "by-the-node" || len(id) == 0 || id[0] != 255 ||
		f.Msg.HostName() != pod.Object.Name {
		t.Errorf("vendor class %q, client identifier %x, host name %q", f.Msg.ClassIdentifier(), id, f.Msg.HostName())
	}
	if !f.Msg.IsBroadcast() {
		t.Errorf("no BROADCAST flag, which OVN's port security may want: %v", f)
	}
	pod.says(t, addr.String(), 0)

	// Another server with another pool: the lease is refused, and found anew.
	server.Stop(t)
	cfg := rig.Pool(0, 0)
	cfg.First, cfg.Last = netip.MustParseAddr("10.77.0.180"), netip.MustParseAddr("10.77.0.180")
	server = rig.RunDnsmasq(t, l.Server, cfg)
	pod.AwaitAddress(t, "net1", cfg.First)
	pod.says(t, "10.77.0.180/24", 2) // the old one taken out, the new one put in

	mark := l.Capture.Len()
	pod.dhcp(t, "DEL")
	if f, _ := l.Capture.AwaitType(t, mark, rig.Patience, dhcpv4.MessageTypeRelease, nil); f.Src.Addr() != cfg.First {
		t.Errorf("RELEASE %v", f)
	}
	server.AwaitHeld(t, "no lease", rig.Nothing)
	pod.says(t, "", 3)
	l.engine.AwaitNoRecords(t)
}

// A lease that is lost is taken out of the annotation while there is no other, and a
// restart of the engine writes nothing that is true already.
func TestK93OwnModeOverARestart(t *testing.T) {
	t.Parallel()
	l := newOwnLab(t, "")
	rig.RunDnsmasq(t, l.Server, rig.Pool(0, 0))
	pod := l.plug(t, l.object(t, "02:00:00:00:62:02"), "02:00:00:00:62:02")
	addr := pod.add(t)
	l.engine.Lines.Await(t, "the adoption", 0, rig.Patience, func(line string) bool { return strings.Contains(line, "address of the caller is adopted") })
	l.engine.Restart(t, l.engine.Kill)
	l.engine.MustCommand(t, "renew", pod.ID) // done by who has looked at the restored lease first
	pod.says(t, addr.String(), 0)

	// The next sandbox of the pod, as after a reboot without a DEL, has its address.
	bare := l.entry(pod.mac, "")
	l.kube.Annotate(t, pod.Object, podNetworks, &bare)
	pod.IP(t, "link", "delete", "net1") // its MAC is free at once
	pod.Delete(t)
	next := l.plug(t, pod.Object, pod.mac)
	if again := next.add(t); again != addr {
		t.Errorf("the next sandbox has %s, the one before had %s", again, addr)
	}
	next.says(t, addr.String(), 0)
	next.dhcp(t, "DEL")
}

// An interface that is no pod's, or that two pods have, is served by its network's name
// alone, and said so. The DEL of a virtual machine's pod, which asked for nothing, is
// quick and sends nothing.
func TestK77OwnModeWithoutAPod(t *testing.T) {
	t.Parallel()
	l := newOwnLab(t, `{"hostname":"by-the-network"}`)
	server := rig.RunDnsmasq(t, l.Server, rig.Pool(0, 0))
	const mac = "02:00:00:00:62:03"
	first := l.object(t, mac)
	for name, pod := range map[string]*ownPod{
		"no pod":   l.plug(t, first, "02:00:00:00:62:04"),
		"two pods": l.plug(t, l.object(t, mac), mac),
	} {
		mark, logged := l.Capture.Len(), l.engine.Lines.Len()
		pod.dhcp(t, "ADD")
		f, _ := l.Capture.AwaitType(t, mark, rig.Patience, dhcpv4.MessageTypeRequest, nil)
		if f.Msg.HostName() != "by-the-node" {
			t.Errorf("%s: host name %q", name, f.Msg.HostName())
		}
		l.engine.Lines.Await(t, "line on the pod", logged, rig.Patience, func(line string) bool {
			return strings.Contains(line, "pod of an interface of OVN-Kubernetes is not found") && strings.Contains(line, pod.ID)
		})
		pod.dhcp(t, "DEL")
	}
	server.AwaitHeld(t, "no lease", rig.Nothing)

	mark := l.Capture.Len()
	vm := l.plug(t, first, "02:00:00:00:62:05")
	vm.dhcp(t, "DEL")
	l.noDHCP(t, mark)
	if lists := l.kube.Requests(t, func(r kube.Request) bool {
		return r.Resource == "pods" && r.Name == "" && strings.HasPrefix(r.Agent, "dhcp-engine") && r.Code >= 400
	}); len(lists) > 0 {
		t.Errorf("the engine may not list pods: %v", lists)
	}
	if w := l.kube.PodWrites(t, first); len(w) > 0 {
		t.Errorf("written: %v", w)
	}
}
