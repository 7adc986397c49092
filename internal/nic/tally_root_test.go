package nic

import (
	"runtime"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/mdlayher/arp"
	"golang.org/x/sys/unix"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine/dhcp4"
)

func TestTallyFilter(t *testing.T) {
	vm := filterLen(t, tallyParts(testMAC))
	other := reply(t, otherMAC)
	for _, tt := range []struct {
		name  string
		frame []byte
		want  int
	}{
		{"OK reply to another", other, otherReply},
		{"OK reply to another, ip options", withOptions(other, 40), otherReply},
		{"OK own reply", reply(t, testMAC), anyFrame},
		{"OK request of another", edit(other, ipv4Len+udpLen, 1), anyFrame},
		{"OK arp", arpPacket(t, arp.OperationRequest, otherMAC, serverIP, noMAC, clientIP), anyFrame},
		{"OK ipv6", edit(other, 0, 0x65), anyFrame},
		{"OK fragment", edit(other, 6, 0x20), anyFrame},
		{"OK tcp", edit(other, 9, 6), anyFrame},
		{"OK other port", edit(other, ipv4Len+2, 0, 67), anyFrame},
		{"bad ends in ip header", other[:8], 0},
	} {
		if got := vm(tt.frame); got != tt.want {
			t.Errorf("%s: %d, want %d", tt.name, got, tt.want)
		}
	}
}

func TestTally(t *testing.T) {
	r := newRig(t)
	for _, ns := range []string{"net/ipv6/conf/all/disable_ipv6", "net/ipv6/conf/v0/disable_ipv6"} {
		r.sysctlIn(r.world, ns, "1") // it would send frames of its own
	}
	w := r.tap()
	p := r.open()
	tally, err := r.links.Tally(t.Context(), r.target)
	if err != nil {
		t.Fatal(err)
	}
	mac, from := r.podMAC(), r.worldMAC()
	if err := p.Send(t.Context(), dhcp4.Send{Msg: message(t, dhcpv4.MessageTypeDiscover, mac, anyIP)}); err != nil {
		t.Fatal(err)
	}
	w.send(mac, from, unix.ETH_P_IP, reply(t, mac))
	w.send(allMAC, from, unix.ETH_P_ARP, arpPacket(t, arp.OperationRequest, from, serverIP, noMAC, clientIP))
	w.send(otherMAC, from, unix.ETH_P_IP, reply(t, otherMAC)) // for another host
	w.send(allMAC, from, unix.ETH_P_IP, reply(t, otherMAC))
	w.send(allMAC, from, unix.ETH_P_IP, reply(t, otherMAC))
	type seen struct{ Frames, OtherReplies int }
	var got seen
	for deadline := time.Now().Add(patience); got.OtherReplies < 2 && time.Now().Before(deadline); runtime.Gosched() {
		got.Frames, got.OtherReplies = tally.Seen()
	}
	if diff := cmp.Diff(seen{4, 2}, got); diff != "" {
		t.Errorf("seen (-want +got):\n%s", diff)
	}
	receive(t, p) // the port has its reply all the same
	for range 2 {
		if err := tally.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	}
	r.target.IfName = "net9"
	_, err = r.links.Tally(t.Context(), r.target)
	wantGone(t, err)
}
