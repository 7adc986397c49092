package kube

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/record"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine"
)

// How many events there may be. A pod that has the same trouble again and again
// says so a few times and then every few minutes; a node on which all pods have
// trouble at once tells of it slowly, and of some of them not at all.
const (
	eventsAtOnce    = 50
	eventsPerSecond = 5
	eventsWaiting   = 500
	reasonAtOnce    = 5
	reasonPerSecond = 1. / 120
)

// How long an event is tried while the API is away, and how often.
const (
	eventPatience = 3 * time.Minute
	eventTimeout  = 10 * time.Second
	eventBackoff  = 8 * time.Second
	// An API server that has just started forbids for a moment what it will allow.
	forbiddenPatience = 20 * time.Second
)

// What became of an event.
const (
	eventWritten = "written"
	eventTooMany = "too many"
	eventNoRoom  = "no room"
	eventRefused = "refused"
)

// maxNote is the longest message that the API takes.
const maxNote = 1024

const component = "dhcp-engine"

// events writes what is reported of attachments as events of their pods.
type events struct {
	client     kubernetes.Interface
	node       string
	metrics    *metrics
	log        *slog.Logger
	queueC     chan *corev1.Event
	correlator *record.EventCorrelator
	limit      *rate.Limiter
	refused    atomic.Bool
}

var _ engine.Reporter = (*events)(nil)

func newEvents(client kubernetes.Interface, node string, m *metrics, log *slog.Logger) *events {
	return &events{
		client: client, node: node, metrics: m, log: log,
		queueC: make(chan *corev1.Event, eventsWaiting),
		correlator: record.NewEventCorrelatorWithOptions(record.CorrelatorOptions{
			BurstSize: reasonAtOnce, QPS: reasonPerSecond, SpamKeyFunc: podAndReason,
		}),
		limit: rate.NewLimiter(eventsPerSecond, eventsAtOnce),
	}
}

// podAndReason is what few events are allowed of.
func podAndReason(e *corev1.Event) string {
	return e.InvolvedObject.Namespace + "/" + e.InvolvedObject.Name + "/" + string(e.InvolvedObject.UID) + "/" + e.Reason
}

// Report queues an event; it waits for nothing.
func (ev *events) Report(a engine.Attachment, e engine.Event) {
	if a.Pod.Name == "" || a.Pod.Namespace == "" {
		return
	}
	select {
	case ev.queueC <- ev.event(a, e, time.Now()):
	default:
		ev.metrics.events.WithLabelValues(eventNoRoom).Inc()
	}
}

func (ev *events) event(a engine.Attachment, e engine.Event, now time.Time) *corev1.Event {
	at := metav1.NewTime(now)
	note := []rune(a.IfName + ": " + e.Message)
	for len(string(note)) > maxNote {
		note = note[:len(note)-1]
	}
	return &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: a.Pod.Namespace,
			Name:      fmt.Sprintf("%s.%x", a.Pod.Name, now.UnixNano()),
		},
		InvolvedObject: corev1.ObjectReference{
			Kind: "Pod", APIVersion: "v1",
			Namespace: a.Pod.Namespace, Name: a.Pod.Name, UID: types.UID(a.Pod.UID),
		},
		Reason:              string(e.Reason),
		Message:             string(note),
		Type:                typeOf(e.Reason),
		FirstTimestamp:      at,
		LastTimestamp:       at,
		Count:               1,
		Source:              corev1.EventSource{Component: component, Host: ev.node},
		ReportingController: component,
		ReportingInstance:   ev.node,
	}
}

// typeOf is Normal for what is as it should be.
func typeOf(reason engine.EventReason) string {
	switch reason {
	case engine.AddressLeased, engine.AddressFound, engine.LeaseChanged:
		return corev1.EventTypeNormal
	}
	return corev1.EventTypeWarning
}

// run writes events until ctx ends.
func (ev *events) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case e := <-ev.queueC:
			result, err := ev.correlator.EventCorrelate(e)
			if err != nil || result.Skip {
				ev.metrics.events.WithLabelValues(eventTooMany).Inc()
				continue
			}
			if ev.limit.Wait(ctx) != nil {
				return
			}
			ev.write(ctx, result)
		}
	}
}

// write tries until the API has the event, refuses it, or patience ends.
func (ev *events) write(ctx context.Context, r *record.EventCorrelateResult) {
	begin := time.Now()
	end := r.Event.LastTimestamp.Add(eventPatience)
	for pause := time.Second; ; pause = min(2*pause, eventBackoff) {
		err := ev.send(ctx, r)
		switch {
		case err == nil:
			ev.metrics.events.WithLabelValues(eventWritten).Inc()
			return
		case ctx.Err() != nil:
			return
		case isFinal(err, time.Since(begin)) || time.Now().After(end):
			ev.metrics.events.WithLabelValues(eventRefused).Inc()
			if !apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) && !ev.refused.Swap(true) {
				ev.log.Warn("an event on a pod could not be written; later ones are only counted", "error", err)
			}
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
	}
}

// isFinal tells of an error, met after some time of trying, whether to try on makes
// no sense. A namespace that is going takes no events any more.
func isFinal(err error, tried time.Duration) bool {
	switch {
	case apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause), apierrors.IsInvalid(err), apierrors.IsNotFound(err):
		return true
	case apierrors.IsForbidden(err):
		return tried > forbiddenPatience
	}
	return false
}

// send makes the event, or counts one up that is there already.
func (ev *events) send(ctx context.Context, r *record.EventCorrelateResult) error {
	ctx, cancel := context.WithTimeout(ctx, eventTimeout)
	defer cancel()
	api := ev.client.CoreV1().Events(r.Event.Namespace)
	var written *corev1.Event
	var err error
	if r.Event.Count > 1 {
		written, err = api.Patch(ctx, r.Event.Name, types.StrategicMergePatchType, r.Patch, metav1.PatchOptions{})
	}
	if r.Event.Count <= 1 || apierrors.IsNotFound(err) { // events do not live for ever
		r.Event.ResourceVersion = ""
		written, err = api.Create(ctx, r.Event, metav1.CreateOptions{})
	}
	if apierrors.IsAlreadyExists(err) { // an attempt before this one arrived
		return nil
	}
	if err == nil {
		ev.correlator.UpdateState(written)
	}
	return err
}
