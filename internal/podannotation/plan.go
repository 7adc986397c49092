package podannotation

import (
	"errors"
	"fmt"
	"net"
	"strings"

	"github.com/dhcp-meta/dhcp-meta/internal/kube/podnetworks"
	"github.com/dhcp-meta/dhcp-meta/internal/publish"
	"github.com/dhcp-meta/dhcp-meta/pkg/engine"
)

// errNoEntry is for an entry that OVN-Kubernetes has not made yet.
var errNoEntry = errors.New("there is no entry of OVN-Kubernetes")

// change is one annotation before and after; without a text it is not there.
type change struct {
	key         string
	before      string
	there, gone bool // before, after
	after       string
}

// plan is what to write of a pod.
type plan struct {
	changes []change
	// touched are the slots because of which something is written.
	touched []publish.Slot
	// problems is why slots cannot be as they should.
	problems map[publish.Slot]error
	// again says that another write must follow.
	again bool
}

// planFor finds out what must be written so that a pod's annotations are as they
// should be.
func planFor(v view, wanted []publish.Desired) plan {
	pl := plan{problems: make(map[publish.Slot]error)}
	var ovn, own []publish.Desired
	for _, d := range wanted {
		if d.OVN {
			ovn = append(ovn, d)
		} else {
			own = append(own, d)
		}
	}
	pl.edit(v, podnetworks.OVNKey, ovn, ofOVN)
	pl.edit(v, podnetworks.OwnKey, own, ofOurs)
	return pl
}

// editor makes the annotation as it should be for one slot. again: this is but the
// first of two steps.
type editor func(podnetworks.Annotation, view, publish.Desired) (after podnetworks.Annotation, again bool, err error)

// edit adds to the plan what one annotation needs.
func (pl *plan) edit(v view, key string, wanted []publish.Desired, apply editor) {
	if len(wanted) == 0 {
		return
	}
	before, there := v.annotations[key]
	text := before
	if strings.TrimSpace(text) == "" {
		text = "{}"
	}
	a, err := podnetworks.Parse(text)
	if err != nil {
		for _, d := range wanted {
			pl.problems[d.Slot] = fmt.Errorf("annotation %s: %w; nothing is written into it", key, err)
		}
		return
	}
	for _, d := range wanted {
		after, again, err := apply(a, v, d)
		if err != nil {
			pl.problems[d.Slot] = fmt.Errorf("annotation %s: %w", key, err)
			continue
		}
		if after.String() != a.String() {
			pl.touched = append(pl.touched, d.Slot)
			pl.again = pl.again || again
		}
		a = after
	}
	c := change{key: key, before: before, there: there, after: a.String()}
	switch c.gone = key == podnetworks.OwnKey && a.Empty(); {
	case c.gone && !there, !c.gone && c.after == text:
		return
	}
	pl.changes = append(pl.changes, c)
}

// keptByOVN tells whether OVN-Kubernetes asked for the address itself, in its own DHCP
// mode (OKEP-6224): an ADD of its own makes the entry, without an address and then with
// one, and waits to see the first in its cache.
func keptByOVN(d publish.Desired) bool { return d.OVN && d.Owner.IPAM }

// ofOVN edits an entry of OVN-Kubernetes.
func ofOVN(a podnetworks.Annotation, v view, d publish.Desired) (podnetworks.Annotation, bool, error) {
	key, err := keyOf(a, v, d)
	vm := d.Workload == engine.VM && !d.Withdrawn
	switch {
	case errors.Is(err, errNoEntry) && d.Lease == nil && !vm:
		return a, false, nil // nothing to take away
	case err != nil:
		return a, false, err
	case d.Lease != nil:
		// NetworkQoS looks again only when the number of addresses has changed.
		if e, _, err := a.Entry(key); err == nil && len(e.Addrs) == 1 && e.Addrs[0] != d.Lease.Addr {
			a, err = a.MACOnly(key, true)
			return a, true, err
		}
		a, err = a.WithLease(key, d.Lease.Addr, d.Lease.Gateways)
		return a, false, err
	}
	if a, err = a.MACOnly(key, !d.Withdrawn || keptByOVN(d)); err == nil && vm {
		a, err = a.WithMode(key)
	}
	return a, false, err
}

// ofOurs edits an entry of our own annotation.
func ofOurs(a podnetworks.Annotation, v view, d publish.Desired) (podnetworks.Annotation, bool, error) {
	key, err := keyOf(a, v, d)
	if errors.Is(err, errNoEntry) {
		if d.Lease == nil {
			return a, false, nil
		}
		key, err = newKey(v, d), nil
	}
	switch {
	case err != nil:
	case d.Withdrawn:
		a, err = a.Without(key)
	case d.Lease == nil:
		a, err = a.MACOnly(key, true)
	default:
		if a, err = a.WithInterface(key, d.HardwareAddr); err == nil {
			a, err = a.WithLease(key, d.Lease.Addr, d.Lease.Gateways)
		}
	}
	return a, false, err
}

// keyOf finds the entry of a slot: of several that a pod has on one network, the
// one with its MAC, or else the one that the pod's order of interfaces says.
func keyOf(a podnetworks.Annotation, v view, d publish.Desired) (string, error) {
	keys := a.Keys(d.NAD)
	var withMAC []string
	for _, key := range keys {
		if e, _, _ := a.Entry(key); len(d.HardwareAddr) > 0 && same(e.HardwareAddr, d.HardwareAddr) {
			withMAC = append(withMAC, key)
		}
	}
	index, asked := podnetworks.Index(v.annotations[podnetworks.NetworksKey], v.namespace, d.NAD, d.IfName)
	key := podnetworks.Key(d.NAD, index)
	switch {
	case len(withMAC) == 1:
		return withMAC[0], nil
	case asked:
		for _, k := range keys {
			if k == key {
				return k, nil
			}
		}
		return "", fmt.Errorf("%w %q", errNoEntry, key)
	case len(keys) == 1:
		return keys[0], nil
	case len(keys) == 0:
		return "", fmt.Errorf("%w %q", errNoEntry, d.NAD)
	}
	return "", fmt.Errorf("which of the entries %q belongs to %s (%s) cannot be told: none has its MAC, and the pod's annotation %s does not ask for it",
		keys, d.IfName, d.HardwareAddr, podnetworks.NetworksKey)
}

// newKey is the key of an entry that we make.
func newKey(v view, d publish.Desired) string {
	index, _ := podnetworks.Index(v.annotations[podnetworks.NetworksKey], v.namespace, d.NAD, d.IfName)
	return podnetworks.Key(d.NAD, index)
}

func same(a, b net.HardwareAddr) bool { return a.String() == b.String() }
