package nic

import (
	"encoding/binary"
	"net"

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
func forHost(program []bpf.Instruction) []bpf.Instruction {
	return append([]bpf.Instruction{
		bpf.LoadExtension{Num: bpf.ExtType},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: unix.PACKET_OTHERHOST, SkipTrue: 1},
		bpf.RetConstant{Val: 0},
	}, program...)
}

// A check passes when load leaves want in the accumulator. A load beyond the
// end of the packet drops it.
type check struct {
	load []bpf.Instruction
	want uint32
}

// all returns the program that passes what passes each check.
func all(checks ...check) []bpf.Instruction {
	var program []bpf.Instruction
	for _, c := range checks {
		program = append(program, c.load...)
		program = append(program,
			bpf.JumpIf{Cond: bpf.JumpEqual, Val: c.want, SkipTrue: 1},
			bpf.RetConstant{Val: 0})
	}
	return append(program, bpf.RetConstant{Val: takeAll})
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

// replyFilter passes whole UDP datagrams to the client port with a BOOTREPLY
// for mac.
func replyFilter(mac net.HardwareAddr) []bpf.Instruction {
	const (
		chaddr       = 28     // RFC 2131, figure 1
		moreAndPlace = 0x3fff // of the flags and fragment offset
	)
	return all(
		check{append(at(0, 1), bpf.ALUOpConstant{Op: bpf.ALUOpShiftRight, Val: 4}), 4},
		check{append(at(6, 2), bpf.ALUOpConstant{Op: bpf.ALUOpAnd, Val: moreAndPlace}), 0},
		check{at(9, 1), unix.IPPROTO_UDP},
		check{behind(2, 2), clientPort},
		check{behind(udpLen, 1), uint32(dhcpv4.OpcodeBootReply)},
		check{behind(udpLen+chaddr, 4), binary.BigEndian.Uint32(mac)},
		check{behind(udpLen+chaddr+4, 2), uint32(binary.BigEndian.Uint16(mac[4:]))},
	)
}

// arpFilter passes ARP replies to mac (RFC 826).
func arpFilter(mac net.HardwareAddr) []bpf.Instruction {
	const operation, targetHardware = 6, 18
	return all(
		check{at(operation, 2), uint32(arp.OperationReply)},
		check{at(targetHardware, 4), binary.BigEndian.Uint32(mac)},
		check{at(targetHardware+4, 2), uint32(binary.BigEndian.Uint16(mac[4:]))},
	)
}
