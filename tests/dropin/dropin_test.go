// Package dropin holds what plugins see that ask the IPAM plugin dhcp for an address,
// with our engine in the place of the reference's daemon: the reference's own plugin,
// and ours under its name.
package dropin

import (
	"bytes"
	"encoding/json"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	current "github.com/containernetworking/cni/pkg/types/100"

	"github.com/dhcp-meta/dhcp-meta/tests/rig"
)

func TestMain(m *testing.M) { rig.Main(m) }

type object = rig.Object

// lab is a LAN with an engine that serves the dhcp plugin, and a folder of plugins.
type lab struct {
	*rig.LAN
	engine  *rig.Engine
	socket  string
	plugins string
	// ifName is the interface that run is about.
	ifName string
}

// newLab takes the program that plugins find as dhcp.
func newLab(t *testing.T, dhcp string) *lab {
	t.Helper()
	rig.Need(t)
	l := &lab{LAN: rig.NewLAN(t), ifName: "net1"}
	run, err := os.MkdirTemp("", "dm")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(run) })
	l.socket, l.plugins = filepath.Join(run, "run", "dhcp.sock"), run
	for _, plugin := range []string{"macvlan", "bridge", "host-device"} {
		link(t, filepath.Join(rig.Plugins(), plugin), filepath.Join(run, plugin))
	}
	link(t, dhcp, filepath.Join(run, "dhcp"))
	l.engine = rig.StartEngine(t, l.Node, "--dhcp-socket="+l.socket)
	return l
}

func link(t *testing.T, program, name string) {
	t.Helper()
	if err := os.Symlink(program, name); err != nil {
		t.Fatal(err)
	}
}

// onBoth runs a body with the reference's dhcp plugin and with ours.
func onBoth(t *testing.T, body func(t *testing.T, l *lab)) {
	t.Parallel()
	for name, program := range map[string]func() string{
		"reference plugin": func() string { return filepath.Join(rig.Plugins(), "dhcp") },
		"our plugin":       func() string { return rig.Program("dhcp-meta") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rig.Need(t)
			body(t, newLab(t, program()))
		})
	}
}

func (l *lab) conf(plugin object) object {
	c := object{"cniVersion": "1.0.0", "name": "office-lan", "ipam": object{"type": "dhcp", "daemonSocketPath": l.socket}}
	for key, value := range plugin {
		c[key] = value
	}
	return c
}

// run executes a plugin as a runtime does, and returns its standard output.
func (l *lab) run(t *testing.T, verb string, s *rig.Sandbox, conf object) []byte {
	t.Helper()
	out, err := l.try(t, verb, s, conf)
	if err != nil {
		t.Fatalf("%s: %v: %s", verb, err, out)
	}
	return out
}

func (l *lab) try(t *testing.T, verb string, s *rig.Sandbox, conf object) ([]byte, error) {
	t.Helper()
	in, err := json.Marshal(conf)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(filepath.Join(l.plugins, conf["type"].(string)))
	cmd.Env = append(os.Environ(), "CNI_COMMAND="+verb, "CNI_CONTAINERID="+s.ID, "CNI_IFNAME="+l.ifName, "CNI_NETNS="+s.Path,
		"CNI_ARGS=", "CNI_PATH="+l.plugins)
	var out bytes.Buffer
	cmd.Stdin, cmd.Stdout = bytes.NewReader(in), &out
	if err := l.Node.Do(cmd.Start); err != nil {
		t.Fatal(err)
	}
	err = cmd.Wait()
	return out.Bytes(), err
}

// add executes ADD.
func (l *lab) add(t *testing.T, s *rig.Sandbox, conf object) *current.Result {
	t.Helper()
	out := l.run(t, "ADD", s, conf)
	r := new(current.Result)
	if err := json.Unmarshal(out, r); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if len(r.IPs) != 1 {
		t.Fatalf("want one address: %s", out)
	}
	return r
}

// oneAddress is a pool in which an address is given again, or none is.
func oneAddress() rig.ServerConfig {
	c := rig.Pool(0, 0)
	c.Last = c.First
	return c
}

// upToCheck is ADD and CHECK of a plugin that asks dhcp for an address. It returns that.
func upToCheck(t *testing.T, l *lab, s *rig.Sandbox, conf object) netip.Addr {
	t.Helper()
	mark := l.Capture.Len()
	r := l.add(t, s, conf)
	addr := addrOf(r.IPs[0].Address.IP)
	f, _ := l.Capture.AwaitType(t, mark, rig.Patience, dhcpv4.MessageTypeRequest, nil)
	if mac := s.HardwareAddr(t, "net1"); f.Msg.ClientHWAddr.String() != mac.String() || f.EthSrc.String() != mac.String() {
		t.Errorf("asked by %v from %v, net1 has %v", f.Msg.ClientHWAddr, f.EthSrc, mac)
	}
	awaitAdoption(t, s, addr)
	check := l.conf(conf)
	check["prevResult"] = r
	mark = l.Capture.Len()
	l.run(t, "CHECK", s, check)
	if n := l.Capture.Count(mark, rig.Frame.FromClient); n != 0 {
		t.Errorf("CHECK sent %d messages", n)
	}
	return addr
}

// lifecycle is ADD, CHECK, DEL of a plugin that leaves its interface there until dhcp
// had its DEL; another sandbox, which change may prepare, gets the same address then.
func lifecycle(t *testing.T, l *lab, conf object, change func()) {
	server := rig.RunDnsmasq(t, l.Server, oneAddress())
	s := rig.NewSandbox(t)
	addr := upToCheck(t, l, s, conf)
	mac := s.HardwareAddr(t, "net1")
	server.AwaitHeld(t, "the pod's lease", rig.Holds(mac, addr))

	mark, logged := l.Capture.Len(), server.Lines.Len()
	l.run(t, "DEL", s, conf)
	f, _ := l.Capture.AwaitType(t, mark, rig.Patience, dhcpv4.MessageTypeRelease, mac)
	if f.Src.Addr() != addr || f.Dst.Addr() != rig.ServerAddr.Addr() || addrOf(f.Msg.ClientIPAddr) != addr {
		t.Errorf("RELEASE %v, want one of %v from there to %v", f, addr, rig.ServerAddr.Addr())
	}
	if f.EthDst.String() == "ff:ff:ff:ff:ff:ff" {
		t.Error("RELEASE is a broadcast")
	}
	server.Await(t, logged, rig.Patience, "DHCPRELEASE", mac.String())
	server.AwaitHeld(t, "no lease", rig.Nothing)

	change()
	next := rig.NewSandbox(t)
	if again := upToCheck(t, l, next, conf); again != addr {
		t.Errorf("the next sandbox has %v, not %v", again, addr)
	}
	if next.HardwareAddr(t, "net1").String() == mac.String() {
		t.Errorf("the next sandbox is the same client: %v", mac)
	}
	l.run(t, "DEL", next, conf)
	server.AwaitHeld(t, "no lease", rig.Nothing)
	l.engine.AwaitNoRecords(t)
}

func addrOf(ip net.IP) netip.Addr {
	a, _ := netip.AddrFromSlice(ip)
	return a.Unmap()
}

// awaitAdoption waits until the address ends by itself, as its lease does, and the
// default route is there once and goes with it.
func awaitAdoption(t *testing.T, s *rig.Sandbox, addr netip.Addr) {
	t.Helper()
	awaitAdoptionWith(t, s, addr, "default")
}

// awaitAdoptionWith waits for another route than the default one.
func awaitAdoptionWith(t *testing.T, s *rig.Sandbox, addr netip.Addr, dst string) {
	t.Helper()
	ns, err := netns.GetFromPath(s.Path)
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	addrs, routes, done := make(chan netlink.AddrUpdate, 64), make(chan netlink.RouteUpdate, 64), make(chan struct{})
	defer close(done)
	if err := netlink.AddrSubscribeAt(ns, addrs, done); err != nil {
		t.Fatal(err)
	}
	if err := netlink.RouteSubscribeAt(ns, routes, done); err != nil {
		t.Fatal(err)
	}
	for deadline := time.After(rig.Patience); ; {
		have, table := s.Addresses(t, "net1"), s.Routes(t, "net1")
		there := slices.DeleteFunc(slices.Clone(table), func(r rig.Route) bool { return r.Dst != dst })
		if len(have) == 1 && have[0].Addr.Addr() == addr && have[0].Valid <= 120 &&
			len(there) == 1 && there[0].Source == addr.String() {
			return
		}
		select {
		case <-addrs:
		case <-routes:
		case <-deadline:
			t.Fatalf("not adopted: %v, %+v", have, table)
		}
	}
}

func TestO02O05K53K55K64K92Macvlan(t *testing.T) {
	onBoth(t, func(t *testing.T, l *lab) {
		lifecycle(t, l, l.macvlan(), func() {})
	})
}

// The one device has one MAC: another one makes it another client.
func TestO02O05K53K55K64K92HostDevice(t *testing.T) {
	onBoth(t, func(t *testing.T, l *lab) {
		lifecycle(t, l, l.conf(object{"type": "host-device", "device": rig.Uplink}), func() {
			l.Node.IP(t, "link", "set", rig.Uplink, "address", "02:00:00:00:00:77")
		})
	})
}

func (l *lab) macvlan() object {
	return l.conf(object{"type": "macvlan", "master": rig.Uplink, "mode": "bridge"})
}

// bridge is a network of the bridge plugin, whose bridge is on the site's LAN.
func (l *lab) bridge(t *testing.T) object {
	t.Helper()
	l.Node.IP(t, "link", "add", "br-site", "type", "bridge")
	l.Node.IP(t, "link", "set", rig.Uplink, "master", "br-site")
	l.Node.IP(t, "link", "set", "br-site", "up")
	return l.conf(object{"type": "bridge", "bridge": "br-site"})
}

// bridge takes its interface away before dhcp has its DEL. With no other pod on the
// network nobody can tell the server: the lease stays there until its end.
func TestO02O05K53K55Bridge(t *testing.T) {
	onBoth(t, func(t *testing.T, l *lab) {
		server := rig.RunDnsmasq(t, l.Server, rig.Pool(0, 0))
		conf, s := l.bridge(t), rig.NewSandbox(t)
		addr := upToCheck(t, l, s, conf)
		mac := s.HardwareAddr(t, "net1")
		l.run(t, "DEL", s, conf)
		l.engine.AwaitNoRecords(t)
		if held := server.Held(t); !rig.Holds(mac, addr)(held) {
			t.Errorf("the server holds %v", held)
		}
	})
}

// Over the interface of another pod it can be told, from the address that was leased.
func TestB32ReleaseAfterBridgeGoesOverAnotherPod(t *testing.T) {
	onBoth(t, func(t *testing.T, l *lab) {
		server := rig.RunDnsmasq(t, l.Server, rig.Pool(0, 0))
		conf, s, other := l.bridge(t), rig.NewSandbox(t), rig.NewSandbox(t)
		addr, stays := upToCheck(t, l, s, conf), upToCheck(t, l, other, conf)
		mac := s.HardwareAddr(t, "net1")
		mark := l.Capture.Len()
		l.run(t, "DEL", s, conf)
		f, _ := l.Capture.AwaitType(t, mark, rig.Patience, dhcpv4.MessageTypeRelease, mac)
		if f.Src.Addr() != addr || addrOf(f.Msg.ClientIPAddr) != addr {
			t.Errorf("RELEASE %v, want one of %v from there", f, addr)
		}
		server.AwaitHeld(t, "the other pod's lease", rig.Holds(other.HardwareAddr(t, "net1"), stays))
	})
}

// TestK93LeaseSurvivesTheEngine: the reference forgets every lease when it ends.
func TestK93LeaseSurvivesTheEngine(t *testing.T) {
	onBoth(t, func(t *testing.T, l *lab) {
		server := rig.RunDnsmasq(t, l.Server, rig.Pool(0, 0))
		s, conf := rig.NewSandbox(t), l.macvlan()
		r := l.add(t, s, conf)
		awaitAdoption(t, s, addrOf(r.IPs[0].Address.IP))
		mark := l.Capture.Len()
		l.engine.Restart(t, l.engine.Kill) // the stale socket is taken over
		check := l.conf(conf)
		check["prevResult"] = r
		l.run(t, "CHECK", s, check)
		if n := l.Capture.Count(mark, rig.Type(dhcpv4.MessageTypeDiscover, nil)); n != 0 {
			t.Errorf("CHECK after the restart sent %d DHCPDISCOVER", n)
		}
		l.run(t, "DEL", s, conf)
		server.AwaitHeld(t, "no lease", rig.Nothing)
	})
}

// TestK94K95ReservationOverRestarts: a pod that keeps its MAC keeps its reserved
// address, when engine and sandbox ended without a word, and is registered again.
func TestK94K95ReservationOverRestarts(t *testing.T) {
	onBoth(t, func(t *testing.T, l *lab) {
		const mac, reserved = "02:00:00:00:00:95", "10.77.0.55"
		pool := rig.Pool(0, 0)
		pool.Dnsmasq = []string{"--dhcp-host=" + mac + "," + reserved}
		server := rig.RunDnsmasq(t, l.Server, pool)
		conf := l.macvlan()
		conf["mac"] = mac
		old := rig.NewSandbox(t)
		upToCheck(t, l, old, conf)
		l.engine.Kill(t)
		old.Delete(t)
		l.engine.Start(t)

		s := rig.NewSandbox(t)
		mark := server.Lines.Len()
		if got := upToCheck(t, l, s, conf); got.String() != reserved {
			t.Errorf("the new sandbox has %v, reserved is %s", got, reserved)
		}
		server.Await(t, mark, rig.Patience, "DHCPACK", mac)
		server.AwaitHeld(t, "the reserved lease", rig.Holds(s.HardwareAddr(t, "net1"), netip.MustParseAddr(reserved)))
		l.run(t, "DEL", old, conf) // late, and without its namespace
		if held := server.Held(t); len(held) != 1 {
			t.Errorf("after the late DEL of the old sandbox the server holds %v", held)
		}
		l.run(t, "DEL", s, conf)
		server.AwaitHeld(t, "no lease", rig.Nothing)
	})
}
