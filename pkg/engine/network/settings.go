// Package network is what a network says of DHCP: the dhcp object of its
// configuration, and the identity under which a client shows itself to the
// server. It is pure.
package network

import (
	"encoding/json"
	"net"
	"net/netip"
	"time"
)

// Settings is a dhcp object with all defaults filled in.
type Settings struct {
	// Socket is the engine's unix socket, StateDir the folder that the plugin
	// shares with it.
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

// Parse turns a dhcp object into settings: it decodes strictly, fills in the
// defaults, checks ranges and what contradicts itself. Its error lists all
// problems with their field paths. An empty raw gives the defaults.
func Parse(raw json.RawMessage) (Settings, error) { panic("network: contract only") }

// ClientIdentifier returns the value of option 61, its type octet included; nil
// when none is sent.
func (s Settings) ClientIdentifier(id Identity) ([]byte, error) { panic("network: contract only") }

// HostnameFor returns the value of option 12, a legal host name; empty when
// none is sent.
func (s Settings) HostnameFor(id Identity) string { panic("network: contract only") }

// DeriveMAC returns a locally administered unicast MAC that depends on
// namespace, pod, network and interface name alone. Without a pod there is
// nothing stable to derive it from, which is an error.
func DeriveMAC(id Identity) (net.HardwareAddr, error) { panic("network: contract only") }
