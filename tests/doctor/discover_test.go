package doctor

import (
	"encoding/json"
	"net"
	"net/netip"
	"testing"

	"github.com/dhcp-meta/dhcp-meta/internal/doctor"
	"github.com/dhcp-meta/dhcp-meta/tests/rig"
	"github.com/dhcp-meta/dhcp-meta/tests/rig/ovn"
)

// second is another DHCP server on the clinic's wire, which a bridge between both
// ends of it lets in.
func second(t *testing.T, c *clinic) {
	t.Helper()
	rogue := rig.NewNetns(t, "rogue")
	rig.Veth(t, rogue, "v0", c.Server, "w0")
	c.Server.IP(t, "link", "add", "br0", "type", "bridge")
	c.Server.IP(t, "addr", "del", rig.ServerAddr.String(), "dev", rig.ServerIface)
	c.Server.IP(t, "link", "set", rig.ServerIface, "master", "br0")
	c.Server.IP(t, "link", "set", "w0", "master", "br0")
	c.Server.IP(t, "addr", "add", rig.ServerAddr.String(), "dev", "br0")
	c.Server.IP(t, "link", "set", "br0", "up")
	c.server.Stop(t)
	cfg := c.server.Config()
	cfg.Interface = "br0"
	c.server = rig.RunDnsmasq(t, c.Server, cfg)
	rogue.IP(t, "addr", "add", "10.77.0.9/24", "dev", "v0")
	cfg = rig.Pool(0, 0)
	cfg.Subnet = netip.MustParsePrefix("10.77.0.9/24")
	cfg.First, cfg.Last = netip.MustParseAddr("10.77.0.90"), netip.MustParseAddr("10.77.0.99")
	rig.RunDnsmasq(t, rogue, cfg)
}

// On OVN the DISCOVER leaves by the pod's own port, and passes what its switch lets
// through.
func TestU27DiscoverInsideAPortOfOVN(t *testing.T) {
	t.Parallel()
	s := ovn.Start(t, ovn.Config{})
	lan := s.Provider(t)
	server := rig.RunDnsmasq(t, lan.Server, rig.Pool(0, 0))
	pod := rig.NewSandbox(t)
	mac, err := net.ParseMAC("0a:58:0a:4d:00:05")
	if err != nil {
		t.Fatal(err)
	}
	port := ovn.PortSpec{Switch: s.NewLocalnet(t, "office"), Network: "office", NAD: "shop/office", Namespace: "shop", Pod: pod.Pod, UID: pod.UID, MAC: mac}
	s.AddPort(t, pod, "net1", port)
	e := rig.StartEngine(t, s.Node)
	s.Node.Add(t, pod.Call("net1", object{
		"cniVersion": "1.1.0", "name": "office", "type": "dhcp-meta",
		"dhcp":       object{"socket": e.Socket, "stateDir": e.StateDir, "broadcast": true},
		"prevResult": object{"cniVersion": "1.1.0", "interfaces": []object{{"name": "net1", "mac": mac.String(), "sandbox": pod.Path}}},
	}))
	said := func(want doctor.ID, level doctor.Level) {
		t.Helper()
		ran := e.Command(t, "doctor", "--no-kubernetes", "--network=shop/office", "-o=json")
		var report doctor.Report
		if err := json.Unmarshal([]byte(ran.Stdout), &report); err != nil {
			t.Fatalf("%v: %s%s", err, ran.Stdout, ran.Stderr)
		}
		for _, f := range report.Findings {
			if f.ID == want && f.Level == level {
				return
			}
		}
		t.Errorf("doctor does not say %s: %+v", want, report.Findings)
	}
	said(doctor.AreaDiscover, doctor.OK)
	// What a policy that forgets the DHCP server does.
	s.NB(t, "--wait=hv", "acl-add", port.Switch, "to-lport", "1001", "udp.src == 67", "drop")
	said(doctor.DiscoverSilent, doctor.Error)
	s.NB(t, "--wait=hv", "acl-del", port.Switch)
	server.Stop(t)
	said(doctor.DiscoverSilent, doctor.Error)
}
