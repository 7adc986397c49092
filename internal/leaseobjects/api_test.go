package leaseobjects

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
)

// api is a double of the API server for the time and the errors that a test wants.
// What the real one does is in tests/cluster.
type api struct {
	mu       sync.Mutex
	objects  map[string]*Lease // by namespace/name
	version  int
	watches  []*io.PipeWriter
	requests []string // "PATCH shop/web-0..." and so on; of lists and watches the selector
	// code is the answer to all requests, if it is not 0; writes the same for writes.
	code, writes int
	hangC        chan struct{} // holds up writes until it is closed; nil: nothing does
}

func newAPI() *api { return &api{objects: make(map[string]*Lease)} }

func (a *api) RoundTrip(r *http.Request) (*http.Response, error) {
	var body []byte
	if r.Body != nil {
		body, _ = io.ReadAll(r.Body)
	}
	write := r.Method != http.MethodGet
	if a.hangC != nil && write {
		select {
		case <-a.hangC:
		case <-r.Context().Done():
			return nil, r.Context().Err()
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	name := strings.Join(strings.FieldsFunc(strings.TrimPrefix(r.URL.Path, "/apis/dhcp-meta.io/v1alpha1"), func(c rune) bool { return c == '/' }), "/")
	name = strings.NewReplacer("namespaces/", "", "dhcpleases/", "").Replace(name)
	if write {
		a.requests = append(a.requests, r.Method+" "+name)
	} else {
		a.requests = append(a.requests, r.Method+" "+r.URL.Query().Get("labelSelector"))
	}
	code := a.code
	if code == 0 && write {
		code = a.writes
	}
	switch {
	case code != 0:
		return status(r, code), nil
	case r.Method == http.MethodGet:
		return a.get(r), nil
	case r.Method == http.MethodDelete:
		var o metav1.DeleteOptions
		if l := a.objects[name]; l == nil || json.Unmarshal(body, &o) != nil || *o.Preconditions.UID != l.UID {
			return status(r, http.StatusNotFound), nil
		}
		a.drop(name)
		return answer(r, metav1.Status{Status: "Success"}), nil
	case r.Header.Get("Content-Type") != string(types.ApplyYAMLPatchType) || r.URL.Query().Get("force") != "true":
		return status(r, http.StatusUnsupportedMediaType), nil
	}
	l := new(Lease)
	if err := json.Unmarshal(body, l); err != nil {
		return status(r, http.StatusBadRequest), nil
	}
	a.put(l)
	return answer(r, l), nil
}

// get is a list, or a watch with or without what there is.
func (a *api) get(r *http.Request) *http.Response {
	q := r.URL.Query()
	if q.Get("watch") == "" {
		list := LeaseList{TypeMeta: metav1.TypeMeta{APIVersion: groupVersion.String(), Kind: kind + "List"}}
		list.ResourceVersion = strconv.Itoa(a.version)
		for _, l := range a.objects {
			list.Items = append(list.Items, *l)
		}
		return answer(r, list)
	}
	from, to := io.Pipe()
	a.watches = append(a.watches, to)
	var first [][]byte
	if q.Get("sendInitialEvents") == "true" {
		for _, l := range a.objects {
			first = append(first, event("ADDED", l))
		}
		end := &Lease{TypeMeta: metav1.TypeMeta{APIVersion: groupVersion.String(), Kind: kind}}
		end.ResourceVersion, end.Annotations = strconv.Itoa(a.version), map[string]string{metav1.InitialEventsAnnotationKey: "true"}
		first = append(first, event("BOOKMARK", end))
	}
	go func() { _, _ = to.Write(bytes.Join(first, nil)) }()
	return &http.Response{StatusCode: http.StatusOK, Request: r, Header: http.Header{"Content-Type": {"application/json"}}, Body: from}
}

// put and drop change an object; they are called with the lock held.
func (a *api) put(l *Lease) {
	name := l.Namespace + "/" + l.Name
	what := "MODIFIED"
	if before := a.objects[name]; before == nil {
		what = "ADDED"
		l.UID = types.UID(fmt.Sprint("uid-", a.version))
	} else {
		l.UID = before.UID
	}
	a.version++
	l.ResourceVersion = strconv.Itoa(a.version)
	a.objects[name] = l
	a.tell(what, l)
}

func (a *api) drop(name string) {
	l := a.objects[name]
	delete(a.objects, name)
	a.version++
	l.ResourceVersion = strconv.Itoa(a.version)
	a.tell("DELETED", l)
}

func (a *api) tell(what string, l *Lease) {
	text := event(what, l)
	for _, w := range a.watches {
		go func() { _, _ = w.Write(text) }()
	}
}

// away has the kind go, with all of its objects and watches.
func (a *api) away() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.code = http.StatusNotFound
	clear(a.objects)
	for _, w := range a.watches {
		_ = w.Close()
	}
	a.watches = nil
}

func (a *api) change(f func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	f()
}

// since are the writes since the last call.
func (a *api) since() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	var writes []string
	for _, r := range a.requests {
		if !strings.HasPrefix(r, http.MethodGet) {
			writes = append(writes, r)
		}
	}
	a.requests = nil
	return writes
}

func event(what string, l *Lease) []byte {
	text, _ := json.Marshal(l)
	line, _ := json.Marshal(metav1.WatchEvent{Type: what, Object: runtime.RawExtension{Raw: text}})
	return append(line, '\n')
}

func answer(r *http.Request, v any) *http.Response {
	text, _ := json.Marshal(v)
	return &http.Response{StatusCode: http.StatusOK, Request: r, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(bytes.NewReader(text))}
}

func status(r *http.Request, code int) *http.Response {
	reason := map[int]metav1.StatusReason{http.StatusNotFound: metav1.StatusReasonNotFound, http.StatusForbidden: metav1.StatusReasonForbidden,
		http.StatusServiceUnavailable: metav1.StatusReasonServiceUnavailable}[code]
	s := answer(r, metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: "Failure", Code: int32(code), Reason: reason, Message: "as the test wants it"})
	s.StatusCode = code
	return s
}
