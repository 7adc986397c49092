// Package dropin holds what plugins see that ask the IPAM plugin dhcp for an address,
// with our engine in the place of the reference's daemon: the reference's own plugin,
// and ours under its name.
package dropin

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"

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
}

// newLab takes the program that plugins find as dhcp.
func newLab(t *testing.T, dhcp string) *lab {
	t.Helper()
	rig.Need(t)
	l := &lab{LAN: rig.NewLAN(t)}
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
	cmd.Env = append(os.Environ(), "CNI_COMMAND="+verb, "CNI_CONTAINERID="+s.ID, "CNI_IFNAME=net1", "CNI_NETNS="+s.Path,
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

// lifecycle is ADD, CHECK, DEL of a plugin that asks dhcp for an address.
func lifecycle(t *testing.T, l *lab, s *rig.Sandbox, conf object) {
	server := rig.RunDnsmasq(t, l.Server, rig.Pool(0, 0))
	r := l.add(t, s, conf)
	awaitLifetime(t, s)
	awaitRoute(t, s, r)
	mac := s.HardwareAddr(t, "net1")

	check := l.conf(conf)
	check["prevResult"] = r
	mark := l.Capture.Len()
	l.run(t, "CHECK", s, check)
	if n := l.Capture.Count(mark, rig.Type(dhcpv4.MessageTypeDiscover, nil)); n != 0 {
		t.Errorf("CHECK sent %d DHCPDISCOVER", n)
	}

	l.run(t, "DEL", s, conf)
	if conf["type"] == "bridge" {
		// It takes the interface away first, so that nothing is left to send over.
		l.engine.AwaitNoRecords(t)
		return
	}
	f, _ := l.Capture.AwaitType(t, mark, rig.Patience, dhcpv4.MessageTypeRelease, mac)
	if !f.Msg.ClientIPAddr.Equal(r.IPs[0].Address.IP) {
		t.Errorf("released %v, leased %v", f.Msg.ClientIPAddr, r.IPs[0].Address)
	}
	server.AwaitHeld(t, "no lease", rig.Nothing)
}

// awaitLifetime waits until the address of net1 ends by itself, as its lease does.
func awaitLifetime(t *testing.T, s *rig.Sandbox) {
	t.Helper()
	deadline := time.After(rig.Patience)
	for {
		addrs := s.Addresses(t, "net1")
		if len(addrs) == 1 && addrs[0].Valid <= 120 {
			return
		}
		select {
		case <-deadline:
			t.Fatalf("address is not adopted: %s", fmt.Sprint(addrs))
		case <-time.After(20 * time.Millisecond): // the kernel tells of no change that nobody subscribed to
		}
	}
}

// awaitRoute waits until the default route is there once, and goes with the address.
func awaitRoute(t *testing.T, s *rig.Sandbox, r *current.Result) {
	t.Helper()
	deadline := time.After(rig.Patience)
	for {
		routes := s.Routes(t, "net1")
		defaults := slices.DeleteFunc(slices.Clone(routes), func(r rig.Route) bool { return r.Dst != "default" })
		if len(defaults) == 1 && defaults[0].Source == r.IPs[0].Address.IP.String() {
			return
		}
		select {
		case <-deadline:
			t.Fatalf("default route is not adopted: %+v", routes)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func TestO02O05K53K55K64K92Macvlan(t *testing.T) {
	onBoth(t, func(t *testing.T, l *lab) {
		lifecycle(t, l, rig.NewSandbox(t), l.conf(object{"type": "macvlan", "master": rig.Uplink, "mode": "bridge"}))
	})
}

func TestO02O05K53K55Bridge(t *testing.T) {
	onBoth(t, func(t *testing.T, l *lab) {
		l.Node.IP(t, "link", "add", "br-site", "type", "bridge")
		l.Node.IP(t, "link", "set", rig.Uplink, "master", "br-site")
		l.Node.IP(t, "link", "set", "br-site", "up")
		lifecycle(t, l, rig.NewSandbox(t), l.conf(object{"type": "bridge", "bridge": "br-site"}))
	})
}

func TestO02O05K53K55K64K92HostDevice(t *testing.T) {
	onBoth(t, func(t *testing.T, l *lab) {
		lifecycle(t, l, rig.NewSandbox(t), l.conf(object{"type": "host-device", "device": rig.Uplink}))
	})
}

// TestK93LeaseSurvivesTheEngine: the reference forgets every lease when it ends.
func TestK93LeaseSurvivesTheEngine(t *testing.T) {
	onBoth(t, func(t *testing.T, l *lab) {
		server := rig.RunDnsmasq(t, l.Server, rig.Pool(0, 0))
		s := rig.NewSandbox(t)
		conf := l.conf(object{"type": "macvlan", "master": rig.Uplink, "mode": "bridge"})
		r := l.add(t, s, conf)
		awaitLifetime(t, s)
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

// TestK77UnknownDel: a DEL of what was never served is quick, also without a namespace.
func TestK77UnknownDel(t *testing.T) {
	t.Parallel()
	l := newLab(t, filepath.Join(rig.Plugins(), "dhcp"))
	s := rig.NewSandbox(t)
	conf := object{"cniVersion": "1.0.0", "name": "office-lan", "type": "dhcp", "ipam": object{"type": "dhcp", "daemonSocketPath": l.socket}}
	l.run(t, "DEL", s, conf)
	// What ends the reference's daemon is an error here, and the next call is served.
	if out, err := l.try(t, "ADD", s, object{"cniVersion": "1.0.0", "name": "office-lan", "type": "dhcp"}); err == nil {
		t.Errorf("an ADD without ipam succeeded: %s", out)
	}
	l.run(t, "DEL", s, conf)
}
