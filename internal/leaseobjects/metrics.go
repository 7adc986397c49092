package leaseobjects

import "github.com/prometheus/client_golang/prometheus"

// metricWrites is the name of the only metric.
const metricWrites = "dhcp_engine_lease_object_writes_total"

type metrics struct{ writes *prometheus.CounterVec }

// newMetrics registers the metrics with r; with a nil r they are counted for nobody.
func newMetrics(r prometheus.Registerer) metrics {
	if r == nil {
		r = prometheus.NewRegistry()
	}
	m := metrics{prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: metricWrites, Help: "Writes of DHCPLease objects by result (written, deleted, failed).",
	}, []string{"result"})}
	// What appears with its first event has no rise that an alarm could see.
	for _, result := range []string{"written", "deleted", "failed"} {
		m.writes.WithLabelValues(result)
	}
	r.MustRegister(m.writes)
	return m
}

func (m metrics) count(done string, err error) {
	if err != nil {
		done = "failed"
	}
	m.writes.WithLabelValues(done).Inc()
}
