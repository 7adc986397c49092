package rig

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
)

// Sandbox is a pod's network namespace as a runtime makes it.
type Sandbox struct {
	*Netns
	// ID is the container id, Pod and UID name the pod.
	ID, Pod, UID string
}

// NewSandbox makes a sandbox of a pod of its own.
func NewSandbox(t testing.TB) *Sandbox {
	t.Helper()
	id := RandomHex(32)
	return &Sandbox{Netns: NewNetns(t, "pod"), ID: id, Pod: "web-" + id[:6], UID: RandomHex(16)}
}

// RandomHex returns n random bytes as hexadecimal digits.
func RandomHex(n int) string {
	b := make([]byte, n)
	rand.Read(b)
	return hex.EncodeToString(b)
}

// Call is the execution of dhcp-meta for an interface of the sandbox.
func (s *Sandbox) Call(ifName string, conf any) Call {
	return Call{
		ContainerID: s.ID, IfName: ifName, Netns: s.Path, Conf: conf,
		Args: fmt.Sprintf("IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=%s;K8S_POD_UID=%s;K8S_POD_INFRA_CONTAINER_ID=%s", s.Pod, s.UID, s.ID),
	}
}

// Address is an IPv4 address on an interface, as the kernel tells it.
type Address struct {
	Addr netip.Prefix
	// Valid is the rest of its life in seconds, or Forever.
	Valid int64
}

// Forever is the life of an address without end, and the seconds of an infinite
// lease.
const Forever = 0xffffffff

// Addresses are the IPv4 addresses on an interface; none when it is not there.
func (s *Sandbox) Addresses(t testing.TB, ifName string) []Address {
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
	var list []Address
	for _, l := range links {
		for _, a := range l.AddrInfo {
			list = append(list, Address{netip.PrefixFrom(netip.MustParseAddr(a.Local), a.Bits), a.Valid})
		}
	}
	return list
}

// AwaitAddress waits until the interface carries just addr; an invalid addr waits
// until it carries none.
func (s *Sandbox) AwaitAddress(t testing.TB, ifName string, addr netip.Addr) {
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
	deadline := time.After(Patience)
	for {
		have := s.Addresses(t, ifName)
		if !addr.IsValid() && len(have) == 0 || len(have) == 1 && have[0].Addr.Addr() == addr {
			return
		}
		select {
		case <-changes:
		case <-deadline:
			t.Fatalf("%s has %v after %v, want %v", ifName, have, Patience, addr)
		}
	}
}

// HardwareAddr is the hardware address of the interface.
func (s *Sandbox) HardwareAddr(t testing.TB, ifName string) net.HardwareAddr {
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

// Route is an IPv4 route of the main table as ip(8) tells it.
type Route struct {
	Dst     string `json:"dst"`
	Gateway string `json:"gateway"`
	Dev     string `json:"dev"`
	Source  string `json:"prefsrc"`
	Metric  int    `json:"metric"`
}

// Routes are the IPv4 routes over an interface.
func (s *Sandbox) Routes(t testing.TB, ifName string) []Route {
	t.Helper()
	var all []Route
	out := s.IP(t, "-4", "-json", "route", "show")
	if err := json.Unmarshal([]byte(out), &all); err != nil {
		t.Fatalf("ip route: %v in %s", err, out)
	}
	return slices.DeleteFunc(all, func(r Route) bool { return r.Dev != ifName })
}
