package monitoring

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"
)

// block is the one of docs/operations.md in a language that has some words in it.
func block(t *testing.T, language, with string) string {
	t.Helper()
	for _, m := range regexp.MustCompile("(?ms)^```"+language+"\n(.*?)^```$").FindAllSubmatch(read(t, "../../docs/operations.md"), -1) {
		if strings.Contains(string(m[1]), with) {
			return string(m[1])
		}
	}
	t.Fatalf("docs/operations.md has no block with %q", with)
	return ""
}

// A Prometheus without the operator has its rule file by a command of docs/operations.md.
func TestDocumentedRuleFile(t *testing.T) {
	site := t.TempDir()
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(root, filepath.Join(site, "dhcp-meta")); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "bash", "-euc", block(t, "sh", "alerts.yaml"))
	cmd.Dir = site
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	made, err := filepath.Glob(site + "/*.yaml")
	if err != nil || len(made) != 1 {
		t.Fatalf("the command makes %q: %v", made, err)
	}
	promtool(t, "check", "rules", made[0])
	var object struct{ Spec any }
	var rules any
	for file, into := range map[string]any{manifests + "alerts.yaml": &object, made[0]: &rules} {
		if err := yaml.Unmarshal(read(t, file), into); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
	}
	if diff := cmp.Diff(object.Spec, rules); diff != "" {
		t.Errorf("rules (-manifest +made):\n%s", diff)
	}
}

// It scrapes what docs/operations.md has. Debian's promtool knows no pods: they stand there
// as Kubernetes would tell of them.
func TestDocumentedScrape(t *testing.T) {
	var config map[string]any
	if err := yaml.UnmarshalStrict([]byte(block(t, "yaml", "scrape_configs")), &config); err != nil {
		t.Fatal(err)
	}
	scrape := config["scrape_configs"].([]any)[0].(map[string]any)
	delete(scrape, "kubernetes_sd_configs")
	pod := func(address, name, port string) any {
		return map[string]any{"targets": []string{address}, "labels": map[string]string{
			"__meta_kubernetes_pod_label_app_kubernetes_io_name": name, "__meta_kubernetes_pod_container_port_name": port,
			"__meta_kubernetes_pod_node_name": "n1",
		}}
	}
	scrape["static_configs"] = []any{
		pod("10.0.0.1:9767", "dhcp-engine", "metrics"), pod("10.0.0.2", "dhcp-engine", ""), pod("10.0.0.3:9767", "another", "metrics"),
	}
	out, err := exec.CommandContext(t.Context(), "promtool", "check", "service-discovery", "--timeout=1s",
		write(t, "prometheus.yaml", config), scrape["job_name"].(string)).Output()
	if err != nil {
		t.Fatalf("promtool: %v\n%s", err, out)
	}
	var targets []struct {
		Labels map[string]string `json:"labels"`
	}
	if err := json.Unmarshal(out[strings.Index(string(out), "["):], &targets); err != nil {
		t.Fatalf("%v in\n%s", err, out)
	}
	var got []map[string]string
	for _, target := range targets {
		if len(target.Labels) > 0 { // those that are dropped have none
			got = append(got, target.Labels)
		}
	}
	if len(got) != 1 || got[0]["instance"] != "10.0.0.1:9767" || got[0]["job"] != "dhcp-engine" || got[0]["node"] != "n1" {
		t.Errorf("scraped is %v, want the engine's port alone, with its node", got)
	}
}
