package engine

import (
	"context"
	"encoding/json"
	"errors"
	"net"
)

// ErrNoPod is returned by Cluster when the API knows no pod of an attachment's
// namespace, name and UID.
var ErrNoPod = errors.New("the cluster knows no such pod")

// Cluster is what Kubernetes knows of attachments. All calls are safe for
// concurrent use. An error that a retry can mend carries api.CodeTryAgain, one in
// the network's definition or in the pod's annotations api.CodeConfig.
type Cluster interface {
	// Facts tells of an attachment what its pod and its network say. DHCP is what
	// the caller's configuration said; the answer's DHCP is that and what the
	// NetworkAttachmentDefinition and the pod add. ErrNoPod: there is no such pod.
	Facts(ctx context.Context, a Attachment) (Facts, error)
	// Owner tells whose interface it is that a caller asks an address for who names
	// no pod: by its name, its MAC and the name of its network. ErrNoPod: nobody can
	// tell.
	Owner(ctx context.Context, a Attachment, mac net.HardwareAddr) (pod Pod, nad string, err error)
	// Marked tells whether the NetworkAttachmentDefinition "<namespace>/<name>" is
	// one of ours, by its annotation. One that does not exist is not.
	Marked(ctx context.Context, nad string) (bool, error)
	// Gone tells whether a pod is over: deleted, or replaced by one with another
	// UID. It asks the API itself before it says so, never a cache alone; where
	// that cannot answer it is an error.
	Gone(ctx context.Context, pod Pod) (bool, error)
	// Ending tells whether a pod is there and is being deleted, as far as is known:
	// nobody is asked. The runtime begins nothing for it any more. A static pod never
	// is: the deletion of its mirror does not end it.
	Ending(pod Pod) bool
	// Watch tells of pods that have been deleted from this node, or of which Ending
	// is true now, and of nothing when something else may have changed that Marked or
	// Facts say (the zero Pod), until ctx ends, which is no error.
	Watch(ctx context.Context, changed func(Pod)) error
}

// Facts is what the cluster knows of an attachment.
type Facts struct {
	Workload Workload
	// NAD is the NetworkAttachmentDefinition of the attachment,
	// "<namespace>/<name>"; empty where none belongs to it.
	NAD string
	// OVN says that OVN-Kubernetes plugs the interface.
	OVN bool
	// DHCP is the dhcp object in effect; nil: all defaults.
	DHCP json.RawMessage
	// Hostname is what a VM's guest is called; empty: as its pod, or nobody says.
	Hostname string
	// HardwareAddr is the MAC that the pod's annotation, or the pod's own request,
	// gives the interface; nil where neither says.
	HardwareAddr net.HardwareAddr
}
