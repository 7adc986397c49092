package kube

import (
	"context"
	"testing"

	nadv1 "github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/apis/k8s.cni.cncf.io/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/dhcp-meta/dhcp-meta/internal/kube/podnetworks"
	"github.com/dhcp-meta/dhcp-meta/pkg/engine"
)

// alone is a Cluster that nobody runs.
func alone(t *testing.T) *Cluster {
	t.Helper()
	c, err := New(Config{REST: &rest.Config{Host: "127.0.0.1:1"}, NodeName: "n1", StateDir: t.TempDir(), Log: silent()})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// told collects what a watcher is told.
func told(t *testing.T, c *Cluster) <-chan engine.Pod {
	t.Helper()
	toldC := make(chan engine.Pod)
	ctx, cancel := context.WithCancel(t.Context())
	endedC := make(chan error, 1)
	go func() {
		endedC <- c.Watch(ctx, func(p engine.Pod) {
			select {
			case toldC <- p:
			case <-ctx.Done():
			}
		})
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-endedC; err != nil {
			t.Errorf("Watch: %v", err)
		}
	})
	eventually(t, "Watch has begun", func() bool {
		c.watchers.mu.Lock()
		defer c.watchers.mu.Unlock()
		return len(c.watchers.all) > 0
	})
	return toldC
}

// toldNothing checks that a watcher is not told of what was before. The first pod that
// is gone may be told of together with that, in any order; the second comes after both.
func toldNothing(t *testing.T, c *Cluster, toldC <-chan engine.Pod, what string) {
	t.Helper()
	for _, name := range []string{"gone", "gone-too"} {
		pod := podWith(nil, nil)
		pod.Name = name
		c.podHandler().OnDelete(pod)
		for want := identityOf(pod); ; {
			got := <-toldC
			if got == want {
				break
			}
			t.Errorf("%s: told of %v", what, got)
		}
	}
}

func TestWatchTellsOfPodsThatAreGone(t *testing.T) {
	c := alone(t)
	toldC := told(t, c)
	web := podWith(nil, nil)
	again := podWith(nil, nil)
	again.UID = "u2"
	handler := c.podHandler()

	handler.OnDelete(web)
	if got, want := <-toldC, (engine.Pod{Namespace: "pods", Name: "web", UID: "u1"}); got != want {
		t.Errorf("%v, want %v", got, want)
	}
	handler.OnDelete(cache.DeletedFinalStateUnknown{Key: "pods/web", Obj: web})
	if got := <-toldC; got.UID != "u1" {
		t.Errorf("a deletion that was missed: %v", got)
	}
	// Deleted and made again while nobody watched: the old one is gone, and
	// anything may have changed.
	handler.OnUpdate(web, again)
	seen := map[engine.Pod]bool{<-toldC: true}
	seen[<-toldC] = true
	if !seen[engine.Pod{}] || !seen[engine.Pod{Namespace: "pods", Name: "web", UID: "u1"}] {
		t.Errorf("made again: %v", seen)
	}
}

// A pod that is being deleted is told of once; of a static one the mirror's deletion
// says nothing.
func TestWatchTellsOfPodsThatAreDeleted(t *testing.T) {
	c := alone(t)
	toldC := told(t, c)
	handler := c.podHandler()
	now := metav1.Now()
	for _, tt := range []struct {
		name string
		web  *corev1.Pod
		want bool
	}{
		{"a pod", podWith(nil, nil), true},
		{"a static pod", podWith(nil, map[string]string{mirrorAnnotation: "u1"}), false},
	} {
		ending := tt.web.DeepCopy()
		ending.DeletionTimestamp = &now
		pod := engine.Pod{Namespace: "pods", Name: "web", UID: "u1"}
		for _, known := range []*corev1.Pod{tt.web, ending} {
			if err := c.podCache.GetStore().Add(known); err != nil {
				t.Fatal(err)
			}
			if got, want := c.Ending(pod), tt.want && known == ending; got != want {
				t.Errorf("%s, deleted %v: %v", tt.name, known == ending, got)
			}
		}
		if other := (engine.Pod{Namespace: "pods", Name: "web", UID: "u2"}); c.Ending(other) {
			t.Errorf("%s: another of its name is ending", tt.name)
		}
		handler.OnUpdate(tt.web, ending)
		if tt.want {
			if got := <-toldC; got != pod {
				t.Errorf("%s: told of %v", tt.name, got)
			}
		} else {
			toldNothing(t, c, toldC, tt.name)
		}
		handler.OnUpdate(ending, ending.DeepCopy())
		toldNothing(t, c, toldC, tt.name+", for the second time")
	}
}

// Only changes that Facts or Marked could see are told.
func TestWatchTellsOfSettings(t *testing.T) {
	c := alone(t)
	toldC := told(t, c)
	quiet := func(what string, change func()) {
		t.Helper()
		change()
		toldNothing(t, c, toldC, what)
	}
	loud := func(what string, change func()) {
		t.Helper()
		change()
		if p := <-toldC; p != (engine.Pod{}) {
			t.Errorf("%s: told of %v", what, p)
		}
	}
	pods, nads := c.podHandler(), c.nadHandler()
	plain := podWith(nil, nil)
	published := podWith(nil, map[string]string{podnetworks.OVNKey: "{}", podnetworks.OwnKey: "{}"})
	set := podWith(nil, map[string]string{"office.lab.dhcp-meta.io/address": "10.0.0.1"})

	quiet("what the engine itself publishes", func() { pods.OnUpdate(plain, published) })
	loud("a setting of a pod", func() { pods.OnUpdate(published, set) })
	loud("a pod", func() { pods.OnAdd(plain, false) })
	quiet("a definition that is as it was", func() { nads.OnUpdate(nadWith("{}"), nadWith("{}")) })
	loud("a mark", func() { nads.OnUpdate(nadWith("{}"), nadWith("{}", ipamAnnotation, "dhcp")) })
	loud("a configuration", func() { nads.OnUpdate(nadWith("{}"), nadWith(`{"a":1}`)) })
	loud("a definition that is gone", func() { nads.OnDelete(nadWith("{}")) })
}

// A watcher that does not listen is no burden: it has each pod once.
func TestSlowWatcher(t *testing.T) {
	var ws watchers
	w := ws.add()
	for range 1000 {
		ws.tellAll()
		ws.tell(engine.Pod{Name: "a"})
	}
	if news := w.take(); len(news) != 2 {
		t.Errorf("%d to tell", len(news))
	}
	ws.remove(w)
	ws.tellAll()
	if news := w.take(); len(news) != 0 {
		t.Errorf("told after its end: %v", news)
	}
}

func TestOnPod(t *testing.T) {
	c := alone(t)
	type change struct{ old, pod *corev1.Pod }
	var got []change
	c.OnPod(func(old, pod *corev1.Pod) { got = append(got, change{old, pod}) })
	a, b := podWith(nil, nil), podWith(nil, nil)
	b.UID = "u2"
	h := c.podHandler()
	h.OnAdd(a, true)
	h.OnUpdate(a, a)
	h.OnUpdate(a, b)
	h.OnDelete(b)
	want := []change{{nil, a}, {a, a}, {a, nil}, {nil, b}, {b, nil}}
	if len(got) != len(want) {
		t.Fatalf("%d calls, want %d", len(got), len(want))
	}
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("call %d: %v, want %v", i, got[i], want[i])
		}
	}
}

// Nothing else than what is meant comes out of what a handler is given.
func TestHandlersTakeAnything(t *testing.T) {
	c := alone(t)
	for _, obj := range []any{nil, 1, cache.DeletedFinalStateUnknown{}, cache.DeletedFinalStateUnknown{Obj: 1}, &nadv1.NetworkAttachmentDefinition{}} {
		c.podHandler().OnAdd(obj, false)
		c.podHandler().OnUpdate(obj, obj)
		c.podHandler().OnDelete(obj)
	}
	for _, obj := range []any{nil, 1, cache.DeletedFinalStateUnknown{}, &corev1.Pod{}} {
		c.nadHandler().OnAdd(obj, false)
		c.nadHandler().OnUpdate(obj, obj)
		c.nadHandler().OnDelete(obj)
	}
}
