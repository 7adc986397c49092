package ovn

import (
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/dhcp-meta/dhcp-meta/tests/rig"
	"github.com/dhcp-meta/dhcp-meta/tests/rig/node"
)

func TestMain(m *testing.M) { rig.Main(m) }

// A port on a localnet switch reaches a server behind the provider bridge, and what
// OVN-Kubernetes writes of it is there to be read.
func TestLocalnetReachesTheProvider(t *testing.T) {
	t.Parallel()
	s := Start(t, Config{})
	lan := s.Provider(t)
	dnsmasq := rig.RunDnsmasq(t, lan.Server, rig.Pool(0, 0))
	pod := rig.NewSandbox(t)
	mac, err := net.ParseMAC("0a:58:0a:4d:00:05")
	if err != nil {
		t.Fatal(err)
	}
	p := PortSpec{
		Switch: s.NewLocalnet(t, "office-lan"), Network: "office-lan", NAD: "shop/office-lan",
		Namespace: "shop", Pod: pod.Pod, UID: pod.UID, MAC: mac,
	}
	s.AddPort(t, pod, "net1", p)
	lsp := s.AwaitLSP(t, p.Name(), "to be up", func(l LSP) bool { return l.Up })
	if want := "shop.office.lan_shop_" + pod.Pod; p.Name() != want || lsp.Options["iface-id-ver"] != pod.UID {
		t.Errorf("port %s, want %s: %+v", p.Name(), want, lsp)
	}
	out := Busybox(t, pod.Netns, "udhcpc", "-i", "net1", "-n", "-q", "-t", "5", "-T", "3", "-s", "/bin/true")
	if !strings.Contains(out, "obtained") {
		t.Errorf("udhcpc said: %s", out)
	}
	dnsmasq.Await(t, 0, rig.Patience, "DHCPACK", mac.String())
}

// On a node with a file system of its own the programs find their sockets by
// themselves, and the machine's /run has none of them.
func TestOnANode(t *testing.T) {
	t.Parallel()
	n := node.New(t, rig.NewNetns(t, "node"))
	s := Start(t, On(n))
	s.NewLocalnet(t, "office-lan")
	if out := n.Run(t, "ovn-nbctl", "ls-list"); !strings.Contains(out, "office.lan_ovn_localnet_switch") {
		t.Errorf("ovn-nbctl on the node says %q", out)
	}
	if out := n.Run(t, "ovs-vsctl", "list-br"); !strings.Contains(out, Integration) {
		t.Errorf("ovs-vsctl on the node says %q", out)
	}
	if _, err := os.Stat(strings.TrimPrefix(s.NorthFromOutside(), "unix:")); err != nil {
		t.Errorf("socket from outside: %v", err)
	}
	if _, err := os.Stat("/run/ovn/ovnnb_db.sock"); err == nil {
		t.Error("the machine's /run was used")
	}
}

// What is written while northd pauses reaches the flows when it goes on, and the
// north database is the same after its server was away.
func TestPauseAndStop(t *testing.T) {
	t.Parallel()
	s := Start(t, Config{})
	s.PauseNorthd(t)
	s.NB(t, "ls-add", "quiet")
	if out := s.South(t, "--bare", "--columns=_uuid", "find", "datapath_binding", "external_ids:name=quiet"); out != "" {
		t.Errorf("northd works while it pauses: %s", out)
	}
	s.ResumeNorthd(t)
	if out := s.South(t, "--bare", "--columns=_uuid", "find", "datapath_binding", "external_ids:name=quiet"); out == "" {
		t.Error("northd did not catch up")
	}
	s.StopNorth(t)
	s.StartNorth(t)
	if out := s.NB(t, "ls-list"); !strings.Contains(out, "quiet") {
		t.Errorf("the switch is gone: %q", out)
	}
	begin := time.Now()
	s.Sync(t)
	t.Logf("northd is back %v after the database", time.Since(begin))
}
