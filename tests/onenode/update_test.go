package onenode

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine/api"
	"github.com/dhcp-meta/dhcp-meta/tests/rig"
	"github.com/dhcp-meta/dhcp-meta/tests/rig/kube"
	"github.com/dhcp-meta/dhcp-meta/tests/rig/kubelet"
	"github.com/dhcp-meta/dhcp-meta/tests/rig/node"
)

// Engine and plugin are updated to another image, and restarted, while pods come and go:
// pods that run keep their addresses, of which the server hears nothing but renewals, and
// every pod that is made in between comes to run.
func TestB38K93UpdateUnderLoad(t *testing.T) {
	s := shared(t)
	s.install(t, plain)
	ns := s.namespace(t)
	s.NAD(t, ns, "site", macvlan(), nil)

	var steady []*corev1.Pod
	for range 5 {
		steady = append(steady, s.pod(t, ns, "site"))
	}
	leases := map[string]iface{}
	for _, pod := range steady {
		leases[pod.Name] = s.leased(t, s.awaitRunning(t, pod), "net1")
	}
	mark := s.server.Lines.Len()
	load := s.startLoad(t, ns, 3)
	absence := s.watchEngine(t)
	load.await(t, 3)
	s.update(t, plain, tagTwo)
	load.await(t, 3)
	s.Kubectl(t, "", "rollout", "restart", "--namespace="+namespace, "daemonset/dhcp-engine")
	s.node.RolloutStatus(t, namespace, "dhcp-engine")
	load.await(t, 3)
	load.stop(t)
	t.Logf("%d pods came and went; the node was without an engine for at most %v", load.len(), absence())

	for _, pod := range steady {
		s.checkKept(t, pod, leases[pod.Name], mark)
	}
	for _, pod := range steady {
		s.delete(t, pod)
		s.awaitReleased(t, mark, leases[pod.Name])
	}
}

// checkKept checks that a pod, which ran all the time since mark, has kept its lease, of
// which the server has heard nothing but renewals.
func (s *site) checkKept(t *testing.T, pod *corev1.Pod, i iface, mark int) {
	t.Helper()
	for _, e := range s.server.Events(mark) {
		if e.MAC == i.mac && e.Kind != "DHCPREQUEST" && e.Kind != "DHCPACK" {
			t.Errorf("pod %s, which ran all the time: %v", pod.Name, e)
		}
	}
	if got := s.leased(t, s.GetPod(t, pod.Namespace, pod.Name), "net1"); got != i {
		t.Errorf("pod %s has %v, and had %v", pod.Name, got, i)
	}
	if said := s.engine(t, "/usr/bin/dhcp-engine", "leases"); !strings.Contains(said, i.addr.String()) {
		t.Errorf("the engine does not know %v of pod %s:\n%s", i.addr, pod.Name, said)
	}
}

// load is pods that come and go.
type load struct {
	lives rig.Stream[time.Duration]
	end   func()
	done  sync.WaitGroup

	mu   sync.Mutex
	errs []error
}

// startLoad makes pods with an address and deletes them when they run, so many at once,
// until stop.
func (s *site) startLoad(t *testing.T, ns string, pods int) *load {
	t.Helper()
	l := new(load)
	ctx, cancel := context.WithCancel(t.Context())
	l.end = cancel
	for lane := range pods {
		l.done.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				begin := time.Now()
				err := s.live(t.Context(), ns, fmt.Sprintf("load-%d-%d", lane, i))
				l.lives.Add(time.Since(begin))
				if err != nil {
					l.mu.Lock()
					l.errs = append(l.errs, err)
					l.mu.Unlock()
					return
				}
			}
		})
	}
	return l
}

// live is the life of a pod, from its making until it is gone.
func (s *site) live(ctx context.Context, ns, name string) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	pods := s.Client.CoreV1().Pods(ns)
	object := kube.PodSpec{Name: name, Image: kubelet.Pause, Networks: "site"}.Object()
	if _, err := pods.Create(ctx, object, metav1.CreateOptions{}); err != nil {
		return err
	}
	err := poll(ctx, func() (bool, error) {
		pod, err := pods.Get(ctx, name, metav1.GetOptions{})
		return err == nil && pod.Status.Phase == corev1.PodRunning, err
	})
	if err != nil {
		return fmt.Errorf("pod %s does not come to run: %w", name, err)
	}
	if err := pods.Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
		return err
	}
	err = poll(ctx, func() (bool, error) {
		_, err := pods.Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return true, nil
		}
		return false, err
	})
	if err != nil {
		return fmt.Errorf("pod %s does not go: %w", name, err)
	}
	return nil
}

// poll asks again and again.
func poll(ctx context.Context, ok func() (bool, error)) error {
	again := time.NewTicker(100 * time.Millisecond)
	defer again.Stop()
	for {
		yes, err := ok()
		if yes || err != nil {
			return err
		}
		select {
		case <-again.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// await waits until so many more pods have come and gone.
func (l *load) await(t *testing.T, lives int) {
	t.Helper()
	mark := l.lives.Len()
	for range lives {
		_, mark = l.lives.Await(t, "pod that comes and goes", mark, patience, func(time.Duration) bool { return true })
	}
}

// stop ends the load; no pod of it may have failed.
func (l *load) stop(t *testing.T) {
	t.Helper()
	l.end()
	l.done.Wait()
	for _, err := range l.errs {
		t.Error(err)
	}
	t.Logf("a pod of the load lived for at most %v", slices.Max(l.lives.Since(0)))
}

func (l *load) len() int { return l.lives.Len() }

// watchEngine asks all the time whether the engine is ready; the result returns the
// longest time in which it was not.
func (s *site) watchEngine(t *testing.T) func() time.Duration {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	client := api.Client{Socket: s.node.Path(node.Socket)}
	longest := make(chan time.Duration, 1)
	go func() {
		var worst time.Duration
		seen := time.Now()
		again := time.NewTicker(20 * time.Millisecond)
		defer again.Stop()
		for {
			select {
			case <-again.C:
			case <-ctx.Done():
				longest <- worst
				return
			}
			if client.Ready(ctx) == nil {
				worst = max(worst, time.Since(seen))
				seen = time.Now()
			}
		}
	}()
	return func() time.Duration { cancel(); return <-longest }
}
