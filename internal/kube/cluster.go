package kube

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"
	"sync/atomic"

	nadv1 "github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/apis/k8s.cni.cncf.io/v1"
	nadclient "github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/client/clientset/versioned"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	kubevirt "kubevirt.io/client-go/kubevirt"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine"
	"github.com/dhcp-meta/dhcp-meta/pkg/engine/api"
)

// Config is what a Cluster is made of. Nothing but Metrics may be missing.
type Config struct {
	// REST is how the API server is reached: see Connect.
	REST *rest.Config
	// NodeName is the name of this node in the cluster.
	NodeName string
	// StateDir gets the file that lists the marked networks.
	StateDir string
	Log      *slog.Logger
	Metrics  prometheus.Registerer
}

// Cluster is one node's view of Kubernetes.
type Cluster struct {
	node    string
	log     *slog.Logger
	metrics *metrics

	client  kubernetes.Interface
	nads    nadclient.Interface
	virtual kubevirt.Interface

	podCache, nadCache   cache.SharedIndexInformer
	podSource, nadSource *source
	// virtualRefused is set once it was said that VirtualMachineInstances may not
	// be read.
	virtualRefused atomic.Bool

	onPod    []func(old, pod *corev1.Pod)
	watchers watchers
	list     *marksFile
	events   *events

	syncedC  chan struct{}
	syncOnce sync.Once
}

var _ engine.Cluster = (*Cluster)(nil)

// New builds a Cluster and sends nothing; Run does the work.
func New(cfg Config) (*Cluster, error) {
	connection := withFreshTokens(cfg.REST)
	client, err := kubernetes.NewForConfig(connection)
	if err != nil {
		return nil, fmt.Errorf("make a client of the Kubernetes API: %w", err)
	}
	nads, err := nadclient.NewForConfig(connection)
	if err != nil {
		return nil, fmt.Errorf("make a client of NetworkAttachmentDefinitions: %w", err)
	}
	virtual, err := kubevirt.NewForConfig(connection)
	if err != nil {
		return nil, fmt.Errorf("make a client of KubeVirt's API: %w", err)
	}
	c := &Cluster{
		node: cfg.NodeName, log: cfg.Log, metrics: newMetrics(cfg.Metrics),
		client: client, nads: nads, virtual: virtual,
		list:    newMarksFile(filepath.Join(cfg.StateDir, api.NetworksFile), cfg.Log),
		syncedC: make(chan struct{}),
	}
	c.events = newEvents(client, cfg.NodeName, c.metrics, cfg.Log)
	return c, c.informers()
}

// informers sets up the caches. The API server itself leaves other nodes' pods
// out.
func (c *Cluster) informers() error {
	c.podSource = c.newSource("pods", cache.NewListWatchFromClient(c.client.CoreV1().RESTClient(), "pods",
		metav1.NamespaceAll, fields.OneTermEqualSelector("spec.nodeName", c.node)))
	c.nadSource = c.newSource("networks", cache.NewListWatchFromClient(c.nads.K8sCniCncfIoV1().RESTClient(), "network-attachment-definitions",
		metav1.NamespaceAll, fields.Everything()))
	c.podCache = cache.NewSharedIndexInformer(c.podSource.listWatch(), &corev1.Pod{}, 0, cache.Indexers{})
	c.nadCache = cache.NewSharedIndexInformer(c.nadSource.listWatch(), &nadv1.NetworkAttachmentDefinition{}, 0, cache.Indexers{})
	_, podErr := c.podCache.AddEventHandler(c.podHandler())
	_, nadErr := c.nadCache.AddEventHandler(c.nadHandler())
	// The sources say themselves what goes wrong.
	silent := func(context.Context, *cache.Reflector, error) {}
	return errors.Join(podErr, nadErr,
		c.podCache.SetTransform(trimPod),
		c.nadCache.SetTransform(trimNAD),
		c.podCache.SetWatchErrorHandlerWithContext(silent),
		c.nadCache.SetWatchErrorHandlerWithContext(silent),
	)
}

// Run watches, writes the list of marked networks and the events, until ctx ends,
// which is no error. It runs once.
func (c *Cluster) Run(ctx context.Context) error {
	var running sync.WaitGroup
	running.Go(func() { c.podCache.RunWithContext(ctx) })
	running.Go(func() { c.nadCache.RunWithContext(ctx) })
	running.Go(func() { c.list.run(ctx, c.marked) })
	running.Go(func() { c.events.run(ctx) })
	running.Go(func() { c.awaitSync(ctx) })
	running.Wait()
	return nil
}

// Synced is closed when this node's pods and all networks are known, and the list
// of marked networks is written. A cluster that has no
// NetworkAttachmentDefinitions has no networks.
func (c *Cluster) Synced() <-chan struct{} { return c.syncedC }

// Ready is nil when Synced is closed; otherwise it says what is missing.
func (c *Cluster) Ready() error {
	select {
	case <-c.syncedC:
		return nil
	default:
	}
	if err := errors.Join(c.podSource.trouble(), c.nadSource.trouble()); err != nil {
		return fmt.Errorf("the Kubernetes API has not told of this node's pods and networks yet: %w", err)
	}
	return errors.New("the Kubernetes API has not told of this node's pods and networks yet")
}

// Client is the client of the Kubernetes API, with what Connect made of it.
func (c *Cluster) Client() kubernetes.Interface { return c.client }

// Events is where events of attachments are reported to.
func (c *Cluster) Events() engine.Reporter { return c.events }

// OnPod has changed called for each change of a pod of this node: without old for
// a new one, without pod for one that is gone. The pods must not be written to,
// and a call must not block. It is for before Run.
func (c *Cluster) OnPod(changed func(old, pod *corev1.Pod)) { c.onPod = append(c.onPod, changed) }

// Pod is a pod of this node from the cache. It must not be written to.
func (c *Cluster) Pod(namespace, name string) (*corev1.Pod, bool) {
	obj, found, err := c.podCache.GetStore().GetByKey(namespace + "/" + name)
	pod, ok := obj.(*corev1.Pod)
	return pod, err == nil && found && ok
}

// nad is a NetworkAttachmentDefinition from the cache.
func (c *Cluster) nad(name string) (*nadv1.NetworkAttachmentDefinition, bool) {
	obj, found, err := c.nadCache.GetStore().GetByKey(name)
	nad, ok := obj.(*nadv1.NetworkAttachmentDefinition)
	return nad, err == nil && found && ok
}
