package kube

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/dhcp-meta/dhcp-meta/tests/rig"
)

// Request is what was asked of the API server, and answered.
type Request struct {
	Verb string // "get", "watch", "patch", ...
	// User is who asked, "system:serviceaccount:<namespace>:<name>"; Agent is how the
	// program called itself.
	User, Agent                            string
	Resource, Subresource, Namespace, Name string
	// URI is the whole of it, selectors too.
	URI string
	// Code is the status of the answer.
	Code int
	// Body is what a write of a pod, event or network sent.
	Body json.RawMessage
	At   time.Time
}

// Writes tells whether it could change something.
func (r Request) Writes() bool {
	return slices.Contains([]string{"create", "update", "patch", "delete", "deletecollection"}, r.Verb)
}

func (r Request) String() string {
	return fmt.Sprintf("%s %s %s/%s/%s/%s by %s (%s): %d %s",
		r.At.Format("15:04:05.000"), r.Verb, r.Resource, r.Namespace, r.Name, r.Subresource, r.User, r.Agent, r.Code, r.Body)
}

// Requests are those that were answered up to now and that match, in their order.
// A watch is there when it has ended.
func (c *Cluster) Requests(t testing.TB, match func(Request) bool) []Request {
	t.Helper()
	// The server writes a request down just after its answer. It has done so for all
	// requests before this one when this one is there.
	mark := fmt.Sprintf("mark-%d", c.names.Add(1))
	marker := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: mark}}
	if _, err := c.Client.CoreV1().ConfigMaps("default").Create(t.Context(), marker, metav1.CreateOptions{}); err != nil {
		t.Fatalf("mark the audit log: %v", err)
	}
	var all []Request
	c.awaitAudit(t, func() bool {
		all = c.audit(t)
		return slices.ContainsFunc(all, func(r Request) bool { return r.Resource == "configmaps" && r.Name == mark })
	})
	return slices.DeleteFunc(all, func(r Request) bool { return !match(r) })
}

// PodWrites are the writes of a pod and its status by others than the test.
func (c *Cluster) PodWrites(t testing.TB, pod *corev1.Pod) []Request {
	t.Helper()
	return c.Requests(t, func(r Request) bool {
		return r.Writes() && r.Resource == "pods" && r.Namespace == pod.Namespace && r.Name == pod.Name && r.Agent != c.admin.UserAgent
	})
}

// auditEvent is a line of the audit log (audit.k8s.io/v1, Event).
type auditEvent struct {
	Stage          string
	Verb           string
	RequestURI     string
	UserAgent      string
	User           struct{ Username string }
	ObjectRef      *struct{ Resource, Namespace, Name, Subresource string }
	ResponseStatus struct{ Code int }
	RequestObject  json.RawMessage
	StageTimestamp time.Time
}

func (c *Cluster) audit(t testing.TB) []Request {
	t.Helper()
	b, err := os.ReadFile(c.file("audit.log"))
	if err != nil {
		t.Fatal(err)
	}
	var list []Request
	for line := range bytes.Lines(b) {
		if !bytes.HasSuffix(line, []byte("\n")) {
			break // it is being written
		}
		var e auditEvent
		if err := json.Unmarshal(line, &e); err != nil {
			t.Fatalf("read the audit log: %v in %s", err, line)
		}
		// A watch has a line at its start too.
		if e.Stage != "ResponseComplete" || e.ObjectRef == nil {
			continue
		}
		list = append(list, Request{
			Verb: e.Verb, User: e.User.Username, Agent: e.UserAgent, URI: e.RequestURI, Code: e.ResponseStatus.Code,
			Resource: e.ObjectRef.Resource, Subresource: e.ObjectRef.Subresource,
			Namespace: e.ObjectRef.Namespace, Name: e.ObjectRef.Name,
			Body: e.RequestObject, At: e.StageTimestamp,
		})
	}
	return list
}

// awaitAudit asks again and again. The log grows with every request of every test, so
// there is no moment at which nothing has changed for a while, as for a server's leases.
func (c *Cluster) awaitAudit(t testing.TB, ok func() bool) {
	t.Helper()
	deadline := time.After(rig.Patience)
	again := time.NewTicker(20 * time.Millisecond)
	defer again.Stop()
	for !ok() {
		select {
		case <-again.C:
		case <-deadline:
			t.Fatalf("the audit log does not come to its mark within %v", rig.Patience)
		}
	}
}
