package kube

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"

	nadv1 "github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/apis/k8s.cni.cncf.io/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"

	"github.com/dhcp-meta/dhcp-meta/internal/kube/podnetworks"
	"github.com/dhcp-meta/dhcp-meta/pkg/engine"
)

// Owner finds the pod of an interface by the MAC that stands for it in the pod's
// annotation: OVN-Kubernetes writes that first, and then asks the IPAM plugin dhcp
// without a word of the pod (OKEP-6224). What the cache does not know is asked of the
// API, since an ADD may be ahead of the watch.
func (c *Cluster) Owner(ctx context.Context, a engine.Attachment, mac net.HardwareAddr) (engine.Pod, string, error) {
	if a.Wrapped != ovnType {
		return engine.Pod{}, "", engine.ErrNoPod
	}
	pod, nad, err := owner(c.pods(), a, mac, c.networkOf(ctx))
	if errors.Is(err, engine.ErrNoPod) {
		var live []*corev1.Pod
		if live, err = c.livePods(ctx); err == nil {
			pod, nad, err = owner(live, a, mac, c.networkOf(ctx))
		}
	}
	if err != nil {
		c.log.Warn("pod of an interface of OVN-Kubernetes is not found", "attachment", a.AttachmentID.String(),
			"network", a.Network, "mac", mac.String(), "error", err)
		return engine.Pod{}, "", err
	}
	return identityOf(pod), nad, nil
}

// owner is the one of the pods that asks for a network of this name on an interface of
// this name, and has this MAC for it. networkOf is the network's name that a
// NetworkAttachmentDefinition has; empty where there is none.
func owner(pods []*corev1.Pod, a engine.Attachment, mac net.HardwareAddr, networkOf func(nad string) (string, error)) (found *corev1.Pod, nad string, _ error) {
	for _, pod := range pods {
		if pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
			continue // its interfaces are gone, its annotation is not
		}
		list, err := podnetworks.Selections(pod.Annotations[podnetworks.NetworksKey], pod.Namespace)
		if err != nil {
			continue
		}
		s := selected(list, a.IfName)
		if s == nil {
			continue
		}
		if have, _ := publishedMAC(pod.Annotations[podnetworks.OVNKey], s.NAD, s.Nth); !bytes.Equal(have, mac) {
			continue
		}
		switch name, err := networkOf(s.NAD); {
		case err != nil:
			return nil, "", err
		case name != a.Network:
			continue
		case found != nil:
			return nil, "", fmt.Errorf("pods %s/%s and %s/%s both have %s on it: %w", found.Namespace, found.Name, pod.Namespace, pod.Name, mac, engine.ErrNoPod)
		}
		found, nad = pod, s.NAD
	}
	if found == nil {
		return nil, "", fmt.Errorf("no pod of this node has %s on %s: %w", mac, a.IfName, engine.ErrNoPod)
	}
	return found, nad, nil
}

// networkOf tells the name in a definition's configuration.
func (c *Cluster) networkOf(ctx context.Context) func(nad string) (string, error) {
	return func(name string) (string, error) {
		nad, err := c.findNAD(ctx, name)
		if err != nil || nad == nil {
			return "", err
		}
		return networkName(nad), nil
	}
}

func networkName(nad *nadv1.NetworkAttachmentDefinition) string {
	var conf struct {
		Name string `json:"name"`
	}
	if json.Unmarshal([]byte(nad.Spec.Config), &conf) != nil || conf.Name == "" {
		return nad.Name // as Multus has it
	}
	return conf.Name
}

// pods are the pods of this node in the cache.
func (c *Cluster) pods() []*corev1.Pod {
	var all []*corev1.Pod
	for _, obj := range c.podCache.GetStore().List() {
		if pod, ok := obj.(*corev1.Pod); ok {
			all = append(all, pod)
		}
	}
	return all
}

// livePods asks the API itself for the pods of this node.
func (c *Cluster) livePods(ctx context.Context) ([]*corev1.Pod, error) {
	ctx, cancel := context.WithTimeout(ctx, liveLimit)
	defer cancel()
	list, err := c.client.CoreV1().Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector("spec.nodeName", c.node).String(),
	})
	if _, err := c.liveRead("pods", "of node "+c.node, err); err != nil {
		return nil, err
	}
	all := make([]*corev1.Pod, 0, len(list.Items))
	for i := range list.Items {
		all = append(all, &list.Items[i])
	}
	return all, nil
}
