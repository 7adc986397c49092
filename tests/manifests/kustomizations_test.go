package manifests

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine/network"
	"github.com/dhcp-meta/dhcp-meta/tests/rig"
	"github.com/dhcp-meta/dhcp-meta/tests/rig/kubelet"
)

// The kustomizations of the documents can be built, beside a clone of the repository
// and Multus's own manifest, and a real API server takes what comes of them.
func TestDocumentedKustomizations(t *testing.T) {
	c := server(t)
	built := 0
	for _, f := range documented(t, "yaml") {
		if !strings.Contains(f.text, "kind: Kustomization") {
			continue
		}
		out := f.build(t)
		if strings.Contains(f.text, "newName") && !strings.Contains(out, "image: registry.example.com/net/dhcp-meta:v0.1.0") {
			t.Errorf("%s: the image is not that of the kustomization:\n%s", f.page, f.text)
		}
		dryRun(t, c, out)
		built++
	}
	if built < 4 {
		t.Errorf("%d kustomizations only", built)
	}
}

// build builds a kustomization, beside all that one of the documents may name.
func (f fence) build(t *testing.T) string {
	t.Helper()
	root, err := rig.ModuleRoot()
	if err != nil {
		t.Fatal(err)
	}
	site := t.TempDir()
	if err := os.Symlink(root, filepath.Join(site, "dhcp-meta")); err != nil {
		t.Fatal(err)
	}
	folder := site
	if strings.Contains(f.text, "- ../dhcp-meta") {
		folder = filepath.Join(site, "uninstall")
	}
	if err := os.MkdirAll(folder, 0o700); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"kustomization.yaml": f.text, "multus-daemonset-thick.yml": kubelet.MultusManifest(t), "networks.json": nodeSettings(t),
	} {
		if err := os.WriteFile(filepath.Join(folder, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return mustRun(t, "kustomize", "build", folder)
}

// nodeSettings is the file of --dhcp-networks in docs/dropin.md.
func nodeSettings(t *testing.T) string {
	t.Helper()
	for _, f := range documented(t, "json") {
		if f.page == "docs/dropin.md" && strings.Contains(f.text, `"*"`) {
			return f.text
		}
	}
	t.Fatal("docs/dropin.md has no settings of networks")
	return ""
}

// The kustomization with settings of networks has them at the place where the engine is
// told that they are, as the chart has.
func TestDocumentedSettingsOfTheNode(t *testing.T) {
	const daemonSet, variable = "DaemonSet dhcp-meta/dhcp-engine", "DHCP_ENGINE_DHCP_NETWORKS"
	var networks map[string]json.RawMessage
	if err := json.Unmarshal([]byte(nodeSettings(t)), &networks); err != nil {
		t.Fatal(err)
	}
	for name, settings := range networks {
		if _, err := network.Parse(settings); err != nil {
			t.Errorf("network %s: %v", name, err)
		}
	}
	built := 0
	for _, f := range documented(t, "yaml") {
		if !strings.Contains(f.text, variable) {
			continue
		}
		built++
		all := byKey(t, f.build(t))
		ds := decode[appsv1.DaemonSet](t, all[daemonSet])
		volumes := ds.Spec.Template.Spec.Volumes
		i := slices.IndexFunc(volumes, func(v corev1.Volume) bool { return v.ConfigMap != nil })
		if i < 0 {
			t.Fatalf("no ConfigMap is mounted: %+v", volumes)
		}
		source := volumes[i].ConfigMap
		config := decode[corev1.ConfigMap](t, all["ConfigMap dhcp-meta/"+source.Name])
		if config.Data["networks.json"] != nodeSettings(t) {
			t.Errorf("ConfigMap %s has %v", source.Name, config.Data)
		}
		source.Name = "dhcp-engine-networks" // without the name of its content
		want := decode[appsv1.DaemonSet](t, byKey(t, way{values: []string{"mode=drop-in", "dhcpNetworks.a.clientID=mac"}}.chart(t))[daemonSet])
		wantEngine, engine := want.Spec.Template.Spec.Containers[0], ds.Spec.Template.Spec.Containers[0]
		if diff := cmp.Diff(wantEngine.Env, engine.Env); diff != "" {
			t.Errorf("environment (-chart +documented):\n%s", diff)
		}
		if diff := cmp.Diff(wantEngine.VolumeMounts, engine.VolumeMounts); diff != "" {
			t.Errorf("mounts (-chart +documented):\n%s", diff)
		}
		if diff := cmp.Diff(want.Spec.Template.Spec.Volumes, volumes); diff != "" {
			t.Errorf("volumes (-chart +documented):\n%s", diff)
		}
	}
	if built != 1 {
		t.Errorf("%d kustomizations set %s", built, variable)
	}
}
