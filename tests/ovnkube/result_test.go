package ovnkube

import (
	"encoding/json"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"

	current "github.com/containernetworking/cni/pkg/types/100"

	"github.com/dhcp-meta/dhcp-meta/tests/rig"
	"github.com/dhcp-meta/dhcp-meta/tests/rig/kube"
)

// result is what Multus was given for an interface, from its cache.
func (s *site) result(t *testing.T, pod *kube.Sandbox, ifName string) *current.Result {
	t.Helper()
	files, err := filepath.Glob(s.node.Path("/var/lib/cni/multus/results/*" + pod.ID + "-" + ifName))
	if err != nil || len(files) != 1 {
		t.Fatalf("results of %s in Multus's cache: %v, %v", ifName, files, err)
	}
	b, err := os.ReadFile(files[0])
	if err != nil {
		t.Fatal(err)
	}
	var cached struct{ Result *current.Result }
	if err := json.Unmarshal(b, &cached); err != nil || cached.Result == nil {
		t.Fatalf("%v in %s", err, b)
	}
	return cached.Result
}

// The result has the interfaces as the wrapped plugin told them, in their order, and
// the lease beside them. A route of the lease is in it and in the pod; the default
// route is neither, since eth0 has one.
func TestP03P21P22K03Result(t *testing.T) {
	s := newSite(t)
	cfg := rig.Pool(0, 0)
	cfg.Dnsmasq = []string{"--dhcp-option=121,10.99.0.0/16,10.77.0.1,0.0.0.0/0,10.77.0.1"}
	rig.RunDnsmasq(t, s.lan.Server, cfg)
	s.marked(t, "office", "")
	pod := s.pod(t, "office")
	pod.Add(t)
	addr, mac := s.leased(t, pod, "office"), pod.HardwareAddr(t, "net1").String()

	r := s.result(t, pod, "net1")
	host := pod.ID[:13] + "_1"
	if len(r.Interfaces) != 2 || r.Interfaces[0].Name != host || r.Interfaces[0].Sandbox != "" ||
		r.Interfaces[1].Name != "net1" || r.Interfaces[1].Mac != mac || r.Interfaces[1].Sandbox != pod.Path {
		t.Errorf("interfaces: %v", r.Interfaces)
	}
	if len(r.IPs) != 1 || r.IPs[0].Address.String() != addr.String() || r.IPs[0].Interface == nil || *r.IPs[0].Interface != 1 {
		t.Errorf("ips: %v", r.IPs)
	}
	if len(r.Routes) != 1 || r.Routes[0].Dst.String() != "10.99.0.0/16" || r.Routes[0].GW.String() != "10.77.0.1" {
		t.Errorf("routes of the result: %v", r.Routes)
	}
	routes := pod.Routes(t, "net1")
	if !slices.ContainsFunc(routes, func(r rig.Route) bool {
		return r.Dst == "10.99.0.0/16" && r.Gateway == "10.77.0.1" && r.Source == addr.Addr().String()
	}) {
		t.Errorf("routes in the pod: %+v", routes)
	}
	isDefault := func(r rig.Route) bool { return r.Dst == "default" }
	if slices.ContainsFunc(routes, isDefault) || !slices.ContainsFunc(pod.Routes(t, "eth0"), isDefault) {
		t.Errorf("default routes: net1 %+v, eth0 %+v", routes, pod.Routes(t, "eth0"))
	}
}

// "ips" of a network selection: OVN-Kubernetes writes them into entry and port when
// it makes these. They are what the server is asked for, and nothing is left of them
// where it gives another address, in the older key of the entry neither (K38).
func TestK38O08AddressOfTheSelection(t *testing.T) {
	s := newSite(t)
	s.dnsmasq(t)
	s.marked(t, "office", "")
	for _, wish := range []string{"10.77.0.59", "10.77.0.199"} {
		granted := wish == "10.77.0.59"
		pod := s.pod(t, `[{"name":"office","ips":["`+wish+`/24"]}]`)
		made := s.awaitEntry(t, pod, "office", "be made with its address", func(e netEntry) bool { return e.Address == wish+"/24" })
		s.awaitPort(t, pod, "office", made.MAC+" "+wish, made.MAC+" "+wish)
		seen := watchAddresses(t, pod)
		pod.Add(t)
		addr := s.leased(t, pod, "office")
		if got := addr.Addr() == netip.MustParseAddr(wish); got != granted {
			t.Errorf("asked for %s, got %v", wish, addr)
		}
		if e := s.entry(t, pod, "office"); e.Address != "" && e.Address != addr.String() {
			t.Errorf("ip_address %s, ip_addresses %s", e.Address, e.Addresses)
		}
		for _, a := range seen() {
			if a != addr {
				t.Errorf("%v was on net1", a)
			}
		}
		s.ping(t, pod, addr)
	}
}
