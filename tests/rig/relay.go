package rig

import (
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// The network of a DHCP server that is not on the LAN.
var (
	// FarAddr is the address of that server, which clients reach by unicast over
	// the LAN's router, ServerAddr.
	FarAddr = netip.MustParsePrefix("10.99.0.2/24")
	// farRouter is the router's address on that side.
	farRouter = netip.MustParsePrefix("10.99.0.1/24")
)

// farIface is the router's interface towards the far server.
const farIface = "far0"

// Far is a network behind the LAN's router. What was the server's namespace is
// the router now, with no DHCP server but maybe a relay:
//
//	far 10.99.0.2 v0 ===== far0 10.99.0.1, router, 10.77.0.1 v0 ===== node
type Far struct {
	*Netns
	// Capture is at the far server's end of the wire.
	Capture *Capture
}

// NewFar adds a far network to a LAN, reached by forwarding; broadcasts need a
// relay.
func NewFar(t testing.TB, l *LAN) *Far {
	t.Helper()
	far := &Far{Netns: NewNetns(t, "far")}
	Veth(t, far.Netns, ServerIface, l.Server, farIface)
	l.Server.IP(t, "addr", "add", farRouter.String(), "dev", farIface)
	far.IP(t, "addr", "add", FarAddr.String(), "dev", ServerIface)
	far.IP(t, "route", "add", "default", "via", farRouter.Addr().String())
	l.Server.Sysctl(t, "net/ipv4/ip_forward", "1")
	far.Capture = StartCapture(t, far.Netns, ServerIface)
	return far
}

// Sysctl sets a value below /proc/sys in the namespace.
func (n *Netns) Sysctl(t testing.TB, key, value string) {
	t.Helper()
	err := n.Do(func() error { return os.WriteFile("/proc/sys/"+key, []byte(value), 0) })
	if err != nil {
		t.Fatalf("sysctl %s in %s: %v", key, n.Name, err)
	}
}

// Nft adds rules to a chain of the namespace that sees what it forwards and what
// comes in for itself: "udp dport 67 drop".
func (n *Netns) Nft(t testing.TB, rules ...string) {
	t.Helper()
	body := strings.Join(rules, "\n")
	text := "table ip rig {\n" +
		"chain forward { type filter hook forward priority 0;\n" + body + "\n}\n" +
		"chain input { type filter hook input priority 0;\n" + body + "\n}\n}\n"
	cmd := exec.Command("nft", "-f", "-")
	cmd.Stdin = strings.NewReader(text)
	var out []byte
	err := n.Do(func() (err error) { out, err = cmd.CombinedOutput(); return err })
	if err != nil {
		t.Fatalf("nft in %s: %v\n%s\n%s", n.Name, err, out, text)
	}
}

// NftClear takes all rules of Nft away again.
func (n *Netns) NftClear(t testing.TB) {
	t.Helper()
	run(t, "ip", "netns", "exec", n.Name, "nft", "delete", "table", "ip", "rig")
}

// A RelayFunc starts a relay agent between the LAN and a far server; it returns
// when it works.
type RelayFunc func(t testing.TB, l *LAN, server netip.Addr) *Process

// StartDhcrelay runs ISC dhcrelay. It listens below the IP layer, so it relays
// what clients send by unicast to a server behind it, too.
func StartDhcrelay(t testing.TB, l *LAN, server netip.Addr) *Process {
	t.Helper()
	if _, err := exec.LookPath("dhcrelay"); err != nil {
		t.Fatalf("%v; `make deps` installs it", err)
	}
	p := l.Server.Start(t, "dhcrelay in "+l.Server.Name, exec.Command("dhcrelay",
		"-4", "-d", "--no-pid", "-id", ServerIface, "-iu", farIface, server.String()))
	p.Lines.Await(t, "readiness of dhcrelay", 0, Patience, func(line string) bool {
		return strings.Contains(line, "Socket/fallback")
	})
	return p
}

// StartDnsmasqRelay runs dnsmasq as a relay. It relays what is sent to itself
// alone, as a router does.
func StartDnsmasqRelay(t testing.TB, l *LAN, server netip.Addr) *Process {
	t.Helper()
	p := l.Server.Start(t, "dnsmasq relay in "+l.Server.Name, exec.Command("dnsmasq",
		"--keep-in-foreground", "--user=root", "--conf-file=/dev/null", "--pid-file=", "--port=0",
		"--log-facility=-", "--log-dhcp", "--except-interface=lo",
		"--dhcp-relay="+ServerAddr.Addr().String()+","+server.String()))
	p.Lines.Await(t, "readiness of the relay", 0, Patience, func(line string) bool {
		return strings.Contains(line, "DHCP relay from")
	})
	return p
}
