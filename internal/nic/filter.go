package nic

import (
	"encoding/binary"
	"net"
	"net/netip"
	"slices"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/mdlayher/arp"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// The filters see what a SOCK_DGRAM packet socket sees: the packet behind its
// Ethernet header. They keep an idle port from waking up for the pod's own
// traffic; all that matters for safety is checked again when parsing.

// takeAll is how many bytes of a packet a filter lets through.
const takeAll = 0xffff

// forHost drops what the kernel marks as for another host. Besides frames of a
// promiscuous interface these are tagged frames of a VLAN that has no interface
// here: the tag is off when the filter runs, and they look as if they came from
// our own segment.
func forHost(rest []bpf.Instruction) []bpf.Instruction {
	marked := []bpf.Instruction{bpf.LoadExtension{Num: bpf.ExtType}}
	return append(when(0, check{marked, unix.PACKET_OTHERHOST}), rest...)
}

// A check passes when load leaves want in the accumulator. A load beyond the
// end of the packet drops it.
type check struct {
	load []bpf.Instruction
	want uint32
}

// when returns the part of a program that ends it with result for what passes
// each check; for all else the program goes on behind it.
func when(result uint32, checks ...check) []bpf.Instruction {
	part := []bpf.Instruction{bpf.RetConstant{Val: result}}
	for _, c := range slices.Backward(checks) {
		rest := bpf.JumpIf{Cond: bpf.JumpEqual, Val: c.want, SkipFalse: uint8(len(part))}
		part = slices.Concat(c.load, []bpf.Instruction{rest}, part)
	}
	return part
}

// program returns parts, one after another; what none of them ends is dropped.
func program(parts ...[]bpf.Instruction) []bpf.Instruction {
	return append(slices.Concat(parts...), bpf.RetConstant{Val: 0})
}

// at loads from the start of the packet.
func at(off uint32, size int) []bpf.Instruction {
	return []bpf.Instruction{bpf.LoadAbsolute{Off: off, Size: size}}
}

// behind loads from the end of the IP header, whose length, options included,
// it keeps in X.
func behind(off uint32, size int) []bpf.Instruction {
	return []bpf.Instruction{bpf.LoadMemShift{Off: 0}, bpf.LoadIndirect{Off: off, Size: size}}
}

// chaddrAt is where the client's hardware address is in a UDP datagram (RFC 2131,
// figure 1).
const chaddrAt = udpLen + 28

// replies checks for whole UDP datagrams to the client port with a BOOTREPLY.
func replies() []check {
	const moreAndPlace = 0x3fff // of the flags and fragment offset
	return []check{
		{append(at(0, 1), bpf.ALUOpConstant{Op: bpf.ALUOpShiftRight, Val: 4}), 4},
		{append(at(6, 2), bpf.ALUOpConstant{Op: bpf.ALUOpAnd, Val: moreAndPlace}), 0},
		{at(9, 1), unix.IPPROTO_UDP},
		{behind(2, 2), clientPort},
		{behind(udpLen, 1), uint32(dhcpv4.OpcodeBootReply)},
	}
}

// repliesTo checks for those of replies that are for mac.
func repliesTo(mac net.HardwareAddr) []check {
	return append(replies(),
		check{behind(chaddrAt, 4), binary.BigEndian.Uint32(mac)},
		check{behind(chaddrAt+4, 2), uint32(binary.BigEndian.Uint16(mac[4:]))},
	)
}

// replyFilter passes replies to mac.
func replyFilter(mac net.HardwareAddr) []bpf.Instruction {
	return program(when(takeAll, repliesTo(mac)...))
}

// What is left of a packet by tallyFilter tells what it was.
const (
	anyFrame   = 1
	otherReply = 2 // a reply to another client
)

// tallyFilter passes what arrives, cut to a byte or two.
func tallyFilter(mac net.HardwareAddr) []bpf.Instruction {
	direction := []bpf.Instruction{bpf.LoadExtension{Num: bpf.ExtType}}
	return append(when(0, check{direction, unix.PACKET_OUTGOING}), tallyParts(mac)...)
}

// tallyParts is tallyFilter without the kernel's knowledge of a packet.
func tallyParts(mac net.HardwareAddr) []bpf.Instruction {
	return program(
		when(anyFrame, repliesTo(mac)...),
		when(otherReply, replies()...),
		when(anyFrame),
	)
}

// Where the parts of an ARP packet for IPv4 over Ethernet are (RFC 826).
const (
	arpOperation      = 6
	arpSenderHardware = 8
	arpSenderIP       = 14
	arpTargetHardware = 18
	arpTargetIP       = 24
)

// hardwareAt checks for mac at off.
func hardwareAt(off uint32, mac net.HardwareAddr) []check {
	return []check{
		{at(off, 4), binary.BigEndian.Uint32(mac)},
		{at(off+4, 2), uint32(binary.BigEndian.Uint16(mac[4:]))},
	}
}

// ipAt checks for addr, an IPv4 address, at off.
func ipAt(off uint32, addr netip.Addr) check {
	b := addr.As4()
	return check{at(off, 4), binary.BigEndian.Uint32(b[:])}
}

// arpFilter passes ARP replies to mac.
func arpFilter(mac net.HardwareAddr) []bpf.Instruction {
	reply := check{at(arpOperation, 2), uint32(arp.OperationReply)}
	return program(when(takeAll, append(hardwareAt(arpTargetHardware, mac), reply)...))
}

// useFilter passes ARP packets in which another host than mac says that it has
// addr.
func useFilter(mac net.HardwareAddr, addr netip.Addr) []bpf.Instruction {
	return program(
		when(0, hardwareAt(arpSenderHardware, mac)...),
		when(takeAll, ipAt(arpSenderIP, addr)),
	)
}

// probeFilter passes what useFilter passes, and the probes of other hosts for
// addr.
func probeFilter(mac net.HardwareAddr, addr netip.Addr) []bpf.Instruction {
	request := check{at(arpOperation, 2), uint32(arp.OperationRequest)}
	return program(
		when(0, hardwareAt(arpSenderHardware, mac)...),
		when(takeAll, ipAt(arpSenderIP, addr)),
		when(takeAll, request, ipAt(arpSenderIP, netip.IPv4Unspecified()), ipAt(arpTargetIP, addr)),
	)
}
