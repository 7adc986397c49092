package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"

	nadv1 "github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/apis/k8s.cni.cncf.io/v1"
	nadclient "github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/client/clientset/versioned"
	nadinformers "github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/client/informers/externalversions"
	nadutils "github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/utils"
)

// defaultKey is the entry of the default network in the annotation.
const defaultKey = "default"

// controller does for one node what OVN-Kubernetes' controllers do.
type controller struct {
	client kubernetes.Interface
	nads   nadclient.Interface
	node   string
	subnet netip.Prefix
	log    *slog.Logger

	podStore, nadStore cache.Store
	queue              workqueue.TypedRateLimitingInterface[string]

	mu       sync.Mutex
	networks map[string]netConf // by definition
	// added are the ports that this life of the controller has added: it looks at
	// none of them again, whatever becomes of the annotation.
	added map[string]bool
	next  netip.Addr // of the default network
}

func newController(client kubernetes.Interface, nads nadclient.Interface, node, subnet string, log *slog.Logger) (*controller, error) {
	p, err := netip.ParsePrefix(subnet)
	if err != nil {
		return nil, err
	}
	return &controller{
		client: client, nads: nads, node: node, subnet: p, log: log,
		queue:    workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[string](50*time.Millisecond, 5*time.Second)),
		networks: map[string]netConf{}, added: map[string]bool{},
		next: p.Addr().Next().Next(), // the first is the gateway's
	}, nil
}

// start brings switches and ports in step with the API, and goes on in the
// background until ctx ends.
func (c *controller) start(ctx context.Context) error {
	if _, err := nbctl(ctx, "--may-exist", "ls-add", c.node); err != nil {
		return err
	}
	pods := informers.NewSharedInformerFactoryWithOptions(c.client, 0, informers.WithTweakListOptions(func(o *metav1.ListOptions) {
		o.FieldSelector = fields.OneTermEqualSelector("spec.nodeName", c.node).String()
	})).Core().V1().Pods().Informer()
	nads := nadinformers.NewSharedInformerFactory(c.nads, 0).K8sCniCncfIo().V1().NetworkAttachmentDefinitions().Informer()
	c.podStore, c.nadStore = pods.GetStore(), nads.GetStore()

	changed := func(obj any) {
		if key, err := cache.DeletionHandlingMetaNamespaceKeyFunc(obj); err == nil {
			c.queue.Add(key)
		}
	}
	if _, err := pods.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: changed, UpdateFunc: func(_, obj any) { changed(obj) },
		DeleteFunc: func(obj any) {
			if d, ok := obj.(cache.DeletedFinalStateUnknown); ok {
				obj = d.Obj
			}
			if pod, ok := obj.(*corev1.Pod); ok {
				c.podGone(ctx, pod)
			}
		},
	}); err != nil {
		return err
	}
	if _, err := nads.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(obj any) { c.nadChanged(ctx, obj) }, UpdateFunc: func(_, obj any) { c.nadChanged(ctx, obj) },
	}); err != nil {
		return err
	}
	go nads.RunWithContext(ctx)
	if !cache.WaitForCacheSync(ctx.Done(), nads.HasSynced) {
		return ctx.Err()
	}
	for _, obj := range c.nadStore.List() { // switches stand before pods are looked at
		c.nadChanged(ctx, obj)
	}
	go pods.RunWithContext(ctx)
	if !cache.WaitForCacheSync(ctx.Done(), pods.HasSynced) {
		return ctx.Err()
	}
	for _, obj := range c.podStore.List() {
		if err := c.restorePod(ctx, obj.(*corev1.Pod)); err != nil {
			return err
		}
	}
	go func() { <-ctx.Done(); c.queue.ShutDown() }()
	go c.work(ctx)
	return nil
}

// work takes pods from the queue.
func (c *controller) work(ctx context.Context) {
	for {
		key, over := c.queue.Get()
		if over {
			return
		}
		err := c.syncPod(ctx, key)
		if err != nil && ctx.Err() == nil {
			c.log.Warn("pod is tried again", "pod", key, "error", err)
			c.queue.AddRateLimited(key)
		} else {
			c.queue.Forget(key)
		}
		c.queue.Done(key)
	}
}

// nadChanged makes the switch of a network that is ours, or tells its owner what is
// wrong with it.
func (c *controller) nadChanged(ctx context.Context, obj any) {
	nad, ok := obj.(*nadv1.NetworkAttachmentDefinition)
	if !ok {
		return
	}
	key := nad.Namespace + "/" + nad.Name
	conf, err := parseNetwork(key, nad.Spec.Config)
	switch {
	case errors.Is(err, errUnmanaged):
		return
	case err != nil:
		c.log.Warn("network definition is refused", "nad", key, "error", err)
		c.refuse(ctx, nad, err)
		return
	}
	c.mu.Lock()
	_, known := c.networks[key]
	c.mu.Unlock()
	if known {
		return
	}
	if err := ensureSwitch(ctx, key, conf); err != nil {
		c.log.Error("no logical switch", "nad", key, "error", err)
		return
	}
	c.mu.Lock()
	c.networks[key] = conf
	c.mu.Unlock()
	for _, k := range c.podStore.ListKeys() {
		c.queue.Add(k)
	}
}

// refuse writes the event that the real one writes.
func (c *controller) refuse(ctx context.Context, nad *nadv1.NetworkAttachmentDefinition, why error) {
	now := metav1.Now()
	_, err := c.client.CoreV1().Events(nad.Namespace).Create(ctx, &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{GenerateName: nad.Name + "."},
		InvolvedObject: corev1.ObjectReference{Kind: "NetworkAttachmentDefinition", APIVersion: "k8s.cni.cncf.io/v1",
			Namespace: nad.Namespace, Name: nad.Name, UID: nad.UID},
		Type: corev1.EventTypeWarning, Reason: "InvalidConfig", Message: why.Error(),
		FirstTimestamp: now, LastTimestamp: now, Count: 1, Source: corev1.EventSource{Component: "ovnkube"},
	}, metav1.CreateOptions{})
	if err != nil {
		c.log.Warn("event is not written", "error", err)
	}
}

// wanted is a network of a pod.
type wanted struct {
	key  string // of the annotation's entry; defaultKey for the default network
	conf netConf
	mac  string
	ips  []string
	// ifName is the interface's name in the pod.
	ifName string
}

// networksOf are the networks of a pod that are ours and known by now.
func (c *controller) networksOf(pod *corev1.Pod) ([]wanted, error) {
	all := []wanted{{key: defaultKey, ifName: "eth0"}}
	elements, err := nadutils.ParsePodNetworkAnnotation(pod)
	var none *nadv1.NoK8sNetworkError
	if err != nil && !errors.As(err, &none) {
		return nil, err
	}
	times := map[string]int{}
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, e := range elements {
		nad := e.Namespace + "/" + e.Name
		n := times[nad]
		times[nad]++
		conf, ok := c.networks[nad]
		if !ok {
			continue
		}
		w := wanted{key: nad, conf: conf, mac: e.MacRequest, ips: e.IPRequest, ifName: e.InterfaceRequest}
		if n > 0 {
			w.key = fmt.Sprintf("%s/%d", nad, n)
		}
		if w.ifName == "" {
			w.ifName = fmt.Sprintf("net%d", i+1)
		}
		all = append(all, w)
	}
	return all, nil
}

// port is the logical port of a pod for a network and its entry.
func (c *controller) port(pod *corev1.Pod, w wanted, e podNetwork) (port, error) {
	p := port{namespace: pod.Namespace, pod: pod.Name, uid: string(pod.UID), mac: e.MAC}
	if w.key == defaultKey {
		p.logicalSwitch, p.name = c.node, portName(pod.Namespace, pod.Name, "")
	} else {
		p.logicalSwitch, p.name = w.conf.switchName(), portName(pod.Namespace, pod.Name, w.key)
		p.nad, p.network = w.key, w.conf.Name
	}
	if e.IP != "" && (len(e.IPs) == 0 || e.IPs[0] != e.IP) {
		return p, fmt.Errorf("entry %s of %s/%s: ip_address %s is not ip_addresses[0]", w.key, pod.Namespace, pod.Name, e.IP)
	}
	for _, text := range e.IPs {
		ip, err := netip.ParsePrefix(text)
		if err != nil {
			return p, fmt.Errorf("entry %s of %s/%s: %w", w.key, pod.Namespace, pod.Name, err)
		}
		p.ips = append(p.ips, ip.Addr().String())
	}
	return p, nil
}

func served(pod *corev1.Pod) bool {
	return !pod.Spec.HostNetwork && pod.Status.Phase != corev1.PodSucceeded && pod.Status.Phase != corev1.PodFailed
}

// restorePod computes the ports of a pod from what its annotation says at the start.
// A broken entry costs the pod its port.
func (c *controller) restorePod(ctx context.Context, pod *corev1.Pod) error {
	if !served(pod) {
		return nil
	}
	entries, err := readEntries(pod)
	if err != nil {
		c.log.Error("annotation cannot be read", "error", err)
		return nil
	}
	networks, err := c.networksOf(pod)
	if err != nil {
		return nil // syncPod has the word
	}
	for _, w := range networks {
		e, ok := entries[w.key]
		if !ok {
			continue
		}
		p, err := c.port(pod, w, e)
		if err != nil {
			c.log.Error("stale port is removed", "error", err)
			if err := removePort(ctx, p.name); err != nil {
				return err
			}
			continue
		}
		if err := p.ensure(ctx); err != nil {
			return err
		}
		c.took(e)
		c.mu.Lock()
		c.added[string(pod.UID)+w.key] = true
		c.mu.Unlock()
	}
	return nil
}

// syncPod adds entry and port for each network of a pod for which this life of the
// controller has not done so.
func (c *controller) syncPod(ctx context.Context, key string) error {
	obj, ok, err := c.podStore.GetByKey(key)
	if err != nil || !ok {
		return err
	}
	pod := obj.(*corev1.Pod)
	if !served(pod) || pod.DeletionTimestamp != nil {
		return nil
	}
	networks, err := c.networksOf(pod)
	if err != nil {
		return err
	}
	for _, w := range networks {
		done := string(pod.UID) + w.key
		c.mu.Lock()
		added := c.added[done]
		c.mu.Unlock()
		if added && !migrates(pod) && !w.conf.ownDHCP() {
			continue
		}
		entries, err := readEntries(pod)
		if err != nil {
			return err
		}
		e, ok := entries[w.key]
		switch {
		case ok:
		case w.conf.ownDHCP():
			continue // the CNI call makes it
		default:
			e = c.newEntry(w)
		}
		p, err := c.port(pod, w, e)
		if err != nil {
			return err
		}
		if !ok {
			if err := c.writeEntry(ctx, pod, w.key, e); err != nil {
				return err
			}
			if pod, err = c.client.CoreV1().Pods(pod.Namespace).Get(ctx, pod.Name, metav1.GetOptions{}); err != nil {
				return err
			}
		}
		if err := p.ensure(ctx); err != nil {
			return err
		}
		c.mu.Lock()
		c.added[done] = true
		c.mu.Unlock()
	}
	return nil
}

// migrates tells whether the pod is the target of a live migration: its ports are
// computed again whenever it changes.
func migrates(pod *corev1.Pod) bool {
	return pod.Labels["kubevirt.io"] == "virt-launcher" && pod.Annotations["kubevirt.io/migration-target-ready-timestamp"] != ""
}

// podGone removes the ports of a pod that has been deleted.
func (c *controller) podGone(ctx context.Context, pod *corev1.Pod) {
	networks, err := c.networksOf(pod)
	if err != nil {
		return
	}
	slices.Reverse(networks)
	for _, w := range networks {
		p, _ := c.port(pod, w, podNetwork{})
		if !p.exists(ctx) {
			continue // another pod of the name has one by now
		}
		if err := removePort(ctx, p.name); err != nil {
			c.log.Warn("port of a deleted pod stays", "error", err)
		}
		c.mu.Lock()
		delete(c.added, string(pod.UID)+w.key)
		c.mu.Unlock()
	}
}
