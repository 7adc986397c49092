package dropin

import (
	"encoding/json"
	"net/rpc"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"

	"github.com/containernetworking/cni/pkg/skel"
	current "github.com/containernetworking/cni/pkg/types/100"

	"github.com/dhcp-meta/dhcp-meta/tests/rig"
)

// caller calls the engine as the reference's plugin does, and can go away.
type caller struct {
	*rpc.Client
	args skel.CmdArgs
}

// newCaller is for net1 of a sandbox, which it makes where there is none.
func (l *lab) newCaller(t *testing.T, s *rig.Sandbox, ipam object) *caller {
	t.Helper()
	if _, err := s.TryIP("link", "show", "net1"); err != nil {
		l.Node.IP(t, "link", "add", "net1", "netns", s.Name, "link", rig.Uplink, "type", "macvlan", "mode", "bridge")
		s.IP(t, "link", "set", "net1", "up")
	}
	stdin, err := json.Marshal(object{"cniVersion": "1.0.0", "name": "office-lan", "type": "macvlan", "ipam": ipam})
	if err != nil {
		t.Fatal(err)
	}
	c, err := rpc.DialHTTP("unix", l.socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return &caller{c, skel.CmdArgs{ContainerID: s.ID, Netns: s.Path, IfName: "net1", StdinData: stdin}}
}

func (c *caller) allocate() *rpc.Call {
	return c.Go("DHCP.Allocate", &c.args, &current.Result{}, make(chan *rpc.Call, 1))
}

func (c *caller) release(t *testing.T) {
	t.Helper()
	if err := c.Call("DHCP.Release", &c.args, &struct{}{}); err != nil {
		t.Errorf("DEL: %v", err)
	}
}

// await waits for the end of a call.
func await(t *testing.T, call *rpc.Call) error {
	t.Helper()
	select {
	case <-call.Done:
		return call.Error
	case <-time.After(rig.Patience):
		t.Fatalf("%s does not end", call.ServiceMethod)
		return nil
	}
}

// duringADD runs what ends an ADD while it waits for a server, and while the address
// that it was given is probed.
func duringADD(t *testing.T, end func(t *testing.T, l *lab, s *rig.Sandbox, adder *caller, add *rpc.Call)) {
	t.Parallel()
	for name, answers := range map[string]bool{"no server answers": false, "the address is probed": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rig.Need(t)
			l := newLab(t, filepath.Join(rig.Plugins(), "dhcp"))
			s := rig.NewSandbox(t)
			adder := l.newCaller(t, s, object{"type": "dhcp", "dhcp": object{"conflictDetection": "full"}})
			mac := s.HardwareAddr(t, "net1")
			var server *rig.Dnsmasq
			last := dhcpv4.MessageTypeDiscover
			if answers {
				server, last = rig.RunDnsmasq(t, l.Server, rig.Pool(0, 0)), dhcpv4.MessageTypeAck
			}
			add := adder.allocate()
			l.Capture.AwaitType(t, 0, rig.Patience, last, mac)
			end(t, l, s, adder, add)
			l.engine.AwaitNoRecords(t)
			if answers {
				l.Capture.AwaitType(t, 0, rig.Patience, dhcpv4.MessageTypeRelease, mac)
				server.AwaitHeld(t, "no lease", rig.Nothing)
			} else {
				rig.RunDnsmasq(t, l.Server, rig.Pool(0, 0))
			}
			// Nothing of it is in the way of the next ADD.
			again := l.newCaller(t, s, object{"type": "dhcp"}).allocate()
			if err := await(t, again); err != nil {
				t.Errorf("the next ADD: %v", err)
			}
			if r := again.Reply.(*current.Result); len(r.IPs) != 1 || !rig.ServerAddr.Contains(addrOf(r.IPs[0].Address.IP)) {
				t.Errorf("the next ADD: %v", r)
			}
		})
	}
}

// TestDelDuringAdd: a DEL ends the ADD that runs, at once, and leaves nothing on the
// server; the reference leaves the lease.
func TestDelDuringAdd(t *testing.T) {
	duringADD(t, func(t *testing.T, l *lab, s *rig.Sandbox, _ *caller, add *rpc.Call) {
		l.newCaller(t, s, object{"type": "dhcp"}).release(t)
		if err := await(t, add); err == nil {
			t.Error("the ADD that was ended by its DEL succeeded")
		}
	})
}

// TestCallerThatGoesAway: a plugin that its runtime kills at the end of its patience
// ends its ADD; the reference goes on, and nobody ever sends the DEL.
func TestCallerThatGoesAway(t *testing.T) {
	duringADD(t, func(t *testing.T, _ *lab, _ *rig.Sandbox, adder *caller, _ *rpc.Call) {
		if err := adder.Close(); err != nil {
			t.Fatal(err)
		}
	})
}

// TestCheckWithoutALink: the reference's plugin asks at CHECK as at ADD, and hangs
// when the interface has gone. Here that is an error, and DEL ends the lease.
func TestCheckWithoutALink(t *testing.T) {
	t.Parallel()
	l := newLab(t, rig.Program("dhcp-meta"))
	rig.RunDnsmasq(t, l.Server, rig.Pool(0, 0))
	s := rig.NewSandbox(t)
	c := l.newCaller(t, s, object{"type": "dhcp"})
	if err := await(t, c.allocate()); err != nil {
		t.Fatal(err)
	}
	s.IP(t, "link", "delete", "net1")
	if err := await(t, c.allocate()); err == nil {
		t.Error("CHECK of the reference's plugin succeeded without an interface")
	}
	conf := l.conf(object{"type": "dhcp"})
	l.run(t, "DEL", s, conf)
	l.engine.AwaitNoRecords(t)
}

// TestRequiredOption: an option that the server does not give is told of in the log,
// and is an error where the network says so: no address is taken from the server.
func TestRequiredOption(t *testing.T) {
	t.Parallel()
	l := newLab(t, rig.Program("dhcp-meta"))
	server := rig.RunDnsmasq(t, l.Server, rig.Pool(0, 0))
	s := rig.NewSandbox(t)
	asks := func(required bool) object {
		ipam := object{"type": "dhcp", "request": []object{{"option": "66", "required": required}}}
		return object{"type": "dhcp", "ipam": ipam}
	}
	conf := l.conf(asks(true))
	conf["ipam"].(object)["daemonSocketPath"] = l.socket
	conf["dhcp"] = object{"timeout": "3s"}
	l.newCaller(t, s, conf["ipam"].(object)) // makes the interface
	if out, err := l.try(t, "ADD", s, conf); err == nil || !strings.Contains(string(out), "lacks option 66") {
		t.Errorf("ADD that requires what the server lacks: %v: %s", err, out)
	}
	server.AwaitHeld(t, "no lease", rig.Nothing)
	if n := l.Capture.Count(0, rig.Type(dhcpv4.MessageTypeRequest, nil)); n != 0 {
		t.Errorf("%d DHCPREQUEST sent to a server that lacks it", n)
	}

	conf = l.conf(asks(false))
	conf["ipam"].(object)["daemonSocketPath"] = l.socket
	l.run(t, "ADD", s, conf)
	l.engine.Lines.Await(t, "line on option 66", 0, rig.Patience, func(line string) bool {
		return strings.Contains(line, "part of the lease is left out") && strings.Contains(line, "option 66 was asked for")
	})
	l.run(t, "DEL", s, conf)
}
