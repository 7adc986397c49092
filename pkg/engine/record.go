package engine

import (
	"encoding/json"
	"fmt"
	"net"
	"net/netip"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine/api"
	"github.com/dhcp-meta/dhcp-meta/pkg/engine/dhcp4"
)

// AttachmentID names an attachment: one interface of one sandbox.
type AttachmentID = api.AttachmentID

// Pod is the Kubernetes pod of an attachment.
type Pod = api.Pod

// Attachment is one interface of one sandbox on one network.
type Attachment struct {
	AttachmentID
	// Network is the name of the network configuration.
	Network string
	Pod     Pod
	// NAD is the NetworkAttachmentDefinition of the network, "<namespace>/<name>";
	// empty where neither the caller nor the cluster knows one.
	NAD string
	// Wrapped is the type of the plugin that made the interface; empty where the
	// caller did not say.
	Wrapped string
	// DeviceID is the PCI address of the device behind the interface; empty where
	// there is none.
	DeviceID string
	// IPAM says that whoever asked puts the address on the interface itself: see
	// ipam.go.
	IPAM bool
	// Netns is where the interface lives.
	Netns Netns
	// DHCP is the network's dhcp object as the caller sent it; package network
	// parses it.
	DHCP json.RawMessage
}

// Target is the interface of the attachment, for the kernel.
func (a Attachment) Target() Target { return Target{Netns: a.Netns, IfName: a.IfName} }

// Netns is a network namespace: its path, and the cookie that tells it from a
// later namespace at the same path. Cookies are unique within one boot (unlike
// inode numbers, which the kernel hands out again).
type Netns struct {
	Path string
	// Cookie is SO_NETNS_COOKIE; 0 means not yet known.
	Cookie uint64
}

// Target is an interface in a network namespace.
type Target struct {
	Netns  Netns
	IfName string
}

// Phase says how far an attachment had come when its record was written.
type Phase string

// The phases of a record.
const (
	// Claimed: an ADD that has not been answered asked for the address in Lease;
	// a server may hold it for us.
	Claimed Phase = "claimed"
	// Leased: Lease is valid and Setup is, or is about to be, on the interface.
	Leased Phase = "leased"
	// Seeking: the attachment has lost its lease and looks for another. Lease is
	// the zero value, or what was asked for.
	Seeking Phase = "seeking"
	// Orphaned: the interface is gone but no DEL came. Lease is what a later
	// sandbox of the same pod may take over.
	Orphaned Phase = "orphaned"
	// Releasing: the attachment has ended, and the DHCPRELEASE for Lease waits to
	// be sent.
	Releasing Phase = "releasing"
	// Superseded: a newer sandbox of the pod has taken the attachment's place.
	// Nothing is left of it but the record.
	Superseded Phase = "superseded"
)

// Record is what is on disk of an attachment: enough to go on after a crash at
// any moment, and to take away just what was added.
type Record struct {
	Attachment
	// Effective is the dhcp object in effect: the attachment's with what NAD and pod
	// add; nil where they add nothing.
	Effective json.RawMessage
	Phase     Phase
	// BootID is the boot in which the record was written; times of leases and
	// the netns cookie mean nothing in another one.
	BootID string
	// Workload is what the attachment was taken for. OVN says that OVN-Kubernetes
	// plugs its interface, VFIO that its device was on vfio-pci, so that there is no
	// interface in the namespace.
	Workload Workload
	OVN      bool
	VFIO     bool
	// HardwareAddr and ClientID are the identity under which the server knows
	// the client.
	HardwareAddr net.HardwareAddr
	ClientID     []byte
	// Lease: see Phase.
	Lease dhcp4.Lease
	// Setup is what the engine put on the interface, or is about to put there; of an
	// attachment with IPAM that is not Adopted, what its lease says and somebody
	// else puts there.
	Setup Setup
	// Adopted says that the engine found on the interface what the caller of an
	// attachment with IPAM put there, and keeps it as its own since.
	Adopted bool
}

// Setup is the part of an interface's configuration that comes from a lease.
type Setup struct {
	// Addr is the address; the zero Prefix means that there is none.
	Addr netip.Prefix
	// Routes all carry Addr as their preferred source, so that they go with it.
	Routes []Route
	// MTU in bytes is set on the link; 0 leaves it alone. PriorMTU is what the
	// link had before, to be put back.
	MTU, PriorMTU int
	// Adopt has Configure take the place of routes that somebody else put on the
	// interface to the same end.
	Adopt bool
}

func (s Setup) String() string {
	if !s.Addr.IsValid() {
		return "no address"
	}
	text := s.Addr.String()
	for _, r := range s.Routes {
		text += fmt.Sprintf(", route %s via %s metric %d", r.Dst, r.Gateway, r.Metric)
	}
	if s.MTU > 0 {
		text += fmt.Sprintf(", MTU %d", s.MTU)
	}
	return text
}

// Route is a route to install.
type Route struct {
	Dst netip.Prefix
	// Gateway is the router; the zero Addr means that Dst is on the link.
	Gateway netip.Addr
	// Metric is the priority; 0 is the kernel's default.
	Metric int
}
