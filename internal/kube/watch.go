package kube

import (
	"context"
	"maps"
	"sync"

	nadv1 "github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/apis/k8s.cni.cncf.io/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/dhcp-meta/dhcp-meta/internal/kube/podnetworks"
	"github.com/dhcp-meta/dhcp-meta/pkg/engine"
)

// Watch tells of pods that are gone or being deleted, and, with the zero Pod, that
// something else may have changed.
func (c *Cluster) Watch(ctx context.Context, changed func(engine.Pod)) error {
	w := c.watchers.add()
	defer c.watchers.remove(w)
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-w.readyC:
		}
		for pod := range w.take() {
			changed(pod)
		}
	}
}

// watchers are those who called Watch. Each has what it has not been told yet as
// a set, so that none can hold up the caches, nor grow beyond the pods of a node.
type watchers struct {
	mu  sync.Mutex
	all map[*watcher]bool
}

type watcher struct {
	mu     sync.Mutex
	news   map[engine.Pod]bool
	readyC chan struct{} // has room for one
}

func (ws *watchers) add() *watcher {
	w := &watcher{readyC: make(chan struct{}, 1)}
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if ws.all == nil {
		ws.all = map[*watcher]bool{}
	}
	ws.all[w] = true
	return w
}

func (ws *watchers) remove(w *watcher) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	delete(ws.all, w)
}

// tell says that a pod is gone; the zero Pod: that anything may have changed.
func (ws *watchers) tell(pod engine.Pod) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	for w := range ws.all {
		w.put(pod)
	}
}

func (ws *watchers) tellAll() { ws.tell(engine.Pod{}) }

func (w *watcher) put(pod engine.Pod) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.news == nil {
		w.news = map[engine.Pod]bool{}
	}
	w.news[pod] = true
	select {
	case w.readyC <- struct{}{}:
	default:
	}
}

func (w *watcher) take() map[engine.Pod]bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	news := w.news
	w.news = nil
	return news
}

func (c *Cluster) podHandler() cache.ResourceEventHandler {
	return cache.ResourceEventHandlerFuncs{
		AddFunc: func(obj any) { c.podChanged(nil, podOf(obj)) },
		UpdateFunc: func(old, obj any) {
			before, after := podOf(old), podOf(obj)
			// A pod that was deleted and made again while the watch was away.
			if before != nil && after != nil && before.UID != after.UID {
				c.podChanged(before, nil)
				before = nil
			}
			c.podChanged(before, after)
		},
		DeleteFunc: func(obj any) { c.podChanged(podOf(obj), nil) },
	}
}

// given is the object that a handler is given, nil for one of another kind; for a
// deletion that was missed that is the last that was known.
func given[T any](obj any) *T {
	if missed, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		obj = missed.Obj
	}
	object, _ := obj.(*T)
	return object
}

func podOf(obj any) *corev1.Pod { return given[corev1.Pod](obj) }

func (c *Cluster) podChanged(old, pod *corev1.Pod) {
	if old == nil && pod == nil {
		return
	}
	for _, changed := range c.onPod {
		changed(old, pod)
	}
	switch {
	case pod == nil:
		c.watchers.tell(identityOf(old))
	case isEnding(pod) && (old == nil || !isEnding(old)):
		c.watchers.tell(identityOf(pod))
	case old == nil || !maps.Equal(settingsOf(old), settingsOf(pod)):
		c.watchers.tellAll()
	}
}

// isEnding tells whether the kubelet ends a pod. A static pod it ends when its file
// goes: of its mirror in the API there is a new one whenever somebody deletes it.
func isEnding(pod *corev1.Pod) bool {
	return pod.DeletionTimestamp != nil && pod.Annotations[mirrorAnnotation] == ""
}

func identityOf(pod *corev1.Pod) engine.Pod {
	uid := string(pod.UID)
	if mirrored := pod.Annotations[mirrorAnnotation]; mirrored != "" {
		uid = mirrored
	}
	return engine.Pod{Namespace: pod.Namespace, Name: pod.Name, UID: uid}
}

// settingsOf are the annotations by which a pod says something of its networks;
// those that the engine itself writes are none.
func settingsOf(pod *corev1.Pod) map[string]string {
	return keep(pod.Annotations, func(key string) bool {
		return key == podnetworks.NetworksKey || inDomain(key, domain) && key != podnetworks.OwnKey
	})
}

func (c *Cluster) nadHandler() cache.ResourceEventHandler {
	return cache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { c.nadChanged(nil, nadOf(obj)) },
		UpdateFunc: func(old, obj any) { c.nadChanged(nadOf(old), nadOf(obj)) },
		DeleteFunc: func(obj any) { c.nadChanged(nadOf(obj), nil) },
	}
}

func nadOf(obj any) *nadv1.NetworkAttachmentDefinition {
	return given[nadv1.NetworkAttachmentDefinition](obj)
}

func (c *Cluster) nadChanged(old, nad *nadv1.NetworkAttachmentDefinition) {
	if old != nil && nad != nil && old.Spec.Config == nad.Spec.Config && maps.Equal(old.Annotations, nad.Annotations) {
		return
	}
	c.watchers.tellAll()
	if c.nadCache.HasSynced() {
		c.list.changed()
	}
}
