package kube

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

func counted(t *testing.T, c prometheus.Counter) float64 {
	t.Helper()
	var m dto.Metric
	if err := c.Write(&m); err != nil {
		t.Fatal(err)
	}
	return m.GetCounter().GetValue()
}

// noted is a registry that notes what is registered, also what has no value yet.
type noted struct {
	prometheus.Registerer
	metrics map[string]string // labels by name
}

var describedAs = regexp.MustCompile(`fqName: "([^"]*)".*variableLabels: \{([^}]*)\}`)

func (n noted) MustRegister(collectors ...prometheus.Collector) {
	for _, c := range collectors {
		descC := make(chan *prometheus.Desc, 16)
		c.Describe(descC)
		close(descC)
		for d := range descC {
			m := describedAs.FindStringSubmatch(d.String())
			n.metrics[m[1]] = m[2]
		}
	}
}

// The table of docs/operations.md has the metrics that there are, with their
// labels, no more and no fewer.
func TestDocumentedMetrics(t *testing.T) {
	doc, err := os.ReadFile("../../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, found := strings.Cut(string(doc), "\n### Metrics of Kubernetes\n")
	if !found {
		t.Fatal("docs/operations.md has no section of these metrics")
	}
	section, _, _ = strings.Cut(section, "\n#")
	written := map[string]string{}
	for _, m := range regexp.MustCompile("(?m)^\\| `(dhcp_engine_\\w+)` \\| \\w+ \\| ([^|]*) \\|").FindAllStringSubmatch(section, -1) {
		written[m[1]] = strings.NewReplacer("`", "", ", ", ",").Replace(strings.TrimSpace(m[2]))
	}
	r := noted{nil, map[string]string{}}
	newMetrics(r)
	if diff := cmp.Diff(r.metrics, written); diff != "" {
		t.Errorf("(-registered +documented):\n%s", diff)
	}
}
