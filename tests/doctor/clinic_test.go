// Package doctor breaks a node of a real cluster in many ways, one after another, and
// has dhcp-engine doctor name each of them.
package doctor

import (
	"bytes"
	"encoding/json"
	"errors"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/dhcp-meta/dhcp-meta/internal/doctor"
	"github.com/dhcp-meta/dhcp-meta/tests/rig"
	"github.com/dhcp-meta/dhcp-meta/tests/rig/kube"
	"github.com/dhcp-meta/dhcp-meta/tests/rig/node"
	"github.com/dhcp-meta/dhcp-meta/tests/rig/ovn"
)

func TestMain(m *testing.M) { kube.Main(m) }

type object = rig.Object

const (
	ovnPlugin = "ovn-k8s-cni-overlay"
	metrics   = "127.0.0.1:9767"
	state     = node.StateDir
)

// clinic is a healthy node of a cluster of its own: Multus that searches the wrappers
// first, an engine that leads a lease, a DHCP server, OVN's north database.
type clinic struct {
	*rig.LAN
	kube *kube.Cluster
	ns   string
	node *node.Node
	// runtime calls Multus as the node's does.
	runtime *kube.Runtime
	engine  *rig.Engine
	server  *rig.Dnsmasq
	north   *ovn.Database
	// multus is the pod as it is when it is well.
	multus *corev1.Pod
	// env are the engine's settings, which doctor has too.
	env map[string]string
}

func newClinic(t *testing.T) *clinic {
	t.Helper()
	lan := rig.NewLAN(t)
	c := &clinic{LAN: lan, kube: kube.Start(t), node: node.New(t, lan.Node)}
	c.ns = c.kube.Namespace(t)
	c.node.InstallPlugins(t)
	// In the place of OVN-Kubernetes's plugin, of which only its file counts here.
	c.node.Install(t, "/bin/true", node.Plugins+"/"+ovnPlugin)
	c.node.Interpose(t, ovnPlugin)
	c.onDisk(t)
	lan.Node.Do(func() error { // new namespaces inherit nothing of the node's otherwise
		return os.WriteFile("/proc/sys/net/ipv4/conf/all/promote_secondaries", []byte("1"), 0)
	})
	c.kube.Join(t, c.node)
	c.runtime = c.kube.StartMultus(t, c.node, kube.Multus{Interposed: true})
	c.multusObjects(t)
	c.north = ovn.StartDatabase(t, lan.Node, schema(t))
	c.server = rig.RunDnsmasq(t, lan.Server, rig.Pool(0, 0))
	c.env = map[string]string{
		"DHCP_ENGINE_KUBECONFIG": kube.EngineKubeconfig, "DHCP_ENGINE_NODE_NAME": c.node.Name,
		"DHCP_ENGINE_METRICS_ADDRESS": metrics, "DHCP_ENGINE_OVN_NB": c.north.Address,
	}
	c.engine = c.kube.Engine(t, c.node, "--metrics-address="+metrics, "--ovn-nb="+c.north.Address)
	c.engine.Start(t)
	c.network(t, "office", wire("macvlan", rig.Uplink), nil)
	c.network(t, "localnet", localnet(c.ns+"/localnet", nil), marked)
	c.network(t, "plain", object{"cniVersion": "1.0.0", "name": "plain", "type": "bridge"}, nil)
	pod := c.kube.Pod(t, c.ns, kube.PodSpec{Node: c.node.Name, Networks: "office"})
	c.runtime.Sandbox(t, pod).Add(t)
	c.runs(t, pod)
	return c
}

// marked is the annotation by which a network is for DHCP.
var marked = map[string]string{"dhcp-meta.io/ipam": "dhcp"}

// wire is a network of type dhcp-meta around a plugin.
func wire(plugin, master string) object {
	return object{"cniVersion": "1.0.0", "name": "office", "type": "dhcp-meta",
		"delegate": object{"type": plugin, "master": master, "mode": "bridge"}}
}

func localnet(nad string, more object) object {
	o := object{"cniVersion": "1.0.0", "name": "localnet", "type": ovnPlugin, "topology": "localnet", "netAttachDefName": nad}
	maps.Copy(o, more)
	return o
}

func schema(t *testing.T) []byte {
	t.Helper()
	b, err := os.ReadFile(ovn.Schema)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// onDisk puts the state folder where a node has it; the rig's /var/lib is memory.
func (c *clinic) onDisk(t *testing.T) {
	t.Helper()
	folder, err := os.MkdirTemp("/var/tmp", "dhcp-meta-doctor")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(folder) })
	c.node.Run(t, "mkdir", "-p", state)
	c.node.Run(t, "mount", "--bind", folder, state)
}

func (c *clinic) network(t *testing.T, name string, config any, annotations map[string]string) (remove func()) {
	t.Helper()
	c.kube.NAD(t, c.ns, name, config, annotations)
	return func() {
		_ = c.kube.NADs.K8sCniCncfIoV1().NetworkAttachmentDefinitions(c.ns).Delete(t.Context(), name, metav1.DeleteOptions{})
	}
}

// runs has the API show a pod as running; there is no kubelet.
func (c *clinic) runs(t *testing.T, pod *corev1.Pod) {
	t.Helper()
	pod = c.kube.GetPod(t, pod.Namespace, pod.Name)
	pod.Status.Phase = corev1.PodRunning
	if _, err := c.kube.Client.CoreV1().Pods(pod.Namespace).UpdateStatus(t.Context(), pod, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// multusObjects makes what the thick DaemonSet of Multus has in the API: its
// configuration, and its pod on the node; the daemon itself runs beside.
func (c *clinic) multusObjects(t *testing.T) {
	t.Helper()
	c.kube.Apply(t, `
apiVersion: v1
kind: ConfigMap
metadata: {name: multus-daemon-config, namespace: kube-system}
data: {daemon-config.json: '`+daemonConfig(nil)+`'}`)
	host := func(name, path string) corev1.Volume {
		return corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: path}}}
	}
	no := false
	c.multus = &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "kube-multus-ds-x", Namespace: "kube-system"},
		Spec: corev1.PodSpec{
			NodeName: c.node.Name, HostNetwork: true, ServiceAccountName: "multus", AutomountServiceAccountToken: &no,
			Containers: []corev1.Container{{
				Name: "kube-multus", Image: "registry.example.com/net/multus-cni:v4.2.3-thick",
				Command: []string{"/usr/src/multus-cni/bin/multus-daemon"},
				Env:     []corev1.EnvVar{{Name: "CNI_PATH", Value: node.Plugins}},
				VolumeMounts: []corev1.VolumeMount{
					{Name: "cnibin", MountPath: node.Plugins}, {Name: "hostroot", MountPath: "/hostroot"},
					{Name: "config", MountPath: "/etc/cni/net.d/multus.d"},
				},
			}},
			Volumes: []corev1.Volume{host("cnibin", node.Plugins), host("hostroot", "/"),
				{Name: "config", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{
					LocalObjectReference: corev1.LocalObjectReference{Name: "multus-daemon-config"}}}}},
		},
	}
	c.multusPod(t, func(*corev1.Pod) {})
}

// daemonConfig is the configuration of the daemon, with some keys changed.
func daemonConfig(change object) string {
	config := object{
		"binDir": node.Wrappers, "chrootDir": "/hostroot", "cniVersion": "0.3.1", "logLevel": "verbose",
		"cniConfigDir": "/host/etc/cni/net.d", "multusAutoconfigDir": "/host/etc/cni/net.d", "multusConfigFile": "auto", "socketDir": "/host/run/multus/",
	}
	maps.Copy(config, change)
	b, err := json.Marshal(config)
	if err != nil {
		panic(err)
	}
	return string(b)
}

// multusConfig puts another text in the place of the configuration.
func (c *clinic) multusConfig(t *testing.T, text string) {
	t.Helper()
	configs := c.kube.Client.CoreV1().ConfigMaps("kube-system")
	m, err := configs.Get(t.Context(), "multus-daemon-config", metav1.GetOptions{})
	if err == nil {
		m.Data["daemon-config.json"] = text
		_, err = configs.Update(t.Context(), m, metav1.UpdateOptions{})
	}
	if err != nil {
		t.Fatal(err)
	}
}

// multusPod makes the pod of Multus anew, changed: most of a pod stays as it was made.
func (c *clinic) multusPod(t *testing.T, change func(*corev1.Pod)) {
	t.Helper()
	c.kube.DeletePod(t, c.multus)
	pod := c.multus.DeepCopy()
	change(pod)
	made, err := c.kube.Client.CoreV1().Pods(pod.Namespace).Create(t.Context(), pod, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	c.runs(t, made)
}

// visit is how doctor is called: with more arguments and settings, and by another
// program, than on a healthy node.
type visit struct {
	by, args []string
	env      map[string]string
}

// doctor runs it on the node and returns what it has found.
func (c *clinic) doctor(t *testing.T, v visit) doctor.Report {
	t.Helper()
	cmd := exec.Command(rig.Program("dhcp-engine"))
	cmd.Args = slices.Concat(v.by, []string{rig.Program("dhcp-engine"), "doctor", "-o", "json"}, v.args)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH")}
	env := maps.Clone(c.env)
	maps.Copy(env, v.env)
	for name, value := range env {
		cmd.Env = append(cmd.Env, name+"="+value)
	}
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := c.node.Enter(cmd).Run()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	var report doctor.Report
	if err := json.Unmarshal(stdout.Bytes(), &report); err != nil {
		t.Fatalf("doctor: %v\n%s%s", err, &stdout, &stderr)
	}
	if bad := report.Count(doctor.Error) > 0; bad != (err != nil) {
		t.Errorf("errors: %d, and the exit says %v: %s", report.Count(doctor.Error), err, &stderr)
	}
	return report
}

// expect calls doctor until it finds these, in any order, above a note, and the note
// unless that is empty. The API server takes its time to act on what was changed.
func (c *clinic) expect(t *testing.T, v visit, note doctor.ID, want ...doctor.ID) doctor.Report {
	t.Helper()
	slices.Sort(want)
	deadline := time.After(rig.Patience)
	again := time.NewTicker(200 * time.Millisecond)
	defer again.Stop()
	for {
		report := c.doctor(t, v)
		var have []doctor.ID
		noted := note == ""
		for _, f := range report.Findings {
			if f.Level == doctor.Warning || f.Level == doctor.Error {
				have = append(have, f.ID)
			}
			noted = noted || f.ID == note && f.Level == doctor.Note
			if f.Level != doctor.OK && (f.What == "" || f.How == "" || f.Do == "") {
				t.Errorf("%s is not explained: %+v", f.ID, f)
			}
			// Its DaemonSet has an image that no registry has, and none of an overlay's settings.
			if strings.Contains(strings.ReplaceAll(f.Do, "manifests/base/crd-", ""), "manifests/base") {
				t.Errorf("%s has the engine replaced: %+v", f.ID, f)
			}
		}
		slices.Sort(have)
		if noted && slices.Equal(have, want) {
			return report
		}
		select {
		case <-again.C:
		case <-deadline:
			var text strings.Builder
			_ = report.Write(&text)
			t.Fatalf("doctor finds %v, want %v and note %q:\n%s", have, want, note, text.String())
		}
	}
}
