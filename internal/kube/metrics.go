package kube

import "github.com/prometheus/client_golang/prometheus"

// Names of the metrics.
const (
	metricSynced      = "dhcp_engine_kube_synced"
	metricWatchErrors = "dhcp_engine_kube_watch_errors_total"
	metricLiveReads   = "dhcp_engine_kube_live_reads_total"
	metricEvents      = "dhcp_engine_kube_events_total"
)

// metrics counts what is asked of the API server. Labels have few values.
type metrics struct {
	synced      prometheus.Gauge
	watchErrors *prometheus.CounterVec
	liveReads   *prometheus.CounterVec
	events      *prometheus.CounterVec
}

func newMetrics(r prometheus.Registerer) *metrics {
	if r == nil {
		r = prometheus.NewRegistry()
	}
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
		r.MustRegister(c)
		return c
	}
	m := &metrics{
		synced:      prometheus.NewGauge(prometheus.GaugeOpts{Name: metricSynced, Help: "Whether pods and networks have been known since the start (1)."}),
		watchErrors: counter(metricWatchErrors, "Attempts to watch the API that failed, by what (pods, networks).", "what"),
		liveReads:   counter(metricLiveReads, "Objects that were read from the API itself, by what (pod, pods, network, vmi) and result (found, missing, error).", "what", "result"),
		events:      counter(metricEvents, "Events on pods by result (written, too many, no room, refused).", "result"),
	}
	r.MustRegister(m.synced)
	// A counter that appears with its first event has no rise that an alarm could
	// see.
	for _, what := range []string{"pods", "networks"} {
		m.watchErrors.WithLabelValues(what)
	}
	for _, result := range []string{eventWritten, eventTooMany, eventNoRoom, eventRefused} {
		m.events.WithLabelValues(result)
	}
	return m
}
