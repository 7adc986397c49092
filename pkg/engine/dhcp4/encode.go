package dhcp4

import (
	"maps"
	"slices"

	"github.com/insomniacslk/dhcp/dhcpv4"
)

// The sizes of a message: what stands before the options, and what BOOTP wants at
// least (RFC 951; RFC 1542, 2.1), which relays and servers may insist on.
const (
	optionsAt = 240
	minLen    = 300
)

// Encode returns the bytes of a message. It writes them as the codec does, but for
// the order of the options: message type first, then who the client is and what
// it asks for. The order has no meaning (RFC 2131 names none), but that is where
// all other clients have them, and where readers with little memory look: switches
// that snoop, small servers, people with a capture.
func Encode(m *dhcpv4.DHCPv4) []byte {
	bare := *m
	bare.Options = nil
	b := bare.ToBytes()[:optionsAt:optionsAt]
	lead := []uint8{optMessageType, optClientID, optRequestedAddr, optServerID}
	for _, code := range lead {
		b = appendOption(b, m.Options, code)
	}
	for _, code := range slices.Sorted(maps.Keys(m.Options)) {
		if !slices.Contains(lead, code) {
			b = appendOption(b, m.Options, code)
		}
	}
	b = append(b, optEnd)
	for len(b) < minLen {
		b = append(b, optPad)
	}
	return b
}

// appendOption appends an option that is there. One that is too long for a length
// of one byte goes in several parts (RFC 3396).
func appendOption(b []byte, all dhcpv4.Options, code uint8) []byte {
	v, ok := all[code]
	if !ok || code == optPad || code == optEnd {
		return b
	}
	for len(v) > 255 {
		b = append(append(b, code, 255), v[:255]...)
		v = v[255:]
	}
	return append(append(b, code, uint8(len(v))), v...)
}
