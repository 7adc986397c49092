package dhcp4

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/insomniacslk/dhcp/dhcpv4"
)

// Discover returns a DISCOVER as a client sends it first, for a look at what the
// network offers: it never asks for rapid commit, so that no server gives anything.
// Each call is a transaction of its own.
func Discover(cfg Config) Send {
	cfg.RapidCommit = false
	m := New(cfg)
	m.xid = newXID(cfg.Rand)
	return Send{Msg: m.discover()}
}

// Offer is what a server answered to a DISCOVER, for people.
type Offer struct {
	// Lease is what is offered; its Start is the zero time. Lease.Server is the
	// server.
	Lease Lease
	// Relay is the relay between client and server (giaddr), the zero Addr when
	// there was none. From is the source of the IP datagram.
	Relay, From netip.Addr
	// Options are the codes of all options of the message, in order.
	Options []uint8
	// Denied says why a machine with this configuration would not listen to the
	// server; empty: it would.
	Denied string
	// Remarks are what cannot be used of the offer, as in Use.
	Remarks []string
}

// ParseOffer reads a message as an answer to a DISCOVER that Discover made with the
// same configuration. An error without a server in the Offer says that the message
// is no answer to it; one with a server, that the offer cannot be used.
func ParseOffer(cfg Config, discover Send, in Received) (Offer, error) {
	r, no := readReply(cfg, discover.Msg.TransactionID, in)
	switch {
	case no != nil:
		return Offer{}, fmt.Errorf("no offer: %s", no.Reason)
	case r.kind != dhcpv4.MessageTypeOffer:
		return Offer{}, fmt.Errorf("no offer: %s from %s", r.name(), in.From)
	case !r.server.IsValid():
		return Offer{}, fmt.Errorf("no offer: %s has no valid server identifier (option 54)", in.From)
	}
	o := Offer{
		From:    in.From,
		Options: slices.Sorted(maps.Keys(in.Msg.Options)),
		Denied:  cfg.denies(r.server),
	}
	if relay := addr4(in.Msg.GatewayIPAddr); isHost(relay) {
		o.Relay = relay
	}
	var err error
	o.Lease, o.Remarks, err = parseLease(r, netip.Prefix{})
	o.Lease.Server = r.server
	return o, err
}
