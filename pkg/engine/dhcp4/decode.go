package dhcp4

import (
	"fmt"

	"github.com/insomniacslk/dhcp/dhcpv4"
)

// The values of option 52, bit by bit (RFC 2132, 9.3).
const (
	overloadFile  = 1
	overloadSname = 2
)

// Where the fields 'sname' and 'file' lie in a message (RFC 2131, figure 1).
const (
	snameAt = 44
	fileAt  = 108
	fileEnd = 236
)

// Decode reads a DHCP message as it came in a UDP datagram. It takes any bytes, and
// does not keep them. Options in several parts are joined (RFC 3396), and those in
// the fields 'file' and 'sname' (option 52, overload), which the codec does not
// read, are behind the others then, in this order: RFC 2131, 4.1. Such a field has
// no text.
func Decode(raw []byte) (*dhcpv4.DHCPv4, error) {
	msg, err := dhcpv4.FromBytes(raw)
	if err != nil {
		return nil, fmt.Errorf("decode dhcp message of %d bytes: %w", len(raw), err)
	}
	overload := msg.Options[optOverload]
	if len(overload) != 1 || overload[0] == 0 || overload[0] > overloadFile|overloadSname {
		return msg, nil
	}
	if overload[0]&overloadFile != 0 {
		msg.BootFileName = ""
		if err := msg.Options.FromBytes(raw[fileAt:fileEnd]); err != nil {
			return nil, fmt.Errorf("decode options in field 'file' (option 52): %w", err)
		}
	}
	if overload[0]&overloadSname != 0 {
		msg.ServerHostName = ""
		if err := msg.Options.FromBytes(raw[snameAt:fileAt]); err != nil {
			return nil, fmt.Errorf("decode options in field 'sname' (option 52): %w", err)
		}
	}
	// Only the options field can say that others are overloaded.
	msg.Options[optOverload] = overload
	return msg, nil
}
