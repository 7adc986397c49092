package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"testing"

	nadv1 "github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/apis/k8s.cni.cncf.io/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/dhcp-meta/dhcp-meta/tests/rig"
	"github.com/dhcp-meta/dhcp-meta/tests/rig/node"
)

// Join gives a node an interface eth0 towards the API server, and an object Node of
// its name.
func (c *Cluster) Join(t testing.TB, n *node.Node) {
	t.Helper()
	addr := c.Connect(t, n)
	object := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: n.Name},
		Status:     corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: addr}}},
	}
	if _, err := c.Client.CoreV1().Nodes().Create(t.Context(), object, metav1.CreateOptions{}); err != nil {
		t.Fatalf("create node %s: %v", n.Name, err)
	}
}

// Connect gives a node the interface eth0, and returns the address there.
func (c *Cluster) Connect(t testing.TB, n *node.Node) string {
	t.Helper()
	i := c.nodes.Add(1) + 1
	addr := fmt.Sprintf("172.30.%d.%d", i/256, i%256)
	port := fmt.Sprintf("node%d", i)
	c.Net.IP(t, "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", n.Net.Name)
	c.Net.IP(t, "link", "set", port, "master", "br0", "up")
	n.Net.IP(t, "addr", "add", addr+"/16", "dev", "eth0")
	n.Net.IP(t, "link", "set", "eth0", "up")
	return addr
}

// Namespace makes a Kubernetes namespace of the test's own, with the service account
// that its pods need. It stays: nothing in this cluster could finish its end.
func (c *Cluster) Namespace(t testing.TB) string {
	t.Helper()
	name := fmt.Sprintf("ns-%d-%d", os.Getpid(), c.names.Add(1))
	object := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if _, err := c.Client.CoreV1().Namespaces().Create(t.Context(), object, metav1.CreateOptions{}); err != nil {
		t.Fatalf("create namespace %s: %v", name, err)
	}
	c.ServiceAccount(t, name, "default")
	return name
}

// NAD makes a NetworkAttachmentDefinition. A config that is no string is written as
// JSON.
func (c *Cluster) NAD(t testing.TB, namespace, name string, config any, annotations map[string]string) *nadv1.NetworkAttachmentDefinition {
	t.Helper()
	text, ok := config.(string)
	if !ok {
		b, err := json.Marshal(config)
		if err != nil {
			t.Fatal(err)
		}
		text = string(b)
	}
	object := &nadv1.NetworkAttachmentDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: annotations},
		Spec:       nadv1.NetworkAttachmentDefinitionSpec{Config: text},
	}
	made, err := c.NADs.K8sCniCncfIoV1().NetworkAttachmentDefinitions(namespace).Create(t.Context(), object, metav1.CreateOptions{})
	if err != nil {
		t.Fatalf("create network %s/%s: %v", namespace, name, err)
	}
	return made
}

// PodSpec is what a test says of a pod.
type PodSpec struct {
	// Name is "pod" and a number when it is empty.
	Name string
	// Node is where it runs; empty: it is not scheduled.
	Node string
	// Networks is the annotation that asks Multus for networks, in either form.
	Networks            string
	Labels, Annotations map[string]string
	// Account is its service account, "default" when empty; Image is what it runs, where
	// there is a kubelet.
	Account     string
	Image       string
	HostNetwork bool
}

// Pod makes a pod object. Unless a rig/kubelet is in the cluster, no kubelet ever sees it.
func (c *Cluster) Pod(t testing.TB, namespace string, spec PodSpec) *corev1.Pod {
	t.Helper()
	if spec.Name == "" {
		spec.Name = fmt.Sprintf("pod-%d", c.names.Add(1))
	}
	pod, err := c.Client.CoreV1().Pods(namespace).Create(t.Context(), spec.Object(), metav1.CreateOptions{})
	if err != nil {
		t.Fatalf("create pod %s/%s: %v", namespace, spec.Name, err)
	}
	return pod
}

// Object is the pod as it is sent to the API server.
func (spec PodSpec) Object() *corev1.Pod {
	annotations := maps.Clone(spec.Annotations)
	if spec.Networks != "" {
		if annotations == nil {
			annotations = map[string]string{}
		}
		annotations[nadv1.NetworkAttachmentAnnot] = spec.Networks
	}
	if spec.Image == "" {
		spec.Image = "none"
	}
	no := false
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: spec.Name, Labels: spec.Labels, Annotations: annotations},
		Spec: corev1.PodSpec{
			NodeName:                     spec.Node,
			ServiceAccountName:           spec.Account,
			HostNetwork:                  spec.HostNetwork,
			AutomountServiceAccountToken: &no,
			Containers:                   []corev1.Container{{Name: "main", Image: spec.Image}},
		},
	}
}

// GetPod reads a pod.
func (c *Cluster) GetPod(t testing.TB, namespace, name string) *corev1.Pod {
	t.Helper()
	pod, err := c.Client.CoreV1().Pods(namespace).Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return pod
}

// Annotate sets an annotation of a pod; nil takes it away.
func (c *Cluster) Annotate(t testing.TB, pod *corev1.Pod, key string, value *string) {
	t.Helper()
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]*string{key: value}}})
	if err != nil {
		t.Fatal(err)
	}
	_, err = c.Client.CoreV1().Pods(pod.Namespace).Patch(t.Context(), pod.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	if err != nil {
		t.Fatalf("annotate pod %s: %v", pod.Name, err)
	}
}

// DeletePod deletes a pod at once, as the kubelet does when its containers and its
// sandbox are gone.
func (c *Cluster) DeletePod(t testing.TB, pod *corev1.Pod) {
	t.Helper()
	err := c.Client.CoreV1().Pods(pod.Namespace).Delete(t.Context(), pod.Name, *metav1.NewDeleteOptions(0))
	if err != nil && !apierrors.IsNotFound(err) {
		t.Fatalf("delete pod %s: %v", pod.Name, err)
	}
}

// AwaitPod waits until a pod is as ok wants it.
func (c *Cluster) AwaitPod(t testing.TB, namespace, name, what string, ok func(*corev1.Pod) bool) *corev1.Pod {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), rig.Patience)
	defer cancel()
	pods := c.Client.CoreV1().Pods(namespace)
	var last *corev1.Pod
	for ctx.Err() == nil {
		// Without a resource version a watch begins with the pod as it is.
		w, err := pods.Watch(ctx, metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("metadata.name", name).String()})
		if err != nil {
			t.Fatalf("watch pod %s: %v", name, err)
		}
		for event := range w.ResultChan() {
			pod, isPod := event.Object.(*corev1.Pod)
			if !isPod || event.Type == watch.Deleted {
				continue
			}
			if last = pod; ok(pod) {
				w.Stop()
				return pod
			}
		}
		w.Stop()
	}
	t.Fatalf("pod %s did not come to %s within %v; its annotations: %v", name, what, rig.Patience, annotationsOf(last))
	return nil
}

func annotationsOf(pod *corev1.Pod) map[string]string {
	if pod == nil {
		return nil
	}
	return pod.Annotations
}
