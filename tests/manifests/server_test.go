package manifests

import (
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/dhcp-meta/dhcp-meta/tests/rig/kube"
	"github.com/dhcp-meta/dhcp-meta/tests/rig/kubelet"
)

// server is the package's API server, with everything that manifests may ask it for:
// our namespace and kinds, and OpenShift's.
func server(t *testing.T) *kube.Cluster {
	t.Helper()
	c := kube.Shared(t)
	c.InstallManifests(t)
	scc, err := os.ReadFile("testdata/scc-crd.yaml")
	if err != nil {
		t.Fatal(err)
	}
	c.Apply(t, string(scc))
	c.Kubectl(t, "", "wait", "--for=condition=Established", "--timeout=60s", "crd", "--all")
	return c
}

// namespaces makes the namespaces that objects are in.
func namespaces(t *testing.T, c *kube.Cluster, list []*object) {
	t.Helper()
	for _, o := range list {
		if o.GetNamespace() == "" {
			continue
		}
		ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: o.GetNamespace()}}
		_, err := c.Client.CoreV1().Namespaces().Create(t.Context(), ns, metav1.CreateOptions{})
		if err != nil && !apierrors.IsAlreadyExists(err) {
			t.Fatal(err)
		}
		c.ServiceAccount(t, o.GetNamespace(), "default")
	}
}

// dryRun has the API server check objects as when they are applied: fields, values and
// admission policies.
func dryRun(t *testing.T, c *kube.Cluster, objects string) {
	t.Helper()
	out, err := c.TryKubectl(objects, "apply", "--server-side", "--force-conflicts", "--dry-run=server", "--validate=strict", "-f", "-")
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	for line := range strings.Lines(out) {
		// Another test has applied the same object from the client's side.
		if strings.Contains(line, "Warning") && !strings.Contains(line, "last-applied-configuration") {
			t.Errorf("the API server warns: %s", line)
		}
	}
}

// A real API server takes all that is shipped.
func TestServerTakesAllWays(t *testing.T) {
	c := server(t)
	for _, w := range slices.Concat(ways, uninstallers) {
		t.Run(w.name, func(t *testing.T) {
			dryRun(t, c, w.kustomize(t))
			dryRun(t, c, w.chart(t))
		})
	}
}

// The dry run of these tests refuses what a server refuses.
func TestServerRefuses(t *testing.T) {
	c := server(t)
	text := ways[0].kustomize(t)
	for name, wrong := range map[string]*strings.Replacer{
		"unknown field":      strings.NewReplacer("dnsPolicy: Default", "dnsPolicies: Default"),
		"impossible value":   strings.NewReplacer("dnsPolicy: Default", "dnsPolicy: Sometimes"),
		"broken expression":  strings.NewReplacer("request.operation ==", "request.operation =="+"="),
		"privilege and none": strings.NewReplacer("- SYS_ADMIN", "- CAP_SYS_ADMIN"),
	} {
		bad := wrong.Replace(text)
		if bad == text {
			t.Errorf("%s: nothing was changed", name)
		}
		if out, err := c.TryKubectl(bad, "apply", "--server-side", "--force-conflicts", "--dry-run=server", "--validate=strict", "-f", "-"); err == nil {
			t.Errorf("%s is taken:\n%s", name, out)
		}
	}
}

// The component for Multus changes what must be changed in upstream's manifest, and
// nothing else.
func TestComponentForMultus(t *testing.T) {
	upstream := kubelet.MultusManifest(t)
	dir := t.TempDir()
	write := func(name, text string) {
		if err := os.WriteFile(dir+"/"+name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("multus.yaml", upstream)
	write("kustomization.yaml", "resources: [multus.yaml]\ncomponents: ["+relative(t, dir, "components/multus")+"]\n")
	patched := mustRun(t, "kustomize", "build", dir)
	dryRun(t, server(t), patched)

	before, after := byKey(t, upstream), byKey(t, patched)
	const configMap, daemonSet = "ConfigMap kube-system/multus-daemon-config", "DaemonSet kube-system/kube-multus-ds"
	wantConfig, config := daemonConfig(t, before[configMap]), daemonConfig(t, after[configMap])
	wantConfig["binDir"] = "/opt/cni/bin/dhcp-meta-wrappers"
	if diff := cmp.Diff(wantConfig, config); diff != "" {
		t.Errorf("configuration of the daemon (-want +got):\n%s", diff)
	}
	want, got := decode[appsv1.DaemonSet](t, before[daemonSet]), decode[appsv1.DaemonSet](t, after[daemonSet])
	pod := &want.Spec.Template.Spec
	pod.Containers[0].Env = append(pod.Containers[0].Env, corev1.EnvVar{Name: "CNI_PATH", Value: "/opt/cni/bin"})
	slices.SortFunc(pod.Containers[0].Env, func(a, b corev1.EnvVar) int { return strings.Compare(a.Name, b.Name) })
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("DaemonSet (-want +got):\n%s", diff)
	}
	delete(before, configMap)
	delete(before, daemonSet)
	delete(after, configMap)
	delete(after, daemonSet)
	if diff := cmp.Diff(before, after); diff != "" {
		t.Errorf("other objects (-want +got):\n%s", diff)
	}
	// Multus looks for plugins in its own file system, and starts them in the node's: the
	// folder must be the same in both.
	volume := ""
	for _, v := range pod.Volumes {
		if v.HostPath != nil && v.HostPath.Path == "/opt/cni/bin" {
			volume = v.Name
		}
	}
	if !slices.ContainsFunc(pod.Containers[0].VolumeMounts, func(m corev1.VolumeMount) bool {
		return m.Name == volume && m.MountPath == "/opt/cni/bin"
	}) {
		t.Error("the daemon does not see /opt/cni/bin at its own path")
	}
}

func daemonConfig(t *testing.T, configMap any) map[string]any {
	t.Helper()
	var config map[string]any
	if err := json.Unmarshal([]byte(decode[corev1.ConfigMap](t, configMap).Data["daemon-config.json"]), &config); err != nil {
		t.Fatal(err)
	}
	return config
}

// decode reads an object of YAML as what it is, strictly.
func decode[T any](t *testing.T, object any) *T {
	t.Helper()
	text, err := json.Marshal(object)
	if err != nil {
		t.Fatal(err)
	}
	into := new(T)
	d := json.NewDecoder(strings.NewReader(string(text)))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		t.Fatal(err)
	}
	return into
}
