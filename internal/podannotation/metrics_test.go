package podannotation

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
)

// docs/operations.md has the metrics that there are, with type and labels, no more
// and no fewer.
func TestDocumentedMetrics(t *testing.T) {
	doc, err := os.ReadFile("../../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	type metric struct{ kind, labels string }
	written := map[string]metric{}
	for _, m := range regexp.MustCompile("(?m)^\\| `(dhcp_engine_annotation_\\w+)` \\| (\\w+) \\| ([^|]*) \\|").FindAllStringSubmatch(string(doc), -1) {
		written[m[1]] = metric{m[2], strings.Trim(m[3], " `")}
	}
	r := prometheus.NewRegistry()
	newMetrics(r, func() float64 { return 0 })
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	have := map[string]metric{}
	for _, f := range families {
		var labels []string
		for _, l := range f.GetMetric()[0].GetLabel() {
			labels = append(labels, l.GetName())
		}
		have[f.GetName()] = metric{strings.ToLower(f.GetType().String()), strings.Join(labels, ",")}
	}
	if diff := cmp.Diff(have, written, cmp.AllowUnexported(metric{})); diff != "" {
		t.Errorf("table (-registered +documented):\n%s", diff)
	}
}
