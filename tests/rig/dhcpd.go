package rig

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// Dhcpd is a running ISC dhcpd.
type Dhcpd struct {
	*Process
	leaseFile
	cfg ServerConfig
}

var _ Server = (*Dhcpd)(nil)

// StartDhcpd is a StartFunc.
func StartDhcpd(t testing.TB, n *Netns, cfg ServerConfig) Server {
	t.Helper()
	return RunDhcpd(t, n, cfg)
}

// RunDhcpd is StartDhcpd with further statements and declarations in the global
// scope of its configuration.
func RunDhcpd(t testing.TB, n *Netns, cfg ServerConfig, more ...string) *Dhcpd {
	t.Helper()
	file := newLeaseFile(t, cfg.LeaseFile, "dhcpd.leases", parseDhcpdLeases)
	cfg.LeaseFile = file.path
	folder := t.TempDir()
	conf := filepath.Join(folder, "dhcpd.conf")
	if err := os.WriteFile(conf, []byte(dhcpdConfig(cfg, more)), 0o644); err != nil {
		t.Fatal(err)
	}
	// It makes no lease file of its own.
	f, err := os.OpenFile(file.path, os.O_CREATE, 0o644)
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
	cmd := exec.Command(unconfined(t, folder, "dhcpd"), "-4", "-d", "-f", "--no-pid", "-cf", conf, "-lf", file.path, cfg.Interface)
	d := &Dhcpd{leaseFile: file, cfg: cfg}
	d.Process = n.Start(t, "dhcpd in "+n.Name, cmd)
	d.Lines.Await(t, "readiness of dhcpd", 0, Patience, func(line string) bool {
		return strings.Contains(line, "Server starting service")
	})
	return d
}

// Config is what it was started with.
func (d *Dhcpd) Config() ServerConfig { return d.cfg }

// unconfined copies a program into folder: Debian's AppArmor profile holds the
// installed dhcpd to the files of a system service, and goes by its path.
func unconfined(t testing.TB, folder, program string) string {
	t.Helper()
	path, err := exec.LookPath(program)
	if err != nil {
		t.Fatalf("%v; `make deps` installs it", err)
	}
	own := filepath.Join(folder, program)
	// A copy that this process wrote might be open for writing in a child that is
	// being forked just then, and could not be executed.
	run(t, "cp", path, own)
	return own
}

func dhcpdConfig(cfg ServerConfig, more []string) string {
	seconds := int64(Forever)
	if cfg.Lifetime > 0 {
		seconds = int64(cfg.Lifetime.Seconds())
	}
	lines := []string{
		"authoritative;",
		"ping-check false;", // it would wait for an ICMP echo for a second
		"ddns-update-style none;",
		fmt.Sprintf("default-lease-time %d;", seconds),
		fmt.Sprintf("max-lease-time %d;", seconds),
	}
	if cfg.T1 > 0 {
		lines = append(lines,
			fmt.Sprintf("option dhcp-renewal-time %d;", int(cfg.T1.Seconds())),
			fmt.Sprintf("option dhcp-rebinding-time %d;", int(cfg.T2.Seconds())))
	}
	lines = append(lines, more...)
	lines = append(lines, fmt.Sprintf("subnet %s netmask %s { range %s %s; option routers %s; }",
		cfg.Subnet.Masked().Addr(), net.IP(net.CIDRMask(cfg.Subnet.Bits(), 32)), cfg.First, cfg.Last, cfg.Subnet.Addr()))
	return strings.Join(lines, "\n") + "\n"
}

var (
	dhcpdLease = regexp.MustCompile(`(?ms)^lease ([0-9.]+) \{\n(.*?)^\}`)
	dhcpdField = regexp.MustCompile(`(?m)^ +(binding state|hardware ethernet|uid|client-hostname) "?(.*?)"?;$`)
)

// parseDhcpdLeases reads a lease file: a journal in which a later block of an
// address replaces an earlier one.
func parseDhcpdLeases(text string) []Held {
	rows := map[netip.Addr]Held{}
	for _, m := range dhcpdLease.FindAllStringSubmatch(text, -1) {
		addr, err := netip.ParseAddr(m[1])
		if err != nil {
			continue
		}
		fields := map[string]string{}
		for _, f := range dhcpdField.FindAllStringSubmatch(m[2], -1) {
			fields[f[1]] = f[2]
		}
		if fields["binding state"] != "active" {
			delete(rows, addr)
			continue
		}
		rows[addr] = Held{
			Addr: addr, MAC: fields["hardware ethernet"],
			Hostname: fields["client-hostname"], ClientID: dhcpdBytes(fields["uid"]),
		}
	}
	held := make([]Held, 0, len(rows))
	for _, h := range rows {
		held = append(held, h)
	}
	return sortHeld(held)
}

// dhcpdBytes turns a string of dhcpd, in which a byte may be written as a
// backslash and three octal digits, into colon-separated bytes.
func dhcpdBytes(s string) string {
	var parts []string
	for i := 0; i < len(s); i++ {
		c := uint64(s[i])
		switch {
		case s[i] != '\\' || i+1 == len(s):
		case i+3 < len(s) && '0' <= s[i+1] && s[i+1] <= '3':
			if octal, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				c, i = octal, i+3
			}
		default:
			i++
			c = uint64(s[i])
		}
		parts = append(parts, fmt.Sprintf("%02x", c))
	}
	return strings.Join(parts, ":")
}
