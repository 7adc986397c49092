package podannotation

import "github.com/prometheus/client_golang/prometheus"

// Names of the metrics.
const (
	metricWrites  = "dhcp_engine_annotation_writes_total"
	metricPutBack = "dhcp_engine_annotation_put_back_total"
	metricPending = "dhcp_engine_annotation_pending"
)

type metrics struct {
	writes  *prometheus.CounterVec
	putBack prometheus.Counter
}

// newMetrics registers the metrics with r; with a nil r they are counted for
// nobody.
func newMetrics(r prometheus.Registerer, pending func() float64) *metrics {
	if r == nil {
		r = prometheus.NewRegistry()
	}
	m := &metrics{
		writes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: metricWrites, Help: "Writes of pod annotations by result (written, conflict, unavailable, refused, gone).",
		}, []string{"result"}),
		putBack: prometheus.NewCounter(prometheus.CounterOpts{
			Name: metricPutBack, Help: "Writes that put back what somebody else had changed in a pod's annotation.",
		}),
	}
	// What appears with its first event has no rise that an alarm could see.
	for _, o := range []outcome{written, conflict, unavailable, refused, gone} {
		m.writes.WithLabelValues(string(o))
	}
	r.MustRegister(m.writes, m.putBack, prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: metricPending, Help: "Interfaces whose pod annotation does not say yet what it should.",
	}, pending))
	return m
}
