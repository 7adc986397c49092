// Package network is what a network says of DHCP: the dhcp object of its
// configuration, and the identity under which a client shows itself to the
// server.
//
// It is pure: the same object and the same identity always give the same
// settings, client identifier, host name and MAC, on every node and in every
// release. What is derived here is what a server keeps its lease under, so a
// change of a derivation is a change of every client's identity.
package network

import (
	"net"
	"net/netip"
	"time"
)

// The defaults of the keys that have one.
const (
	DefaultSocket   = "/run/dhcp-meta/engine.sock"
	DefaultStateDir = "/var/lib/dhcp-meta"
	// DefaultHostname is the template for option 12 where the network names
	// none: the pod's name, and of a VM the one that its guest has.
	DefaultHostname = "{name}"
)

// The policies for option 61 that have a name; all others are templates.
const (
	// ClientIDMAC is the type octet 1 and the MAC, which most clients send and
	// most reservations are made for.
	ClientIDMAC = "mac"
	// ClientIDNone sends no option 61; the server goes by chaddr.
	ClientIDNone = "none"
	// ClientIDDUID is the form of RFC 4361, which outlives sandbox and MAC.
	ClientIDDUID = "duid"
	// ClientIDHex begins a policy that is the identifier itself, in hexadecimal
	// digits. All clients of a network that says so are one to the server.
	ClientIDHex = "hex:"
)

// ConflictDetection is how the engine finds out that somebody else uses an
// address (RFC 5227) before it is put on the interface.
type ConflictDetection string

// The ways of conflict detection.
const (
	// ConflictDetectionOff asks nobody.
	ConflictDetectionOff ConflictDetection = "off"
	// ConflictDetectionFast sends one probe and waits for a moment only, since a
	// pod waits for its ADD.
	ConflictDetectionFast ConflictDetection = "fast"
	// ConflictDetectionFull probes as often and as long as RFC 5227, 2.1.1 says.
	ConflictDetectionFull ConflictDetection = "full"
)

// OnChange is what happens when a lease in use comes back with other contents:
// another address, mask, route, DNS server or MTU.
type OnChange string

// The policies for a lease that has changed.
const (
	// OnChangeApply gives the interface what the server says now.
	OnChangeApply OnChange = "apply"
	// OnChangeKeep leaves the interface as it was at ADD as long as the address
	// is ours, and reports the difference.
	OnChangeKeep OnChange = "keep-and-report"
)

// PortSecurity is how far the port of an interface is pinned to the leased
// address, where the network plugin has such a thing.
type PortSecurity string

// The ways of port security.
const (
	// PortSecurityAuto pins a container's IPv4 to its address and leaves its IPv6
	// alone, and leaves a VM's port to its MAC.
	PortSecurityAuto PortSecurity = "auto"
	// PortSecurityAddress pins the port to MAC and address, IPv6 included.
	PortSecurityAddress PortSecurity = "address"
	// PortSecurityMAC pins the port to the MAC only.
	PortSecurityMAC PortSecurity = "mac"
)

// Publish is what an ADD does while its address cannot be written into the pod's
// annotation.
type Publish string

// The ways to publish.
const (
	// PublishAuto is PublishRequire where OVN-Kubernetes plugs the interface, and
	// PublishEventual elsewhere.
	PublishAuto Publish = "auto"
	// PublishRequire fails the ADD.
	PublishRequire Publish = "require"
	// PublishEventual goes on, and writes it when it can be written.
	PublishEventual Publish = "eventual"
)

// The range of timeout. CNI runtimes end a plugin after 120 s, and the plugin
// itself after 110 s, to have time to undo.
const (
	MinTimeout = time.Second
	MaxTimeout = 110 * time.Second
)

// Settings is a dhcp object with all defaults filled in.
type Settings struct {
	// Socket is the engine's unix socket, StateDir the folder that the plugin
	// shares with it. Both are absolute paths.
	Socket   string
	StateDir string
	// Timeout bounds the time for DHCP at ADD; 0: what is left of the runtime's.
	Timeout time.Duration
	// DeriveMAC gives the interface a MAC that is the same for every sandbox of
	// the pod (mac: derive); otherwise the interface keeps its own.
	DeriveMAC bool
	// ClientID is the policy for option 61: "mac", "none", "duid" or a template.
	ClientID string
	// Hostname is the template of option 12; empty: not sent.
	Hostname string
	// VendorClass is option 60; empty: not sent.
	VendorClass string
	// Request are options to ask for besides those that are always asked for.
	Request []uint8
	// Require are options to ask for without which there is no lease.
	Require []uint8
	// Options are sent as they are.
	Options []Option
	// DefaultRoute installs a default route of the lease (defaultRoute: always).
	DefaultRoute bool
	// RouteMetric is the metric of all routes of the lease.
	RouteMetric int
	// Routes narrows which routes of a lease are installed.
	Routes Routes
	// Servers are the server identifiers that may be listened to; empty: all.
	// DenyServers are those that may not; none is in both.
	Servers, DenyServers []netip.Addr
	// Broadcast asks servers to answer by broadcast. On an interface that shares
	// its MAC it must be asked for whatever stands here: see CheckSharedMAC.
	Broadcast bool
	// RapidCommit asks servers for an address in two messages (RFC 4039).
	RapidCommit bool
	// ConflictDetection is never empty after Parse.
	ConflictDetection ConflictDetection
	// Defend goes on looking for conflicts while the address is in use (RFC 5227,
	// 2.4), which holds a socket. It is false where ConflictDetection is off.
	Defend bool
	// OnChange is never empty after Parse.
	OnChange OnChange
	// ClientIDSet says that the network names a policy for option 61 itself, so
	// that the default of the workload does not count.
	ClientIDSet bool
	// Address is asked for first (option 50); the zero Addr: none.
	Address netip.Addr
	// PortSecurity and Publish are never empty after Parse.
	PortSecurity PortSecurity
	Publish      Publish
	// DiscoverVFIO serves a container whose device is on vfio-pci as it serves a VM
	// (vfioContainers: discover); otherwise it is refused.
	DiscoverVFIO bool
}

// Routes are prefixes of IPv4 without host bits. Neither has a say in whether a
// default route is installed, which is DefaultRoute's alone.
type Routes struct {
	// Allow: when not empty, only routes that lie inside one of them.
	Allow []netip.Prefix
	// Deny: no route that shares an address with one of them.
	Deny []netip.Prefix
}

// Option is a DHCP option to send.
type Option struct {
	Code  uint8
	Value []byte
}

// Identity is who a client is, for templates and derived identifiers. Namespace,
// Pod and UID are empty where the runtime tells no pod.
type Identity struct {
	Namespace, Pod, UID string
	// Hostname is what a VM's guest is called; empty: the same as Pod.
	Hostname        string
	Network, IfName string
	ContainerID     string
	HardwareAddr    net.HardwareAddr
}

// defaults are the settings of an empty dhcp object.
func defaults() Settings {
	return Settings{
		Socket:   DefaultSocket,
		StateDir: DefaultStateDir,
		ClientID: ClientIDMAC,
		Hostname: DefaultHostname,

		ConflictDetection: ConflictDetectionFast,
		OnChange:          OnChangeApply,
		PortSecurity:      PortSecurityAuto,
		Publish:           PublishAuto,
	}
}
