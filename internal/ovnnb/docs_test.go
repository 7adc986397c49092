package ovnnb

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine"
	"github.com/dhcp-meta/dhcp-meta/pkg/engine/network"
)

func page(t *testing.T) string {
	t.Helper()
	doc, err := os.ReadFile("../../docs/ovn-kubernetes.md")
	if err != nil {
		t.Fatal(err)
	}
	return string(doc)
}

// The page has the metrics that there are.
func TestDocumentedMetrics(t *testing.T) {
	r := prometheus.NewRegistry()
	newMetrics(r)
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	type metric struct{ Name, Kind, Labels string }
	var want, have []metric
	for _, f := range families {
		m := metric{Name: f.GetName(), Kind: strings.ToLower(f.GetType().String())}
		for _, l := range f.GetMetric()[0].GetLabel() {
			m.Labels += l.GetName()
		}
		want = append(want, m)
	}
	for _, m := range regexp.MustCompile("(?m)^\\| `(dhcp_engine_ovn_\\w+)` \\| (\\w+) \\| ([^|]*) \\|").FindAllStringSubmatch(page(t), -1) {
		have = append(have, metric{m[1], m[2], strings.Trim(m[3], " `")})
	}
	if diff := cmp.Diff(want, have); diff != "" {
		t.Errorf("(-registered +documented):\n%s", diff)
	}
}

// The page has what is written of a port, for each setting.
func TestDocumentedValues(t *testing.T) {
	spoken := strings.NewReplacer(macText, "MAC", "10.77.0.50", "IP")
	free := port{Addresses: []string{macText}, PortSecurity: []string{macText}}
	for what, c := range map[string]columns{
		"before the wrapped plugin runs, and after the lease": free.withoutLease(),
		"with a lease, `portSecurity: auto`, container":       free.withLease(lease(t, engine.Container, network.PortSecurityAuto)),
		"with a lease, `portSecurity: auto`, VM":              free.withLease(lease(t, engine.VM, network.PortSecurityAuto)),
		"with a lease, `portSecurity: mac`":                   free.withLease(lease(t, engine.Container, network.PortSecurityMAC)),
		"with a lease, `portSecurity: address`":               free.withLease(lease(t, engine.Container, network.PortSecurityAddress)),
	} {
		row := "| " + what + " | `" + spoken.Replace(c.addresses[0]) + "` | `" + spoken.Replace(c.security[0]) + "` |"
		if !strings.Contains(page(t), row) {
			t.Errorf("the page lacks %q", row)
		}
	}
}

// The page names the sockets of auto.
func TestDocumentedSockets(t *testing.T) {
	for _, socket := range autoSockets {
		if !strings.Contains(page(t), "`"+strings.TrimPrefix(socket, "/var")+"`") {
			t.Errorf("the page lacks %s", socket)
		}
	}
}
