package vfio

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Names of the metrics.
const (
	metricWindow   = "dhcp_engine_vfio_window_seconds"
	metricBorrowed = "dhcp_engine_vfio_borrowed"
	metricLeft     = "dhcp_engine_vfio_left_over"
	metricFailures = "dhcp_engine_vfio_failures_total"
)

// A step of a hand-over, as the metric of failures names it.
type step string

const (
	stepCheck     step = "check"
	stepDriver    step = "driver"
	stepJournal   step = "journal"
	stepNamespace step = "namespace"
	stepMAC       step = "mac"
	stepUnbind    step = "unbind"
	stepProbe     step = "probe"
	stepInterface step = "interface"
	stepReturn    step = "return"
	stepHeal      step = "heal"
	stepWindow    step = "window"
)

// Metrics counts what happens to borrowed devices.
type Metrics struct {
	window   prometheus.Histogram
	borrowed prometheus.Gauge
	left     prometheus.Gauge
	failures *prometheus.CounterVec
}

// NewMetrics registers the metrics with r; with a nil r they are counted for
// nobody.
func NewMetrics(r prometheus.Registerer) *Metrics {
	if r == nil {
		r = prometheus.NewRegistry()
	}
	m := &Metrics{
		window: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: metricWindow, Help: "Time that a borrowed device was away from vfio-pci.",
			Buckets: []float64{.1, .2, .5, 1, 2, 5, 10, 20, 30, 60},
		}),
		borrowed: prometheus.NewGauge(prometheus.GaugeOpts{Name: metricBorrowed, Help: "Devices that are away from vfio-pci now."}),
		left:     prometheus.NewGauge(prometheus.GaugeOpts{Name: metricLeft, Help: "Devices that could not be given back yet."}),
		failures: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: metricFailures, Help: "Devices that were refused, or whose hand-over failed, by step.",
		}, []string{"step"}),
	}
	r.MustRegister(m.window, m.borrowed, m.left, m.failures)
	// A counter that appears with its first event has no rise that an alarm could
	// see.
	for _, s := range []step{stepCheck, stepDriver, stepJournal, stepNamespace, stepMAC, stepUnbind, stepProbe, stepInterface, stepReturn, stepHeal, stepWindow} {
		m.failures.WithLabelValues(string(s))
	}
	return m
}

func (m *Metrics) failed(s step) { m.failures.WithLabelValues(string(s)).Inc() }

func (m *Metrics) away(took time.Duration) { m.window.Observe(took.Seconds()) }
