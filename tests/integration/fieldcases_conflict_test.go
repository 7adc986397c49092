package integration

import (
	"strings"
	"testing"

	"github.com/insomniacslk/dhcp/dhcpv4"

	"github.com/dhcp-meta/dhcp-meta/tests/rig"
)

// A host has an address of the pool without the server's knowledge. The server
// hears the DECLINE and takes the address out of use; the client gets the next one,
// and whoever reads the log learns who has the first.
func TestU18ConflictAtTheServer(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		start    rig.StartFunc
		declined string // in the server's log
	}{
		"dnsmasq": {rig.StartDnsmasq, "DHCPDECLINE(v0) 10.77.0.55"},
		"Kea":     {rig.StartKea, "DHCP4_DECLINE_LEASE Received DHCPDECLINE for addr 10.77.0.55"},
		"dhcpd":   {rig.StartDhcpd, "DHCPDECLINE of 10.77.0.55"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLab(t)
			cfg := rig.Pool(0, 0)
			cfg.First = cfg.First.Next().Next().Next().Next().Next()
			cfg.Last = cfg.First
			server := tt.start(t, l.Server, cfg)
			owner := l.neighbour(t, "10.77.0.55/24").HardwareAddr(t, rig.ServerIface).String()

			pod := newSandbox(t)
			add := l.background("ADD", pod.Call("net1", l.Macvlan(object{"timeout": "100s"})))
			_, mark := l.Capture.AwaitType(t, 0, rig.Patience, dhcpv4.MessageTypeDecline, nil)
			lines(server).Await(t, "the DECLINE in the server's log", 0, rig.Patience, contains(tt.declined))
			l.Engine.Lines.Await(t, "word of the conflict", 0, rig.Patience, func(line string) bool {
				return contains("in use by another host")(line) && contains("owner="+owner)(line)
			})
			// A client that has declined waits for ten seconds (RFC 2131, 3.1); by then the
			// server has another address too.
			server.Stop(t)
			cfg = server.Config()
			cfg.Last = cfg.First.Next()
			server = tt.start(t, l.Server, cfg)
			addr := leased(t, add.succeeds(t)).Addr()
			if addr != cfg.Last {
				t.Errorf("got %v, want %v", addr, cfg.Last)
			}
			server.AwaitHeld(t, "the second address", holdsToo(pod.HardwareAddr(t, "net1"), addr))
			decline := l.Capture.Since(mark - 1)[0]
			next, _ := l.Capture.AwaitType(t, mark, rig.Patience, dhcpv4.MessageTypeDiscover, nil)
			if wait := next.At.Sub(decline.At); wait < seconds(9) {
				t.Errorf("asked again %v after the DECLINE, want 10 s (RFC 2131, 3.1)", wait)
			}
		})
	}
}

// lines is what a server has logged.
func lines(s rig.Server) *rig.Stream[string] {
	switch s := s.(type) {
	case *rig.Dnsmasq:
		return &s.Lines
	case *rig.Kea:
		return &s.Lines
	}
	return &s.(*rig.Dhcpd).Lines
}

// Without conflict detection an address is used as the server gave it.
func TestU18ConflictDetectionOff(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	cfg := rig.Pool(0, 0)
	cfg.Last = cfg.First
	server := rig.StartDnsmasq(t, l.Server, cfg)
	l.neighbour(t, cfg.First.String()+"/24")
	pod := newSandbox(t)
	addr := leased(t, pod.mustAdd(t, l, pod.Call("net1", l.Macvlan(object{"conflictDetection": "off"})))).Addr()
	server.AwaitHeld(t, "the lease", rig.Holds(pod.HardwareAddr(t, "net1"), addr))
	if n := l.Capture.Count(0, rig.Type(dhcpv4.MessageTypeDecline, nil)); n != 0 {
		t.Errorf("%d DECLINEs, want none", n)
	}
}

// The error of an ADD that got nothing but an address in use names who has it.
func TestU18ConflictInTheError(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	cfg := rig.Pool(0, 0)
	cfg.Last = cfg.First
	rig.StartDnsmasq(t, l.Server, cfg)
	squatter := l.neighbour(t, cfg.First.String()+"/24")
	pod := newSandbox(t)
	o := l.Node.Refuse(t, "ADD", pod.Call("net1", l.Macvlan(object{"timeout": "4s"})), 11, cfg.First.String())
	owner := squatter.HardwareAddr(t, rig.ServerIface).String()
	if !strings.Contains(o.Err.Msg+o.Err.Details, owner) {
		t.Errorf("the error does not name the owner %s: %v", owner, o.Err)
	}
	l.expectNothingLeft(t)
}
