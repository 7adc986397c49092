// Package publish is what all publishers of leases have in common: the table of
// what is to be seen of each attachment, and the way to tell several publishers
// of one lease.
package publish

import (
	"cmp"
	"fmt"
	"maps"
	"net"
	"slices"
	"sync"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine"
)

// A Slot is the place where an interface of a pod is published. One attachment at
// a time owns it: that of the pod's newest sandbox.
type Slot struct {
	Pod engine.Pod
	// NAD is the NetworkAttachmentDefinition, or where there is none the name of
	// the network.
	NAD    string
	IfName string
}

// SlotOf is the slot of an attachment.
func SlotOf(a engine.Attachment) Slot {
	nad := a.NAD
	if nad == "" {
		nad = a.Network
	}
	return Slot{a.Pod, nad, a.IfName}
}

// Desired is what is to be seen of a slot.
type Desired struct {
	Slot
	// Owner is the attachment that the slot belongs to.
	Owner    engine.Attachment
	Workload engine.Workload
	// OVN says that OVN-Kubernetes plugs the interface, as far as anybody has said
	// yet.
	OVN bool
	// HardwareAddr is the MAC of the interface; nil: nobody has said it yet.
	HardwareAddr net.HardwareAddr
	// Lease is what is published; nil: nothing but what the interface is known by
	// without a lease.
	Lease *engine.Publication
	// Withdrawn says that there was a lease, or that none will come.
	Withdrawn bool
	// Revision grows with every change of the slot, so that whoever works on an
	// older one can see that it is of no use any longer.
	Revision uint64
}

// ovnPlugin is the plugin that OVN-Kubernetes plugs interfaces with.
const ovnPlugin = "ovn-k8s-cni-overlay"

// maxPast bounds what is remembered of a pod whose sandbox is made again and again.
const maxPast = 64

// place is a slot with the sandboxes that owned it before.
type place struct {
	Desired
	// announced says that the owner was reset: its ADD runs, or has run, in this
	// life of the engine.
	announced bool
	// past are attachments that have been superseded, the oldest first.
	past []engine.AttachmentID
}

// Table is what is desired for each attachment, and who owns which slot. A newer
// sandbox of a pod is known by coming later: Reset takes the slot over, and what
// the earlier owner says from then on changes nothing. Publish of an attachment
// that the table does not know, one from before a restart, takes the slot too,
// unless its owner was reset since. It is safe for concurrent use; the zero value
// is ready. Nothing in it points to what a caller may change.
type Table struct {
	mu       sync.Mutex
	places   map[Slot]*place
	owned    map[engine.AttachmentID]Slot // by its owner
	revision uint64
}

// Reset makes the attachment the owner of its slot, with nothing published.
// ErrSuperseded: it has been the owner, and a newer one is.
func (t *Table) Reset(a engine.Attachment, w engine.Workload) (Desired, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.own(Desired{Owner: a, Workload: w, OVN: a.Wrapped == ovnPlugin}, true)
}

// Publish makes the attachment the owner of its slot, unless a newer one is
// (ErrSuperseded), with a lease to be published.
func (t *Table) Publish(p engine.Publication) (Desired, error) {
	p.Gateways = slices.Clone(p.Gateways)
	p.HardwareAddr = slices.Clone(p.HardwareAddr)
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.own(Desired{Owner: p.Attachment, Workload: p.Workload, OVN: p.OVN, HardwareAddr: p.HardwareAddr, Lease: &p}, false)
}

// own makes d what is desired of its owner's slot. It is called with the lock held.
func (t *Table) own(d Desired, announced bool) (Desired, error) {
	if t.places == nil {
		t.places, t.owned = make(map[Slot]*place), make(map[engine.AttachmentID]Slot)
	}
	d.Slot = SlotOf(d.Owner)
	p := t.places[d.Slot]
	if p == nil {
		p = new(place)
		t.places[d.Slot] = p
	}
	if other := p.Owner.AttachmentID; other != d.Owner.AttachmentID {
		if slices.Contains(p.past, d.Owner.AttachmentID) || p.announced && !announced {
			return Desired{}, fmt.Errorf("%s of pod %s/%s: %w", d.Owner.AttachmentID, d.Pod.Namespace, d.Pod.Name, engine.ErrSuperseded)
		}
		if other.ContainerID != "" {
			delete(t.owned, other)
			p.past = append(p.past, other)
			p.past = p.past[max(0, len(p.past)-maxPast):]
		}
		p.announced = false
	}
	if before, owns := t.owned[d.Owner.AttachmentID]; owns && before != d.Slot {
		t.forget(before, d.Owner.AttachmentID) // its NAD has become known since
	}
	t.owned[d.Owner.AttachmentID] = d.Slot
	p.announced = p.announced || announced
	d.Revision = t.next()
	p.Desired = d
	return d, nil
}

// Withdraw takes the lease of the attachment out of what is to be seen. False: a
// newer attachment owns the slot, and nothing has changed. Where nobody does, the
// attachment is from before a restart, and takes it.
func (t *Table) Withdraw(a engine.Attachment) (Desired, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	p := t.places[t.slotOf(a)]
	if p == nil || p.Owner.ContainerID == "" {
		if _, err := t.own(Desired{Owner: a, OVN: a.Wrapped == ovnPlugin}, false); err != nil {
			return Desired{}, false
		}
		p = t.places[SlotOf(a)]
	}
	if p.Owner.AttachmentID != a.AttachmentID {
		return Desired{}, false
	}
	p.Lease, p.Withdrawn, p.Revision = nil, true, t.next()
	return p.Desired, true
}

// Forget ends what the table knows of the attachment.
func (t *Table) Forget(a engine.Attachment) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.forget(t.slotOf(a), a.AttachmentID)
}

// forget is called with the lock held.
func (t *Table) forget(slot Slot, id engine.AttachmentID) {
	p := t.places[slot]
	if p == nil {
		return
	}
	p.past = slices.DeleteFunc(p.past, func(past engine.AttachmentID) bool { return past == id })
	if p.Owner.AttachmentID == id {
		// Those before it are past still: what they say comes too late.
		p.Desired, p.announced = Desired{Slot: slot, Revision: t.next()}, false
		delete(t.owned, id)
	}
	if p.Owner.ContainerID == "" && len(p.past) == 0 {
		delete(t.places, slot)
	}
}

// slotOf is the slot that the attachment owns, or would own. It is called with the
// lock held.
func (t *Table) slotOf(a engine.Attachment) Slot {
	if slot, owns := t.owned[a.AttachmentID]; owns {
		return slot
	}
	return SlotOf(a)
}

// ForgetPod ends what the table knows of a pod that is over, and returns what it
// was.
func (t *Table) ForgetPod(pod engine.Pod) []Desired {
	t.mu.Lock()
	defer t.mu.Unlock()
	var gone []Desired
	for slot, p := range t.places {
		if slot.Pod == pod {
			gone = append(gone, p.Desired)
			delete(t.places, slot)
			delete(t.owned, p.Owner.AttachmentID)
		}
	}
	return sorted(owned(gone))
}

// Current tells whether d is still what is desired.
func (t *Table) Current(d Desired) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	p := t.places[d.Slot]
	return p != nil && p.Revision == d.Revision
}

// Of is what is desired for the slot of an attachment, if the attachment owns it.
func (t *Table) Of(a engine.Attachment) (Desired, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	p := t.places[t.slotOf(a)]
	if p == nil || p.Owner.AttachmentID != a.AttachmentID {
		return Desired{}, false
	}
	return p.Desired, true
}

// OfPod is all that is desired for a pod, by NAD and interface; an empty UID
// stands for any.
func (t *Table) OfPod(pod engine.Pod) []Desired {
	return t.find(func(s Slot) bool {
		return s.Pod.Namespace == pod.Namespace && s.Pod.Name == pod.Name &&
			(pod.UID == "" || s.Pod.UID == "" || s.Pod.UID == pod.UID)
	})
}

// All is all that is desired, by pod, NAD and interface.
func (t *Table) All() []Desired { return t.find(func(Slot) bool { return true }) }

func (t *Table) find(want func(Slot) bool) []Desired {
	t.mu.Lock()
	defer t.mu.Unlock()
	var found []Desired
	for slot := range maps.Keys(t.places) {
		if want(slot) {
			found = append(found, t.places[slot].Desired)
		}
	}
	return sorted(owned(found))
}

// next is called with the lock held.
func (t *Table) next() uint64 {
	t.revision++
	return t.revision
}

// owned leaves out places that only remember who came before.
func owned(list []Desired) []Desired {
	return slices.DeleteFunc(list, func(d Desired) bool { return d.Owner.ContainerID == "" })
}

func sorted(list []Desired) []Desired {
	slices.SortFunc(list, func(a, b Desired) int {
		return cmp.Or(cmp.Compare(a.Pod.Namespace, b.Pod.Namespace), cmp.Compare(a.Pod.Name, b.Pod.Name),
			cmp.Compare(a.Pod.UID, b.Pod.UID), cmp.Compare(a.NAD, b.NAD), cmp.Compare(a.IfName, b.IfName))
	})
	return list
}
