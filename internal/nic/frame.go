package nic

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"golang.org/x/sys/unix"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine/dhcp4"
)

const (
	serverPort = 67
	clientPort = 68

	ipv4Len = 20 // without options, as we send it
	udpLen  = 8
	ttl     = 64
)

// datagram returns payload as an IPv4 datagram from a DHCP client's port to a
// server's. Payload must fit: a DHCP message does.
func datagram(src, dst netip.Addr, id uint16, payload []byte) []byte {
	size := ipv4Len + udpLen + len(payload)
	b := make([]byte, ipv4Len, size)
	b[0] = 4<<4 | ipv4Len/4
	binary.BigEndian.PutUint16(b[2:], uint16(size))
	binary.BigEndian.PutUint16(b[4:], id)
	// Bytes 6 and 7 stay 0: fragments are allowed. A lease with more options
	// than the path takes should still be renewable.
	b[8] = ttl
	b[9] = unix.IPPROTO_UDP
	copy(b[12:], src.AsSlice())
	copy(b[16:], dst.AsSlice())
	binary.BigEndian.PutUint16(b[10:], ^fold(sum(0, b)))

	b = binary.BigEndian.AppendUint16(b, clientPort)
	b = binary.BigEndian.AppendUint16(b, serverPort)
	b = binary.BigEndian.AppendUint16(b, uint16(udpLen+len(payload)))
	b = binary.BigEndian.AppendUint16(b, 0)
	b = append(b, payload...)
	udp := b[ipv4Len:]
	check := ^fold(sum(pseudoHeader(b), udp))
	if check == 0 {
		check = 0xffff // 0 would say that there is no checksum (RFC 768)
	}
	binary.BigEndian.PutUint16(udp[6:], check)
	return b
}

// pseudoHeader returns the sum over what RFC 768 puts before a UDP header.
func pseudoHeader(b []byte) uint32 {
	return sum(unix.IPPROTO_UDP+uint32(len(b)-ipv4Len), b[12:ipv4Len])
}

// sum adds b in words of 16 bits; what may come in one packet cannot overflow.
func sum(acc uint32, b []byte) uint32 {
	for ; len(b) >= 2; b = b[2:] {
		acc += uint32(binary.BigEndian.Uint16(b))
	}
	if len(b) == 1 {
		acc += uint32(b[0]) << 8
	}
	return acc
}

func fold(acc uint32) uint16 {
	for acc > 0xffff {
		acc = acc>>16 + acc&0xffff
	}
	return uint16(acc)
}

// parseReply takes a DHCP reply for mac out of an IPv4 datagram, which may have
// padding behind it. It trusts nothing that the socket's filter has looked at.
//
// Checksums are not looked at. Between a server and a client on one host, or on
// two guests of one, the sender leaves the UDP checksum to a network card that
// the packet never meets, and it arrives with but a part of it: field case B02.
// The kernel knows which ones these are, but a capture or a bridge in between
// loses that knowledge. DHCP has its own proofs: xid, chaddr, the magic cookie.
func parseReply(b []byte, mac net.HardwareAddr) (dhcp4.Received, error) {
	if len(b) < ipv4Len {
		return dhcp4.Received{}, fmt.Errorf("ip header of %d bytes", len(b))
	}
	header, total := int(b[0]&0xf)*4, int(binary.BigEndian.Uint16(b[2:]))
	switch {
	case b[0]>>4 != 4:
		return dhcp4.Received{}, fmt.Errorf("ip version %d", b[0]>>4)
	case header < ipv4Len:
		return dhcp4.Received{}, fmt.Errorf("ip header length %d", header)
	case total > len(b):
		return dhcp4.Received{}, fmt.Errorf("ip total length %d of %d bytes", total, len(b))
	case total < header+udpLen:
		return dhcp4.Received{}, fmt.Errorf("ip total length %d has no room for udp", total)
	case binary.BigEndian.Uint16(b[6:])&0x3fff != 0:
		return dhcp4.Received{}, errors.New("ip fragment")
	case b[9] != unix.IPPROTO_UDP:
		return dhcp4.Received{}, fmt.Errorf("ip protocol %d", b[9])
	}
	udp := b[header:total]
	size := int(binary.BigEndian.Uint16(udp[4:]))
	switch {
	case binary.BigEndian.Uint16(udp[2:]) != clientPort:
		return dhcp4.Received{}, fmt.Errorf("udp port %d", binary.BigEndian.Uint16(udp[2:]))
	case size < udpLen || size > len(udp):
		return dhcp4.Received{}, fmt.Errorf("udp length %d of %d bytes", size, len(udp))
	}
	from := netip.AddrFrom4([4]byte(b[12:16]))
	msg, err := dhcp4.Decode(udp[udpLen:size])
	switch {
	case err != nil:
		return dhcp4.Received{From: from}, err
	case msg.OpCode != dhcpv4.OpcodeBootReply:
		return dhcp4.Received{}, errors.New("dhcp message is no reply")
	case !bytes.Equal(msg.ClientHWAddr, mac):
		return dhcp4.Received{}, fmt.Errorf("dhcp message is for %s", msg.ClientHWAddr)
	}
	return dhcp4.Received{Msg: msg, From: from}, nil
}
