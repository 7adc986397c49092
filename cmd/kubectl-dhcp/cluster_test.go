package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/gorilla/websocket"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/remotecommand"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/spdy"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine/api"
)

// double is an API server with pods, which executes what the test says in the place of
// containers, by the protocols of exec. tests/onenode
// has a real one.
type double struct {
	t    *testing.T
	pods []corev1.Pod
	// old says that the server speaks SPDY alone, as before Kubernetes 1.30.
	old bool
	// run is what a dhcp-engine does; nil: the server refuses to execute.
	run func(node string, args []string) (stdout, stderr string, code int)

	mu  sync.Mutex
	ran []string
}

// start serves it, and returns a kubeconfig whose namespace is "shop".
func (d *double) start() string {
	d.t.Helper()
	server := httptest.NewServer(d)
	d.t.Cleanup(server.Close)
	file := filepath.Join(d.t.TempDir(), "kubeconfig")
	text, err := clientcmd.Write(clientcmdapi.Config{
		Clusters:       map[string]*clientcmdapi.Cluster{"c": {Server: server.URL}},
		Contexts:       map[string]*clientcmdapi.Context{"c": {Cluster: "c", Namespace: "shop"}},
		CurrentContext: "c",
	})
	if err == nil {
		err = os.WriteFile(file, text, 0o600)
	}
	if err != nil {
		d.t.Fatal(err)
	}
	return file
}

func (d *double) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	parts := strings.Split(strings.TrimPrefix(r.URL.Path, "/api/v1/namespaces/"), "/") // NS/pods/NAME/exec
	q := r.URL.Query()
	switch {
	case len(parts) == 2:
		list := corev1.PodList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "PodList"}}
		for _, p := range d.pods {
			label, value, _ := strings.Cut(q.Get("labelSelector"), "=")
			node := strings.TrimPrefix(q.Get("fieldSelector"), "spec.nodeName=")
			if p.Namespace == parts[0] && p.Labels[label] == value && (node == "" || node == p.Spec.NodeName) {
				list.Items = append(list.Items, p)
			}
		}
		d.answer(w, http.StatusOK, list)
	case len(parts) == 3:
		i := slices.IndexFunc(d.pods, func(p corev1.Pod) bool { return p.Namespace == parts[0] && p.Name == parts[2] })
		if i < 0 {
			d.answer(w, http.StatusNotFound, metav1.Status{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: "Failure", Code: 404, Reason: metav1.StatusReasonNotFound})
			return
		}
		d.answer(w, http.StatusOK, d.pods[i])
	case d.run == nil:
		d.answer(w, http.StatusForbidden, metav1.Status{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: "Failure", Code: 403, Reason: metav1.StatusReasonForbidden, Message: "not for you"})
	default:
		d.execute(w, r, parts[2], q["command"])
	}
}

func (d *double) answer(w http.ResponseWriter, code int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	if err := json.NewEncoder(w).Encode(v); err != nil {
		d.t.Error(err)
	}
}

// execute runs the command of a request, and writes what it says by the protocol that
// the client asks for.
func (d *double) execute(w http.ResponseWriter, r *http.Request, pod string, command []string) {
	write := d.websocket
	if !websocket.IsWebSocketUpgrade(r) {
		write = d.spdy
	} else if d.old {
		d.answer(w, http.StatusBadRequest, metav1.Status{})
		return
	}
	if container := r.URL.Query().Get("container"); container != "engine" || command[0] != "dhcp-engine" {
		d.t.Errorf("%v in container %s", command, container)
	}
	node := strings.TrimPrefix(pod, "dhcp-engine-")
	d.mu.Lock()
	d.ran = append(d.ran, node+": "+strings.Join(command[1:], " "))
	d.mu.Unlock()
	stdout, stderr, code := d.run(node, command[1:])
	status := metav1.Status{Status: metav1.StatusSuccess}
	if code != 0 {
		status = metav1.Status{Status: metav1.StatusFailure, Reason: remotecommand.NonZeroExitCodeReason, Message: "it has ended",
			Details: &metav1.StatusDetails{Causes: []metav1.StatusCause{{Type: remotecommand.ExitCodeCauseType, Message: fmt.Sprint(code)}}}}
	}
	text, _ := json.Marshal(status)
	write(w, r, said{[]byte(stdout), []byte(stderr), text})
}

// said is what goes over the streams of an execution.
type said struct{ stdout, stderr, status []byte }

func (d *double) websocket(w http.ResponseWriter, r *http.Request, s said) {
	up := websocket.Upgrader{Subprotocols: []string{remotecommand.StreamProtocolV5Name}}
	conn, err := up.Upgrade(w, r, nil)
	if err != nil {
		d.t.Error(err)
		return
	}
	defer func() { _ = conn.Close() }()
	for channel, b := range map[byte][]byte{remotecommand.StreamStdOut: s.stdout, remotecommand.StreamStdErr: s.stderr} {
		for chunk := range slices.Chunk(b, 1000) {
			_ = conn.WriteMessage(websocket.BinaryMessage, append([]byte{channel}, chunk...))
		}
	}
	_ = conn.WriteMessage(websocket.BinaryMessage, append([]byte{remotecommand.StreamErr}, s.status...))
	_ = conn.WriteMessage(websocket.CloseMessage, websocket.FormatCloseMessage(websocket.CloseNormalClosure, ""))
	_, _, _ = conn.ReadMessage() // until the client has it
}

func (d *double) spdy(w http.ResponseWriter, r *http.Request, s said) {
	if _, err := httpstream.Handshake(r, w, []string{remotecommand.StreamProtocolV4Name}); err != nil {
		d.t.Error(err)
		return
	}
	streamsC := make(chan httpstream.Stream, 3)
	conn := spdy.NewResponseUpgrader().UpgradeResponse(w, r, func(stream httpstream.Stream, _ <-chan struct{}) error {
		streamsC <- stream
		return nil
	})
	if conn == nil {
		d.t.Error("no SPDY")
		return
	}
	defer func() { _ = conn.Close() }()
	streams := map[string]httpstream.Stream{}
	for len(streams) < 3 {
		stream := <-streamsC
		streams[stream.Headers().Get(corev1.StreamType)] = stream
	}
	for name, b := range map[string][]byte{corev1.StreamTypeStdout: s.stdout, corev1.StreamTypeStderr: s.stderr, corev1.StreamTypeError: s.status} {
		_, _ = streams[name].Write(b)
		_ = streams[name].Close()
	}
	<-conn.CloseChan() // until the client has it
}

// commands are what was executed, sorted, without the lists of leases.
func (d *double) commands() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Sorted(slices.Values(slices.DeleteFunc(slices.Clone(d.ran), func(c string) bool { return strings.Contains(c, ": leases") })))
}

// call runs kubectl-dhcp.
func (d *double) call(args ...string) (stdout, stderr string, code int) {
	d.t.Helper()
	d.t.Setenv("KUBECONFIG", d.start())
	var out, errs bytes.Buffer
	code = run(d.t.Context(), args, streams{&out, &errs})
	return out.String(), errs.String(), code
}

// enginePod is the engine's pod on a node.
func enginePod(node string, change ...func(*corev1.Pod)) corev1.Pod {
	p := corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "dhcp-meta", Name: "dhcp-engine-" + node, Labels: map[string]string{"app.kubernetes.io/name": "dhcp-engine"}},
		Spec:       corev1.PodSpec{NodeName: node},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, ContainerStatuses: []corev1.ContainerStatus{
			{Name: "keep-installed", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}},
			{Name: "engine", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}},
		}},
	}
	for _, c := range change {
		c(&p)
	}
	return p
}

func workload(name, node string) corev1.Pod {
	return corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name}, Spec: corev1.PodSpec{NodeName: node}}
}

func waiting(reason string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Status.ContainerStatuses[1].State = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason}}
	}
}

// status is an attachment as an engine tells of it.
func status(container, namespace, pod, ifName, state, address string) api.Status {
	return api.Status{
		AttachmentID: api.AttachmentID{ContainerID: container, IfName: ifName}, Pod: api.Pod{Namespace: namespace, Name: pod},
		Network: "lan", NAD: namespace + "/lan", Netns: "/run/netns/" + container, State: state, Address: address, Server: "10.77.0.1",
	}
}

// engines answers `leases -o json` by what each node has, with --pod, and all else by
// its words.
func engines(of map[string][]api.Status) func(string, []string) (string, string, int) {
	return func(node string, args []string) (string, string, int) {
		if args[0] != "leases" {
			return "done: " + strings.Join(args, " ") + "\n", "", 0
		}
		all := slices.Clone(of[node])
		if i := slices.Index(args, "--pod"); i > 0 {
			all = slices.DeleteFunc(all, func(s api.Status) bool { return s.Pod.Namespace+"/"+s.Pod.Name != args[i+1] })
		}
		text, _ := json.Marshal(all)
		return string(text), "", 0
	}
}
