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
	// none: the pod's name.
	DefaultHostname = "{pod}"
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
	// Options are sent as they are.
	Options []Option
	// DefaultRoute installs a default route of the lease (defaultRoute: always).
	DefaultRoute bool
	// RouteMetric is the metric of all routes of the lease.
	RouteMetric int
	// Servers are the server identifiers that may be listened to; empty: all.
	Servers []netip.Addr
	// Broadcast asks servers to answer by broadcast.
	Broadcast bool
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
	Network, IfName     string
	ContainerID         string
	HardwareAddr        net.HardwareAddr
}

// defaults are the settings of an empty dhcp object.
func defaults() Settings {
	return Settings{
		Socket:   DefaultSocket,
		StateDir: DefaultStateDir,
		ClientID: ClientIDMAC,
		Hostname: DefaultHostname,
	}
}
