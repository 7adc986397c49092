package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
)

// enginesOn are the pods of the engines, one a node, by node; of one node, if it is
// named.
func (c *cluster) enginesOn(ctx context.Context, node string) ([]corev1.Pod, error) {
	options := metav1.ListOptions{LabelSelector: engineLabel}
	if node != "" {
		options.FieldSelector = fields.OneTermEqualSelector("spec.nodeName", node).String()
	}
	list, err := c.client.CoreV1().Pods(c.engines).List(ctx, options)
	if err != nil {
		return nil, fmt.Errorf("list the dhcp-engine pods in namespace %s: %w", c.engines, err)
	}
	found := onePerNode(list.Items)
	switch where := c.hint(); {
	case len(found) == 0 && node != "":
		return nil, fmt.Errorf("no dhcp-engine pod is on node %s (namespace %s, label %s): is the node's name right, and does the DaemonSet want it: %s", node, c.engines, engineLabel, where)
	case len(found) == 0:
		return nil, fmt.Errorf("no dhcp-engine pod is in namespace %s (label %s): is it installed, or elsewhere (--engine-namespace): %s", c.engines, engineLabel, where)
	}
	return found, nil
}

// engineOf is the engine of a node, which can be asked.
func (c *cluster) engineOf(ctx context.Context, node string) (corev1.Pod, error) {
	found, err := c.enginesOn(ctx, node)
	if err != nil {
		return corev1.Pod{}, err
	}
	return found[0], c.usable(found[0])
}

// hint is what to look at.
func (c *cluster) hint() string {
	return "kubectl -n " + c.engines + " get daemonsets,pods -o wide"
}

// onePerNode leaves of several pods on a node the one that can be asked best, as while
// the DaemonSet is updated. Those on no node are left out.
func onePerNode(pods []corev1.Pod) []corev1.Pod {
	pods = slices.DeleteFunc(slices.Clone(pods), func(p corev1.Pod) bool { return p.Spec.NodeName == "" })
	slices.SortFunc(pods, func(a, b corev1.Pod) int {
		return cmp.Or(cmp.Compare(a.Spec.NodeName, b.Spec.NodeName), cmp.Compare(rank(a), rank(b)), b.CreationTimestamp.Compare(a.CreationTimestamp.Time))
	})
	return slices.CompactFunc(pods, func(a, b corev1.Pod) bool { return a.Spec.NodeName == b.Spec.NodeName })
}

// rank is lower for a pod that can be asked.
func rank(p corev1.Pod) int {
	switch {
	case trouble(p) != "":
		return 2
	case p.DeletionTimestamp != nil:
		return 1
	}
	return 0
}

// usable tells why an engine cannot be asked; nil: it can.
func (c *cluster) usable(p corev1.Pod) error {
	why := trouble(p)
	if why == "" {
		return nil
	}
	return fmt.Errorf("dhcp-engine of node %s cannot be asked: pod %s/%s: %s; look at kubectl -n %s describe pod %s", p.Spec.NodeName, p.Namespace, p.Name, why, p.Namespace, p.Name)
}

// trouble is why nothing can be executed in an engine's container; empty: it can.
func trouble(p corev1.Pod) string {
	for _, s := range p.Status.InitContainerStatuses {
		if w := s.State.Waiting; w != nil && w.Reason != "" && w.Reason != "PodInitializing" {
			return "init container " + s.Name + ": " + w.Reason
		}
	}
	for _, s := range p.Status.ContainerStatuses {
		switch {
		case s.Name != engineContainer:
		case s.State.Running != nil:
			return ""
		case s.State.Waiting != nil && s.State.Waiting.Reason != "":
			return "container " + s.Name + ": " + s.State.Waiting.Reason
		case s.State.Terminated != nil:
			return fmt.Sprintf("container %s has ended with exit code %d", s.Name, s.State.Terminated.ExitCode)
		}
	}
	return "is " + cmp.Or(string(p.Status.Phase), "Pending")
}
