package leaseobjects

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"regexp"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

// What the objects are to the API; manifests/base/crd-dhcpleases.yaml says the same.
var groupVersion = schema.GroupVersion{Group: "dhcp-meta.io", Version: "v1alpha1"}

const (
	kind     = "DHCPLease"
	resource = "dhcpleases"
)

// Labels of the objects.
const (
	labelNode    = "dhcp-meta.io/node"
	labelPod     = "dhcp-meta.io/pod"
	labelManager = "app.kubernetes.io/managed-by"
	manager      = "dhcp-engine"
)

// Lease is an object of kind DHCPLease.
type Lease struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitzero"`
	Status            Status `json:"status,omitzero"`
}

// Status is what the engine says of a lease; there is nothing that anybody could wish.
type Status struct {
	Pod        string `json:"pod"`
	Interface  string `json:"interface"`
	Network    string `json:"network,omitempty"`
	Node       string `json:"node"`
	MACAddress string `json:"macAddress,omitempty"`
	// Address has the mask of option 1; empty while the interface has none.
	Address string `json:"address,omitempty"`
	Server  string `json:"server,omitempty"`
	State   State  `json:"state"`
	// LeaseTime is what was granted when the object was last written.
	LeaseTime string `json:"leaseTime,omitempty"`
	// Since is when the interface got the address, or lost it.
	Since metav1.Time `json:"since"`
}

// LeaseList is a list of them.
type LeaseList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`
	Items           []Lease `json:"items"`
}

// DeepCopyObject is for the client library.
func (l *Lease) DeepCopyObject() runtime.Object {
	c := *l
	l.DeepCopyInto(&c.ObjectMeta)
	return &c
}

// DeepCopyObject is for the client library.
func (l *LeaseList) DeepCopyObject() runtime.Object {
	c := *l
	c.Items = make([]Lease, len(l.Items))
	for i := range l.Items {
		c.Items[i] = *l.Items[i].DeepCopyObject().(*Lease)
	}
	return &c
}

// An interface whose name can stand in an object's as it is. A dot is not among what
// it may have: the last one parts it from the pod's name.
var plainName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`)

// The longest name of an object, and how many hexadecimal digits tell names apart.
const (
	maxName = 253
	digits  = 10
)

// nameOf is the name of the object for an interface of a pod, always the same. Pods
// that come one after another under one name (those of a StatefulSet) have different
// ones: the object of an earlier one may be there still, on another node.
func nameOf(pod, uid, ifName string) string {
	sum := sha256.Sum256([]byte(pod + "\x00" + uid + "\x00" + ifName))
	end := "-" + hex.EncodeToString(sum[:])[:digits]
	if plainName.MatchString(ifName) {
		end = "." + ifName + end
	} else {
		end = ".x" + end
	}
	if len(pod)+len(end) > maxName {
		pod = pod[:maxName-len(end)]
		for pod[len(pod)-1] == '.' || pod[len(pod)-1] == '-' {
			pod = pod[:len(pod)-1]
		}
	}
	return pod + end
}

// maxLabel is the longest value of a label.
const maxLabel = 63

// labelOf is a name as the value of a label: itself if it fits.
func labelOf(name string) string {
	if len(name) <= maxLabel {
		return name
	}
	sum := sha256.Sum256([]byte(name))
	return name[:maxLabel-digits-1] + "-" + hex.EncodeToString(sum[:])[:digits]
}

// object makes the object of a lease, with the pod as the API has it for its owner.
func object(namespace, name string, s Status, pod types.UID) *Lease {
	return &Lease{
		TypeMeta: metav1.TypeMeta{APIVersion: groupVersion.String(), Kind: kind},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: name,
			Labels:          map[string]string{labelNode: labelOf(s.Node), labelPod: labelOf(s.Pod), labelManager: manager},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: s.Pod, UID: pod}},
		},
		Status: s,
	}
}

// says tells whether an object says all that another one should, whatever somebody
// has added to it.
func (l *Lease) says(want *Lease) bool {
	for key, value := range want.Labels {
		if l.Labels[key] != value {
			return false
		}
	}
	for _, o := range want.OwnerReferences {
		if !slices.Contains(l.OwnerReferences, o) {
			return false
		}
	}
	return l.Status.same(want.Status)
}

// same tells whether nothing is new but what may be another time in each renewal.
func (s Status) same(o Status) bool {
	s.LeaseTime, o.LeaseTime = "", ""
	// All that an engine knows after its restart is the time of the last renewal.
	s.Since, o.Since = metav1.Time{}, metav1.Time{}
	return s == o
}

// sinceOf is when the interface got or lost the address, as far as an object that is
// there already knows it better.
func (l *Lease) sinceOf(want Status) metav1.Time {
	if l.Status.Address == want.Address && !l.Status.Since.IsZero() && l.Status.Since.Before(&want.Since) {
		return l.Status.Since
	}
	return want.Since
}

// owns tells whether a pod of the API is the one that the runtime has called by a
// UID. A static pod has another one there; some runtimes tell none.
func owns(pod *corev1.Pod, uid string) bool {
	return uid == "" || string(pod.UID) == uid || pod.Annotations[corev1.MirrorPodAnnotationKey] == uid
}

// trim leaves out of an object what is not compared.
func trim(obj any) (any, error) {
	l, ok := obj.(*Lease)
	if !ok {
		return nil, fmt.Errorf("%T is no %s", obj, kind)
	}
	l.ManagedFields = nil
	return l, nil
}
