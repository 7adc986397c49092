package kubelet

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/dhcp-meta/dhcp-meta/tests/rig"
	"github.com/dhcp-meta/dhcp-meta/tests/rig/kube"
	"github.com/dhcp-meta/dhcp-meta/tests/rig/node"
)

// startPatience is how long a node may take to be ready: 12 seconds on an idle machine.
const startPatience = 2 * time.Minute

// Pause is the image of sandboxes, and of pods that need no program of their own.
const Pause = "localhost/pause:1"

// CNIConfig is where the runtime finds its network.
const CNIConfig = "/etc/cni/net.d"

// defaultNetwork is the network of every pod's eth0. It is a single plugin, since
// Multus forgets the rest of a list's configuration at DEL.
const defaultNetwork = `{"cniVersion":"1.0.0","name":"default-net","type":"bridge","bridge":"cni0","isGateway":true,
"ipam":{"type":"host-local","ranges":[[{"subnet":"10.244.0.0/24"}]],"routes":[{"dst":"0.0.0.0/0"}]}}`

// Node is a node of a cluster, with all that makes one.
type Node struct {
	*node.Node
	Containerd, Kubelet, Proxy *rig.Process

	cluster *kube.Cluster
	bin     string
	addr    string
	cgroup  string
}

// Start makes a node around a network namespace, in a cluster that has controllers, and
// waits until it is ready for pods.
func Start(t testing.TB, c *kube.Cluster, net *rig.Netns) *Node {
	t.Helper()
	rig.Need(t)
	for _, program := range []string{"containerd", "ctr", "runc"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Fatalf("start a node: %v; `make deps` installs it", err)
		}
	}
	bin, err := rig.ToolCache("kubernetes")
	if err != nil {
		t.Fatal(err)
	}
	n := &Node{cluster: c, bin: bin, cgroup: newCgroup(t)}
	n.Node = node.NewMachine(t, net, filepath.Join(bin, "pause"))
	n.addr = c.Connect(t, n.Node)
	// To the addresses of services, which kube-proxy replaces on their way.
	n.Net.IP(t, "route", "add", "default", "via", kube.APIHost)
	n.startContainerd(t)
	n.installPlugins(t)
	n.startKubelet(t)
	n.startProxy(t)
	for _, what := range []string{"create", "condition=Ready"} {
		c.Kubectl(t, "", "wait", "--for="+what, "--timeout="+startPatience.String(), "node/"+n.Name)
	}
	return n
}

// installPlugins puts the reference plugins on the node, as files: what runs in a
// container sees no link to elsewhere.
func (n *Node) installPlugins(t testing.TB) {
	t.Helper()
	plugins, err := filepath.Glob(rig.Plugins() + "/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range plugins {
		n.Install(t, p, filepath.Join(node.Plugins, filepath.Base(p)))
	}
	n.Write(t, CNIConfig+"/10-default.conf", []byte(defaultNetwork))
}

// startContainerd starts the runtime, and gives it the image of sandboxes.
func (n *Node) startContainerd(t testing.TB) {
	t.Helper()
	const config = "/etc/containerd/config.toml"
	n.Write(t, config, []byte(fmt.Sprintf(containerdConfig, Pause, registries, node.Plugins, CNIConfig)))
	n.findRegistry(t)
	n.Containerd = n.Start(t, "containerd", exec.Command("containerd", "--config", config))
	n.Containerd.Lines.Await(t, "readiness of containerd", 0, startPatience, func(line string) bool {
		return strings.Contains(line, "containerd successfully booted")
	})
	n.Import(t, PauseImage(t))
}

// PauseImage is the image Pause.
func PauseImage(t testing.TB) Image {
	t.Helper()
	bin, err := rig.ToolCache("kubernetes")
	if err != nil {
		t.Fatal(err)
	}
	return Image{Name: Pause, Programs: map[string]string{"pause": filepath.Join(bin, "pause")}, Entrypoint: []string{"/pause"}}
}

// Without restrict_oom_score_adj no container starts where not even root may lower a
// score, as in many CI systems.
const containerdConfig = `version = 2
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = %q
  disable_apparmor = true
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".registry]
    config_path = %q
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = %q
    conf_dir = %q
`

func (n *Node) startKubelet(t testing.TB) {
	t.Helper()
	const folder = "/etc/kubernetes/"
	n.Write(t, folder+"ca.crt", n.cluster.CA())
	n.Write(t, folder+"kubelet.kubeconfig", n.cluster.UserKubeconfig(t, "system:node:"+n.Name, "system:nodes"))
	n.Write(t, folder+"kubelet.yaml", []byte(fmt.Sprintf(kubeletConfig, "/"+n.cgroup, folder+"ca.crt")))
	n.Kubelet = n.Start(t, "kubelet", exec.Command(filepath.Join(n.bin, "kubelet"),
		"--config="+folder+"kubelet.yaml", "--kubeconfig="+folder+"kubelet.kubeconfig",
		"--hostname-override="+n.Name, "--node-ip="+n.addr))
}

const kubeletConfig = `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
failCgroupV1: false
cgroupDriver: cgroupfs
cgroupRoot: %s
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
authentication: {anonymous: {enabled: false}, webhook: {enabled: true}, x509: {clientCAFile: %s}}
authorization: {mode: Webhook}
resolvConf: ""
failSwapOn: false
# The node's files are memory, and what the machine lacks is not these tests' business.
evictionHard: {memory.available: 50Mi, nodefs.available: "1%%", nodefs.inodesFree: "1%%", imagefs.available: "1%%"}
imageGCHighThresholdPercent: 100
# The node has /proc/sys as the kubelet wants it.
protectKernelDefaults: true
volumePluginDir: /var/lib/kubelet/volumeplugins
`

// startProxy starts kube-proxy, by which programs of the node reach the API server as
// programs in a cluster do.
func (n *Node) startProxy(t testing.TB) {
	t.Helper()
	const folder = "/etc/kubernetes/"
	n.Write(t, folder+"proxy.kubeconfig", n.cluster.UserKubeconfig(t, "system:kube-proxy"))
	n.Write(t, folder+"proxy.yaml", []byte(fmt.Sprintf(proxyConfig, n.Name, folder+"proxy.kubeconfig")))
	n.Proxy = n.Start(t, "kube-proxy", exec.Command(filepath.Join(n.bin, "kube-proxy"), "--config="+folder+"proxy.yaml"))
}

const proxyConfig = `apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: nftables
hostnameOverride: %s
clientConnection: {kubeconfig: %s}
# These are the whole machine's.
conntrack: {maxPerCore: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}
`
