package engine

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
)

// noted is a registry that notes what is registered, also what has no value yet.
type noted struct {
	prometheus.Registerer
	metrics map[string]documentedMetric
}

// documentedMetric is a row of the table in docs/operations.md.
type documentedMetric struct{ Kind, Labels string }

var describedAs = regexp.MustCompile(`fqName: "([^"]*)".*variableLabels: \{([^}]*)\}`)

func (n noted) MustRegister(collectors ...prometheus.Collector) {
	for _, c := range collectors {
		descC := make(chan *prometheus.Desc, 16)
		c.Describe(descC)
		close(descC)
		for d := range descC {
			m := describedAs.FindStringSubmatch(d.String())
			if m == nil {
				panic("no name in " + d.String())
			}
			n.metrics[m[1]] = documentedMetric{kindOf(c), m[2]}
		}
	}
	n.Registerer.MustRegister(collectors...)
}

func kindOf(c prometheus.Collector) string {
	switch c.(type) {
	case *prometheus.CounterVec, prometheus.Counter:
		return "counter"
	case *prometheus.HistogramVec, prometheus.Histogram:
		return "histogram"
	}
	return "gauge"
}

// The table of docs/operations.md has the metrics that there are, with their
// labels, no more and no fewer.
func TestDocumentedMetrics(t *testing.T) {
	doc, err := os.ReadFile("../../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, found := strings.Cut(string(doc), "\n## Metrics\n")
	if !found {
		t.Fatal(`docs/operations.md has no section "Metrics"`)
	}
	section, _, _ = strings.Cut(section, "\n### ") // those of other packages
	written := map[string]documentedMetric{}
	for _, m := range regexp.MustCompile("(?m)^\\| `(dhcp_engine_\\w+)` \\| (\\w+) \\| ([^|]*) \\| [^|]+ \\|$").FindAllStringSubmatch(section, -1) {
		written[m[1]] = documentedMetric{m[2], strings.NewReplacer("`", "", ", ", ",").Replace(strings.TrimSpace(m[3]))}
	}
	r := noted{prometheus.NewRegistry(), map[string]documentedMetric{}}
	New(Config{Metrics: NewMetrics(r)})
	if diff := cmp.Diff(r.metrics, written); diff != "" {
		t.Errorf("table (-registered +documented):\n%s", diff)
	}
}
