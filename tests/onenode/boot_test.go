package onenode

import (
	"context"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Field case B43: a pod that is made before there is an engine, on a new node or after a
// reboot, waits, its events say for what, and it gets its address when the engine has
// come. B42: one that is deleted meanwhile goes, and its lease is given back then, over
// the interface of another pod.
func TestB42B43PodsWithoutAnEngine(t *testing.T) {
	s := shared(t)
	ns := s.namespace(t)
	s.NAD(t, ns, "site", macvlan(), nil)
	early := s.pod(t, ns, "site")
	s.awaitEvent(t, early, "failed to find plugin")
	s.install(t, plain)
	s.awaitRunning(t, s.pod(t, ns, "site"))
	early = s.awaitRunning(t, early)
	one := s.leased(t, early, "net1")

	mark := s.server.Lines.Len()
	s.Kubectl(t, "", "delete", "--namespace="+namespace, "--timeout="+patience.String(), "daemonset/dhcp-engine")
	s.delete(t, early)
	late := s.pod(t, ns, "site")
	s.awaitEvent(t, late, "dhcp-engine cannot be reached")
	s.update(t, plain, tagOne)
	s.awaitReleased(t, mark, one)
	late = s.awaitRunning(t, late)
	two := s.leased(t, late, "net1")
	s.delete(t, late)
	s.awaitReleased(t, mark, two)
}

// awaitEvent waits for a warning about the pod that says text.
func (s *site) awaitEvent(t *testing.T, pod *corev1.Pod, text string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	events := s.Client.CoreV1().Events(pod.Namespace)
	again := time.NewTicker(100 * time.Millisecond)
	defer again.Stop()
	var seen []string
	for {
		list, err := events.List(ctx, metav1.ListOptions{FieldSelector: "type=Warning,involvedObject.name=" + pod.Name})
		if err != nil {
			t.Fatalf("list the events of pod %s: %v; the last ones: %q", pod.Name, err, seen)
		}
		seen = nil
		for _, e := range list.Items {
			if strings.Contains(e.Message, text) {
				return
			}
			seen = append(seen, e.Message)
		}
		select {
		case <-again.C:
		case <-ctx.Done():
			t.Fatalf("no event of pod %s says %q; they say %q", pod.Name, text, seen)
		}
	}
}
