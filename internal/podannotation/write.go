package podannotation

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/dhcp-meta/dhcp-meta/internal/kube/podnetworks"
	"github.com/dhcp-meta/dhcp-meta/pkg/engine"
)

// patience is the time that one request may take.
const patience = 10 * time.Second

// The waits between two tries.
const (
	fastest = 100 * time.Millisecond
	slowest = time.Minute
	absence = 8 * time.Second // while the API server is away
)

// apiError is a request that went wrong.
type apiError struct {
	doing   string // "read", "annotate"
	pod     string
	err     error
	outcome outcome
}

// outcome is the label result of a request.
type outcome string

const (
	written     outcome = "written"
	conflict    outcome = "conflict"    // somebody else was faster: look again
	unavailable outcome = "unavailable" // try again
	refused     outcome = "refused"     // trying again changes nothing
	gone        outcome = "gone"        // the pod is not there
)

func (e *apiError) Error() string {
	text := fmt.Sprintf("%s pod %s: %v", e.doing, e.pod, e.err)
	switch {
	case apierrors.IsForbidden(e.err):
		text += "; the engine's service account needs the right to get and patch pods, and an admission policy may stand in its way"
	case apierrors.IsUnauthorized(e.err):
		text += "; the API server does not take the engine's token"
	case e.outcome == refused && apierrors.IsInvalid(e.err):
		text += "; the annotation is as it was expected, so an admission policy or the API server does not want the change"
	}
	return text
}

func (e *apiError) Unwrap() []error {
	if e.outcome == gone {
		return []error{e.err, engine.ErrSuperseded}
	}
	return []error{e.err}
}

// failed makes the error of a request.
func failed(doing string, pod engine.Pod, err error) *apiError {
	e := &apiError{doing: doing, pod: pod.Namespace + "/" + pod.Name, err: err, outcome: unavailable}
	switch {
	case apierrors.IsNotFound(err):
		e.outcome = gone
	case apierrors.IsConflict(err), apierrors.IsInvalid(err):
		e.outcome = conflict
	case apierrors.IsForbidden(err), apierrors.IsBadRequest(err), apierrors.IsRequestEntityTooLargeError(err), apierrors.IsMethodNotSupported(err),
		apierrors.IsUnsupportedMediaType(err):
		e.outcome = refused
	}
	return e
}

// lasting tells whether trying again soon is of no use.
func lasting(err error) bool {
	var e *apiError
	if errors.As(err, &e) {
		return e.outcome == refused
	}
	return !errors.Is(err, errNoEntry) && !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, context.Canceled)
}

// delay is how long to wait after so many tries.
func delay(tries int, err error) time.Duration {
	d := min(fastest<<min(tries-1, 6), 5*time.Second)
	if seconds, says := apierrors.SuggestsClientDelay(err); says {
		d = max(d, time.Duration(seconds)*time.Second)
	}
	return min(d, slowest)
}

// read asks the API for the pod.
func (p *Publisher) read(ctx context.Context, pod engine.Pod) (view, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	got, err := p.cfg.Client.CoreV1().Pods(pod.Namespace).Get(ctx, pod.Name, metav1.GetOptions{})
	if err != nil {
		return view{}, failed("read", pod, err)
	}
	return viewOf(got), nil
}

// operation is one of a JSON patch (RFC 6902).
type operation struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value"`
}

// patch writes changes, if the pod is the one of v still and the annotations are as
// they were there. Neither needs its resourceVersion, which changes with every
// report of the kubelet.
func (p *Publisher) patch(ctx context.Context, pod engine.Pod, v view, changes []change) (view, error) {
	body, err := json.Marshal(operations(v, changes))
	if err != nil {
		return view{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	got, err := p.cfg.Client.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.JSONPatchType, body, metav1.PatchOptions{})
	if err != nil {
		e := failed("annotate", pod, err)
		p.metrics.writes.WithLabelValues(string(e.outcome)).Inc()
		return view{}, e
	}
	p.metrics.writes.WithLabelValues(string(written)).Inc()
	return viewOf(got), nil
}

func operations(v view, changes []change) []operation {
	list := []operation{{"test", "/metadata/uid", v.uid}}
	if !v.annotated {
		all := make(map[string]string)
		for _, c := range changes {
			all[c.key] = c.after
		}
		return append(list, operation{"test", "/metadata/annotations", nil}, operation{"add", "/metadata/annotations", all})
	}
	for _, c := range changes {
		path := "/metadata/annotations/" + strings.NewReplacer("~", "~0", "/", "~1").Replace(c.key)
		test := operation{Op: "test", Path: path}
		if c.there {
			test.Value = c.before
		}
		list = append(list, test)
		if c.gone {
			list = append(list, operation{Op: "remove", Path: path})
			continue
		}
		list = append(list, operation{"add", path, c.after})
	}
	return list
}

// based is what a patch was made for, to see whether a second one is for the same.
func based(v view) string {
	return fmt.Sprint(v.annotated) + v.uid + "\n" + v.annotations[podnetworks.OVNKey] + "\n" + v.annotations[podnetworks.OwnKey]
}
