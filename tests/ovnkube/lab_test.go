// Package ovnkube has the tests of both programs in front of OVN-Kubernetes: a real
// API server, the real Multus, a real OVS and OVN, and tests/ovnkdouble in the place
// of OVN-Kubernetes itself.
package ovnkube

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/dhcp-meta/dhcp-meta/tests/rig"
	"github.com/dhcp-meta/dhcp-meta/tests/rig/kube"
	"github.com/dhcp-meta/dhcp-meta/tests/rig/node"
	"github.com/dhcp-meta/dhcp-meta/tests/rig/ovn"
)

func TestMain(m *testing.M) { kube.Main(m, func() { os.RemoveAll(double.folder) }) }

type object = rig.Object

const (
	plugin      = "ovn-k8s-cni-overlay"
	podNetworks = "k8s.ovn.org/pod-networks"
	// kubeconfig is where the double finds its own on the node.
	kubeconfig = "/etc/ovnkube/kubeconfig"
)

// double is the program of tests/ovnkdouble, built by the first test that needs it.
var double struct {
	once   sync.Once
	folder string
	err    error
}

func doubleProgram(t *testing.T) string {
	t.Helper()
	double.once.Do(func() {
		if double.folder, double.err = os.MkdirTemp("", "dhcp-meta-ovnk"); double.err != nil {
			return
		}
		// The flags of the other programs, so that what is compiled for them serves here too.
		cmd := exec.Command("go", "build", "-trimpath", "-o", double.folder+"/", "../ovnkdouble")
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			double.err = fmt.Errorf("build ovnkdouble: %w\n%s", err, out)
		}
	})
	if double.err != nil {
		t.Fatal(double.err)
	}
	return filepath.Join(double.folder, "ovnkdouble")
}

// labs bounds how many stacks run at once: each is a dozen daemons.
var labs = make(chan struct{}, 3)

// lab is a node with OVN, the double, Multus and an engine, on a site's network.
type lab struct {
	*ovn.Stack
	lan     *rig.LAN
	kube    *kube.Cluster
	ns      string
	node    *node.Node
	runtime *kube.Runtime
	engine  *rig.Engine
	ovnkube *rig.Process
}

// newLab starts everything, with dhcp-meta in front of the double for Multus, and
// the flags for the engine.
func newLab(t *testing.T, flags ...string) *lab {
	t.Helper()
	t.Parallel()
	labs <- struct{}{}
	t.Cleanup(func() { <-labs })
	program := doubleProgram(t)
	c := kube.Shared(t)
	l := &lab{kube: c, ns: c.Namespace(t), node: node.New(t, rig.NewNetns(t, "node"))}
	l.node.InstallPlugins(t)
	l.node.Install(t, program, filepath.Join(node.Plugins, plugin))
	l.node.Interpose(t, plugin)
	c.Join(t, l.node)
	l.Stack = ovn.Start(t, ovn.On(l.node))
	l.lan = l.Provider(t)
	l.node.Write(t, kubeconfig, c.AdminKubeconfig(t))
	l.startOVNKube(t)
	l.runtime = c.StartMultus(t, l.node, kube.Multus{
		Interposed: true,
		Default:    `{"cniVersion":"1.0.0","name":"ovn-kubernetes","type":"` + plugin + `"}`,
	})
	l.engine = c.Engine(t, l.node, append([]string{"--ovn-nb=auto"}, flags...)...)
	l.engine.Start(t)
	return l
}

// startOVNKube starts controller and CNI server of the double, and waits for its
// socket.
func (l *lab) startOVNKube(t *testing.T) {
	t.Helper()
	l.ovnkube = l.node.Start(t, "ovnkube", exec.Command(doubleProgram(t), "--kubeconfig="+kubeconfig, "--node="+l.node.Name))
	l.ovnkube.Lines.Await(t, "the double's CNI server", 0, rig.Patience, func(line string) bool {
		return strings.Contains(line, "serves CNI")
	})
}

// restartOVNKube is what an upgrade of OVN-Kubernetes does to the node.
func (l *lab) restartOVNKube(t *testing.T) {
	t.Helper()
	l.ovnkube.Kill(t)
	l.startOVNKube(t)
}

// localnet is a network as OVN-Kubernetes wants it.
func (l *lab) localnet(name string, more object) object {
	o := object{
		"cniVersion": "1.0.0", "name": l.ns + "-" + name, "type": plugin, "netAttachDefName": l.ns + "/" + name,
		"topology": "localnet", "role": "secondary", "physicalNetworkName": ovn.Physical,
	}
	maps.Copy(o, more)
	return o
}

// marked makes a network that is ours by its definition's annotation.
func (l *lab) marked(t *testing.T, name, settings string) {
	t.Helper()
	marks := map[string]string{"dhcp-meta.io/ipam": "dhcp"}
	if settings != "" {
		marks["dhcp-meta.io/config"] = settings
	}
	l.kube.NAD(t, l.ns, name, l.localnet(name, nil), marks)
}

// pod makes a sandbox of a new pod on networks.
func (l *lab) pod(t *testing.T, networks string) *kube.Sandbox {
	t.Helper()
	return l.sandbox(t, kube.PodSpec{Networks: networks})
}

func (l *lab) vm(t *testing.T, networks string) *kube.Sandbox {
	t.Helper()
	return l.sandbox(t, kube.PodSpec{Networks: networks, Labels: map[string]string{
		"kubevirt.io": "virt-launcher", "vm.kubevirt.io/name": "guest",
	}})
}

func (l *lab) sandbox(t *testing.T, spec kube.PodSpec) *kube.Sandbox {
	t.Helper()
	spec.Node = l.node.Name
	return l.runtime.Sandbox(t, l.kube.Pod(t, l.ns, spec))
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

func entries(t *testing.T, p *corev1.Pod) map[string]netEntry {
	t.Helper()
	text := p.Annotations[podNetworks]
	if text == "" {
		return nil
	}
	var all map[string]netEntry
	if err := json.Unmarshal([]byte(text), &all); err != nil {
		t.Fatalf("annotation of %s: %v in %s", p.Name, err, text)
	}
	return all
}

// awaitEntry waits until the pod's entry for a network is as wanted.
func (l *lab) awaitEntry(t *testing.T, s *kube.Sandbox, name, what string, ok func(netEntry) bool) netEntry {
	t.Helper()
	var found netEntry
	l.kube.AwaitPod(t, l.ns, s.Pod, name+": "+what, func(p *corev1.Pod) bool {
		e, there := entries(t, p)[l.ns+"/"+name]
		found = e
		return there && ok(e)
	})
	return found
}

// carries tells whether an entry has just this address.
func (e netEntry) carries(addr netip.Prefix) bool {
	return len(e.Addresses) == 1 && e.Addresses[0] == addr.String() && e.Mode == "dhcp"
}

func (e netEntry) bare() bool { return len(e.Addresses) == 0 && len(e.Gateways) == 0 && e.Address == "" }

// portName is the logical port of the pod's interface on a network.
func (l *lab) portName(s *kube.Sandbox, name string) string {
	return strings.NewReplacer("-", ".", "/", ".").Replace(l.ns+"/"+name) + "_" + l.ns + "_" + s.Pod
}

// awaitPort waits until the pod's port has these values.
func (l *lab) awaitPort(t *testing.T, s *kube.Sandbox, name, addresses, security string) {
	t.Helper()
	l.AwaitLSP(t, l.portName(s, name), "addresses ["+addresses+"], port security ["+security+"]", func(p ovn.LSP) bool {
		return slices.Equal(p.Addresses, []string{addresses}) && slices.Equal(p.PortSecurity, []string{security})
	})
}

// pinned is the port security of a container's port with a lease.
func pinned(mac string, addr netip.Prefix) string { return mac + " " + addr.Addr().String() + " 0.0.0.0 ::/0" }

// address is the only one on the interface.
func address(t *testing.T, s *kube.Sandbox, ifName string) netip.Prefix {
	t.Helper()
	have := s.Addresses(t, ifName)
	if len(have) != 1 {
		t.Fatalf("%s carries %v, want one address", ifName, have)
	}
	return have[0].Addr
}

// dnsmasq serves the site. Its ping check is off: the pod waits for it.
func (l *lab) dnsmasq(t *testing.T) *rig.Dnsmasq {
	t.Helper()
	return rig.RunDnsmasq(t, l.lan.Server, rig.Pool(0, 0))
}

// noDHCP checks that nothing of DHCP was on the site's wire since mark.
func (l *lab) noDHCP(t *testing.T, mark int) {
	t.Helper()
	for _, f := range l.lan.Capture.Since(mark) {
		t.Errorf("on the wire: %v", f)
	}
}

// ping checks that the pod reaches the server from an address.
func (l *lab) ping(t *testing.T, s *kube.Sandbox, from netip.Prefix) {
	t.Helper()
	l.node.Run(t, "nsenter", "--net="+s.Path, "ping", "-c1", "-W10", "-I", from.Addr().String(), rig.ServerAddr.Addr().String())
}

func hasSecurity(want string) func(ovn.LSP) bool {
	return func(p ovn.LSP) bool { return slices.Equal(p.PortSecurity, []string{want}) }
}
