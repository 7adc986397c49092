package kube

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/dhcp-meta/dhcp-meta/internal/kube/podnetworks"
	"github.com/dhcp-meta/dhcp-meta/pkg/engine"
	"github.com/dhcp-meta/dhcp-meta/pkg/engine/api"
)

// Facts tells what the pod of an attachment and its network say.
func (c *Cluster) Facts(ctx context.Context, a engine.Attachment) (engine.Facts, error) {
	pod, err := c.findPod(ctx, a.Pod)
	if err != nil {
		return engine.Facts{}, err
	}
	if err := c.servable(pod); err != nil {
		return engine.Facts{}, err
	}
	q, err := question(a, pod)
	if err != nil {
		return engine.Facts{}, api.WithCode(api.CodeConfig, fmt.Errorf("pod %s/%s: %w", pod.Namespace, pod.Name, err))
	}
	f := engine.Facts{Workload: workloadOf(pod), Hostname: hostnameOf(pod), NAD: q.nad, OVN: a.Wrapped == ovnType, DHCP: a.DHCP}
	if q.nad != "" {
		if err := c.network(ctx, a, &f); err != nil {
			return engine.Facts{}, err
		}
	}
	if f.DHCP, err = q.overlay.over(f.DHCP); err != nil {
		return engine.Facts{}, err
	}
	f.HardwareAddr, err = c.hardwareAddr(ctx, pod, a.IfName, q, f)
	return f, err
}

// servable refuses pods that cannot have an attachment.
func (c *Cluster) servable(pod *corev1.Pod) error {
	switch {
	case pod.Spec.HostNetwork:
		return api.WithCode(api.CodeConfig, fmt.Errorf("pod %s/%s uses the network of its host: it has no interface of its own that could get an address",
			pod.Namespace, pod.Name))
	case pod.Spec.NodeName == "":
		return api.WithCode(api.CodeTryAgain, fmt.Errorf("pod %s/%s is on no node yet, says the Kubernetes API", pod.Namespace, pod.Name))
	case pod.Spec.NodeName != c.node:
		return api.WithCode(api.CodeTryAgain, fmt.Errorf("pod %s/%s is on node %s, says the Kubernetes API, and this engine was told --node-name %s",
			pod.Namespace, pod.Name, pod.Spec.NodeName, c.node))
	}
	return nil
}

// asked is what a pod says of one of its interfaces.
type asked struct {
	nad       string
	selection *podnetworks.Selection // nil: the pod does not ask for the interface
	overlay   overlay
}

// question finds out what a pod says of an attachment. Where the caller knows the
// NetworkAttachmentDefinition, and the pod asks for another one under this name of
// an interface, the caller is right, and the pod says nothing.
func question(a engine.Attachment, pod *corev1.Pod) (asked, error) {
	list, err := podnetworks.Selections(pod.Annotations[podnetworks.NetworksKey], pod.Namespace)
	if err != nil {
		return asked{}, err
	}
	q := asked{nad: a.NAD, selection: selected(list, a.IfName)}
	switch {
	case q.selection == nil:
	case q.nad == "":
		q.nad = q.selection.NAD
	case q.nad != q.selection.NAD:
		q.selection = nil
	}
	q.overlay, err = overlayOf(pod.Annotations, q.nad, q.selection)
	return q, err
}

// selected is the selection of an interface; nil when the pod asks for none of
// that name.
func selected(list []podnetworks.Selection, ifName string) *podnetworks.Selection {
	if i := slices.IndexFunc(list, func(s podnetworks.Selection) bool { return s.IfName == ifName }); i >= 0 {
		return &list[i]
	}
	return nil
}

// network adds what the NetworkAttachmentDefinition f.NAD says.
func (c *Cluster) network(ctx context.Context, a engine.Attachment, f *engine.Facts) error {
	nad, err := c.findNAD(ctx, f.NAD)
	if err != nil {
		return err
	}
	if nad == nil {
		return api.WithCode(api.CodeConfig, fmt.Errorf("there is no NetworkAttachmentDefinition %s, which %s", f.NAD, whoNamed(a)))
	}
	inline := a.DHCP
	if a.IPAM {
		inline = nil // it has what follows from the ipam object, and from the node's settings
	}
	d, err := define(nad, inline)
	if err != nil {
		return err
	}
	f.OVN = f.OVN || d.ovn && a.Wrapped == ""
	switch {
	case d.settings == nil:
	case a.IPAM:
		f.DHCP, err = d.overlay().over(a.DHCP)
	case !hasKeys(a.DHCP):
		f.DHCP = d.settings
	}
	return err
}

func whoNamed(a engine.Attachment) string {
	if a.NAD != "" {
		return "netAttachDefName of the configuration names"
	}
	return "the pod's annotation " + podnetworks.NetworksKey + " names"
}

// hardwareAddr is the MAC that the interface will have: what OVN-Kubernetes has
// written, what the pod asks for, or what a virtual machine's definition says.
func (c *Cluster) hardwareAddr(ctx context.Context, pod *corev1.Pod, ifName string, q asked, f engine.Facts) (net.HardwareAddr, error) {
	nth := 0
	if q.selection != nil {
		nth = q.selection.Nth
	}
	if f.OVN {
		mac, err := publishedMAC(pod.Annotations[podnetworks.OVNKey], f.NAD, nth)
		if err != nil {
			return nil, api.WithCode(api.CodeConfig, fmt.Errorf("pod %s/%s: annotation %s: %w", pod.Namespace, pod.Name, podnetworks.OVNKey, err))
		}
		if mac != nil {
			return mac, nil
		}
	}
	if q.selection != nil && q.selection.MAC != "" {
		mac, err := parseMAC(q.selection.MAC)
		if err != nil {
			return nil, api.WithCode(api.CodeConfig, fmt.Errorf("pod %s/%s: annotation %s: mac: %w", pod.Namespace, pod.Name, podnetworks.NetworksKey, err))
		}
		return mac, nil
	}
	if f.Workload == engine.VM && f.NAD != "" {
		return c.virtualMAC(ctx, pod, f.NAD, ifName)
	}
	return nil, nil
}

// publishedMAC is the MAC in the entry of a pod's nth interface on a network; nil
// when there is none.
func publishedMAC(annotation, nad string, nth int) (net.HardwareAddr, error) {
	if annotation == "" {
		return nil, nil
	}
	entries, err := podnetworks.Parse(annotation)
	if err != nil {
		return nil, err
	}
	e, _, err := entries.Entry(podnetworks.Key(nad, nth))
	switch {
	case len(e.HardwareAddr) == 6:
		return e.HardwareAddr, nil // what else is wrong is the publisher's to say
	case err == nil && e.HardwareAddr != nil:
		return nil, fmt.Errorf("entry %s: %s %w", podnetworks.Key(nad, nth), e.HardwareAddr, errNoEthernet)
	}
	return nil, err
}

var errNoEthernet = errors.New("is no Ethernet address")

func parseMAC(text string) (net.HardwareAddr, error) {
	mac, err := net.ParseMAC(text)
	if err != nil || len(mac) != 6 {
		return nil, fmt.Errorf("%q %w", text, errNoEthernet)
	}
	return mac, nil
}
