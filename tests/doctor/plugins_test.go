package doctor

import (
	"debug/elf"
	"os"
	"path/filepath"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/dhcp-meta/dhcp-meta/internal/doctor"
	"github.com/dhcp-meta/dhcp-meta/tests/rig"
	"github.com/dhcp-meta/dhcp-meta/tests/rig/kube"
	"github.com/dhcp-meta/dhcp-meta/tests/rig/node"
)

const (
	plugin   = node.Plugins + "/dhcp-meta"
	original = node.Plugins + "/" + ovnPlugin
	wrapper  = node.Wrappers + "/" + ovnPlugin
)

// instead has another file at the place of a plugin; nil: none.
func instead(path string, content func(*testing.T) []byte) func(*testing.T, *clinic) func() {
	return func(t *testing.T, c *clinic) func() {
		if content == nil {
			return replaced(t, c, path, nil, 0)
		}
		return replaced(t, c, path, content(t), 0o755)
	}
}

func ours(t *testing.T) []byte {
	t.Helper()
	b, err := os.ReadFile(rig.Program("dhcp-meta"))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// otherBuild is dhcp-meta as another release built it.
func otherBuild(t *testing.T) []byte {
	t.Helper()
	root, err := rig.ModuleRoot()
	if err != nil {
		t.Fatal(err)
	}
	cmd := program("go", "build", "-o", filepath.Join(t.TempDir(), "dhcp-meta"), "-trimpath",
		"-ldflags=-X github.com/dhcp-meta/dhcp-meta/internal/build.version=v0.0.1", "./cmd/dhcp-meta")
	cmd.Dir, cmd.Env = root, append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	b, err := os.ReadFile(cmd.Args[3])
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// otherMachine is dhcp-meta with the header of another architecture.
func otherMachine(t *testing.T) []byte {
	t.Helper()
	const machine = 18 // e_machine, after 16 bytes of e_ident and e_type
	b := ours(t)
	b[machine], b[machine+1] = byte(elf.EM_S390), 0
	return b
}

func pluginMistakes() []mistake {
	return []mistake{
		{name: "plugin not installed", want: []doctor.ID{doctor.PluginMissing}, do: []string{"delete the engine's pod"}, harm: instead(plugin, nil)},
		{name: "plugin not executable", want: []doctor.ID{doctor.PluginNoProgram}, harm: chmod(plugin, 0o644, 0o755)},
		{name: "plugin of another release", want: []doctor.ID{doctor.PluginVersion}, harm: instead(plugin, otherBuild)},
		{name: "plugin of another machine", want: []doctor.ID{doctor.PluginArchitecture}, harm: instead(wrapper, otherMachine)},
		{name: "original plugin gone", want: []doctor.ID{doctor.BehindMissing}, do: []string{"restart its pod"}, harm: instead(original, nil)},
		{name: "original plugin overwritten by ours", want: []doctor.ID{doctor.BehindOurs}, harm: instead(original, ours)},
		{name: "no wrapper", want: []doctor.ID{doctor.MultusSearchPath}, do: []string{"--wrap " + ovnPlugin}, harm: instead(wrapper, nil)},
		{name: "wrappers taken away before Multus was told", want: []doctor.ID{doctor.SearchPathGone, doctor.MultusSearchPath},
			do: []string{"name " + node.Plugins + " in its place"}, harm: instead(node.Wrappers, nil)},
		{name: "swapped, and all is well", harm: func(t *testing.T, c *clinic) func() {
			mend := swap(t, c)
			undo := instead(original, ours)(t, c)
			return func() { undo(); mend() }
		}},
		{name: "swapped, and put back by the network plugin", want: []doctor.ID{doctor.SwapUndone}, harm: swap},
		{name: "to be swapped, and not there", want: []doctor.ID{doctor.BehindMissing}, do: []string{"is the network plugin installed"}, harm: installer("--wrap=kube-ovn")},
		{name: "to be swapped, and left in its place", want: []doctor.ID{doctor.SwapUndone}, do: []string{"delete the engine's pod"}, harm: func(t *testing.T, c *clinic) func() {
			mend := installer("--wrap", "kube-ovn")(t, c)
			c.node.Install(t, "/bin/true", node.Plugins+"/kube-ovn")
			return func() { c.node.Run(t, "rm", node.Plugins+"/kube-ovn"); mend() }
		}},
		{name: "a network whose plugin is not there", want: []doctor.ID{doctor.DelegateMissing}, harm: func(t *testing.T, c *clinic) func() {
			return c.network(t, "sriov", wire("sriov", ""), nil)
		}},
		{name: "a network whose plugin is misspelt", want: []doctor.ID{doctor.DelegateMissing}, do: []string{"misspelt: the node has ", " macvlan, "},
			harm: made("macvlna", func(*clinic) any { return wire("macvlna", rig.Uplink) }, nil)},
		{name: "a name before which nobody can stand", want: []doctor.ID{doctor.BehindMissing}, do: []string{"misspelt: the node has ", ovnPlugin},
			harm: made("overlya", func(c *clinic) any {
				return object{"cniVersion": "1.0.0", "name": "overlya", "type": "ovn-k8s-cni-overlya", "dhcp": object{}}
			}, nil)},
		{name: "plugins not mounted", note: doctor.BinDirUnseen, visit: args("--bin-dir=/opt/nowhere")},
	}
}

// swap has Multus search the node's folder alone, and the original plugin set aside.
func swap(t *testing.T, c *clinic) func() {
	c.multusConfig(t, daemonConfig(object{"binDir": node.Plugins}))
	c.node.Install(t, "/bin/true", node.Plugins+"/dhcp-meta-wrapped/"+ovnPlugin)
	return func() {
		c.node.Run(t, "rm", "-r", node.Plugins+"/dhcp-meta-wrapped")
		c.multusConfig(t, daemonConfig(nil))
	}
}

// installer has the pod of an installer on the node, which is told to swap.
func installer(args ...string) func(*testing.T, *clinic) func() {
	return func(t *testing.T, c *clinic) func() {
		no := false
		pod := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: "dhcp-engine-installer", Namespace: kube.EngineNamespace},
			Spec: corev1.PodSpec{
				NodeName: c.node.Name, HostNetwork: true, AutomountServiceAccountToken: &no,
				InitContainers: []corev1.Container{{Name: "install", Image: "dhcp-meta", Args: append([]string{"install", "--bin-dir=" + node.Plugins, "--mode=swap"}, args...)}},
				Containers:     []corev1.Container{{Name: "engine", Image: "dhcp-meta"}},
			},
		}
		if _, err := c.kube.Client.CoreV1().Pods(pod.Namespace).Create(t.Context(), pod, create); err != nil {
			t.Fatal(err)
		}
		return func() { c.kube.DeletePod(t, pod) }
	}
}

// config has another configuration of Multus.
func config(text string) func(*testing.T, *clinic) func() {
	return func(t *testing.T, c *clinic) func() {
		c.multusConfig(t, text)
		return func() { c.multusConfig(t, daemonConfig(nil)) }
	}
}

// container has another container in Multus's pod.
func container(change func(*corev1.Container)) func(*testing.T, *clinic) func() {
	return func(t *testing.T, c *clinic) func() {
		c.multusPod(t, func(p *corev1.Pod) { change(&p.Spec.Containers[0]) })
		return func() { c.multusPod(t, func(*corev1.Pod) {}) }
	}
}

func multusMistakes() []mistake {
	return []mistake{
		{name: "no Multus", want: []doctor.ID{doctor.MultusMissing}, harm: func(t *testing.T, c *clinic) func() {
			c.kube.DeletePod(t, c.multus)
			return func() { c.multusPod(t, func(*corev1.Pod) {}) }
		}},
		{name: "Multus not running", want: []doctor.ID{doctor.MultusNotRunning}, harm: func(t *testing.T, c *clinic) func() {
			c.kube.DeletePod(t, c.multus)
			if _, err := c.kube.Client.CoreV1().Pods("kube-system").Create(t.Context(), c.multus.DeepCopy(), create); err != nil {
				t.Fatal(err)
			}
			return func() { c.multusPod(t, func(*corev1.Pod) {}) }
		}},
		{name: "a thin Multus", note: doctor.MultusThin, harm: container(func(c *corev1.Container) {
			c.Image, c.Command = "registry.example.com/net/multus-cni:v4.2.3", []string{"/thin_entrypoint"}
		})},
		{name: "configuration spoilt", want: []doctor.ID{doctor.MultusConfigWrong}, harm: config(`{"binDir": `)},
		{name: "wrappers not searched", want: []doctor.ID{doctor.MultusSearchPath}, harm: config(daemonConfig(object{"binDir": node.Plugins}))},
		{name: "binDir is a list", want: []doctor.ID{doctor.MultusBinDirList}, note: doctor.SearchPathUnseen,
			harm: config(daemonConfig(object{"binDir": node.Wrappers + ":" + node.Plugins}))},
		{name: "binDir that is not mounted", want: []doctor.ID{doctor.MultusMount}, note: doctor.SearchPathUnseen, harm: config(daemonConfig(object{"binDir": "/usr/libexec/cni"}))},
		{name: "CNI 1.1", want: []doctor.ID{doctor.MultusCNIVersion}, harm: config(daemonConfig(object{"cniVersion": "1.1.0"}))},
		{name: "default network is a list", want: []doctor.ID{doctor.MultusConflist},
			harm: config(daemonConfig(object{"clusterNetwork": "/host/etc/cni/net.d/10-flannel.conflist"}))},
		{name: "no CNI_PATH", want: []doctor.ID{doctor.MultusCNIPath, doctor.BehindMissing, doctor.PluginMissing, doctor.DelegateMissing},
			do:   []string{"it is in " + node.Plugins + ": set CNI_PATH=", "; then see that the network plugin installs"},
			harm: container(func(c *corev1.Container) { c.Env = nil })},
		{name: "plugins not mounted into Multus", want: []doctor.ID{doctor.MultusMount, doctor.MultusMount},
			harm: container(func(c *corev1.Container) { c.VolumeMounts = c.VolumeMounts[1:] })},
		{name: "plugins told of another state folder", want: []doctor.ID{doctor.MultusPlaces}, harm: container(func(c *corev1.Container) {
			c.Env = append(c.Env, corev1.EnvVar{Name: "DHCP_ENGINE_STATE_DIR", Value: "/var/lib/other"})
		})},
		{name: "configuration not readable", note: doctor.MultusUnread, harm: func(t *testing.T, c *clinic) func() {
			roles := c.kube.Client.RbacV1().ClusterRoles()
			role, err := roles.Get(t.Context(), kube.EngineAccount, metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			set := func(rules []rbacv1.PolicyRule) {
				role.Rules = rules
				if role, err = roles.Update(t.Context(), role, metav1.UpdateOptions{}); err != nil {
					t.Fatal(err)
				}
			}
			all := role.Rules
			set(slices.DeleteFunc(slices.Clone(all), func(r rbacv1.PolicyRule) bool { return slices.Contains(r.Resources, "configmaps") }))
			return func() { set(all) }
		}},
	}
}
