package podannotation

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/dhcp-meta/dhcp-meta/internal/kube/podnetworks"
)

// api is a double of the API server for the time and the errors that a test wants;
// it applies JSON patches with the code that the real one has. What the real one
// does is in tests/cluster. It is the cache of the node's pods too.
type api struct {
	mu       sync.Mutex
	pods     map[string]*corev1.Pod
	version  int
	requests []string // "GET", "PATCH", with the code where it is not 200
	// answer, where it is set, may answer a request in the place of the API; it is
	// called with the lock held and may change pods.
	answer func(method string, n int) (code int, header http.Header, err error)
	// changed is told of changes, as a watch would; nil: nobody is.
	changed func(old, pod *corev1.Pod)
	events  chan event
	// hidden says that the cache has not seen the pods yet; lag that it shows them as
	// they were when lag was set.
	hidden bool
	lag    map[string]*corev1.Pod
}

type event struct{ old, pod *corev1.Pod }

// watch hands events on in their order, until the channel is closed.
func (a *api) watch() {
	for e := range a.events {
		a.mu.Lock()
		changed := a.changed
		a.mu.Unlock()
		if changed != nil {
			changed(e.old, e.pod)
		}
	}
}

func (a *api) RoundTrip(r *http.Request) (*http.Response, error) {
	if err := context.Cause(r.Context()); err != nil {
		return nil, err
	}
	var body []byte
	if r.Body != nil {
		body, _ = io.ReadAll(r.Body)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.answer != nil {
		if code, header, err := a.answer(r.Method, len(a.requests)); code != 0 || err != nil {
			a.requests = append(a.requests, fmt.Sprint(r.Method, " ", code))
			if err != nil {
				return nil, err
			}
			return status(r, code, "as the test wants it", header), nil
		}
	}
	parts := strings.Split(r.URL.Path, "/") // /api/v1/namespaces/NS/pods/NAME
	code, pod, message := a.serve(r.Method, parts[4]+"/"+parts[6], body)
	if code != http.StatusOK {
		a.requests = append(a.requests, fmt.Sprint(r.Method, " ", code))
		return status(r, code, message, nil), nil
	}
	a.requests = append(a.requests, r.Method)
	text, err := json.Marshal(pod)
	return response(r, code, text, nil), err
}

func (a *api) serve(method, name string, body []byte) (int, *corev1.Pod, string) {
	pod := a.pods[name]
	switch {
	case pod == nil:
		return http.StatusNotFound, nil, "pods " + name + " not found"
	case method == http.MethodGet:
		return http.StatusOK, pod, ""
	}
	patch, err := jsonpatch.DecodePatch(body)
	if err != nil {
		return http.StatusBadRequest, nil, err.Error()
	}
	text, _ := json.Marshal(pod)
	if text, err = patch.Apply(text); err != nil {
		return http.StatusUnprocessableEntity, nil, err.Error()
	}
	after := new(corev1.Pod)
	if err := json.Unmarshal(text, after); err != nil {
		return http.StatusBadRequest, nil, err.Error()
	}
	a.store(after)
	return http.StatusOK, a.pods[name], ""
}

// store is called with the lock held.
func (a *api) store(pod *corev1.Pod) {
	name := pod.Namespace + "/" + pod.Name
	a.version++
	pod.TypeMeta = metav1.TypeMeta{Kind: "Pod", APIVersion: "v1"}
	pod.ResourceVersion = strconv.Itoa(a.version)
	old := a.pods[name]
	if a.pods == nil {
		a.pods = make(map[string]*corev1.Pod)
	}
	a.pods[name] = pod
	if old != nil && old.UID != pod.UID {
		a.events <- event{old, nil}
		old = nil
	}
	a.events <- event{old, pod}
}

func status(r *http.Request, code int, message string, header http.Header) *http.Response {
	s := metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: "Failure", Code: int32(code), Message: message,
		Reason: map[int]metav1.StatusReason{400: metav1.StatusReasonBadRequest, 401: metav1.StatusReasonUnauthorized, 403: metav1.StatusReasonForbidden,
			404: metav1.StatusReasonNotFound, 409: metav1.StatusReasonConflict, 422: metav1.StatusReasonInvalid, 429: metav1.StatusReasonTooManyRequests,
			500: metav1.StatusReasonInternalError, 503: metav1.StatusReasonServiceUnavailable}[code]}
	text, _ := json.Marshal(s)
	return response(r, code, text, header)
}

func response(r *http.Request, code int, body []byte, header http.Header) *http.Response {
	if header == nil {
		header = http.Header{}
	}
	header.Set("Content-Type", "application/json")
	return &http.Response{StatusCode: code, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Header: header,
		Body: io.NopCloser(bytes.NewReader(body)), Request: r}
}

// Pod is the cache.
func (a *api) Pod(namespace, name string) (*corev1.Pod, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	pods := a.pods
	if a.lag != nil {
		pods = a.lag
	}
	pod, ok := pods[namespace+"/"+name]
	return pod, ok && !a.hidden
}

// pod makes a pod, or one anew with another UID, with the annotations as they are.
func (a *api) pod(name, uid string, annotations map[string]string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.store(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(uid), Annotations: annotations}})
}

// annotate changes an annotation of the pod, as somebody else does.
func (a *api) annotate(name, key, value string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.annotateLocked(name, key, value)
}

func (a *api) annotateLocked(name, key, value string) {
	pod := a.pods["default/"+name].DeepCopy()
	pod.Annotations[key] = value
	a.store(pod)
}

// unwatched is a cache that has lost its watch, and the pods with it.
func (a *api) unwatched() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.changed, a.hidden = nil, true
}

func (a *api) remove(name string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	old := a.pods["default/"+name]
	delete(a.pods, "default/"+name)
	a.events <- event{old, nil}
}

func (a *api) annotation(t *testing.T, name, key string) string {
	t.Helper()
	a.mu.Lock()
	defer a.mu.Unlock()
	pod := a.pods["default/"+name]
	if pod == nil {
		t.Fatalf("there is no pod %s", name)
	}
	return pod.Annotations[key]
}

// since are the requests since the last call.
func (a *api) since() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	list := strings.Join(a.requests, ", ")
	a.requests = nil
	return list
}

// fail lets requests fail until it is called again.
func (a *api) fail(answer func(method string, n int) (int, http.Header, error)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.answer, a.requests = answer, nil
}

var errRefusedConnection = errors.New("connect: connection refused")

// world is a Publisher that runs, with the API that it talks to, and its log.
type world struct {
	*api
	*Publisher
	log      *syncBuffer
	registry *prometheus.Registry
}

type syncBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// simulate runs a test with a Publisher in simulated time.
func simulate(t *testing.T, test func(t *testing.T, w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		a := &api{events: make(chan event, 1000)}
		client, err := kubernetes.NewForConfigAndClient(&rest.Config{Host: "http://api", QPS: -1,
			ContentConfig: rest.ContentConfig{ContentType: "application/json"}}, &http.Client{Transport: a})
		if err != nil {
			t.Fatal(err)
		}
		w := &world{api: a, log: new(syncBuffer), registry: prometheus.NewRegistry()}
		w.Publisher = New(Config{Client: client, Pods: a, Metrics: w.registry,
			Log: slog.New(slog.NewTextHandler(w.log, &slog.HandlerOptions{Level: slog.LevelInfo}))})
		a.changed = w.PodChanged
		go a.watch()
		ctx, cancel := context.WithCancel(t.Context())
		endC := make(chan error, 1)
		go func() { endC <- w.Run(ctx) }()
		test(t, w)
		cancel()
		close(a.events)
		if err := <-endC; err != nil {
			t.Errorf("Run: %v", err)
		}
		synctest.Wait()
	})
}

// value is a metric's value, of all labels together or of one.
func (w *world) value(t *testing.T, name, label string) float64 {
	t.Helper()
	families, err := w.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		sum := 0.0
		for _, m := range f.GetMetric() {
			if label == "" || m.GetLabel()[0].GetValue() == label {
				sum += m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
		return sum
	}
	t.Fatalf("there is no metric %s", name)
	return 0
}

const ovnKey = podnetworks.OVNKey

// plain is what OVN-Kubernetes writes for a network without IPAM.
const plain = `{"default":{"ip_addresses":["10.244.0.3/24"],"mac_address":"0a:58:0a:f4:00:03","gateway_ips":["10.244.0.1"],"role":"primary"},` +
	`"default/lan":{"ip_addresses":null,"mac_address":"0a:58:aa:bb:cc:01","role":"secondary"}}`

// leasedText is plain with a lease.
func leasedText(addr string) string {
	return strings.Replace(plain, `"ip_addresses":null,"mac_address":"0a:58:aa:bb:cc:01","role":"secondary"`,
		`"ip_addresses":["`+addr+`"],"mac_address":"0a:58:aa:bb:cc:01","role":"secondary","gateway_ips":["10.0.0.1"],"ipam_mode":"dhcp"`, 1)
}
