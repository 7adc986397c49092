package rig

import (
	"net/netip"
	"testing"
	"time"
)

// Names of the two ends of the wire between server and node.
const (
	ServerIface = "v0"
	Uplink      = "uplink"
)

// ServerAddr is the server's own address with the mask of the network.
var ServerAddr = netip.MustParsePrefix("10.77.0.1/24")

// LAN is a server's and a node's namespace, joined by a wire, with a capture on
// the server's end.
type LAN struct {
	Server, Node *Netns
	Capture      *Capture
}

// NewLAN makes the two namespaces. No DHCP server runs yet.
func NewLAN(t testing.TB) *LAN {
	t.Helper()
	Need(t)
	l := &LAN{Server: NewNetns(t, "srv"), Node: NewNetns(t, "node")}
	Veth(t, l.Server, ServerIface, l.Node, Uplink)
	l.Server.IP(t, "addr", "add", ServerAddr.String(), "dev", ServerIface)
	l.Capture = StartCapture(t, l.Server, ServerIface)
	return l
}

// Pool is the usual configuration of a server on the LAN: eleven addresses for
// two minutes, T1 and T2 as given.
func Pool(t1, t2 time.Duration) ServerConfig {
	return ServerConfig{
		Interface: ServerIface,
		Subnet:    ServerAddr,
		First:     netip.MustParseAddr("10.77.0.50"),
		Last:      netip.MustParseAddr("10.77.0.60"),
		Lifetime:  2 * time.Minute,
		T1:        t1,
		T2:        t2,
	}
}
