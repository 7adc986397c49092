package manifests

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/dhcp-meta/dhcp-meta/tests/rig"
	"github.com/dhcp-meta/dhcp-meta/tests/rig/kube"
)

func TestMain(m *testing.M) { kube.Main(m) }

// way is one way of installing: a folder of kustomize, with components, and the values
// that make of the chart the same.
type way struct {
	name       string
	folder     string
	components []string
	values     []string
}

var ways = []way{
	{name: "plain", folder: "overlays/plain", values: []string{"mode=plain"}},
	{name: "ovn-kubernetes", folder: "overlays/ovn-kubernetes"},
	{name: "drop-in", folder: "overlays/drop-in", values: []string{"mode=drop-in"}},
	{name: "openshift", folder: "overlays/openshift", values: openshift},
	{name: "swap", folder: "overlays/ovn-kubernetes", components: []string{"swap"}, values: []string{"mode=swap"}},
	{name: "vfio", folder: "overlays/ovn-kubernetes", components: []string{"vfio"}, values: []string{"vfio.enabled=true"}},
	{name: "plain with vfio", folder: "overlays/plain", components: []string{"vfio"}, values: []string{"mode=plain", "vfio.enabled=true"}},
	{name: "openshift with vfio", folder: "overlays/openshift", components: []string{"vfio"}, values: append([]string{"vfio.enabled=true"}, openshift...)},
}

// uninstallers stand for the DaemonSet that takes everything off the nodes again.
var uninstallers = []way{
	{name: "uninstall", folder: "uninstall", values: []string{"uninstall=true"}},
	{name: "uninstall on openshift", folder: "overlays/openshift/uninstall", values: append([]string{"uninstall=true"}, openshift...)},
}

var openshift = []string{"mode=swap", "binDir=/var/lib/cni/bin", "openshift.enabled=true"}

// tag is what the tests call the image.
const tag = "v1.2.3"

// object is an object of Kubernetes, as it is written.
type object = unstructured.Unstructured

// built is what kustomize makes of ways, by their names.
var built sync.Map

// kustomize builds a way as a user does who has an image somewhere: by a kustomization
// of their own.
func (w way) kustomize(t testing.TB) string {
	t.Helper()
	if out, ok := built.Load(w.name); ok {
		return out.(string)
	}
	dir := t.TempDir()
	var components []string
	for _, c := range w.components {
		components = append(components, relative(t, dir, "components/"+c))
	}
	text, err := yaml.Marshal(rig.Object{
		"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization",
		"resources": []string{relative(t, dir, w.folder)}, "components": components,
		"images": []rig.Object{{"name": "dhcp-meta", "newTag": tag}},
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "kustomization.yaml"), text, 0o600); err != nil {
		t.Fatal(err)
	}
	out := mustRun(t, "kustomize", "build", dir)
	built.Store(w.name, out)
	return out
}

// relative is the way from a folder to one of manifests/.
func relative(t testing.TB, from, folder string) string {
	t.Helper()
	root, err := rig.ModuleRoot()
	if err != nil {
		t.Fatal(err)
	}
	path, err := filepath.Rel(from, filepath.Join(root, "manifests", folder))
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// chart renders the chart for a way.
func (w way) chart(t testing.TB) string {
	t.Helper()
	return mustRun(t, "helm", chartArguments(append([]string{"image.tag=" + tag}, w.values...)...)...)
}

func chartArguments(values ...string) []string {
	args := []string{"template", "dhcp-meta", "../../manifests/helm/dhcp-meta", "--namespace=dhcp-meta"}
	for _, v := range values {
		args = append(args, "--set="+v)
	}
	return args
}

func mustRun(t testing.TB, program string, args ...string) string {
	t.Helper()
	out, err := run(t, program, args...)
	if err != nil {
		t.Fatalf("%s %s: %v", program, strings.Join(args, " "), err)
	}
	return out
}

// tools is the folder of kustomize and helm.
var tools = sync.OnceValues(func() (string, error) { return rig.ToolCache("manifests-tools") })

// run runs a program of tests/manifests-tools.
func run(t testing.TB, program string, args ...string) (string, error) {
	t.Helper()
	bin, err := tools()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(filepath.Join(bin, program), args...)
	cmd.Env = append(os.Environ(), "HOME="+t.TempDir())
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%w\n%s", err, stderr.Bytes())
	}
	return stdout.String(), nil
}

// objects takes a stream of YAML apart.
func objects(t testing.TB, stream string) []*object {
	t.Helper()
	var list []*object
	for text := range strings.SplitSeq(stream, "\n---\n") {
		o := new(object)
		if err := yaml.Unmarshal([]byte(text), &o.Object); err != nil {
			t.Fatalf("%v in\n%s", err, text)
		}
		if o.Object != nil {
			list = append(list, o)
		}
	}
	return list
}

// key tells objects apart.
func key(o *object) string { return o.GetKind() + " " + o.GetNamespace() + "/" + o.GetName() }
