package nic

import (
	"net"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/mdlayher/arp"
	"golang.org/x/net/bpf"
)

// arpPacket returns an ARP packet as it is on the wire.
func arpPacket(t testing.TB, op arp.Operation, mac net.HardwareAddr, sender netip.Addr, to net.HardwareAddr, target netip.Addr) []byte {
	t.Helper()
	p, err := arp.NewPacket(op, mac, sender, to, target)
	if err != nil {
		t.Fatal(err)
	}
	b, err := p.MarshalBinary()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// noMAC is the target of a request.
var noMAC = make(net.HardwareAddr, etherLen)

func padded(b []byte) []byte { return append(append([]byte{}, b...), make([]byte, 18)...) }

// arpCase is a packet and what is made of it by testMAC, for which clientIP is
// the address of a lease and serverIP a neighbour.
type arpCase struct {
	name   string
	packet []byte
	// answer to the question for serverIP; use and probe of clientIP by another.
	answer, use, probe bool
}

func arpCases(t testing.TB) []arpCase {
	request := func(mac net.HardwareAddr, sender, target netip.Addr) []byte {
		return arpPacket(t, arp.OperationRequest, mac, sender, noMAC, target)
	}
	reply := func(mac net.HardwareAddr, sender netip.Addr, to net.HardwareAddr, target netip.Addr) []byte {
		return arpPacket(t, arp.OperationReply, mac, sender, to, target)
	}
	answer := reply(otherMAC, serverIP, testMAC, clientIP)
	use := reply(otherMAC, clientIP, testMAC, anyIP)
	probe := request(otherMAC, anyIP, clientIP)
	multicast := net.HardwareAddr{3, 0xbf, 10, 77, 0, 50}
	return []arpCase{
		{"OK answer", answer, true, false, false},
		{"OK answer, padding behind", padded(answer), true, false, false},
		{"OK answer to a probe", use, false, true, false},
		{"OK answer to somebody else's probe", reply(otherMAC, clientIP, otherMAC, anyIP), false, true, false},
		{"OK answer of a cluster's multicast address", reply(multicast, clientIP, testMAC, anyIP), false, true, false},
		{"OK announcement", request(otherMAC, clientIP, clientIP), false, true, false},
		{"OK announcement by a reply", reply(otherMAC, clientIP, otherMAC, clientIP), false, true, false},
		{"OK question of the one who has it", request(otherMAC, clientIP, serverIP), false, true, false},
		{"OK probe", probe, false, false, true},
		{"OK probe, padding behind", padded(probe), false, false, true},

		{"bad own address in an answer", reply(testMAC, clientIP, testMAC, anyIP), false, false, false},
		{"bad own announcement", request(testMAC, clientIP, clientIP), false, false, false},
		{"bad own probe", request(testMAC, anyIP, clientIP), false, false, false},
		{"bad probe for another address", request(otherMAC, anyIP, serverIP), false, false, false},
		{"bad question for the address", request(otherMAC, serverIP, clientIP), false, false, false},
		{"bad answer of 0.0.0.0", reply(otherMAC, anyIP, otherMAC, clientIP), false, false, false},
		{"bad answer for another", reply(otherMAC, serverIP, otherMAC, clientIP), false, false, false},
		{"bad answer of another", reply(otherMAC, netip.MustParseAddr("10.77.0.2"), testMAC, clientIP), false, false, false},
		{"bad multicast sender", reply(multicast, serverIP, testMAC, clientIP), false, false, false},
		{"bad sender without address", reply(noMAC, serverIP, testMAC, clientIP), false, false, false},
		{"bad request to us", arpPacket(t, arp.OperationRequest, otherMAC, serverIP, testMAC, clientIP), false, false, false},
		{"bad inverse arp", edit(use, 7, 9), false, false, false},
		{"bad reverse arp", edit(answer, 7, 4), false, false, false},
		{"bad protocol in an answer", edit(answer, 2, 0x86, 0xdd), false, false, false},
		{"bad protocol", edit(use, 2, 0x86, 0xdd), false, false, false},
		{"bad protocol in a probe", edit(probe, 2, 0x86, 0xdd), false, false, false},
		{"bad hardware length", edit(use, 4, 8), false, false, false},
		{"bad address length", edit(use, 5, 16), false, false, false},
		{"bad empty", nil, false, false, false},
		{"bad ends in sender", use[:13], false, false, false},
		{"bad ends in target", use[:26], false, false, false},
	}
}

// filterLen returns the program as a function: how many bytes it passes.
func filterLen(t testing.TB, program []bpf.Instruction) func([]byte) int {
	t.Helper()
	vm, err := bpf.NewVM(program)
	if err != nil {
		t.Fatal(err)
	}
	return func(b []byte) int {
		n, err := vm.Run(b)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
}

// filterVM returns the program as a function: whether it passes a packet.
func filterVM(t testing.TB, program []bpf.Instruction) func([]byte) bool {
	t.Helper()
	passes := filterLen(t, program)
	return func(b []byte) bool { return passes(b) != 0 }
}

// U18: what is a conflict (RFC 5227, 2.1.1) and what is not, above all not our
// own address, whoever says it.
func TestARPPacketsU18(t *testing.T) {
	type verdict struct{ Answer, Use, Probe bool }
	answerPasses := filterVM(t, arpFilter(testMAC))
	usePasses := filterVM(t, useFilter(testMAC, clientIP))
	probePasses := filterVM(t, probeFilter(testMAC, clientIP))
	for _, tt := range arpCases(t) {
		t.Run(tt.name, func(t *testing.T) {
			var got verdict
			if a, ok := parseARP(tt.packet); ok {
				got = verdict{answers(a, testMAC, serverIP), uses(a, testMAC, clientIP), probes(a, testMAC, clientIP)}
			}
			if diff := cmp.Diff(verdict{tt.answer, tt.use, tt.probe}, got); diff != "" {
				t.Errorf("verdict (-want +got):\n%s", diff)
			}
			// A filter may pass more, but not less.
			if tt.answer && !answerPasses(tt.packet) {
				t.Error("the filter drops the answer")
			}
			if tt.use && !usePasses(tt.packet) {
				t.Error("the filter drops the use")
			}
			if (tt.use || tt.probe) && !probePasses(tt.packet) {
				t.Error("the filter drops the conflict")
			}
		})
	}
}

// The filters keep a socket from waking up for all the link's ARP, and for our
// own address.
func TestARPFiltersDrop(t *testing.T) {
	type passed struct{ Answers, Uses, Probes bool }
	want := map[string]passed{
		"OK probe":                      {Probes: true},
		"OK announcement":               {Uses: true, Probes: true},
		"OK answer to a probe":          {Answers: true, Uses: true, Probes: true},
		"bad own address in an answer":  {Answers: true},
		"bad own announcement":          {},
		"bad own probe":                 {},
		"bad probe for another address": {},
		"bad question for the address":  {},
		"bad answer of 0.0.0.0":         {},
		"bad answer for another":        {},
		"bad request to us":             {},
		"bad empty":                     {},
		"bad ends in sender":            {},
	}
	answers := filterVM(t, arpFilter(testMAC))
	uses := filterVM(t, useFilter(testMAC, clientIP))
	probes := filterVM(t, probeFilter(testMAC, clientIP))
	got := make(map[string]passed)
	for _, tt := range arpCases(t) {
		if _, ok := want[tt.name]; ok {
			got[tt.name] = passed{answers(tt.packet), uses(tt.packet), probes(tt.packet)}
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("what the filters pass (-want +got):\n%s", diff)
	}
}

func TestParseARPKeepsNothingOfTheBuffer(t *testing.T) {
	b := arpPacket(t, arp.OperationReply, otherMAC, clientIP, testMAC, serverIP)
	a, ok := parseARP(b)
	clear(b)
	if !ok || !uses(a, testMAC, clientIP) || a.SenderHardwareAddr.String() != otherMAC.String() {
		t.Fatalf("packet changed with the buffer: %v", a)
	}
}

func FuzzParseARP(f *testing.F) {
	for _, tt := range arpCases(f) {
		f.Add(tt.packet)
	}
	answerPasses := filterVM(f, arpFilter(testMAC))
	usePasses := filterVM(f, useFilter(testMAC, clientIP))
	probePasses := filterVM(f, probeFilter(testMAC, clientIP))
	f.Fuzz(func(t *testing.T, b []byte) {
		a, ok := parseARP(b)
		if !ok {
			return
		}
		use := uses(a, testMAC, clientIP)
		if answers(a, testMAC, serverIP) && !answerPasses(b) ||
			use && !usePasses(b) ||
			(use || probes(a, testMAC, clientIP)) && !probePasses(b) {
			t.Fatalf("a filter drops what is taken: %v", a)
		}
		if use && (len(a.SenderHardwareAddr) != etherLen || a.SenderHardwareAddr.String() == testMAC.String()) {
			t.Fatalf("conflict with %s", a.SenderHardwareAddr)
		}
	})
}
