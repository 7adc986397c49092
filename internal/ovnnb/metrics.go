package ovnnb

import "github.com/prometheus/client_golang/prometheus"

// Names of the metrics.
const (
	metricConnected = "dhcp_engine_ovn_connected"
	metricWrites    = "dhcp_engine_ovn_writes_total"
	metricPending   = "dhcp_engine_ovn_pending_ports"
)

// What a write came to.
const (
	written  = "ok"
	repaired = "repaired" // what another writer had changed
	missed   = "missed"   // the port was made anew meanwhile
	failed   = "failed"
)

type metrics struct {
	connected, pending prometheus.Gauge
	writes             *prometheus.CounterVec
}

func newMetrics(r prometheus.Registerer) metrics {
	m := metrics{
		connected: prometheus.NewGauge(prometheus.GaugeOpts{Name: metricConnected,
			Help: "1 while there is a connection to OVN's north database, otherwise 0."}),
		pending: prometheus.NewGauge(prometheus.GaugeOpts{Name: metricPending,
			Help: "Logical switch ports that do not carry yet what they should."}),
		writes: prometheus.NewCounterVec(prometheus.CounterOpts{Name: metricWrites,
			Help: "Writes of logical switch ports, by result (ok, repaired, missed, failed)."}, []string{"result"}),
	}
	for _, result := range []string{written, repaired, missed, failed} {
		m.writes.WithLabelValues(result)
	}
	if r != nil {
		r.MustRegister(m.connected, m.pending, m.writes)
	}
	return m
}
