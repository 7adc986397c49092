package doctor

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/dhcp-meta/dhcp-meta/internal/doctor"
	"github.com/dhcp-meta/dhcp-meta/tests/rig"
	"github.com/dhcp-meta/dhcp-meta/tests/rig/kube"
)

var create = metav1.CreateOptions{}

// made makes a network, and removes it.
func made(name string, config func(c *clinic) any, annotations map[string]string) func(*testing.T, *clinic) func() {
	return func(t *testing.T, c *clinic) func() { return c.network(t, name, config(c), annotations) }
}

func with(o object, key string, value any) object {
	o[key] = value
	return o
}

func networkMistakes() []mistake {
	office := func(dhcp object) func(*clinic) any {
		return func(*clinic) any { return with(wire("macvlan", rig.Uplink), "dhcp", dhcp) }
	}
	return []mistake{
		{name: "a key that nobody knows", want: []doctor.ID{doctor.NetworkWrong}, harm: made("wrong", office(object{"timout": "30s"}), nil)},
		{name: "dhcp is a word", want: []doctor.ID{doctor.NetworkWrong}, harm: made("word", func(*clinic) any {
			return with(wire("macvlan", rig.Uplink), "dhcp", "always")
		}, nil)},
		{name: "dhcp is a word before OVN-Kubernetes", want: []doctor.ID{doctor.NetworkWrong}, harm: made("misread", func(c *clinic) any {
			return localnet(c.ns+"/misread", object{"dhcp": "always"})
		}, nil)},
		{name: "nothing to wrap", want: []doctor.ID{doctor.NetworkWrong}, harm: made("alone", func(*clinic) any {
			return object{"cniVersion": "1.0.0", "name": "alone", "type": "dhcp-meta", "dhcp": object{}}
		}, nil)},
		{name: "an old version of CNI", want: []doctor.ID{doctor.NetworkWrong}, harm: made("old", func(*clinic) any {
			return with(wire("macvlan", rig.Uplink), "cniVersion", "0.2.0")
		}, nil)},
		{name: "JSON cut short", want: []doctor.ID{doctor.NetworkWrong}, harm: made("cut", func(*clinic) any {
			return `{"cniVersion": "1.0.0", "type": "dhcp-meta", "delegate": {`
		}, nil)},
		{name: "netAttachDefName without a namespace", want: []doctor.ID{doctor.NetworkWrong}, harm: made("short", func(*clinic) any {
			return with(wire("macvlan", rig.Uplink), "netAttachDefName", "short")
		}, nil)},
		{name: "netAttachDefName of nobody", want: []doctor.ID{doctor.NetworkWrong}, harm: made("nobody", func(c *clinic) any {
			return with(wire("macvlan", rig.Uplink), "netAttachDefName", c.ns+"/nowhere")
		}, nil)},
		{name: "netAttachDefName of another network", want: []doctor.ID{doctor.NetworkWrong}, harm: made("other", func(c *clinic) any {
			return with(wire("macvlan", rig.Uplink), "netAttachDefName", c.ns+"/office")
		}, nil)},
		{name: "marked, and its plugin not told", want: []doctor.ID{doctor.NetworkWrong, doctor.MultusSearchPath},
			do: []string{`write "type": "dhcp-meta", with bridge in "delegate" (docs/configuration.md); or set "netAttachDefName"`, `"delegate" (docs/configuration.md); or to stand before it`}, harm: made("untold", func(*clinic) any {
				return object{"cniVersion": "1.0.0", "name": "untold", "type": "bridge"}
			}, marked)},
		{name: "another network's name in netAttachDefName", want: []doctor.ID{doctor.NetworkWrong}, harm: made("misnamed",
			func(c *clinic) any { return localnet(c.ns+"/elsewhere", nil) }, marked)},
		{name: "ipam on a network of OVN-Kubernetes", want: []doctor.ID{doctor.NetworkIPAM}, harm: made("pool",
			func(c *clinic) any { return localnet(c.ns+"/pool", object{"ipam": object{"type": "host-local"}}) }, marked)},
		{name: "another address besides", want: []doctor.ID{doctor.NetworkIPAM}, harm: made("twice", func(*clinic) any {
			o := wire("macvlan", rig.Uplink)
			o["delegate"].(object)["ipam"] = object{"type": "host-local"}
			return o
		}, nil)},
		{name: "no time", want: []doctor.ID{doctor.NetworkTimeout}, harm: made("hasty", office(object{"timeout": "5s", "conflictDetection": "full"}), nil)},
		{name: "another engine's socket", want: []doctor.ID{doctor.NetworkElsewhere}, harm: made("elsewhere", office(object{"socket": "/run/elsewhere.sock"}), nil)},
		{name: "no such master", want: []doctor.ID{doctor.MasterMissing}, harm: made("nic", func(*clinic) any { return wire("macvlan", "eth17") }, nil)},
		{name: "master down", want: []doctor.ID{doctor.MasterDown}, harm: func(t *testing.T, c *clinic) func() {
			c.node.Net.IP(t, "link", "add", "idle", "type", "bridge")
			mend := c.network(t, "down", wire("macvlan", "idle"), nil)
			return func() { mend(); c.node.Net.IP(t, "link", "del", "idle") }
		}},
	}
}

// kubeconfig has doctor use another one.
func kubeconfig(text func(*testing.T, *clinic) []byte) func(*testing.T, *clinic) func() {
	return func(t *testing.T, c *clinic) func() {
		c.node.Write(t, "/etc/dhcp-meta/other", text(t, c))
		return func() { c.node.Run(t, "rm", "/etc/dhcp-meta/other") }
	}
}

// deleted takes something of manifests/ out of the cluster.
func deleted(kind, name string) func(*testing.T, *clinic) func() {
	return func(t *testing.T, c *clinic) func() {
		c.kube.Kubectl(t, "", "delete", kind, name)
		return func() {
			root, err := rig.ModuleRoot()
			if err != nil {
				t.Fatal(err)
			}
			c.kube.Kubectl(t, "", "apply", "--server-side", "-k", filepath.Join(root, "manifests/base"))
		}
	}
}

func clusterMistakes() []mistake {
	other := env("DHCP_ENGINE_KUBECONFIG", "/etc/dhcp-meta/other")
	return []mistake{
		{name: "policy of lease objects not applied", want: []doctor.ID{doctor.PolicyMissing}, do: []string{"dhcp-engine-leases"},
			harm: deleted("validatingadmissionpolicybinding", "dhcp-engine-leases")},
		{name: "no kubeconfig", want: []doctor.ID{doctor.APISettings}, visit: env("DHCP_ENGINE_KUBECONFIG", "/etc/dhcp-meta/nowhere")},
		{name: "another node's name", want: []doctor.ID{doctor.NodeName, doctor.MultusMissing}, visit: env("DHCP_ENGINE_NODE_NAME", "node-of-nobody")},
		{name: "a token that is over", want: []doctor.ID{doctor.APIUnauthorized}, visit: other, harm: kubeconfig(func(t *testing.T, c *clinic) []byte {
			return c.kube.Kubeconfig(t, c.kube.Token(t, kube.EngineNamespace, kube.EngineAccount, nil, -2*time.Minute))
		})},
		{name: "no rights", want: []doctor.ID{doctor.RightMissing}, note: doctor.OtherAccount, visit: other, harm: kubeconfig(func(t *testing.T, c *clinic) []byte {
			return c.kube.Kubeconfig(t, c.kube.Token(t, c.ns, "default", nil, time.Hour))
		})},
		{name: "a token of another node", want: []doctor.ID{doctor.AnnotationRefused}, visit: other, harm: kubeconfig(func(t *testing.T, c *clinic) []byte {
			pod := c.kube.Pod(t, kube.EngineNamespace, kube.PodSpec{Node: "another-node", Account: kube.EngineAccount})
			return c.kube.Kubeconfig(t, c.kube.Token(t, kube.EngineNamespace, kube.EngineAccount, pod, time.Hour))
		})},
		{name: "the cluster admin", note: doctor.OtherAccount, visit: other, harm: kubeconfig(func(t *testing.T, c *clinic) []byte {
			return c.kube.AdminKubeconfig(t)
		})},
		{name: "an address that nobody has", want: []doctor.ID{doctor.APIUnreachable}, visit: other, harm: kubeconfig(func(t *testing.T, c *clinic) []byte {
			return []byte(strings.ReplaceAll(string(c.kube.AdminKubeconfig(t)), ":6443", ":6444"))
		})},
		{name: "policy not applied", want: []doctor.ID{doctor.PolicyMissing}, do: []string{"dhcp-engine-pods"}, harm: deleted("validatingadmissionpolicybinding", "dhcp-engine-pods")},
		{name: "policy of lease objects not applied, and none wanted", says: doctor.AreaKubernetes, visit: env("DHCP_ENGINE_LEASE_OBJECTS", "false"),
			harm: deleted("validatingadmissionpolicybinding", "dhcp-engine-leases")},
		{name: "no lease objects", note: doctor.LeaseKindMissing, do: []string{"manifests/base/crd-dhcpleases.yaml", "--lease-objects=false"},
			harm: deleted("crd", "dhcpleases.dhcp-meta.io")},
	}
}
