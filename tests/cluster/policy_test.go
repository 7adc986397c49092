package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/dhcp-meta/dhcp-meta/tests/rig"
	"github.com/dhcp-meta/dhcp-meta/tests/rig/kube"
)

// Who the engine is in the manifests.
const (
	engineNamespace = "dhcp-meta"
	engineAccount   = "dhcp-engine"
)

func manifest(t testing.TB, name string) string {
	t.Helper()
	text, err := os.ReadFile("../../manifests/base/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// applied are the shared clusters that have the engine's account, rights and policy.
var applied sync.Map

// account gives a cluster the engine's account with its rights and the policy that
// narrows them, as they are shipped.
func account(t testing.TB, c *kube.Cluster) {
	t.Helper()
	once, _ := applied.LoadOrStore(c, new(sync.Once))
	once.(*sync.Once).Do(func() {
		for _, name := range []string{"namespace.yaml", "rbac.yaml", "policy-engine.yaml"} {
			c.Apply(t, manifest(t, name))
		}
		c.AwaitAccess(t, engineNamespace, engineAccount, authorizationv1.ResourceAttributes{Verb: "patch", Resource: "pods"})
		c.ServiceAccount(t, engineNamespace, "default")
		pod := enginePod(t, c, "nowhere")
		client := clientAs(t, c, engineToken(t, c, pod))
		awaitRefusal(t, "the policy for the engine is in force", "", func(ctx context.Context) error {
			return annotate(ctx, client, pod, "x", "y", metav1.DryRunAll)
		})
	})
}

// enginePod is the pod of an engine on a node.
func enginePod(t testing.TB, c *kube.Cluster, node string) *corev1.Pod {
	t.Helper()
	return c.Pod(t, engineNamespace, kube.PodSpec{Node: node, Account: engineAccount})
}

// engineToken is what a kubelet would give to that pod.
func engineToken(t testing.TB, c *kube.Cluster, pod *corev1.Pod) string {
	t.Helper()
	return c.Token(t, engineNamespace, engineAccount, pod, time.Hour)
}

func clientAs(t testing.TB, c *kube.Cluster, token string) kubernetes.Interface {
	t.Helper()
	client, err := kubernetes.NewForConfig(c.As(token))
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// awaitRefusal waits until try is refused with this text. The API server compiles
// policies in its own time, and has no event for it.
func awaitRefusal(t testing.TB, what, text string, try func(context.Context) error) {
	t.Helper()
	deadline := time.After(rig.Patience)
	again := time.NewTicker(20 * time.Millisecond)
	defer again.Stop()
	for {
		err := try(t.Context())
		if err != nil && strings.Contains(err.Error(), "ValidatingAdmissionPolicy") && strings.Contains(err.Error(), text) {
			return
		}
		select {
		case <-again.C:
		case <-deadline:
			t.Fatalf("not within %s: %s; the last answer: %v", rig.Patience, what, err)
		}
	}
}

// patch is a merge patch of a pod.
func patch(ctx context.Context, client kubernetes.Interface, pod *corev1.Pod, body any, options metav1.PatchOptions, subresources ...string) error {
	b, err := json.Marshal(body)
	if err != nil {
		return err
	}
	_, err = client.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.MergePatchType, b, options, subresources...)
	return err
}

func metadata(key string, value any) rig.Object {
	return rig.Object{"metadata": rig.Object{key: value}}
}

func annotate(ctx context.Context, client kubernetes.Interface, pod *corev1.Pod, key string, value any, dryRun ...string) error {
	return patch(ctx, client, pod, metadata("annotations", rig.Object{key: value}), metav1.PatchOptions{DryRun: dryRun})
}

// What the shipped account may do with a real API server: two annotations of pods
// of its own node, and nothing else, whatever it tries.
func TestK43U19EngineMayChangeTwoAnnotations(t *testing.T) {
	c := kube.Shared(t)
	account(t, c)
	ns := c.Namespace(t)
	here, there := ns+"-here", ns+"-there" // names of nodes; nobody is there
	onNode := func(name string) *corev1.Pod {
		return c.Pod(t, ns, kube.PodSpec{Node: name, Labels: map[string]string{"app": "web"}, Annotations: map[string]string{
			"k8s.ovn.org/pod-networks": "{}", "other": "value",
		}})
	}
	mine, foreign, unscheduled := onNode(here), onNode(there), onNode("")
	engine := clientAs(t, c, engineToken(t, c, enginePod(t, c, here)))

	for _, key := range []string{"k8s.ovn.org/pod-networks", "dhcp-meta.io/pod-networks"} {
		for _, value := range []any{`{"a/b":{}}`, `{}`, nil} {
			if err := annotate(t.Context(), engine, mine, key, value); err != nil {
				t.Errorf("%s = %v on a pod of the node: %v", key, value, err)
			}
		}
	}

	const (
		notThisNode = "dhcp-engine may change pods of its own node only"
		notThisKey  = "dhcp-engine may change the annotations k8s.ovn.org/pod-networks and dhcp-meta.io/pod-networks only"
		notThis     = "dhcp-engine may change annotations of pods only"
	)
	refuse := func(what, want string, try func(context.Context) error) {
		t.Helper()
		err := try(t.Context())
		if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v; want a refusal that says %q", what, err, want)
		}
	}
	ours := metadata("annotations", rig.Object{"k8s.ovn.org/pod-networks": "{}"})
	for name, pod := range map[string]*corev1.Pod{"a pod of another node": foreign, "a pod of no node": unscheduled} {
		refuse(name, notThisNode, func(ctx context.Context) error { return patch(ctx, engine, pod, ours, metav1.PatchOptions{}) })
	}
	for name, body := range map[string]rig.Object{
		"a new annotation":            metadata("annotations", rig.Object{"new": "x"}),
		"a changed annotation":        metadata("annotations", rig.Object{"other": "x"}),
		"an annotation taken away":    metadata("annotations", rig.Object{"other": nil}),
		"all annotations taken away":  metadata("annotations", nil),
		"another key of ours":         metadata("annotations", rig.Object{"dhcp-meta.io/ipam": "dhcp"}),
		"a key beside the right one":  metadata("annotations", rig.Object{"k8s.ovn.org/pod-networks": `{"x":{}}`, "new": "x"}),
		"a network that is asked for": metadata("annotations", rig.Object{"k8s.v1.cni.cncf.io/networks": "x"}),
	} {
		refuse(name, notThisKey, func(ctx context.Context) error { return patch(ctx, engine, mine, body, metav1.PatchOptions{}) })
	}
	for name, body := range map[string]rig.Object{
		"a new label":        metadata("labels", rig.Object{"new": "x"}),
		"a label taken away": metadata("labels", rig.Object{"app": nil}),
		"a finalizer":        metadata("finalizers", []string{"example.com/x"}),
		"an owner":           metadata("ownerReferences", []rig.Object{{"apiVersion": "v1", "kind": "Pod", "name": foreign.Name, "uid": string(foreign.UID)}}),
		"an image":           {"spec": rig.Object{"containers": []rig.Object{{"name": "main", "image": "evil"}}}},
		"a deadline":         {"spec": rig.Object{"activeDeadlineSeconds": 60}},
	} {
		refuse(name, notThis, func(ctx context.Context) error { return patch(ctx, engine, mine, body, metav1.PatchOptions{}) })
	}
	refuse("the status", "pods/status", func(ctx context.Context) error {
		return patch(ctx, engine, mine, rig.Object{"status": rig.Object{"message": "x"}}, metav1.PatchOptions{}, "status")
	})
	refuse("a deletion", "cannot delete", func(ctx context.Context) error {
		return engine.CoreV1().Pods(ns).Delete(ctx, mine.Name, metav1.DeleteOptions{})
	})

	// A token that is bound to no pod tells no node, and is worth nothing.
	unbound := clientAs(t, c, c.Token(t, engineNamespace, engineAccount, nil, time.Hour))
	refuse("a token without a node", notThisNode, func(ctx context.Context) error { return patch(ctx, unbound, mine, ours, metav1.PatchOptions{}) })

	// Nobody else is concerned.
	if err := annotate(t.Context(), c.Client, mine, "anything", "x"); err != nil {
		t.Errorf("the admin: %v", err)
	}
}

// The policy holds what RBAC allows; where somebody gives the account more, it
// still does.
func TestK43PolicyHoldsBesideWiderRights(t *testing.T) {
	c := kube.Shared(t)
	account(t, c)
	ns := c.Namespace(t)
	c.Apply(t, fmt.Sprintf(`
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: too-much, namespace: %[1]s}
rules:
  - {apiGroups: [""], resources: [pods, pods/status, pods/ephemeralcontainers], verbs: ["*"]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: too-much, namespace: %[1]s}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: too-much}
subjects: [{kind: ServiceAccount, name: %[2]s, namespace: %[3]s}]
`, ns, engineAccount, engineNamespace))
	c.AwaitAccess(t, engineNamespace, engineAccount, authorizationv1.ResourceAttributes{Verb: "delete", Resource: "pods", Namespace: ns})

	node := ns + "-here"
	pod := c.Pod(t, ns, kube.PodSpec{Node: node})
	engine := clientAs(t, c, engineToken(t, c, enginePod(t, c, node)))
	pods := engine.CoreV1().Pods(ns)
	for name, try := range map[string]func() error{
		"the status": func() error {
			return patch(t.Context(), engine, pod, rig.Object{"status": rig.Object{"message": "x"}}, metav1.PatchOptions{}, "status")
		},
		"a deletion": func() error { return pods.Delete(t.Context(), pod.Name, metav1.DeleteOptions{}) },
		"a new pod": func() error {
			_, err := pods.Create(t.Context(), &corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{Name: "new"},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "x"}}},
			}, metav1.CreateOptions{})
			return err
		},
	} {
		if err := try(); err == nil || !strings.Contains(err.Error(), "dhcp-engine may change pods, and nothing else of them") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := annotate(t.Context(), engine, pod, "dhcp-meta.io/pod-networks", "{}"); err != nil {
		t.Errorf("its own annotation: %v", err)
	}
}

// The rules for people who write networks, with the texts of OKEP-6224. They have a
// cluster of their own: other tests write networks that these refuse.
func TestK20K21K22K23K24K25PoliciesForNetworks(t *testing.T) {
	c := kube.Start(t)
	c.Apply(t, manifest(t, "policy-networks.yaml"))
	ns := c.Namespace(t)
	cudns := c.Dynamic.Resource(schema.GroupVersionResource{Group: "k8s.ovn.org", Version: "v1", Resource: "clusteruserdefinednetworks"})
	nads := c.Dynamic.Resource(schema.GroupVersionResource{Group: "k8s.cni.cncf.io", Version: "v1", Resource: "network-attachment-definitions"}).Namespace(ns)
	dryRun := metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}
	makeCUDN := func(annotations, network rig.Object) error {
		_, err := cudns.Create(t.Context(), &unstructured.Unstructured{Object: rig.Object{
			"apiVersion": "k8s.ovn.org/v1", "kind": "ClusterUserDefinedNetwork",
			"metadata": rig.Object{"name": "office", "annotations": annotations},
			"spec":     rig.Object{"namespaceSelector": rig.Object{}, "network": network},
		}}, dryRun)
		return err
	}
	makeNAD := func(annotations rig.Object, config string) error {
		_, err := nads.Create(t.Context(), &unstructured.Unstructured{Object: rig.Object{
			"apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition",
			"metadata": rig.Object{"name": "office", "annotations": annotations},
			"spec":     rig.Object{"config": config},
		}}, dryRun)
		return err
	}
	mark := rig.Object{"dhcp-meta.io/ipam": "dhcp"}
	awaitRefusal(t, "the policy for ClusterUserDefinedNetworks is in force", "", func(context.Context) error {
		return makeCUDN(mark, rig.Object{"topology": "Layer2"})
	})
	awaitRefusal(t, "the policy for NetworkAttachmentDefinitions is in force", "", func(context.Context) error {
		return makeNAD(rig.Object{"dhcp-meta.io/ipam": "x"}, "{}")
	})

	const (
		subnets = "Subnets is forbidden when ipam.mode is DHCP; addresses are assigned by the external DHCP server"
		role    = "DHCP ipam.mode is only supported for Localnet Secondary networks"
		layer2  = "DHCP ipam.mode is not supported for Layer2 topology, use Localnet topology instead"
		value   = "there is no other value"
	)
	localnet := func(more rig.Object) rig.Object {
		l := rig.Object{"role": "Secondary", "physicalNetworkName": "lan"}
		for k, v := range more {
			l[k] = v
		}
		return rig.Object{"topology": "Localnet", "localnet": l}
	}
	disabled := rig.Object{"ipam": rig.Object{"mode": "Disabled"}}
	t.Run("ClusterUserDefinedNetworks", func(t *testing.T) {
		for _, tt := range []struct {
			name        string
			annotations rig.Object
			network     rig.Object
			want        string // a part of the refusal; empty: it is taken
		}{
			{"K25: the example of OKEP-6224 as it is written", nil, rig.Object{"topology": "Localnet", "localnet": rig.Object{
				"role": "Secondary", "physicalNetworkName": "physnet", "ipam": rig.Object{"mode": "DHCP"},
			}}, ""},
			{"the same, our way", mark, localnet(disabled), ""},
			{"with settings", rig.Object{"dhcp-meta.io/ipam": "dhcp", "dhcp-meta.io/config": `{"hostname":""}`}, localnet(disabled), ""},
			{"settings for OVN-Kubernetes' own DHCP", rig.Object{"dhcp-meta.io/config": "{}"}, localnet(rig.Object{"ipam": rig.Object{"mode": "DHCP"}}), ""},
			{"K24: no ipam", mark, localnet(nil), ""},
			{"K24: no mode", mark, localnet(rig.Object{"ipam": rig.Object{"lifecycle": "Persistent"}}), ""},
			{"K30: no mark, Layer2", nil, rig.Object{"topology": "Layer2", "layer2": rig.Object{"role": "Primary", "subnets": []any{"10.1.0.0/16"}}}, ""},
			{"K30: no mark, subnets", rig.Object{"other": "x"}, localnet(rig.Object{"subnets": []any{"10.1.0.0/16"}}), ""},
			{"K20: another value", rig.Object{"dhcp-meta.io/ipam": "DHCP"}, localnet(disabled), value},
			{"K20: no value", rig.Object{"dhcp-meta.io/ipam": ""}, localnet(disabled), value},
			{"settings without the mark", rig.Object{"dhcp-meta.io/config": "{}"}, localnet(disabled), "dhcp-meta.io/config means nothing without it"},
			{"K21: subnets", mark, localnet(rig.Object{"subnets": []any{"10.1.0.0/16"}, "ipam": rig.Object{"mode": "Disabled"}}), subnets},
			{"K21: subnets without ipam", mark, localnet(rig.Object{"subnets": []any{"10.1.0.0/16"}}), subnets},
			{"K22: a primary network", mark, localnet(rig.Object{"role": "Primary", "ipam": rig.Object{"mode": "Disabled"}}), role},
			{"K22: no role", mark, rig.Object{"topology": "Localnet", "localnet": rig.Object{}}, role},
			{"K22: Layer3", mark, rig.Object{"topology": "Layer3", "layer3": rig.Object{"role": "Secondary"}}, role},
			{"K23: Layer2", mark, rig.Object{"topology": "Layer2", "layer2": rig.Object{"role": "Secondary"}}, layer2},
			{"addresses of OVN-Kubernetes too", mark, localnet(rig.Object{"ipam": rig.Object{"mode": "Enabled"}}), "ipam.mode must be Disabled"},
			{"and by its own DHCP", mark, localnet(rig.Object{"ipam": rig.Object{"mode": "DHCP"}}), "ipam.mode must be Disabled"},
		} {
			t.Run(tt.name, func(t *testing.T) { decided(t, makeCUDN(tt.annotations, tt.network), tt.want) })
		}
	})

	ovn := func(more string) string {
		return `{"cniVersion":"1.0.0", "name":"office", "type": "ovn-k8s-cni-overlay", "netAttachDefName":"` + ns + `/office"` + more + `}`
	}
	local := `, "topology":"localnet", "role":"secondary"`
	both := func(ipam, config string) rig.Object {
		return rig.Object{"dhcp-meta.io/ipam": ipam, "dhcp-meta.io/config": config}
	}
	t.Run("NetworkAttachmentDefinitions", func(t *testing.T) {
		for _, tt := range []struct {
			name        string
			annotations rig.Object
			config      string
			want        string
		}{
			{"the mark", mark, ovn(local), ""},
			{"the mark and settings", both("dhcp", `{"hostname":""}`), ovn(local), ""},
			{"a dhcp object", nil, ovn(local + `, "dhcp": {"hostname":""}`), ""},
			{"both keys", nil, `{"type":"dhcp-meta","plugins":[` + ovn(local) + `]}`, ""},
			{"a mark on a plugin that asks for its address itself", mark, ovn(local + `, "ipam": { "type" : "dhcp" }`), "only one of them can"},
			{"settings for a plugin that asks for its address itself", rig.Object{"dhcp-meta.io/config": "{}"}, ovn(local + `, "ipam": { "type" : "dhcp" }`), ""},
			{"another plugin", mark, `{"type":"dhcp-meta","delegate":{"type":"macvlan","subnets":"10.1.0.0/16"}}`, ""},
			{"no configuration", mark, "", ""},
			{"text that only looks like a key", mark, ovn(local + `, "note": "\"subnets\": \"10.1.0.0/16\""`), ""},
			{"K24: empty subnets", mark, ovn(local + `, "subnets": ""`), ""},
			{"K30: no mark, anything", nil, ovn(`, "topology":"layer2", "role":"primary", "subnets":"10.1.0.0/16"`), ""},
			{"K30: no mark, no JSON", nil, "{", ""},
			{"K30: no mark, a very large one", nil, `{"type":"x","text":"` + strings.Repeat("x", 900_000) + `"}`, ""},
			{"K20: another value", rig.Object{"dhcp-meta.io/ipam": "Disabled"}, ovn(local), value},
			{"settings without a mark", rig.Object{"dhcp-meta.io/config": "{}"}, ovn(local), "the mark is missing"},
			{"settings that are no object", both("dhcp", "[]"), ovn(local), "is no JSON object"},
			{"settings twice", both("dhcp", ` {"hostname":""}`), ovn(local + `, "dhcp": {"hostname":"x"}`), "both have settings"},
			{"no netAttachDefName", mark, `{"type":"ovn-k8s-cni-overlay","topology":"localnet"}`, "netAttachDefName is missing"},
			{"K21: subnets", mark, ovn(local + `, "Subnets" : "10.1.0.0/16"`), subnets},
			{"K21: subnets, both keys", nil, `{"type":"dhcp-meta","plugins":[` + ovn(local+`,"subnets":"10.1.0.0/16"`) + `]}`, subnets},
			{"K22: a primary network", mark, ovn(`, "topology":"localnet", "role":"primary"`), role},
			{"K22: layer3", nil, ovn(`, "topology":"layer3", "dhcp":{}`), role},
			{"K23: layer2", mark, ovn(`, "topology": "layer2"`), layer2},
		} {
			t.Run(tt.name, func(t *testing.T) { decided(t, makeNAD(tt.annotations, tt.config), tt.want) })
		}
	})
}

// decided holds the answer to a write against the refusal that is wanted; empty:
// none.
func decided(t *testing.T, err error, want string) {
	t.Helper()
	var status apierrors.APIStatus
	switch {
	case want == "" && err != nil:
		t.Errorf("refused: %v", err)
	case want == "":
	case err == nil:
		t.Errorf("taken; want a refusal that says %q", want)
	case !errors.As(err, &status) || !strings.Contains(err.Error(), "ValidatingAdmissionPolicy") || !strings.Contains(err.Error(), want):
		t.Errorf("%v; want a refusal that says %q", err, want)
	}
}
