// Package monitoring holds the board and the alert rules of manifests/monitoring against
// the metrics that there are, and has promtool, of the Prometheus project, try each rule.
package monitoring

import (
	"encoding/json"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"
)

const manifests = "../../manifests/monitoring/"

// queries are the PromQL of board and rules, by the title or alert that asks.
func queries(t *testing.T) map[string][]string {
	t.Helper()
	all := map[string][]string{}
	for name, a := range alerts(t) {
		all[name] = append(all[name], a.Expr)
	}
	maps.Copy(all, panels(t))
	return all
}

// panels are the queries of the board by the title of their panel, with Grafana's
// variables filled in.
func panels(t *testing.T) map[string][]string {
	t.Helper()
	var board struct {
		Panels []struct {
			Title, Type string
			Targets     []struct{ Expr string }
		}
	}
	raw := read(t, manifests+"dashboard.json")
	if err := json.Unmarshal(raw, &board); err != nil {
		t.Fatal(err)
	}
	all := map[string][]string{}
	for _, p := range board.Panels {
		if p.Type == "row" {
			continue
		}
		if _, twice := all[p.Title]; twice {
			t.Errorf("two panels are called %q", p.Title)
		}
		for _, target := range p.Targets {
			all[p.Title] = append(all[p.Title], strings.NewReplacer("$__rate_interval", "5m", "$node", ".*").Replace(target.Expr))
		}
	}
	return all
}

type alert struct {
	Alert, Expr string
	Labels      map[string]string
	Annotations struct{ Summary, Description string }
}

func alerts(t *testing.T) map[string]alert {
	t.Helper()
	var rules struct {
		Spec struct {
			Groups []struct{ Rules []alert }
		}
	}
	if err := yaml.Unmarshal(read(t, manifests+"alerts.yaml"), &rules); err != nil {
		t.Fatal(err)
	}
	all := map[string]alert{}
	for _, g := range rules.Spec.Groups {
		for _, a := range g.Rules {
			all[a.Alert] = a
		}
	}
	return all
}

// documented are the metrics in the tables of docs, with their labels. Tests beside
// each metric hold these tables against the code.
func documented(t *testing.T) map[string][]string {
	t.Helper()
	row := regexp.MustCompile("(?m)^\\| `(dhcp_engine_\\w+)` \\| (\\w+) \\| ([^|]*) \\|")
	label := regexp.MustCompile("`(\\w+)`")
	all := map[string][]string{"dhcp_engine_build_info": {"version"}}
	docs, err := filepath.Glob("../../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, doc := range docs {
		for _, m := range row.FindAllStringSubmatch(string(read(t, doc)), -1) {
			var labels []string
			for _, l := range label.FindAllStringSubmatch(m[3], -1) {
				labels = append(labels, l[1])
			}
			if m[2] == "histogram" {
				all[m[1]+"_bucket"] = append(slices.Clone(labels), "le")
				all[m[1]+"_count"], all[m[1]+"_sum"] = labels, labels
				continue
			}
			all[m[1]] = labels
		}
	}
	return all
}

var (
	selector = regexp.MustCompile(`(dhcp_engine_\w+)(?:\{([^}]*)\})?`)
	matcher  = regexp.MustCompile(`(\w+)\s*(?:=~|!~|!=|=)\s*"`)
	grouping = regexp.MustCompile(`\bby \(([^)]*)\)`)
)

// fromScrape are labels that the scrape adds to every metric.
var fromScrape = []string{"job", "instance", "node"}

func TestQueriesNameMetricsThatThereAre(t *testing.T) {
	metrics := documented(t)
	for title, exprs := range queries(t) {
		for _, expr := range exprs {
			known := slices.Clone(fromScrape)
			for _, m := range selector.FindAllStringSubmatch(expr, -1) {
				labels, ok := metrics[m[1]]
				if !ok {
					t.Errorf("%s: there is no metric %s", title, m[1])
				}
				known = append(known, labels...)
				for _, l := range matcher.FindAllStringSubmatch(m[2], -1) {
					if !slices.Contains(labels, l[1]) && !slices.Contains(fromScrape, l[1]) {
						t.Errorf("%s: %s has no label %s", title, m[1], l[1])
					}
				}
			}
			for _, g := range grouping.FindAllStringSubmatch(expr, -1) {
				for l := range strings.SplitSeq(g[1], ", ") {
					if !slices.Contains(known, l) {
						t.Errorf("%s: groups by %s, which no metric in %s has", title, l, expr)
					}
				}
			}
		}
	}
}

func TestBoardShowsEveryMetric(t *testing.T) {
	shown := map[string]bool{}
	for _, exprs := range panels(t) {
		for _, expr := range exprs {
			for _, m := range selector.FindAllStringSubmatch(expr, -1) {
				shown[family(m[1])] = true
			}
		}
	}
	want := map[string]bool{}
	for name := range documented(t) {
		want[family(name)] = true
	}
	if diff := cmp.Diff(slices.Sorted(maps.Keys(want)), slices.Sorted(maps.Keys(shown))); diff != "" {
		t.Errorf("metrics (-documented +on the board):\n%s", diff)
	}
}

// family is a metric's name without what a histogram adds to it.
func family(name string) string {
	for _, suffix := range []string{"_bucket", "_count", "_sum"} {
		name = strings.TrimSuffix(name, suffix)
	}
	return name
}

func TestAlertsSayWhatToDo(t *testing.T) {
	for name, a := range alerts(t) {
		if a.Annotations.Summary == "" || a.Annotations.Description == "" || !strings.Contains(a.Annotations.Summary, "$labels.node") {
			t.Errorf("%s needs a summary that names the node, and a description", name)
		}
		if s := a.Labels["severity"]; s != "warning" && s != "critical" {
			t.Errorf("%s has severity %q", name, s)
		}
	}
}

// Every query is PromQL: promtool reads each as a rule.
func TestQueriesAreSound(t *testing.T) {
	type rule struct {
		Record string `json:"record"`
		Expr   string `json:"expr"`
	}
	var rules []rule
	for _, exprs := range queries(t) {
		for _, expr := range exprs {
			rules = append(rules, rule{"query:" + strings.Repeat("q", len(rules)+1), expr})
		}
	}
	file := write(t, "queries.yaml", map[string]any{"groups": []any{map[string]any{"name": "queries", "rules": rules}}})
	promtool(t, "check", "rules", file)
}

// At rest no rule says anything; each seeded fault is told by the rule of its name.
func TestAlerts(t *testing.T) {
	var object struct{ Spec any }
	var healthy []series
	var seeded map[string][]series
	for file, into := range map[string]any{manifests + "alerts.yaml": &object, "testdata/healthy.yaml": &healthy, "testdata/seeded.yaml": &seeded} {
		if err := yaml.Unmarshal(read(t, file), into); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
	}
	names := slices.Sorted(maps.Keys(alerts(t)))
	if diff := cmp.Diff(names, slices.Sorted(maps.Keys(seeded))); diff != "" {
		t.Fatalf("each alert has a seeded fault (-alerts +seeded):\n%s", diff)
	}
	rules := write(t, "rules.yaml", object.Spec)
	file := func(fault []series, expected map[string]any) string {
		return write(t, "test.yaml", map[string]any{
			"rule_files": []string{rules}, "evaluation_interval": "1m",
			"tests": []any{map[string]any{
				"interval": "1m", "input_series": instead(healthy, fault),
				"promql_expr_test": []any{expected},
			}},
		})
	}
	const firing = `count by (alertname) (ALERTS{alertstate="firing"})`
	promtool(t, "test", "rules", file(nil, map[string]any{"expr": firing, "eval_time": "119m", "exp_samples": []any{}}))
	for _, name := range names {
		t.Run(name, func(t *testing.T) {
			expr := `count by (alertname) (ALERTS{alertstate="firing", alertname="` + name + `", node="n1"})`
			promtool(t, "test", "rules", file(seeded[name], map[string]any{"expr": expr, "eval_time": "119m",
				"exp_samples": []any{map[string]any{"labels": `{alertname="` + name + `"}`, "value": 1}}}))
		})
	}
}

type series struct {
	Series string `json:"series"`
	Values string `json:"values"`
}

// instead is healthy with fault in the place of the series of the same name.
func instead(healthy, fault []series) []series {
	all := slices.DeleteFunc(slices.Clone(healthy), func(h series) bool {
		return slices.ContainsFunc(fault, func(f series) bool { return f.Series == h.Series })
	})
	return append(all, fault...)
}

func promtool(t *testing.T, args ...string) {
	t.Helper()
	if out, err := exec.CommandContext(t.Context(), "promtool", args...).CombinedOutput(); err != nil {
		t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

func write(t *testing.T, name string, content any) string {
	t.Helper()
	raw, err := yaml.Marshal(content)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(file, raw, 0o644); err != nil {
		t.Fatal(err)
	}
	return file
}

func read(t *testing.T, file string) []byte {
	t.Helper()
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}
