package kube

import (
	"strings"

	nadv1 "github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/apis/k8s.cni.cncf.io/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/dhcp-meta/dhcp-meta/internal/kube/podnetworks"
)

// mirrorAnnotation holds the UID by which the runtime knows a static pod: the
// object in the API is a mirror with a UID of its own.
const mirrorAnnotation = "kubernetes.io/config.mirror"

// Annotations and labels of ours, and of KubeVirt, by their domains.
const (
	domain         = "dhcp-meta.io"
	kubevirtDomain = "kubevirt.io"
)

// trimPod leaves of a pod what is used. A pod is some 10 to 50 KB, most of it in
// containers, managed fields and other people's annotations.
func trimPod(obj any) (any, error) {
	pod, ok := obj.(*corev1.Pod)
	if !ok {
		return obj, nil
	}
	return &corev1.Pod{
		ObjectMeta: trimMeta(pod.ObjectMeta),
		Spec:       corev1.PodSpec{NodeName: pod.Spec.NodeName, HostNetwork: pod.Spec.HostNetwork},
		Status:     corev1.PodStatus{Phase: pod.Status.Phase},
	}, nil
}

// trimNAD does the same for a NetworkAttachmentDefinition.
func trimNAD(obj any) (any, error) {
	nad, ok := obj.(*nadv1.NetworkAttachmentDefinition)
	if !ok {
		return obj, nil
	}
	return &nadv1.NetworkAttachmentDefinition{ObjectMeta: trimMeta(nad.ObjectMeta), Spec: nad.Spec}, nil
}

func trimMeta(m metav1.ObjectMeta) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Namespace:         m.Namespace,
		Name:              m.Name,
		UID:               m.UID,
		ResourceVersion:   m.ResourceVersion,
		DeletionTimestamp: m.DeletionTimestamp,
		Labels:            keep(m.Labels, func(key string) bool { return inDomain(key, kubevirtDomain) }),
		Annotations:       keep(m.Annotations, usedAnnotation),
	}
}

func usedAnnotation(key string) bool {
	switch key {
	case podnetworks.NetworksKey, podnetworks.OVNKey, mirrorAnnotation:
		return true
	}
	return inDomain(key, domain) || inDomain(key, kubevirtDomain)
}

// inDomain tells whether a key is of the domain or of one below it.
// The key "kubevirt.io", without a slash, is KubeVirt's oldest label.
func inDomain(key, domain string) bool {
	prefix, _, _ := strings.Cut(key, "/")
	return prefix == domain || strings.HasSuffix(prefix, "."+domain)
}

func keep(m map[string]string, used func(key string) bool) map[string]string {
	var kept map[string]string
	for key, value := range m {
		if used(key) {
			if kept == nil {
				kept = map[string]string{}
			}
			kept[key] = value
		}
	}
	return kept
}
