package engine

import (
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine/api"
	"github.com/dhcp-meta/dhcp-meta/pkg/engine/dhcp4"
)

// Names of the metrics.
const (
	metricLeases    = "dhcp_engine_attachments"
	metricMessages  = "dhcp_engine_messages_total"
	metricExchanges = "dhcp_engine_exchanges_total"
	metricLatency   = "dhcp_engine_answer_seconds"
	metricConflicts = "dhcp_engine_address_conflicts_total"
	metricRoutes    = "dhcp_engine_refused_routes_total"
	metricUnsent    = "dhcp_engine_waiting_releases"
	metricNearest   = "dhcp_engine_nearest_expiry_seconds"
	metricIgnored   = "dhcp_engine_ignored_replies_total"
	metricChanged   = "dhcp_engine_changed_leases_total"
	metricDropped   = "dhcp_engine_dropped_leases_total"
	metricReleases  = "dhcp_engine_releases_total"
	metricAttach    = "dhcp_engine_attach_seconds"
	metricRestored  = "dhcp_engine_restored_records_total"
	metricStore     = "dhcp_engine_store_errors_total"
	metricDead      = "dhcp_engine_dead_attachments_total"
)

// Metrics counts what the engine does. Labels have few values: never a pod, a
// MAC or an address.
type Metrics struct {
	registry    prometheus.Registerer
	messages    *prometheus.CounterVec
	exchanges   *prometheus.CounterVec
	latency     *prometheus.HistogramVec
	ignored     *prometheus.CounterVec
	conflicts   prometheus.Counter
	routes      *prometheus.CounterVec
	dropped     *prometheus.CounterVec
	changed     *prometheus.CounterVec
	released    *prometheus.CounterVec
	attach      *prometheus.HistogramVec
	restored    *prometheus.CounterVec
	storeErrors prometheus.Counter
	dead        *prometheus.CounterVec
}

// NewMetrics registers the metrics with r; with a nil r they are counted for
// nobody.
func NewMetrics(r prometheus.Registerer) *Metrics {
	if r == nil {
		r = prometheus.NewRegistry()
	}
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
		r.MustRegister(c)
		return c
	}
	m := &Metrics{
		registry: r,
		messages: counter(metricMessages, "DHCP messages by direction (sent, received) and type.", "direction", "type"),
		exchanges: counter(metricExchanges, "Exchanges by kind (discover, reboot, renew, rebind) and result (ack, nak, no answer).",
			"kind", "result"),
		latency: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: metricLatency, Help: "Time from the first message of an exchange to the answer: offer or ack.",
			Buckets: []float64{.003, .01, .03, .1, .3, 1, 3, 10, 30, 120},
		}, []string{"answer"}),
		ignored:     counter(metricIgnored, "Replies that gave no lease, by reason.", "reason"),
		conflicts:   counter(metricConflicts, "Leased addresses that another host was found to use; each was declined.").WithLabelValues(),
		routes:      counter(metricRoutes, "Routes of leases that were not installed, by reason.", "reason"),
		dropped:     counter(metricDropped, "Leases that had to be given up, by reason (nak, expired).", "reason"),
		changed:     counter(metricChanged, "Changes of leases in use, by what has changed.", "what"),
		released:    counter(metricReleases, "Leases given back, by result (sent, unsent, dropped and why).", "result"),
		restored:    counter(metricRestored, "Records found at start, by what became of them.", "result"),
		storeErrors: counter(metricStore, "Records that could not be written or deleted.").WithLabelValues(),
		dead:        counter(metricDead, "Attachments that ended without a DEL, by what was found gone (pod, namespace).", "gone"),
		attach: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: metricAttach, Help: "Time of an ADD inside the engine, by result (ok, or the CNI code's meaning).",
			Buckets: []float64{.01, .03, .1, .3, 1, 3, 10, 30, 120},
		}, []string{"result"}),
	}
	r.MustRegister(m.attach, m.latency)
	// A counter that appears with its first event has no rise that an alarm could
	// see.
	for _, reason := range []dhcp4.Reason{dhcp4.Nak, dhcp4.Expired, dhcp4.Conflicted} {
		m.dropped.WithLabelValues(string(reason))
	}
	for _, result := range []string{"sent", "unsent", "dropped: in use again", "dropped: no interface", "dropped: expired", "dropped: identity outlives the sandbox"} {
		m.released.WithLabelValues(result)
	}
	for _, gone := range []string{"pod", "namespace"} {
		m.dead.WithLabelValues(gone)
	}
	return m
}

func (m *Metrics) sent(t dhcpv4.MessageType) {
	m.messages.WithLabelValues("sent", t.String()).Inc()
}

func (m *Metrics) received(t dhcpv4.MessageType) {
	m.messages.WithLabelValues("received", t.String()).Inc()
}

func (m *Metrics) attached(err error, took time.Duration) {
	result := "ok"
	if err != nil {
		switch api.CodeOf(err) {
		case api.CodeConfig:
			result = "config"
		case api.CodeEnv:
			result = "environment"
		case api.CodeTryAgain:
			result = "no lease"
		default:
			result = "internal"
		}
	}
	m.attach.WithLabelValues(result).Observe(took.Seconds())
}

// collect counts the engine's attachments by state whenever somebody reads them.
func (m *Metrics) collect(e *Engine) { m.registry.MustRegister(attachments{e}) }

type attachments struct{ e *Engine }

// What is counted by looking. The nearest expiry is not there while no lease ends.
var (
	attachmentsDesc = prometheus.NewDesc(metricLeases, "Attachments by state (RFC 2131).", []string{"state"}, nil)
	unsentDesc      = prometheus.NewDesc(metricUnsent, "Releases that could not be sent yet.", nil, nil)
	nearestDesc     = prometheus.NewDesc(metricNearest, "Time until the first of all leases ends.", nil, nil)
)

func (attachments) Describe(c chan<- *prometheus.Desc) {
	c <- attachmentsDesc
	c <- unsentDesc
	c <- nearestDesc
}

func (a attachments) Collect(c chan<- prometheus.Metric) {
	states := make(map[string]int)
	unsent := 0
	var nearest time.Time
	for _, s := range a.e.all() {
		v := s.look()
		states[stateText(v)]++
		if v.phase == Releasing {
			unsent++
		}
		if end := v.lease.ExpireAt(); v.kept && v.lease.Addr.IsValid() && !end.IsZero() && (nearest.IsZero() || end.Before(nearest)) {
			nearest = end
		}
	}
	c <- prometheus.MustNewConstMetric(unsentDesc, prometheus.GaugeValue, float64(unsent))
	if !nearest.IsZero() {
		c <- prometheus.MustNewConstMetric(nearestDesc, prometheus.GaugeValue, nearest.Sub(a.e.cfg.Now()).Seconds())
	}
	for state, n := range states {
		c <- prometheus.MustNewConstMetric(attachmentsDesc, prometheus.GaugeValue, float64(n), state)
	}
}
