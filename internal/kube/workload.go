package kube

import (
	"cmp"

	corev1 "k8s.io/api/core/v1"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine"
)

// Labels by which KubeVirt's pods are known.
const (
	roleLabel    = "kubevirt.io" // "virt-launcher" for the pod of a virtual machine
	vmNameLabel  = "vm.kubevirt.io/name"
	launcherRole = "virt-launcher"
	// domainAnnotation has the name of the VirtualMachineInstance.
	domainAnnotation = "kubevirt.io/domain"
)

// workloadOf tells a virtual machine from a container. Either label will do:
// OVN-Kubernetes looks at the first, the text of OKEP-6224 names the second. So
// the second one on a plain pod makes a virtual machine of it: its interface gets
// no address. A virtual machine's pod with neither is a container, and its lease
// is kept, and its interface configured, by the engine. docs/configuration.md
// has the table.
func workloadOf(pod *corev1.Pod) engine.Workload {
	if _, named := pod.Labels[vmNameLabel]; named || pod.Labels[roleLabel] == launcherRole {
		return engine.VM
	}
	return engine.Container
}

// instanceOf is the name of the pod's VirtualMachineInstance; empty where it is
// not told. In the label KubeVirt puts the guest's host name, which is another one
// where the machine has spec.hostname, or a dot in its name.
func instanceOf(pod *corev1.Pod) string {
	return cmp.Or(pod.Annotations[domainAnnotation], pod.Labels[vmNameLabel])
}

// hostnameOf is what the guest of a virtual machine's pod is called; empty where
// that is not told.
func hostnameOf(pod *corev1.Pod) string {
	if workloadOf(pod) != engine.VM {
		return ""
	}
	return cmp.Or(pod.Labels[vmNameLabel], pod.Annotations[domainAnnotation])
}
