package leaseobjects

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
)

// docs/operations.md has the metrics that there are, with type and label, no more and
// no fewer.
func TestDocumentedMetrics(t *testing.T) {
	doc, err := os.ReadFile("../../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	r := prometheus.NewRegistry()
	newMetrics(r)
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var want, got []string
	for _, f := range families {
		want = append(want, f.GetName()+" "+strings.ToLower(f.GetType().String())+" "+f.GetMetric()[0].GetLabel()[0].GetName())
	}
	for _, m := range regexp.MustCompile("(?m)^\\| `(dhcp_engine_lease_object\\w+)` \\| (\\w+) \\| `(\\w+)` \\|").FindAllStringSubmatch(string(doc), -1) {
		got = append(got, strings.Join(m[1:], " "))
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("table (-registered +documented):\n%s", diff)
	}
}
