package ovn

import (
	"fmt"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"

	"github.com/dhcp-meta/dhcp-meta/tests/rig"
	"github.com/dhcp-meta/dhcp-meta/tests/rig/ovn"
)

// call is the plugin behind OVN-Kubernetes's, which has plugged the pod.
func (s *site) call(t testing.TB, e *rig.Engine, pod *rig.Sandbox, settings object) rig.Call {
	t.Helper()
	dhcp := object{"socket": e.Socket, "stateDir": e.StateDir, "broadcast": true}
	for k, v := range settings {
		dhcp[k] = v
	}
	return pod.Call(ifName, object{
		"cniVersion": "1.1.0", "name": netName, "type": "dhcp-meta", "dhcp": dhcp,
		"prevResult": object{"cniVersion": "1.1.0", "interfaces": []object{
			{"name": ifName, "mac": pod.HardwareAddr(t, ifName).String(), "sandbox": pod.Path}}},
	})
}

func leased(t testing.TB, o rig.Outcome) netip.Addr {
	t.Helper()
	if len(o.Result.IPs) != 1 {
		t.Fatalf("the result has %d addresses", len(o.Result.IPs))
	}
	addr, ok := netip.AddrFromSlice(o.Result.IPs[0].Address.IP)
	if !ok {
		t.Fatalf("bad address in %+v", o.Result)
	}
	return addr.Unmap()
}

// A container on a localnet network has an address of the site's server; OVN itself
// answers nothing; port and binding stay up, and what OVN-Kubernetes's CNI server
// wrote of the interface stays.
func TestP17P20P28OnlyTheSiteAnswers(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	dnsmasq := rig.RunDnsmasq(t, s.lan.Server, rig.Pool(0, 0))
	e := rig.StartEngine(t, s.Node)
	w := s.writer(t)
	inside := rig.StartCapture(t, s.pod.Netns, ifName)
	ids := s.VSwitch(t, "get", "interface", s.host, "external_ids")
	for _, want := range []string{
		"iface-id=" + s.port.Name(), "iface-id-ver=" + s.port.UID, "sandbox=" + s.pod.ID, "attached_mac=" + s.port.MAC.String(), "ovn-installed=true",
	} {
		if !strings.Contains(strings.ReplaceAll(ids, `"`, ""), want) {
			t.Errorf("external_ids of the interface lack %s: %s", want, ids)
		}
	}
	up := func() {
		t.Helper()
		p, _ := s.LSP(t, s.port.Name())
		if sb := s.South(t, "--bare", "--columns=up", "find", "port_binding", "logical_port="+s.port.Name()); !p.Up || sb != "true" {
			t.Errorf("port is up %v, binding is up %s", p.Up, sb)
		}
	}
	up()
	c := s.call(t, e, s.pod, nil)
	addr := leased(t, s.Node.Add(t, c))
	must(t, "publish", w.Publish(patient(t), s.lease(addr.String())))
	s.Sync(t)
	up()
	s.reaches(t, addr.String())
	dnsmasq.Await(t, 0, rig.Patience, "DHCPACK", s.port.MAC.String())
	for _, f := range inside.Since(0) {
		if server := f.Msg.ServerIdentifier(); !f.FromClient() && (server == nil || server.String() != rig.ServerAddr.Addr().String()) {
			t.Errorf("somebody else answers: %v", f)
		}
	}
	if out := s.NB(t, "--bare", "--columns=_uuid", "list", "dhcp_options"); out != "" {
		t.Errorf("OVN has DHCP options: %s", out)
	}
	s.Node.Del(t, c)
	dnsmasq.Await(t, 0, rig.Patience, "DHCPRELEASE", s.port.MAC.String())
	dnsmasq.AwaitHeld(t, "nothing held", rig.Nothing)
	must(t, "withdraw", w.Withdraw(patient(t), s.attachment()))
	up()
	if now := s.VSwitch(t, "get", "interface", s.host, "external_ids"); now != ids {
		t.Errorf("external_ids of the interface were %s, are %s", ids, now)
	}
}

// The flows are there when OVN-Kubernetes's plugin returns, which is when the port
// says ovn-installed, so the first DISCOVER of a pod is never lost.
func TestP19FirstDiscoverArrives(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	rig.RunDnsmasq(t, s.lan.Server, rig.Pool(0, 0))
	e := rig.StartEngine(t, s.Node)
	for range 6 {
		pod, p, _ := s.addPod(t)
		s.Node.Add(t, s.call(t, e, pod, nil))
		discovers := s.lan.Capture.Count(0, func(f rig.Frame) bool {
			return f.Type == dhcpv4.MessageTypeDiscover && f.Msg.ClientHWAddr.String() == p.MAC.String()
		})
		if discovers != 1 {
			t.Errorf("%d DISCOVERs of a pod arrived, want the first and no other", discovers)
		}
	}
}

// With the port pinned to its lease, renewals and a new exchange for the same
// address pass, in the way that containers are pinned and in the strict one.
func TestP29ExchangesOfAPinnedPort(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	dnsmasq := rig.RunDnsmasq(t, s.lan.Server, rig.Pool(3*time.Second, time.Minute))
	e := rig.StartEngine(t, s.Node)
	mac := s.port.MAC.String()
	c := s.call(t, e, s.pod, nil)
	addr := leased(t, s.Node.Add(t, c)).String()
	for _, security := range []string{s.auto(addr), mac + " " + addr} {
		s.set(t, mac+" "+addr, security)
		mark := s.lan.Capture.Len()
		request, next := s.lan.Capture.Await(t, "renewal", mark, rig.Patience, func(f rig.Frame) bool { return f.Type == dhcpv4.MessageTypeRequest })
		if request.Src.Addr().String() != addr {
			t.Errorf("%q: a renewal left from %v, want %s", security, request.Src, addr)
		}
		s.lan.Capture.Await(t, "answer", next, rig.Patience, func(f rig.Frame) bool { return f.Type == dhcpv4.MessageTypeAck })
		out := ovn.Busybox(t, s.pod.Netns, "udhcpc", "-i", ifName, "-n", "-q", "-t", "5", "-T", "3", "-s", "/bin/true", "-x", "0x3d:01"+strings.ReplaceAll(mac, ":", ""))
		if !strings.Contains(out, addr+" obtained") {
			t.Errorf("%q: a new exchange: %s", security, out)
		}
	}
	if n := len(dnsmasq.Held(t)); n != 1 {
		t.Errorf("the server holds %d leases", n)
	}
}

// A default deny cuts DHCP off like everything else, with a clear error; the rule
// that lets it through names the server, the broadcast address, and both ports.
func TestP18DefaultDeny(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	rig.RunDnsmasq(t, s.lan.Server, rig.Pool(3*time.Second, time.Minute))
	e := rig.StartEngine(t, s.Node)
	s.NB(t, "pg-add", "deny", s.port.Name())
	acl := func(direction, priority, match, verdict string) {
		s.NB(t, "--wait=hv", "acl-add", "deny", direction, priority, match, verdict)
	}
	acl("to-lport", "1000", "outport == @deny", "drop")
	acl("to-lport", "1001", "outport == @deny && (arp || nd)", "allow")
	acl("from-lport", "1000", "inport == @deny", "drop")
	acl("from-lport", "1001", "inport == @deny && (arp || nd)", "allow")
	s.Node.Refuse(t, "ADD", s.call(t, e, s.pod, object{"timeout": "3s"}), 11)

	server := rig.ServerAddr.Addr().String()
	acl("from-lport", "1001", "inport == @deny && (ip4.dst == 255.255.255.255 || ip4.dst == "+server+") && udp.dst == 67", "allow-related")
	// Half of the rule is not enough: the server hears and is not heard.
	mark := s.lan.Capture.Len()
	s.Node.Refuse(t, "ADD", s.call(t, e, s.pod, object{"timeout": "3s"}), 11)
	s.lan.Capture.Await(t, "offer that does not arrive", mark, rig.Patience, func(f rig.Frame) bool { return f.Type == dhcpv4.MessageTypeOffer })
	acl("to-lport", "1001", "outport == @deny && ip4.src == "+server+" && udp.dst == 68", "allow-related")
	s.Node.Add(t, s.call(t, e, s.pod, nil))
	mark = s.lan.Capture.Len()
	_, mark = s.lan.Capture.Await(t, "renewal", mark, rig.Patience, func(f rig.Frame) bool { return f.Type == dhcpv4.MessageTypeRequest })
	s.lan.Capture.Await(t, "second renewal", mark, rig.Patience, func(f rig.Frame) bool { return f.Type == dhcpv4.MessageTypeRequest })
	for _, st := range e.Leases(t) {
		if st.LastError != "" || st.State != "BOUND" && st.State != "RENEWING" {
			t.Errorf("lease is %+v", st)
		}
	}
	if pings(s.pod, ifName, server) {
		t.Error("the default deny lets pings through: this shows nothing")
	}
}

// A cap on what a pod sends, as NetworkQoS makes it, polices DHCP like the rest; a
// renewal is small and is asked for again, so the lease stays.
func TestQ32RateCap(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	rig.RunDnsmasq(t, s.lan.Server, rig.Pool(3*time.Second, time.Minute))
	e := rig.StartEngine(t, s.Node)
	addr := leased(t, s.Node.Add(t, s.call(t, e, s.pod, nil)))
	server := rig.ServerAddr.Addr().String()
	s.NB(t, "--wait=hv", "qos-add", s.sw, "from-lport", "100", fmt.Sprintf("inport == %q && ip4", s.port.Name()), "rate=16", "burst=8")

	// Nothing but DHCP: renewals pass the cap.
	mark := s.lan.Capture.Len()
	acks := func(f rig.Frame) bool { return f.Type == dhcpv4.MessageTypeAck }
	_, mark = s.lan.Capture.Await(t, "renewal under the cap", mark, rig.Patience, acks)
	s.lan.Capture.Await(t, "second renewal under the cap", mark, rig.Patience, acks)

	// A pod that fills its cap over a T1 loses packets, and not its lease.
	flood := s.pod.Start(t, "flood", exec.Command("ping", "-f", "-s", "1000", "-c", "4000", "-w", "5", server))
	flood.AwaitExit(t)
	if said := strings.Join(flood.Lines.Since(0), " "); !strings.Contains(said, "packet loss") || strings.Contains(said, " 0% packet loss") {
		t.Errorf("the cap lets everything through: %s", said)
	}
	s.reaches(t, addr.String())
	e.MustCommand(t, "renew", s.pod.ID+":"+ifName)
	if have := s.pod.Addresses(t, ifName); !slices.ContainsFunc(have, func(a rig.Address) bool { return a.Addr.Addr() == addr }) {
		t.Errorf("the address is gone: %v", have)
	}
}
