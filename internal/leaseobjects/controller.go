package leaseobjects

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine"
)

// Pods knows the pods of this node, as they were a moment ago.
type Pods interface {
	Pod(namespace, name string) (*corev1.Pod, bool)
}

// Config is what a Controller is made of.
type Config struct {
	// REST is how the API server is reached. Of DHCPLease objects the engine's account
	// may list, watch, create, patch and delete.
	REST *rest.Config
	// NodeName is the name of this node in the cluster.
	NodeName string
	Pods     Pods
	Log      *slog.Logger
	// Metrics may be nil.
	Metrics prometheus.Registerer
}

// How long some things wait.
const (
	// linger is for the object of an attachment that is over: mostly its pod is on its
	// way out, and Kubernetes removes it, or the pod's next sandbox takes its place.
	linger = 10 * time.Second
	// A server that answers a little late is no news.
	silence = 10 * time.Second
	// From the first to the last wait after a write that failed.
	firstRetry = time.Second
	lastRetry  = 5 * time.Minute
	// patience is the time that one request may take.
	patience = 10 * time.Second
)

// Controller implements engine.Observer. Its methods are safe for concurrent use.
type Controller struct {
	cfg       Config
	client    *rest.RESTClient
	metrics   metrics
	queue     workqueue.TypedRateLimitingInterface[key]
	restoredC chan struct{}

	mu     sync.Mutex
	leases map[key]lease
	// missing says that the API does not know the kind; unread and unwritten that the
	// last request of that sort failed, which was said.
	missing, unread, unwritten bool
}

var _ engine.Observer = (*Controller)(nil)

// key is an object by namespace and name.
type key = cache.ObjectName

// lease is what an object is to say, and of which attachment.
type lease struct {
	owner engine.AttachmentID
	pod   engine.Pod
	Status
}

// New makes a Controller; Run does the work.
func New(cfg Config) (*Controller, error) {
	client, err := newClient(cfg.REST)
	if err != nil {
		return nil, err
	}
	limit := workqueue.NewTypedItemExponentialFailureRateLimiter[key](firstRetry, lastRetry)
	return &Controller{
		cfg: cfg, client: client, metrics: newMetrics(cfg.Metrics),
		queue:     workqueue.NewTypedRateLimitingQueue(limit),
		restoredC: make(chan struct{}),
		leases:    make(map[key]lease),
	}, nil
}

// Observe takes what the engine says of an attachment. A newer sandbox of a pod is
// known by coming later.
func (c *Controller) Observe(o engine.Observation) {
	if o.Pod.Name == "" || o.Pod.Namespace == "" {
		return
	}
	k := key{Namespace: o.Pod.Namespace, Name: nameOf(o.Pod.Name, o.Pod.UID, o.IfName)}
	s, shown := statusOf(o, c.cfg.NodeName, metav1.NewTime(time.Now().Truncate(time.Second)))
	c.mu.Lock()
	defer c.mu.Unlock()
	before, known := c.leases[k]
	switch {
	case shown:
		wait := time.Duration(0)
		if known && before.Address == s.Address {
			s.Since = before.Since
			if s.State == Rebinding {
				wait = silence
			}
		}
		c.leases[k] = lease{o.AttachmentID, o.Pod, s}
		if !known || !before.same(s) {
			c.queue.AddAfter(k, wait)
		}
	case known && before.owner == o.AttachmentID:
		delete(c.leases, k)
		c.queue.AddAfter(k, linger)
	}
}

// Restored lets objects be removed that nothing was said of.
func (c *Controller) Restored() { close(c.restoredC) }

// Run writes until ctx ends, which is no error. It runs once.
func (c *Controller) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	defer c.queue.ShutDown()
	informer, err := c.informer()
	if err != nil {
		return err
	}
	wg.Go(func() { informer.RunWithContext(ctx) })
	for _, knownC := range []<-chan struct{}{c.restoredC, informer.HasSyncedChecker().Done()} {
		select {
		case <-knownC:
		case <-ctx.Done():
			return nil
		}
	}
	context.AfterFunc(ctx, c.queue.ShutDown)
	for {
		k, end := c.queue.Get()
		if end {
			return nil
		}
		c.settled(ctx, k, c.reconcile(ctx, informer.GetStore(), k))
		c.queue.Done(k)
	}
}

// informer is the cache of this node's objects, which queues what changes.
func (c *Controller) informer() (cache.SharedIndexInformer, error) {
	changed := func(obj any) {
		if k, err := cache.DeletionHandlingObjectToName(obj); err == nil {
			c.queue.Add(k)
		}
	}
	informer := cache.NewSharedIndexInformer(c.ownObjects(), &Lease{}, 0, cache.Indexers{})
	_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: changed, UpdateFunc: func(_, obj any) { changed(obj) }, DeleteFunc: changed,
	})
	// What goes wrong is said by answered.
	silent := func(context.Context, *cache.Reflector, error) {}
	return informer, errors.Join(err, informer.SetTransform(trim), informer.SetWatchErrorHandlerWithContext(silent))
}

// reconcile makes one object what it should be.
func (c *Controller) reconcile(ctx context.Context, store cache.Store, k key) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	c.mu.Lock()
	want, wanted := c.leases[k]
	missing := c.missing
	c.mu.Unlock()
	obj, _, err := store.GetByKey(k.String())
	if err != nil {
		return err
	}
	have, there := obj.(*Lease)
	switch {
	case missing: // all are written when the kind comes
		return nil
	case !wanted && there:
		return c.remove(ctx, have)
	case !wanted:
		return nil
	}
	pod, known := c.cfg.Pods.Pod(k.Namespace, want.Pod)
	if !known || !owns(pod, want.pod.UID) {
		return errNoPod
	}
	l := object(k.Namespace, k.Name, want.Status, pod.UID)
	if there {
		if have.says(l) {
			return nil
		}
		l.Status.Since = have.sinceOf(l.Status)
	}
	return c.apply(ctx, l)
}

// errNoPod is for a pod that is gone, or that the watch has not told of yet.
var errNoPod = errors.New("the pod is not known")

// settled has a write that failed tried again.
func (c *Controller) settled(ctx context.Context, k key, err error) {
	if err == nil || ctx.Err() != nil {
		c.queue.Forget(k)
		return
	}
	c.queue.AddRateLimited(k)
	if errors.Is(err, errNoPod) || apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
		return
	}
	c.mu.Lock()
	again := c.unwritten
	c.unwritten = true
	c.mu.Unlock()
	if !again {
		c.cfg.Log.Warn("DHCPLease object is not written yet, trying again", "error", withHint(err))
	}
}

// written notes that a write has worked.
func (c *Controller) written() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.unwritten = false
}

// withHint says what to look at.
func withHint(err error) error {
	if apierrors.IsForbidden(err) {
		return fmt.Errorf("%w; the engine's service account needs rights to dhcpleases.dhcp-meta.io, and an admission policy may stand in its way", err)
	}
	return err
}
