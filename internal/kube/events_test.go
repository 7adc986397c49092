package kube

import (
	"errors"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine"
)

// A call waits for nobody: what the queue does not hold is counted.
func TestReportWaitsForNobody(t *testing.T) {
	m := newMetrics(nil)
	ev := newEvents(nil, "n1", m, silent())
	for range eventsWaiting + 7 {
		ev.Report(attachment("net1", ""), engine.Event{Reason: engine.NoServer, Message: "nobody"})
	}
	if got := counted(t, m.events.WithLabelValues(eventNoRoom)); got != 7 {
		t.Errorf("%v have no room, want 7", got)
	}
	if n := len(ev.queueC); n != eventsWaiting {
		t.Errorf("%d wait", n)
	}
}

// There is nobody to tell where a runtime told no pod.
func TestReportWithoutAPod(t *testing.T) {
	ev := newEvents(nil, "n1", newMetrics(nil), silent())
	ev.Report(engine.Attachment{}, engine.Event{Reason: engine.NoServer})
	if n := len(ev.queueC); n != 0 {
		t.Errorf("%d wait", n)
	}
}

func TestEvent(t *testing.T) {
	ev := newEvents(nil, "n1", newMetrics(nil), silent())
	e := ev.event(attachment("net1", ""), engine.Event{Reason: engine.AddressLeased, Message: strings.Repeat("ä", 2000)}, time.Unix(1, 2))
	if e.InvolvedObject.Kind != "Pod" || e.InvolvedObject.Namespace != "pods" || e.InvolvedObject.Name != "web" || e.InvolvedObject.UID != "u1" {
		t.Errorf("about %v", e.InvolvedObject)
	}
	if e.Namespace != "pods" || e.Name != "web.3b9aca02" || e.Source.Component != "dhcp-engine" || e.Source.Host != "n1" {
		t.Errorf("%s/%s from %v", e.Namespace, e.Name, e.Source)
	}
	if !strings.HasPrefix(e.Message, "net1: ä") || len(e.Message) > 1024 || len(e.Message) < 1020 || strings.ContainsRune(e.Message, '\uFFFD') {
		t.Errorf("message of %d bytes: %.20q", len(e.Message), e.Message)
	}
	for reason, want := range map[engine.EventReason]string{
		engine.AddressLeased: "Normal", engine.AddressFound: "Normal", engine.LeaseChanged: "Normal",
		engine.StillWaiting: "Warning", engine.NoServer: "Warning", engine.LateLease: "Warning", engine.LeaseLost: "Warning",
		engine.LeaseReleased: "Warning", engine.ConflictFound: "Warning", engine.ServerRefused: "Warning", engine.RouteRefused: "Warning",
	} {
		if got := ev.event(attachment("net1", ""), engine.Event{Reason: reason}, time.Now()).Type; got != want {
			t.Errorf("%s is %s, want %s", reason, got, want)
		}
	}
}

// The same trouble again and again is told a few times; another trouble of the
// same pod, and the same of another pod, is not held back by it.
func TestEventsOfOneReasonAreFew(t *testing.T) {
	ev := newEvents(nil, "n1", newMetrics(nil), silent())
	passed := func(a engine.Attachment, reason engine.EventReason) bool {
		r, err := ev.correlator.EventCorrelate(ev.event(a, engine.Event{Reason: reason, Message: "x"}, time.Now()))
		return err == nil && !r.Skip
	}
	n := 0
	for range 100 {
		if passed(attachment("net1", ""), engine.NoServer) {
			n++
		}
	}
	if n != reasonAtOnce {
		t.Errorf("%d of 100 passed, want %d", n, reasonAtOnce)
	}
	other := attachment("net1", "")
	other.Pod.Name = "db"
	if !passed(attachment("net1", ""), engine.LeaseLost) || !passed(other, engine.NoServer) {
		t.Error("others are held back")
	}
}

// An API server that has just started does not know yet what the engine may do.
func TestWhichRefusalsAreFinal(t *testing.T) {
	forbidden := apierrors.NewForbidden(schema.GroupResource{Resource: "events"}, "x", errors.New("no"))
	going := apierrors.NewForbidden(schema.GroupResource{Resource: "events"}, "x", errors.New("no"))
	going.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: corev1.NamespaceTerminatingCause}}
	for _, tt := range []struct {
		name  string
		err   error
		tried time.Duration
		want  bool
	}{
		{"nobody answers", errors.New("connection refused"), time.Hour, false},
		{"forbidden at first", forbidden, time.Second, false},
		{"still forbidden", forbidden, time.Minute, true},
		{"the namespace is going", going, 0, true},
		{"no such namespace", apierrors.NewNotFound(schema.GroupResource{Resource: "namespaces"}, "x"), 0, true},
		{"an expired token", apierrors.NewUnauthorized("expired"), time.Minute, false},
	} {
		if got := isFinal(tt.err, tt.tried); got != tt.want {
			t.Errorf("%s: %v", tt.name, got)
		}
	}
}
