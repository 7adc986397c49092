package manifests

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/yaml"

	"github.com/dhcp-meta/dhcp-meta/tests/rig"
	"github.com/dhcp-meta/dhcp-meta/tests/rig/kube"
	"github.com/dhcp-meta/dhcp-meta/tests/rig/kubelet"
)

// page is a document of the project.
type page struct {
	// name is its path from the root.
	name, text string
}

func pages(t *testing.T) []page {
	t.Helper()
	root, err := rig.ModuleRoot()
	if err != nil {
		t.Fatal(err)
	}
	names := []string{"README.md", "CONTRIBUTING.md", "CHANGELOG.md", "tests/README.md"}
	docs, err := filepath.Glob(filepath.Join(root, "docs/*.md"))
	if err != nil || len(docs) < 10 {
		t.Fatalf("%d documents: %v", len(docs), err)
	}
	for _, d := range docs {
		names = append(names, "docs/"+filepath.Base(d))
	}
	var list []page
	for _, name := range names {
		text, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, page{name, string(text)})
	}
	return list
}

// fence is a block of a page in a language.
type fence struct{ page, language, text string }

// fences takes the blocks out of a page, those of lists without their indentation.
func fences(t *testing.T, p page) []fence {
	t.Helper()
	var list []fence
	var open *fence
	indent := ""
	for line := range strings.Lines(p.text) {
		bare := strings.TrimLeft(line, " ")
		mark, isMark := strings.CutPrefix(strings.TrimSpace(line), "```")
		switch {
		case open == nil && isMark:
			indent = line[:len(line)-len(bare)]
			open = &fence{page: p.name, language: mark}
		case open != nil && isMark && mark == "":
			list = append(list, *open)
			open = nil
		case open != nil:
			open.text += strings.TrimPrefix(line, indent)
		}
	}
	if open != nil {
		t.Errorf("%s: a block is not closed: %s", p.name, open.text)
	}
	return list
}

// documented are all blocks in a language.
func documented(t *testing.T, language string) []fence {
	t.Helper()
	var list []fence
	for _, p := range pages(t) {
		list = append(list, slices.DeleteFunc(fences(t, p), func(f fence) bool { return f.language != language })...)
	}
	return list
}

// parts are the documents of a block.
func (f fence) parts(t *testing.T) []*object {
	t.Helper()
	var list []*object
	for text := range strings.SplitSeq(f.text, "\n---\n") {
		var value any
		if err := yaml.UnmarshalStrict([]byte(text), &value); err != nil {
			t.Errorf("%s: %v in\n%s", f.page, err, text)
		} else if o, ok := value.(map[string]any); ok {
			list = append(list, &object{Object: o})
		}
	}
	return list
}

// All JSON and YAML of the documents can be read, with each key there once.
func TestDocumentedBlocksParse(t *testing.T) {
	for _, language := range []string{"json", "yaml"} {
		list := documented(t, language)
		if len(list) < 6 {
			t.Errorf("%d blocks of %s only", len(list), language)
		}
		for _, f := range list {
			f.parts(t)
		}
	}
	for _, p := range pages(t) {
		for _, f := range fences(t, p) {
			if !slices.Contains([]string{"", "text", "sh", "json", "yaml", "mermaid"}, f.language) {
				t.Errorf("%s: nothing reads a block of %q", p.name, f.language)
			}
		}
	}
}

// A real API server takes the objects of the documents, as far as it has their kinds,
// and our own policies for networks too.
func TestServerTakesDocumentedObjects(t *testing.T) {
	c := server(t)
	taken := map[string]int{}
	for _, f := range documented(t, "yaml") {
		for _, o := range f.parts(t) {
			if o.GetKind() == "" || o.GetKind() == "Kustomization" || !served(t, c, o) {
				continue
			}
			namespaces(t, c, []*object{o})
			text, err := yaml.Marshal(o.Object)
			if err != nil {
				t.Fatal(err)
			}
			t.Run(f.page+" "+o.GetKind()+" "+o.GetName(), func(t *testing.T) { dryRun(t, c, string(text)) })
			taken[o.GetKind()]++
		}
	}
	for _, kind := range []string{"NetworkAttachmentDefinition", "ClusterUserDefinedNetwork", "Pod", "DaemonSet"} {
		if taken[kind] == 0 {
			t.Errorf("no %s was tried: %v", kind, taken)
		}
	}
}

// served tells whether the API server knows an object's kind.
func served(t *testing.T, c *kube.Cluster, o *object) bool {
	t.Helper()
	resources, err := c.Client.Discovery().ServerResourcesForGroupVersion(o.GetAPIVersion())
	if apierrors.IsNotFound(err) {
		return false
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range resources.APIResources {
		if r.Kind == o.GetKind() {
			return true
		}
	}
	return false
}

// The commands that tell Multus of our folder, and those that take it back, are run as
// they stand on a real API server that has upstream's Multus.
func TestDocumentedCommandsForMultus(t *testing.T) {
	c := server(t)
	c.Apply(t, kubelet.MultusManifest(t))
	const wanted = `"binDir": "/opt/cni/bin/dhcp-meta-wrappers"`
	state := func() (binDir bool, cniPath string) {
		config := c.Kubectl(t, "", "-n", "kube-system", "get", "configmap", "multus-daemon-config", "-o", `jsonpath={.data.daemon-config\.json}`)
		if err := yaml.Unmarshal([]byte(config), new(map[string]any)); err != nil {
			t.Errorf("the daemon's configuration is none any more: %v\n%s", err, config)
		}
		env := c.Kubectl(t, "", "-n", "kube-system", "get", "daemonset", "kube-multus-ds", "-o",
			`jsonpath={.spec.template.spec.containers[?(@.name=="kube-multus")].env[?(@.name=="CNI_PATH")].value}`)
		return strings.Contains(config, wanted), env
	}
	var commands []fence
	for _, f := range documented(t, "sh") {
		if strings.Contains(f.text, "multus-daemon-config") {
			f.text = regexp.MustCompile(`(?m)^kubectl .* rollout status .*$`).ReplaceAllString(f.text, "") // no controller is here
			commands = append(commands, f)
		}
	}
	if len(commands) != 2 {
		t.Fatalf("%d blocks of commands, want those that set and those that take back", len(commands))
	}
	shell(t, c, commands[0].text)
	if binDir, cniPath := state(); !binDir || cniPath != "/opt/cni/bin" {
		t.Errorf("told of our folder: binDir %v, CNI_PATH %q", binDir, cniPath)
	}
	shell(t, c, commands[1].text)
	if binDir, cniPath := state(); binDir || cniPath != "" {
		t.Errorf("taken back: binDir %v, CNI_PATH %q", binDir, cniPath)
	}
}

// shell runs commands of a document as cluster admin; they must succeed.
func shell(t *testing.T, c *kube.Cluster, commands string) {
	t.Helper()
	bin, err := rig.ToolCache("kubernetes")
	if err != nil {
		t.Fatal(err)
	}
	config := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(config, c.AdminKubeconfig(t), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("bash", "-euo", "pipefail", "-c", commands)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+config, "HOME="+t.TempDir(), "PATH="+bin+":"+os.Getenv("PATH"))
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := c.Net.Do(cmd.Start); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Fatalf("%v\n%s\n%s", err, commands, out.String())
	}
}

// The versions that docs/install.md calls run are those that the tests run, and the
// oldest Kubernetes is the chart's.
func TestK97VersionsThatWereRun(t *testing.T) {
	doc, err := os.ReadFile("../../docs/install.md")
	if err != nil {
		t.Fatal(err)
	}
	row := func(name string) string {
		m := regexp.MustCompile(`(?m)^\| ` + name + ` \| (.*) \|$`).FindSubmatch(doc)
		if m == nil {
			t.Fatalf("docs/install.md does not say which %s is needed", name)
		}
		return string(m[1])
	}
	for name, module := range map[string]string{"Kubernetes": "kubernetes k8s.io/kubernetes", "Multus": "multus gopkg.in/k8snetworkplumbingwg/multus-cni.v4"} {
		folder, path, _ := strings.Cut(module, " ")
		mod, err := os.ReadFile("../" + folder + "/go.mod")
		if err != nil {
			t.Fatal(err)
		}
		version := regexp.MustCompile(regexp.QuoteMeta(path) + ` (v\S+)`).FindSubmatch(mod)
		if version == nil || !strings.Contains(row(name), string(version[1])+" is the one that was run") {
			t.Errorf("%s: %s; the tests run %s", name, row(name), version)
		}
	}
	chart, err := os.ReadFile("../../manifests/helm/dhcp-meta/Chart.yaml")
	if err != nil {
		t.Fatal(err)
	}
	oldest := regexp.MustCompile(`kubeVersion: ">=(\d+\.\d+)\.0-0"`).FindSubmatch(chart)
	if oldest == nil || !strings.HasPrefix(row("Kubernetes"), string(oldest[1])+" or later") {
		t.Errorf("the chart wants Kubernetes %s, docs/install.md %s", oldest, row("Kubernetes"))
	}
}

// Links between documents lead somewhere, and README to each of them.
func TestK90DocumentsLeadToEachOther(t *testing.T) {
	all := pages(t)
	root, err := rig.ModuleRoot()
	if err != nil {
		t.Fatal(err)
	}
	headings := map[string]map[string]bool{}
	for _, p := range all {
		headings[p.name] = anchors(p.text)
	}
	for _, p := range all {
		for _, m := range regexp.MustCompile(`\]\(([^)\s]+)\)`).FindAllStringSubmatch(p.text, -1) {
			if strings.Contains(m[1], "://") {
				continue
			}
			path, anchor, _ := strings.Cut(m[1], "#")
			target := p.name
			if path != "" {
				target = filepath.Join(filepath.Dir(p.name), path)
			}
			if _, err := os.Stat(filepath.Join(root, target)); err != nil {
				t.Errorf("%s leads to %s: %v", p.name, m[1], err)
			} else if anchor != "" && !headings[target][anchor] {
				t.Errorf("%s leads to %s: there is no such heading", p.name, m[1])
			}
		}
		if strings.HasPrefix(p.name, "docs/") && !strings.Contains(all[0].text, "("+p.name+")") {
			t.Errorf("README does not lead to %s", p.name)
		}
	}
}

// anchors are those that GitHub makes of headings.
func anchors(text string) map[string]bool {
	all := map[string]bool{}
	text = regexp.MustCompile("(?ms)^ *```.*?^ *```$").ReplaceAllString(text, "")
	for _, m := range regexp.MustCompile(`(?m)^#+ (.*)$`).FindAllStringSubmatch(text, -1) {
		heading := regexp.MustCompile(`\[([^\]]*)\]\([^)]*\)`).ReplaceAllString(m[1], "$1")
		heading = regexp.MustCompile(`[^\p{L}\p{N} _-]`).ReplaceAllString(strings.ToLower(heading), "")
		all[strings.ReplaceAll(heading, " ", "-")] = true
	}
	return all
}
