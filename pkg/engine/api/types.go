// Package api is how dhcp-meta and the command line talk to dhcp-engine: HTTP
// with JSON bodies over a unix socket that only root may use. It is private to
// one installation: both sides are of the same release or of neighbouring ones.
package api

import (
	"context"
	"encoding/json"
	"strings"
	"time"
)

// AttachmentID names an attachment: one interface of one sandbox. CNI allows
// neither '/' nor ':' in its parts.
type AttachmentID struct {
	ContainerID string `json:"containerID"`
	IfName      string `json:"ifName"`
}

func (id AttachmentID) String() string { return id.ContainerID + ":" + id.IfName }

// ParseAttachmentID is the inverse of String.
func ParseAttachmentID(s string) (AttachmentID, bool) {
	c, i, ok := strings.Cut(s, ":")
	return AttachmentID{c, i}, ok && c != "" && i != ""
}

// Pod is the Kubernetes pod of an attachment, as CNI_ARGS tell it; the zero
// value where a runtime tells none.
type Pod struct {
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name,omitempty"`
	UID       string `json:"uid,omitempty"`
}

// Request describes an attachment to Prepare, Attach and Check.
type Request struct {
	AttachmentID
	// Netns is the path of the network namespace, CNI_NETNS.
	Netns string `json:"netns"`
	// Network is the name of the network configuration.
	Network string `json:"network"`
	Pod     Pod    `json:"pod,omitzero"`
	// DHCP is the network's dhcp object as it was written; empty: all defaults.
	DHCP json.RawMessage `json:"dhcp,omitempty"`
	// NAD is the NetworkAttachmentDefinition that the configuration names,
	// "<namespace>/<name>"; empty where it names none.
	NAD string `json:"nad,omitempty"`
	// Wrapped is the type of the wrapped plugin; empty behind another one in a list.
	Wrapped string `json:"wrapped,omitempty"`
	// DeviceID is the PCI address of the device that the runtime has chosen; empty
	// where it has chosen none.
	DeviceID string `json:"deviceID,omitempty"`
	// IPAM says that the caller itself puts the address on the interface, after the
	// answer, as plugins do that ask an IPAM plugin.
	IPAM bool `json:"ipam,omitempty"`
	// HardwareAddr and Addresses are what the wrapped plugin's result says of the
	// interface: its MAC, and its addresses with their masks. Empty before it ran.
	HardwareAddr string   `json:"mac,omitempty"`
	Addresses    []string `json:"addresses,omitempty"`
	// Timeout is the time that Attach may take, in nanoseconds. The engine gives
	// up a little earlier, so that its own error arrives.
	Timeout time.Duration `json:"timeout,omitempty"`
}

// Mark is the answer to the question whether a network is one of ours.
type Mark struct {
	Marked bool `json:"marked"`
}

// Lease is the answer to Attach: what the CNI result says of the lease.
type Lease struct {
	// HardwareAddr is the MAC that the interface has now.
	HardwareAddr string `json:"mac"`
	// Address is the leased address with its mask, "10.77.0.50/24".
	Address string `json:"address"`
	// Gateway is the first router on the link of Address; may be empty.
	Gateway string `json:"gateway,omitempty"`
	// Routes are the routes that were installed.
	Routes []Route `json:"routes,omitempty"`
	DNS    DNS     `json:"dnsConfig,omitzero"`
	// MTU is the link's MTU where the lease lowered it; 0 otherwise.
	MTU int `json:"mtu,omitempty"`
	// Stripped are those of the request's Addresses that are not on the interface
	// any longer, since the wrapped plugin had them from an earlier lease.
	Stripped []string `json:"stripped,omitempty"`
}

// Route is an installed route; an empty Gateway means that Dst is on the link.
type Route struct {
	Dst     string `json:"dst"`
	Gateway string `json:"gw,omitempty"`
	Metric  int    `json:"metric,omitempty"`
}

// DNS is options 6, 15 and 119.
type DNS struct {
	Nameservers []string `json:"nameservers,omitempty"`
	Domain      string   `json:"domain,omitempty"`
	Search      []string `json:"search,omitempty"`
}

// Status is an attachment as `dhcp-engine leases` shows it. Times are wall
// clock, for people; nil where they do not apply or never come.
type Status struct {
	AttachmentID
	Pod     Pod    `json:"pod,omitzero"`
	Network string `json:"network"`
	// NAD is the NetworkAttachmentDefinition, "<namespace>/<name>"; empty where none
	// is known.
	NAD   string `json:"nad,omitempty"`
	Netns string `json:"netns"`
	// State is a state of RFC 2131 or "PROBING"; where no client runs any more,
	// "SUPERSEDED", "ORPHANED" or "RELEASING", or "REPORTED" for an address that is
	// its guest's to ask for and keep.
	State        string     `json:"state"`
	HardwareAddr string     `json:"mac,omitempty"`
	ClientID     string     `json:"clientID,omitempty"` // hexadecimal
	Address      string     `json:"address,omitempty"`
	Server       string     `json:"server,omitempty"`
	T1           *time.Time `json:"t1,omitempty"`
	T2           *time.Time `json:"t2,omitempty"`
	Expiry       *time.Time `json:"expiry,omitempty"`
	// Infinite says that the lease never ends.
	Infinite bool `json:"infinite,omitempty"`
	// LastError is the last thing that went wrong; empty when all is well.
	LastError string `json:"lastError,omitempty"`
}

// Sweep says which attachments of a network are valid; the engine ends all
// others of that network (CNI GC).
type Sweep struct {
	Network string         `json:"network"`
	Valid   []AttachmentID `json:"valid"`
}

// Backend is what the server serves: the engine. Errors that carry a CNI code
// (see WithCode) keep it on their way to the plugin; all others become code 999.
type Backend interface {
	// Marked tells whether the NetworkAttachmentDefinition that r names is one of
	// ours. It changes nothing. Without a cluster none is.
	Marked(ctx context.Context, r Request) (bool, error)
	// Prepare is asked before the wrapped plugin runs: is the engine ready, is
	// the request sound. It changes nothing.
	Prepare(ctx context.Context, r Request) error
	// Attach gives the interface its address. It is idempotent. When ctx ends
	// first, nothing is left of it.
	Attach(ctx context.Context, r Request) (Lease, error)
	// Check compares lease, address and routes with what should be there. It
	// acquires nothing.
	Check(ctx context.Context, r Request) (Lease, error)
	// Detach gives the address back and forgets the attachment. An unknown one
	// is a quick success.
	Detach(ctx context.Context, id AttachmentID) error
	Sweep(ctx context.Context, s Sweep) error
	// List returns all attachments, sorted by id.
	List(ctx context.Context) ([]Status, error)
	// Renew has the server asked for the lease now, as if T1 had come, with
	// rebind as if T2 had, and waits for the outcome, half a minute at most. A nil
	// error says that a server has granted a lease since the call; it may be of
	// another address, when the server took the old one back. When nobody answers
	// the lease stays as it is and goes on to be asked for in its own time.
	Renew(ctx context.Context, id AttachmentID, rebind bool) (Status, error)
	// Release is Detach by hand: the pod stays, and has no address afterwards.
	// Other than there, an attachment that is unknown or superseded is an error.
	// It is carried through when its caller goes away.
	Release(ctx context.Context, id AttachmentID) error
	// Probe asks who would give the interface an address. It leases nothing.
	Probe(ctx context.Context, r ProbeRequest) (ProbeReport, error)
	// Ready is nil when Attach can work: records are restored and the state
	// folder can be written.
	Ready() error
	// Limited is nil unless something keeps leases from being known outside the
	// node, while Attach works.
	Limited() error
}
