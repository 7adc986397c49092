package main

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine/api"
)

// leasesOf asks an engine for its leases, chosen by flags of `dhcp-engine leases`.
func (c *cluster) leasesOf(ctx context.Context, engine corev1.Pod, flags ...string) ([]lease, error) {
	out, err := c.ask(ctx, engine, append([]string{"leases", "-o", "json"}, flags...)...)
	if err != nil {
		return nil, err
	}
	var all []api.Status
	if err := json.Unmarshal(out, &all); err != nil {
		return nil, fmt.Errorf("read the leases of node %s: %w; is its dhcp-engine of another version: kubectl dhcp version", engine.Spec.NodeName, err)
	}
	var list []lease
	for _, s := range all {
		list = append(list, lease{engine.Spec.NodeName, s})
	}
	return list, nil
}

// attachment finds the engine and the attachment of a pod's interface, which may be
// left out when there is one only.
func (c *cluster) attachment(ctx context.Context, operands []string) (corev1.Pod, lease, error) {
	name, ifName := operands[0], ""
	if len(operands) > 1 {
		ifName = operands[1]
	}
	pod, err := c.client.CoreV1().Pods(c.namespace).Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return corev1.Pod{}, lease{}, fmt.Errorf("no pod %s is in namespace %s: kubectl dhcp leases -A lists the pods with leases", name, c.namespace)
	case err != nil:
		return corev1.Pod{}, lease{}, fmt.Errorf("look at pod %s/%s: %w", c.namespace, name, err)
	case pod.Spec.NodeName == "":
		return corev1.Pod{}, lease{}, fmt.Errorf("pod %s/%s is on no node yet", c.namespace, name)
	}
	engine, err := c.engineOf(ctx, pod.Spec.NodeName)
	if err != nil {
		return corev1.Pod{}, lease{}, err
	}
	all, err := c.leasesOf(ctx, engine, "--pod", c.namespace+"/"+name)
	if err != nil {
		return corev1.Pod{}, lease{}, err
	}
	l, err := choose(all, c.namespace+"/"+name, ifName)
	return engine, l, err
}

// choose finds the attachment of a pod's interface among those of the pod.
func choose(all []lease, pod, ifName string) (lease, error) {
	var names []string
	var found []lease
	for _, l := range all {
		if l.State == "SUPERSEDED" || l.State == "RELEASING" { // of an earlier sandbox
			continue
		}
		names = append(names, l.IfName)
		if ifName == "" || ifName == l.IfName {
			found = append(found, l)
		}
	}
	slices.Sort(names)
	has := strings.Join(names, ", ")
	switch {
	case len(found) == 1:
		return found[0], nil
	case len(names) == 0:
		return lease{}, fmt.Errorf("the dhcp-engine of its node keeps nothing for pod %s: is one of its networks for DHCP, and did it start, or was its lease released by hand: kubectl describe pod", pod)
	case len(found) == 0:
		return lease{}, fmt.Errorf("interface %s of pod %s has nothing by DHCP: these have: %s", ifName, pod, has)
	}
	return lease{}, fmt.Errorf("several interfaces of pod %s have addresses by DHCP: name one of %s", pod, has)
}

// runRenew is `kubectl dhcp renew` and `kubectl dhcp rebind`.
func runRenew(ctx context.Context, verb string, args []string, std streams) error {
	in := newInput(verb, "POD [INTERFACE]")
	output := in.flags.StringP("output", "o", "table", "`format`, table or json")
	return in.onAttachment(ctx, args, std, func(l lease) []string { return []string{verb, "-o", *output, l.AttachmentID.String()} })
}

// runRelease is `kubectl dhcp release`.
func runRelease(ctx context.Context, args []string, std streams) error {
	in := newInput("release", "POD [INTERFACE]")
	sure := in.flags.Bool("yes", false, "do it: the pod goes on to run, without this address, until it gets a new sandbox; the guest of a VM keeps it, and it is reported no longer")
	return in.onAttachment(ctx, args, std, func(l lease) []string {
		if *sure {
			return []string{"release", "--yes", l.AttachmentID.String()}
		}
		return []string{"release", l.AttachmentID.String()} // which says what would become of it
	})
}

// onAttachment has the engine of a pod do something for its attachment.
func (in *input) onAttachment(ctx context.Context, args []string, std streams, command func(lease) []string) error {
	operands, err := in.parse(args, 1, 2)
	if err != nil {
		return err
	}
	c, err := in.connect()
	if err != nil {
		return err
	}
	engine, l, err := c.attachment(ctx, operands)
	if err != nil {
		return err
	}
	return c.execute(ctx, engine, std, command(l)...)
}

// runProbe is `kubectl dhcp probe`.
func runProbe(ctx context.Context, args []string, std streams) error {
	in := newInput("probe", "POD [INTERFACE]")
	network := in.flags.String("network", "", "ask on any pod's interface of this network, `namespace/name` of its NetworkAttachmentDefinition, or the name in its configuration")
	node := in.flags.String("node", "", "with --network: on this `node`")
	timeout := in.flags.Duration("timeout", api.DefaultProbe, "for how much `time` offers are collected, up to "+api.MaxProbe.String())
	output := in.flags.StringP("output", "o", "table", "`format`, table or json")
	operands, err := in.parse(args, 0, 2)
	switch {
	case err != nil:
		return err
	case (*network == "") == (len(operands) == 0):
		return usageError{fmt.Errorf("probe: name a pod, or --network")}
	case *node != "" && *network == "":
		return usageError{fmt.Errorf("probe: --node has no use without --network")}
	}
	c, err := in.connect()
	if err != nil {
		return err
	}
	var engine corev1.Pod
	var l lease
	if *network == "" {
		engine, l, err = c.attachment(ctx, operands)
	} else {
		engine, l, err = c.anyOn(ctx, *network, *node, std)
	}
	if err != nil {
		return err
	}
	return c.execute(ctx, engine, std, "probe", "--netns", l.Netns, "--interface", l.IfName, "--timeout", timeout.Round(time.Millisecond).String(), "-o", *output)
}

// anyOn finds an attachment to a network, and says which.
func (c *cluster) anyOn(ctx context.Context, network, node string, std streams) (corev1.Pod, lease, error) {
	all, failed, err := c.gather(ctx, node)
	if err != nil {
		return corev1.Pod{}, lease{}, err
	}
	all = slices.DeleteFunc(all, func(l lease) bool { return !usedFor(l, network) })
	if len(all) == 0 {
		missing := ""
		if len(failed) > 0 {
			missing = fmt.Sprintf(" (%d nodes could not be asked, the first: %v)", len(failed), failed[0])
		}
		return corev1.Pod{}, lease{}, fmt.Errorf("no pod has an interface by DHCP on network %s%s: kubectl dhcp leases -A -o wide shows networks", network, missing)
	}
	if names := definitions(all); len(names) > 1 {
		return corev1.Pod{}, lease{}, fmt.Errorf("several networks are called %s in their configurations: name one of %s", network, strings.Join(names, ", "))
	}
	l := all[0]
	_, _ = fmt.Fprintln(std.stderr, printable(fmt.Sprintf("asking on %s of pod %s/%s, node %s", l.IfName, l.Pod.Namespace, l.Pod.Name, l.Node)))
	engine, err := c.engineOf(ctx, l.Node)
	return engine, l, err
}

// usedFor tells whether an attachment can be asked on for a network: a guest has taken
// its interface to itself.
func usedFor(l lease, network string) bool {
	switch l.State {
	case "SUPERSEDED", "RELEASING", "ORPHANED", "REPORTED":
		return false
	}
	return network == l.NAD || network == l.Network
}

// definitions are the NetworkAttachmentDefinitions of attachments, each once.
func definitions(all []lease) []string {
	var names []string
	for _, l := range all {
		if l.NAD != "" {
			names = append(names, l.NAD)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}
