package kube

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubevirtv1 "kubevirt.io/api/core/v1"
)

// virtualMAC is the MAC that the VirtualMachineInstance of a pod has for the
// interface; nil when it says none, and where the cluster cannot tell. Both pods
// of a live migration get the same: it is one machine.
func (c *Cluster) virtualMAC(ctx context.Context, pod *corev1.Pod, nad, ifName string) (net.HardwareAddr, error) {
	name := instanceOf(pod)
	if name == "" {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(ctx, liveLimit)
	defer cancel()
	vmi, err := c.virtual.KubevirtV1().VirtualMachineInstances(pod.Namespace).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsForbidden(err) {
		if !c.virtualRefused.Swap(true) {
			c.log.Warn("virtual machine instances may not be read; their MACs are taken from elsewhere", "error", err)
		}
		return nil, nil
	}
	// Not found may mean as well that KubeVirt is not installed: a label alone
	// makes no virtual machine.
	if found, err := c.liveRead("vmi", pod.Namespace+"/"+name, err); !found {
		return nil, err
	}
	if migratesTo(vmi, pod) {
		c.log.Info("the pod is the target of a live migration", "pod", pod.Namespace+"/"+pod.Name, "vmi", name)
	}
	return macOf(vmi, nad, ifName)
}

// migratesTo tells whether the machine is on its way to the pod.
func migratesTo(vmi *kubevirtv1.VirtualMachineInstance, pod *corev1.Pod) bool {
	m := vmi.Status.MigrationState
	return m != nil && m.TargetPod == pod.Name && !m.Completed && !m.Failed
}

// macOf finds the interface of a machine that is plugged as ifName of its pod into
// the network nad. With several on one network, the name decides: KubeVirt derives
// it from the name of the network.
func macOf(vmi *kubevirtv1.VirtualMachineInstance, nad, ifName string) (net.HardwareAddr, error) {
	var names []string
	for _, n := range vmi.Spec.Networks {
		if n.Multus == nil {
			continue
		}
		full := n.Multus.NetworkName
		if !strings.Contains(full, "/") {
			full = vmi.Namespace + "/" + full
		}
		if full != nad {
			continue
		}
		if podInterface(n.Name) == ifName {
			names = []string{n.Name}
			break
		}
		names = append(names, n.Name)
	}
	if len(names) != 1 {
		return nil, nil
	}
	for _, i := range vmi.Spec.Domain.Devices.Interfaces {
		if i.Name != names[0] || i.MacAddress == "" {
			continue
		}
		mac, err := parseMAC(i.MacAddress)
		if err != nil {
			return nil, fmt.Errorf("VirtualMachineInstance %s/%s: interface %s: %w", vmi.Namespace, vmi.Name, i.Name, err)
		}
		return mac, nil
	}
	return nil, nil
}

// podInterface is the name that KubeVirt gives to the pod's interface of a
// secondary network.
func podInterface(network string) string {
	sum := sha256.Sum256([]byte(network))
	return "pod" + hex.EncodeToString(sum[:])[:11]
}
