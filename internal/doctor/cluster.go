package doctor

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	nadclient "github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/client/clientset/versioned"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// account is the engine's, as manifests/ has it.
const account = "system:serviceaccount:dhcp-meta:dhcp-engine"

// applyAgain is what brings back rights and policies that somebody has taken away, and
// leaves the engine's image and settings as they are.
const applyAgain = "apply again what you have installed with: your own kustomization (kubectl apply -k), or helm upgrade with your values"

const (
	ourAnnotation = "dhcp-meta.io/pod-networks"
	// foreignAnnotation is one that the policy of manifests/ refuses.
	foreignAnnotation = "dhcp-meta.io/doctor"
	// otherNode is none that has an engine: no node may have a name with an underscore.
	otherNode = "another_node"
)

// rights are what the engine asks of the API; a test holds them against manifests/.
var rights = []authorizationv1.ResourceAttributes{
	{Verb: "get", Resource: "pods"},
	{Verb: "list", Resource: "pods"},
	{Verb: "watch", Resource: "pods"},
	{Verb: "patch", Resource: "pods"},
	{Verb: "create", Resource: "events"},
	{Verb: "patch", Resource: "events"},
	{Verb: "get", Group: "k8s.cni.cncf.io", Resource: "network-attachment-definitions"},
	{Verb: "list", Group: "k8s.cni.cncf.io", Resource: "network-attachment-definitions"},
	{Verb: "watch", Group: "k8s.cni.cncf.io", Resource: "network-attachment-definitions"},
	{Verb: "get", Group: "kubevirt.io", Resource: "virtualmachineinstances"},
}

// objectRights are those for DHCPLease objects, where these are wanted.
var objectRights = []authorizationv1.ResourceAttributes{
	{Verb: "list", Group: "dhcp-meta.io", Resource: "dhcpleases"},
	{Verb: "watch", Group: "dhcp-meta.io", Resource: "dhcpleases"},
	{Verb: "create", Group: "dhcp-meta.io", Resource: "dhcpleases"},
	{Verb: "patch", Group: "dhcp-meta.io", Resource: "dhcpleases"},
	{Verb: "delete", Group: "dhcp-meta.io", Resource: "dhcpleases"},
}

// maxSkew is what two clocks may differ by; a token or certificate that was just made
// is refused where they differ by more.
const maxSkew = 30 * time.Second

// cluster is what is known of Kubernetes.
type cluster struct {
	client  kubernetes.Interface
	nads    nadclient.Interface
	user    string
	pods    []corev1.Pod // of this node
	podsErr error
	// networks are the definitions, by networkErr not known.
	networks   []definition
	networkErr error
	// skew is how far the API server's clock is behind ours.
	skew atomic.Int64
}

// dated compares the API server's clock with ours, by the header Date of its answers.
type dated struct {
	http.RoundTripper
	skew *atomic.Int64 // nanoseconds
}

func (d dated) RoundTrip(r *http.Request) (*http.Response, error) {
	answer, err := d.RoundTripper.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	if at, err := http.ParseTime(answer.Header.Get("Date")); err == nil {
		d.skew.Store(int64(time.Since(at)))
	}
	return answer, nil
}

func connect(cfg *rest.Config) (*cluster, error) {
	c := &cluster{}
	cfg = rest.CopyConfig(cfg)
	cfg.Timeout = checkTime / 3
	cfg.Wrap(func(rt http.RoundTripper) http.RoundTripper { return dated{rt, &c.skew} })
	var err error
	if c.client, err = kubernetes.NewForConfig(cfg); err != nil {
		return nil, err
	}
	c.nads, err = nadclient.NewForConfig(cfg)
	return c, err
}

func (e *examination) checkKubernetes(ctx context.Context) ([]Finding, string) {
	settings := func(err error) []Finding {
		return []Finding{{APISettings, Error, "it is not known how to reach the Kubernetes API", err.Error(),
			"in a pod, mount the service account's token (automountServiceAccountToken); elsewhere set DHCP_ENGINE_KUBECONFIG and DHCP_ENGINE_NODE_NAME"}}
	}
	if e.cfg.Connect != nil {
		return settings(e.cfg.Connect), ""
	}
	if e.cfg.Kubernetes == nil {
		return nil, "not used (--no-kubernetes): no pods, networks and annotations are looked at"
	}
	c, err := connect(e.cfg.Kubernetes)
	if err != nil {
		return settings(err), ""
	}
	review, err := c.client.AuthenticationV1().SelfSubjectReviews().Create(ctx, &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	if err != nil {
		return []Finding{unreached(e.cfg.Kubernetes.Host, err)}, ""
	}
	e.cluster, c.user = c, review.Status.UserInfo.Username
	var found []Finding
	if c.user != account {
		found = append(found, Finding{OtherAccount, Note, "rights and policies are those of " + c.user + ", not the engine's",
			seen("the API server takes us for it; the engine's account is %s", account), "run doctor in the engine's container to have them checked"})
	}
	found = append(found, judgeSkew(time.Duration(c.skew.Load()))...)
	wanted := rights
	if e.cfg.LeaseObjects {
		wanted = slices.Concat(rights, objectRights)
	}
	found = append(found, c.missingRights(ctx, wanted)...)
	found = append(found, c.readPods(ctx, e.cfg.NodeName)...)
	found = append(found, c.dryRun(ctx)...)
	if e.cfg.LeaseObjects {
		found = append(found, c.leaseObjects(ctx)...)
	}
	c.readNetworks(ctx)
	return found, fmt.Sprintf("%s answers; account: %s, pods of this node: %d", e.cfg.Kubernetes.Host, c.user, len(c.pods))
}

// unreached tells why the API does not serve us.
func unreached(host string, err error) Finding {
	switch {
	case apierrors.IsUnauthorized(err):
		return Finding{APIUnauthorized, Error, "the API server does not take the engine's token", err.Error(),
			"is the token's pod or account gone, or its time over? delete the engine's pod on this node to have a new one; write a new token where a kubeconfig has it"}
	case apierrors.IsForbidden(err):
		return Finding{RightMissing, Error, "the API server does not tell whom it takes us for", err.Error(), applyAgain}
	}
	return Finding{APIUnreachable, Error, "the Kubernetes API cannot be reached at " + host, err.Error(),
		"leases are kept meanwhile, and ADDs fail with code 11; look at the route to that address, and at the API server"}
}

func judgeSkew(skew time.Duration) []Finding {
	if skew.Abs() < maxSkew {
		return nil
	}
	return []Finding{{ClockSkew, Warning, "the clocks of this node and of the API server differ",
		seen("by %s, by the header Date of its answers", skew.Round(time.Second)),
		"run a time service on both; new tokens and certificates are refused meanwhile. Leases do not go by this clock"}}
}

func (c *cluster) missingRights(ctx context.Context, wanted []authorizationv1.ResourceAttributes) []Finding {
	var missing []string
	for _, r := range wanted {
		review := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &r}}
		got, err := c.client.AuthorizationV1().SelfSubjectAccessReviews().Create(ctx, review, metav1.CreateOptions{})
		if err != nil {
			return []Finding{{RightMissing, Error, "the API server does not tell which rights the engine has", err.Error(), "try again"}}
		}
		if !got.Status.Allowed {
			missing = append(missing, strings.TrimSuffix(r.Verb+" "+r.Resource+"."+r.Group, "."))
		}
	}
	if len(missing) == 0 {
		return nil
	}
	return []Finding{{RightMissing, Error, "the engine's account may not do what the engine does: " + strings.Join(missing, ", "),
		"SelfSubjectAccessReview as " + c.user, applyAgain + "; the ClusterRole dhcp-engine and its binding have these rights"}}
}

func (c *cluster) readPods(ctx context.Context, node string) []Finding {
	list, err := c.client.CoreV1().Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("spec.nodeName", node).String()})
	if err != nil {
		c.podsErr = err
		return nil // a right that is missing was told of
	}
	c.pods = list.Items
	if len(c.pods) == 0 {
		return []Finding{{NodeName, Error, "the cluster has no pod on a node " + node + ", not even the engine's",
			"a list of pods with spec.nodeName=" + node, "set DHCP_ENGINE_NODE_NAME from spec.nodeName: it is the name in kubectl get nodes, not the host name"}}
	}
	return nil
}

// withNamespace is how many pods of the node have a network namespace of their own.
func (c *cluster) withNamespace() int {
	n := 0
	for _, p := range c.pods {
		if p.Status.Phase == corev1.PodRunning && !p.Spec.HostNetwork && p.DeletionTimestamp == nil {
			n++
		}
	}
	return n
}

// dryRun writes the annotation of a pod, and one that is not ours, without either
// being kept.
func (c *cluster) dryRun(ctx context.Context) []Finding {
	if len(c.pods) == 0 {
		return nil
	}
	pod := c.pods[0]
	if err := c.annotate(ctx, pod, ourAnnotation); err != nil {
		return []Finding{{AnnotationRefused, Error, "the engine may not write addresses into annotations of this node's pods",
			seen("dry run on pod %s/%s as %s: %v", pod.Namespace, pod.Name, c.user, err),
			applyAgain + "; a token must be bound to a pod on this node, and --node-name be that node; another webhook that refuses must let this account pass"}}
	}
	if c.user != account {
		return nil
	}
	if err := c.annotate(ctx, pod, foreignAnnotation); err == nil {
		return []Finding{{PolicyMissing, Warning, "nothing confines the engine's account to its own annotations",
			seen("a dry run of annotation %s on pod %s/%s was let through", foreignAnnotation, pod.Namespace, pod.Name),
			applyAgain + "; it has the admission policy dhcp-engine-pods and its binding (Kubernetes 1.30 or later)"}}
	}
	return nil
}

// leases is where the DHCPLease objects are, as manifests/ has them.
const leases = "/apis/dhcp-meta.io/v1alpha1"

// leaseObjects looks whether there is the kind, and by a dry run whether the engine could
// write objects of other nodes: other people's changes the same policy refuses.
func (c *cluster) leaseObjects(ctx context.Context) []Finding {
	client := c.client.Discovery().RESTClient()
	err := client.Get().AbsPath(leases, "dhcpleases").Param("limit", "1").Do(ctx).Error()
	switch {
	case apierrors.IsNotFound(err):
		return []Finding{{LeaseKindMissing, Note, "the cluster has no DHCPLease objects, so kubectl get dhcpleases shows nothing", err.Error(),
			"kubectl apply --server-side -f manifests/base/crd-dhcpleases.yaml, after which the engine writes them within a minute; or --lease-objects=false, if they are not wanted"}}
	case err != nil, c.user != account, len(c.pods) == 0: // a right that is missing was told of
		return nil
	}
	namespace := c.pods[0].Namespace
	object, err := json.Marshal(map[string]any{
		"apiVersion": "dhcp-meta.io/v1alpha1", "kind": "DHCPLease",
		"metadata": map[string]any{"generateName": "doctor-", "namespace": namespace},
		"status":   map[string]any{"pod": "doctor", "interface": "net1", "node": otherNode, "state": "Bound", "since": metav1.Now()},
	})
	if err == nil {
		err = client.Post().AbsPath(leases, "namespaces", namespace, "dhcpleases").Param("dryRun", metav1.DryRunAll).
			SetHeader("Content-Type", "application/json").Body(object).Do(ctx).Error()
	}
	if err == nil {
		return []Finding{{PolicyMissing, Warning, "nothing confines the engine's account to DHCPLease objects of its own node",
			seen("a dry run of an object of node %s in namespace %s was let through", otherNode, namespace),
			applyAgain + "; it has the admission policy dhcp-engine-leases and its binding (Kubernetes 1.30 or later)"}}
	}
	return nil
}

func (c *cluster) annotate(ctx context.Context, pod corev1.Pod, key string) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]string{key: "{}"}}})
	if err != nil {
		return err
	}
	_, err = c.client.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.MergePatchType, patch, metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}})
	return err
}
