package vfio

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
)

// section is a section of docs/vfio.md.
func section(t *testing.T, heading string) string {
	t.Helper()
	doc, err := os.ReadFile("../../docs/vfio.md")
	must(t, err)
	_, rest, found := strings.Cut(string(doc), "\n## "+heading+"\n")
	if !found {
		t.Fatalf("docs/vfio.md has no section %q", heading)
	}
	rest, _, _ = strings.Cut(rest, "\n## ")
	return rest
}

// The page has the metrics that there are, and the steps of the one with labels.
func TestDocumentedMetrics(t *testing.T) {
	r := prometheus.NewRegistry()
	NewMetrics(r)
	families, err := r.Gather()
	must(t, err)
	want, have := map[string]string{}, map[string]string{}
	for _, f := range families {
		want[f.GetName()] = strings.ToLower(f.GetType().String())
	}
	page := section(t, "Metrics")
	for _, m := range regexp.MustCompile("(?m)^\\| `(dhcp_engine_\\w+)` \\| (\\w+) \\|").FindAllStringSubmatch(page, -1) {
		have[m[1]] = m[2]
	}
	if diff := cmp.Diff(want, have); diff != "" {
		t.Errorf("(-registered +documented):\n%s", diff)
	}
	for _, f := range families {
		if f.GetName() != metricFailures {
			continue
		}
		for _, m := range f.GetMetric() {
			if step := m.GetLabel()[0].GetValue(); !regexp.MustCompile(`\b` + step + `\b`).MatchString(page) {
				t.Errorf("step %s is not explained", step)
			}
		}
	}
}

// The words by which errors are found are in the code.
func TestDocumentedErrors(t *testing.T) {
	var code strings.Builder
	for _, pattern := range []string{"*.go", "../../pkg/sriov/*.go"} {
		files, err := filepath.Glob(pattern)
		must(t, err)
		for _, f := range files {
			if strings.HasSuffix(f, "_test.go") {
				continue
			}
			b, err := os.ReadFile(f)
			must(t, err)
			code.Write(b)
		}
	}
	words := regexp.MustCompile("(?m)^\\| `([^`]+)` \\|").FindAllStringSubmatch(section(t, "What errors say"), -1)
	if len(words) == 0 {
		t.Fatal("no error is in the page")
	}
	for _, w := range words {
		if !strings.Contains(code.String(), w[1]) {
			t.Errorf("no error says %q", w[1])
		}
	}
}
