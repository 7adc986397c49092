package cluster

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"

	view "github.com/dhcp-meta/dhcp-meta/internal/kube"
	"github.com/dhcp-meta/dhcp-meta/pkg/engine"
	"github.com/dhcp-meta/dhcp-meta/pkg/engine/api"
	"github.com/dhcp-meta/dhcp-meta/tests/rig"
	"github.com/dhcp-meta/dhcp-meta/tests/rig/kube"
)

// agent is how the package under test calls itself in the audit log; a test adds
// its node.
const agent = "dhcp-engine/"

// watching is the engine's view of a cluster, as its own account.
type watching struct {
	*view.Cluster
	node     string
	stateDir string
	config   *rest.Config
	// pods are the pods that came in, by namespace/name.
	mu   sync.Mutex
	pods map[string]int
}

// watch runs a view of a node, as the shipped account, until the test ends.
func watch(t *testing.T, c *kube.Cluster, node string) *watching {
	t.Helper()
	account(t, c)
	config := c.As(engineToken(t, c, enginePod(t, c, node)))
	w := newWatching(t, config, node)
	w.run(t)
	w.await(t)
	return w
}

func newWatching(t *testing.T, config *rest.Config, node string) *watching {
	t.Helper()
	config.UserAgent = agent + node
	w := &watching{node: node, stateDir: t.TempDir(), config: config, pods: map[string]int{}}
	var err error
	w.Cluster, err = view.New(view.Config{
		REST: config, NodeName: node, StateDir: w.stateDir,
		Log: slog.New(slog.NewTextHandler(testLog{t}, &slog.HandlerOptions{Level: slog.LevelDebug})),
	})
	if err != nil {
		t.Fatal(err)
	}
	w.OnPod(func(_, pod *corev1.Pod) {
		w.mu.Lock()
		defer w.mu.Unlock()
		if pod != nil {
			w.pods[pod.Namespace+"/"+pod.Name]++
		}
	})
	return w
}

// run runs it until the test ends.
func (w *watching) run(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	endedC := make(chan error, 1)
	go func() { endedC <- w.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		select {
		case err := <-endedC:
			if err != nil {
				t.Errorf("Run: %v", err)
			}
		case <-time.After(rig.Patience):
			t.Error("Run does not end")
		}
	})
}

func (w *watching) await(t *testing.T) {
	t.Helper()
	select {
	case <-w.Synced():
	case <-time.After(rig.Patience):
		t.Fatalf("not synced: %v", w.Ready())
	}
}

// sees waits until a pod is in the cache as it is wanted.
func (w *watching) sees(t *testing.T, pod *corev1.Pod) {
	t.Helper()
	eventually(t, "pod "+pod.Name+" is in the cache", func() bool {
		got, ok := w.Pod(pod.Namespace, pod.Name)
		return ok && got.UID == pod.UID
	})
}

// testLog writes the log of what is tested into that of the test.
type testLog struct{ t *testing.T }

func (l testLog) Write(b []byte) (int, error) {
	l.t.Log(strings.TrimSuffix(string(b), "\n"))
	return len(b), nil
}

// eventually is for conditions that have no event.
func eventually(t testing.TB, what string, is func() bool) {
	t.Helper()
	deadline := time.After(rig.Patience)
	again := time.NewTicker(5 * time.Millisecond)
	defer again.Stop()
	for !is() {
		select {
		case <-again.C:
		case <-deadline:
			t.Fatalf("not within %s: %s", rig.Patience, what)
		}
	}
}

// of is an attachment of a pod as the plugin would tell it.
func of(pod *corev1.Pod, ifName string) engine.Attachment {
	a := engine.Attachment{Pod: engine.Pod{Namespace: pod.Namespace, Name: pod.Name, UID: string(pod.UID)}}
	a.ContainerID, a.IfName = "0123456789abcdef", ifName
	return a
}

func facts(t *testing.T, w *watching, a engine.Attachment) engine.Facts {
	t.Helper()
	f, err := w.Facts(t.Context(), a)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// refusedFacts wants an error with a code and a text.
func refusedFacts(t *testing.T, w *watching, a engine.Attachment, code uint, text string) {
	t.Helper()
	_, err := w.Facts(t.Context(), a)
	if err == nil || api.CodeOf(err) != code || !strings.Contains(err.Error(), text) {
		t.Errorf("code %d, %v; want code %d and %q", api.CodeOf(err), err, code, text)
	}
}

const macvlan = `{"cniVersion":"1.0.0","type":"dhcp-meta","delegate":{"type":"macvlan"}}`

func ovnNetwork(nad, more string) string {
	return `{"cniVersion":"1.0.0","name":"office","type":"ovn-k8s-cni-overlay","topology":"localnet","role":"secondary","netAttachDefName":"` + nad + `"` + more + `}`
}
