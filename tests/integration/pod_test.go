package integration

import (
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"slices"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	"github.com/dhcp-meta/dhcp-meta/tests/rig"
)

// address is an IPv4 address on an interface, as the kernel tells it.
type address struct {
	Addr netip.Prefix
	// Valid is the rest of its life in seconds; forever for an address without end.
	Valid int64
}

const forever = 0xffffffff

// addresses are the IPv4 addresses on an interface; none when it is not there.
func (s *sandbox) addresses(t testing.TB, ifName string) []address {
	t.Helper()
	out, err := s.TryIP("-4", "-json", "addr", "show", "dev", ifName)
	if err != nil {
		return nil
	}
	var links []struct {
		AddrInfo []struct {
			Local string `json:"local"`
			Bits  int    `json:"prefixlen"`
			Valid int64  `json:"valid_life_time"`
		} `json:"addr_info"`
	}
	if err := json.Unmarshal([]byte(out), &links); err != nil {
		t.Fatalf("ip addr: %v in %s", err, out)
	}
	var list []address
	for _, l := range links {
		for _, a := range l.AddrInfo {
			list = append(list, address{netip.PrefixFrom(netip.MustParseAddr(a.Local), a.Bits), a.Valid})
		}
	}
	return list
}

// hardwareAddr is the hardware address of the interface.
func (s *sandbox) hardwareAddr(t testing.TB, ifName string) net.HardwareAddr {
	t.Helper()
	var links []struct {
		Address string `json:"address"`
	}
	out := s.IP(t, "-json", "link", "show", "dev", ifName)
	if err := json.Unmarshal([]byte(out), &links); err != nil || len(links) != 1 {
		t.Fatalf("ip link: %v in %s", err, out)
	}
	mac, err := net.ParseMAC(links[0].Address)
	if err != nil {
		t.Fatal(err)
	}
	return mac
}

// awaitAddress waits until the interface carries just addr; an invalid addr waits
// until it carries none.
func (s *sandbox) awaitAddress(t testing.TB, ifName string, addr netip.Addr) {
	t.Helper()
	ns, err := netns.GetFromPath(s.Path)
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	changes, done := make(chan netlink.AddrUpdate), make(chan struct{})
	defer close(done)
	if err := netlink.AddrSubscribeAt(ns, changes, done); err != nil {
		t.Fatalf("listen for addresses in %s: %v", s.Name, err)
	}
	deadline := time.After(rig.Patience)
	for {
		have := s.addresses(t, ifName)
		if !addr.IsValid() && len(have) == 0 || len(have) == 1 && have[0].Addr.Addr() == addr {
			return
		}
		select {
		case <-changes:
		case <-deadline:
			t.Fatalf("%s has %v after %v, want %v", ifName, have, rig.Patience, addr)
		}
	}
}

// expectPing checks that the pod reaches the server over the leased address.
func (s *sandbox) expectPing(t testing.TB, from, to netip.Addr) {
	t.Helper()
	err := s.Do(func() error { return ping(from, to) })
	if err != nil {
		t.Errorf("ping %s from %s: %v", to, from, err)
	}
}

func ping(from, to netip.Addr) error {
	out, err := exec.Command("ping", "-c", "1", "-W", "5", "-I", from.String(), to.String()).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
}

// route is an IPv4 route of the main table as ip(8) tells it.
type route struct {
	Dst     string `json:"dst"`
	Gateway string `json:"gateway"`
	Dev     string `json:"dev"`
	Source  string `json:"prefsrc"`
	Metric  int    `json:"metric"`
}

// routes are the IPv4 routes over an interface.
func (s *sandbox) routes(t testing.TB, ifName string) []route {
	t.Helper()
	var all []route
	out := s.IP(t, "-4", "-json", "route", "show")
	if err := json.Unmarshal([]byte(out), &all); err != nil {
		t.Fatalf("ip route: %v in %s", err, out)
	}
	return slices.DeleteFunc(all, func(r route) bool { return r.Dev != ifName })
}
