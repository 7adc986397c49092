package leaseobjects

import (
	"context"
	"encoding/json"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
)

// How fast this node's objects are written. A node that starts sixty pods at once
// shows the last of them after ten seconds; a thousand nodes that find the kind new
// ask five thousand times a second at most, and for twenty seconds.
const (
	requestsPerSecond = 5
	requestsAtOnce    = 10
)

// newClient makes a client of the kind, with a limit of its own: what ADDs wait for
// is not behind it.
func newClient(cfg *rest.Config) (*rest.RESTClient, error) {
	scheme := runtime.NewScheme()
	scheme.AddKnownTypes(groupVersion, &Lease{}, &LeaseList{})
	scheme.AddKnownTypeWithName(groupVersion.WithKind(kind), &Lease{})
	scheme.AddKnownTypeWithName(groupVersion.WithKind(kind+"List"), &LeaseList{})
	metav1.AddToGroupVersion(scheme, groupVersion)
	cfg = rest.CopyConfig(cfg)
	cfg.GroupVersion, cfg.APIPath = &groupVersion, "/apis"
	cfg.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	cfg.QPS, cfg.Burst = requestsPerSecond, requestsAtOnce
	client, err := rest.RESTClientFor(cfg)
	if err != nil {
		return nil, fmt.Errorf("make a client of %s objects: %w", kind, err)
	}
	return client, nil
}

// apply writes an object, whether there is one or not.
func (c *Controller) apply(ctx context.Context, l *Lease) error {
	body, err := json.Marshal(l)
	if err != nil {
		return err
	}
	err = c.client.Patch(types.ApplyYAMLPatchType).Namespace(l.Namespace).Resource(resource).Name(l.Name).
		Param("fieldManager", manager).Param("force", "true").Body(body).Do(ctx).Error()
	c.metrics.count("written", err)
	if err != nil {
		return fmt.Errorf("write %s %s/%s: %w", kind, l.Namespace, l.Name, err)
	}
	c.written()
	return nil
}

// remove deletes an object, if it is still the one that was seen.
func (c *Controller) remove(ctx context.Context, l *Lease) error {
	err := c.client.Delete().Namespace(l.Namespace).Resource(resource).Name(l.Name).
		Body(&metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &l.UID}}).Do(ctx).Error()
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		err = nil
	}
	c.metrics.count("deleted", err)
	if err != nil {
		return fmt.Errorf("delete %s %s/%s: %w", kind, l.Namespace, l.Name, err)
	}
	c.written()
	return nil
}

// ownObjects lists and watches the objects of this node.
func (c *Controller) ownObjects() cache.ListerWatcher {
	selector := metav1.FormatLabelSelector(&metav1.LabelSelector{MatchLabels: map[string]string{labelNode: labelOf(c.cfg.NodeName)}})
	lw := cache.NewFilteredListWatchFromClient(c.client, resource, metav1.NamespaceAll,
		func(o *metav1.ListOptions) { o.LabelSelector = selector })
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			list, err := lw.ListWithContext(ctx, o)
			c.answered(ctx, err)
			return list, err
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (w watch.Interface, err error) {
			w, err = lw.WatchWithContext(ctx, o)
			c.answered(ctx, err)
			return w, err
		},
	}
}

// answered takes the outcome of a request for all objects, and says once what is new:
// the library says nothing of a kind that comes.
func (c *Controller) answered(ctx context.Context, err error) {
	if ctx.Err() != nil || apierrors.IsResourceExpired(err) || apierrors.IsGone(err) {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	missing := apierrors.IsNotFound(err)
	switch {
	case missing && !c.missing:
		c.cfg.Log.Info("the cluster has no DHCPLease objects, looking for the kind now and then")
	case err == nil && c.missing:
		c.cfg.Log.Info("the cluster has DHCPLease objects now, writing those of this node")
		for key := range c.leases { // the cache may have known them from before
			c.queue.Add(key)
		}
	case err != nil && !missing && !c.unread:
		c.cfg.Log.Warn("DHCPLease objects of this node cannot be read, trying again", "error", withHint(err))
	}
	if c.unread = err != nil && !missing; !c.unread {
		c.missing = missing
	}
}
