package engine

import (
	"time"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine/dhcp4"
)

// asked is the exchange that is under way, for its metrics.
type asked struct {
	kind string // empty: none
	at   time.Time
	// offered says that the OFFER has been counted.
	offered bool
}

// exchangeKind is what a state asks for, in a word for metrics; empty where it
// asks for nothing.
func exchangeKind(s dhcp4.State) string {
	switch s {
	case dhcp4.Selecting, dhcp4.Requesting, dhcp4.Probing:
		return "discover"
	case dhcp4.Rebooting:
		return "reboot"
	case dhcp4.Renewing:
		return "renew"
	case dhcp4.Rebinding:
		return "rebind"
	}
	return ""
}

// measure counts what a step has done to the exchange under way.
func (s *session) measure(acts []dhcp4.Action) {
	now, m := s.cfg.Now(), s.cfg.Metrics
	result := ""
	for _, a := range acts {
		switch a := a.(type) {
		case dhcp4.Claim:
			if s.asked.kind == "discover" && !s.asked.offered {
				s.asked.offered = true
				m.latency.WithLabelValues("offer").Observe(now.Sub(s.asked.at).Seconds())
			}
		case dhcp4.Probe, dhcp4.Use:
			if s.asked.kind != "" && result == "" {
				result = "ack"
				m.latency.WithLabelValues("ack").Observe(now.Sub(s.asked.at).Seconds())
			}
		case dhcp4.Drop:
			if a.Reason == dhcp4.Nak {
				result = "nak"
			}
		case dhcp4.Ignore:
			if a.Kind == dhcp4.KindRefusal {
				result = "nak"
			}
		}
	}
	kind := exchangeKind(s.machine.State())
	switch {
	case result != "":
	case s.asked.kind != kind:
		result = "no answer"
	default:
		return
	}
	if s.asked.kind != "" {
		m.exchanges.WithLabelValues(s.asked.kind, result).Inc()
	}
	s.asked = asked{}
	if s.machine.State() != dhcp4.Probing {
		s.asked = asked{kind: kind, at: now}
	}
}
