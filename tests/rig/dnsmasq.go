package rig

import (
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"
)

// Dnsmasq is a running dnsmasq.
type Dnsmasq struct {
	*Process
	leaseFile
	cfg ServerConfig
}

var _ Server = (*Dnsmasq)(nil)

// StartDnsmasq is a StartFunc.
func StartDnsmasq(t testing.TB, n *Netns, cfg ServerConfig) Server {
	t.Helper()
	return RunDnsmasq(t, n, cfg)
}

// RunDnsmasq is StartDnsmasq for a test that needs dnsmasq's log too.
func RunDnsmasq(t testing.TB, n *Netns, cfg ServerConfig) *Dnsmasq {
	t.Helper()
	file := newLeaseFile(t, cfg.LeaseFile, "dnsmasq.leases", parseDnsmasqLeases)
	cfg.LeaseFile = file.path
	lifetime := "infinite"
	if cfg.Lifetime > 0 {
		lifetime = fmt.Sprintf("%d", int(cfg.Lifetime.Seconds()))
	}
	mask := net.IP(net.CIDRMask(cfg.Subnet.Bits(), 32)).String()
	args := []string{
		"--keep-in-foreground", "--user=root", "--conf-file=/dev/null", "--pid-file=", "--port=0",
		"--log-facility=-", "--log-dhcp",
		"--interface=" + cfg.Interface, "--except-interface=lo", "--bind-interfaces",
		"--dhcp-authoritative",
		"--dhcp-lease-max=5000",
		"--dhcp-leasefile=" + file.path,
		fmt.Sprintf("--dhcp-range=%s,%s,%s,%s", cfg.First, cfg.Last, mask, lifetime),
	}
	if !cfg.PingCheck {
		args = append(args, "--no-ping")
	}
	if cfg.T1 > 0 {
		args = append(args,
			fmt.Sprintf("--dhcp-option=option:T1,%d", int(cfg.T1.Seconds())),
			fmt.Sprintf("--dhcp-option=option:T2,%d", int(cfg.T2.Seconds())))
	}
	args = append(args, cfg.Dnsmasq...)
	d := &Dnsmasq{leaseFile: file, cfg: cfg}
	d.Process = n.Start(t, "dnsmasq in "+n.Name, exec.Command("dnsmasq", args...))
	d.Lines.Await(t, "readiness of dnsmasq", 0, Patience, func(line string) bool {
		return strings.Contains(line, "sockets bound exclusively to interface")
	})
	return d
}

// Config is what it was started with.
func (d *Dnsmasq) Config() ServerConfig { return d.cfg }

// DHCPEvent is a DHCP message in dnsmasq's log.
type DHCPEvent struct {
	// Kind is the message: "DHCPDISCOVER", "DHCPACK".
	Kind string
	// MAC is the client's; Addr is the address that the line names, if any.
	MAC  string
	Addr netip.Addr
	// Note is the rest of the line: a host name, or why it was refused.
	Note string
}

func (e DHCPEvent) String() string {
	return fmt.Sprintf("%s %v %s %s", e.Kind, e.Addr, e.MAC, e.Note)
}

var eventLine = regexp.MustCompile(`(DHCP[A-Z]+)\([^)]+\) (?:([0-9.]+) )?((?:[0-9a-f]{2}:){5}[0-9a-f]{2}) ?(.*)$`)

// ParseDHCPEvent reads a line of dnsmasq's log; false when it is about something
// else.
func ParseDHCPEvent(line string) (DHCPEvent, bool) {
	m := eventLine.FindStringSubmatch(line)
	if m == nil {
		return DHCPEvent{}, false
	}
	e := DHCPEvent{Kind: m[1], MAC: m[3], Note: m[4]}
	if m[2] != "" {
		addr, err := netip.ParseAddr(m[2])
		if err != nil {
			return DHCPEvent{}, false
		}
		e.Addr = addr
	}
	return e, true
}

// Events returns the DHCP messages logged since mark, a length of Lines.
func (d *Dnsmasq) Events(mark int) []DHCPEvent {
	var events []DHCPEvent
	for _, line := range d.Lines.Since(mark) {
		if e, ok := ParseDHCPEvent(line); ok {
			events = append(events, e)
		}
	}
	return events
}

// Await waits for a message of a client in the log since mark; an empty mac
// stands for any client.
func (d *Dnsmasq) Await(t testing.TB, mark int, wait time.Duration, kind, mac string) (DHCPEvent, int) {
	t.Helper()
	line, next := d.Lines.Await(t, kind+" of "+mac+" in dnsmasq's log", mark, wait, func(line string) bool {
		e, ok := ParseDHCPEvent(line)
		return ok && e.Kind == kind && (mac == "" || e.MAC == mac)
	})
	e, _ := ParseDHCPEvent(line)
	return e, next
}

// parseDnsmasqLeases reads lines of "expiry mac address hostname client-id".
func parseDnsmasqLeases(text string) []Held {
	var held []Held
	for _, line := range strings.Split(text, "\n") {
		f := strings.Fields(line)
		if len(f) < 5 {
			continue
		}
		addr, err := netip.ParseAddr(f[2])
		if err != nil {
			continue
		}
		held = append(held, Held{MAC: f[1], Addr: addr, Hostname: strings.Trim(f[3], "*"), ClientID: f[4]})
	}
	return sortHeld(held)
}
