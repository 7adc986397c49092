package cluster

import (
	"context"
	"encoding/json"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/insomniacslk/dhcp/dhcpv4"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"

	"github.com/dhcp-meta/dhcp-meta/tests/rig"
	"github.com/dhcp-meta/dhcp-meta/tests/rig/kube"
)

// delegateNetwork is macvlan on the uplink behind dhcp-meta.
func delegateNetwork(dhcp object) object {
	return object{"cniVersion": "1.0.0", "name": "site", "type": "dhcp-meta", "delegate": wire("macvlan", nil), "dhcp": dhcp}
}

// A pod that only names the network has an address of the site's server when ADD
// returns, with no client in it; the node's engine renews it and gives it back when
// the pod is deleted, and the interface is gone. Its host name survives the way
// through Multus and the renewal (field case B91).
func TestK01K02K16K51K86K87O11B91LifeOfAPod(t *testing.T) {
	t.Parallel()
	for name, start := range map[string]rig.StartFunc{"dnsmasq": rig.StartDnsmasq, "Kea": rig.StartKea} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLab(t, kube.Multus{})
			server := start(t, l.Server, rig.Pool(3*time.Second, 60*time.Second))
			s := l.pod(t, l.network(t, "site", delegateNetwork(nil), nil))
			s.Add(t)
			addr := l.leased(t, s, "net1", server)
			mac := s.HardwareAddr(t, "net1")
			// The interface is whole before the first message: it leaves with its MAC.
			discover, mark := l.Capture.AwaitType(t, 0, rig.Patience, dhcpv4.MessageTypeDiscover, nil)
			if discover.EthSrc.String() != mac.String() || discover.Msg.ClientHWAddr.String() != mac.String() {
				t.Errorf("DISCOVER of %v from %v, the interface has %v", discover.Msg.ClientHWAddr, discover.EthSrc, mac)
			}
			l.expectPing(t, s, addr)

			// No process of CNI runs any longer: what renews is the engine.
			_, mark = l.Capture.AwaitType(t, mark, rig.Patience, dhcpv4.MessageTypeAck, mac)
			renewal, mark := l.Capture.AwaitType(t, mark, rig.Patience, dhcpv4.MessageTypeRequest, mac)
			if renewal.Src.Addr() != addr {
				t.Errorf("the renewal came from %v, want %v", renewal.Src, addr)
			}
			_, mark = l.Capture.AwaitType(t, mark, rig.Patience, dhcpv4.MessageTypeAck, mac)
			l.expectPing(t, s, addr)
			server.AwaitHeld(t, "the lease under the pod's name", func(held []rig.Held) bool {
				return len(held) == 1 && held[0].Addr == addr && held[0].Hostname == s.Pod
			})

			s.Del(t)
			l.kube.DeletePod(t, s.Object)
			l.Capture.AwaitType(t, mark, rig.Patience, dhcpv4.MessageTypeRelease, mac)
			server.AwaitHeld(t, "empty", rig.Nothing)
			l.expectGone(t, s, "net1")
			l.engine.AwaitNoRecords(t)
		})
	}
}

// The address is in the result that Multus gets, and from there in the network
// status, and so are the interface's MAC and the site's DNS servers.
func TestK03K60NetworkStatus(t *testing.T) {
	t.Parallel()
	l := newLab(t, kube.Multus{})
	cfg := rig.Pool(0, 0)
	cfg.Dnsmasq = []string{"--dhcp-option=option:dns-server,10.77.0.53", "--dhcp-option=option:domain-name,site.example"}
	server := rig.StartDnsmasq(t, l.Server, cfg)
	s := l.pod(t, l.network(t, "site", delegateNetwork(nil), nil))
	s.Add(t)
	addr := l.leased(t, s, "net1", server)
	status := s.StatusOf(t, "net1")
	if status.Name != l.ns+"/site" || status.Mac != s.HardwareAddr(t, "net1").String() {
		t.Errorf("network status %+v", status)
	}
	if diff := cmp.Diff([]string{"10.77.0.53"}, status.DNS.Nameservers); diff != "" {
		t.Errorf("name servers in the network status (-want +got):\n%s", diff)
	}
	if !rig.ServerAddr.Masked().Contains(addr) {
		t.Errorf("leased %v, want an address of %v", addr, rig.ServerAddr.Masked())
	}
}

// One server outside gives addresses over every kind of interface, on one network.
// (A VLAN interface is not among them where the kernel has none, as here.)
func TestO01OneServerForAllPlugins(t *testing.T) {
	t.Parallel()
	l := newLab(t, kube.Multus{})
	server := rig.StartDnsmasq(t, l.Server, rig.Pool(0, 0))
	// The uplink becomes a port of a bridge, which all others sit on.
	n := l.Node
	n.IP(t, "link", "add", "br-site", "type", "bridge")
	n.IP(t, "link", "set", "br-site", "up")
	n.IP(t, "link", "set", rig.Uplink, "master", "br-site")
	n.IP(t, "link", "add", "spare", "type", "veth", "peer", "name", "spare-port")
	n.IP(t, "link", "set", "spare-port", "master", "br-site", "up")

	var pods []*kube.Sandbox
	seen := map[netip.Addr]string{}
	for name, delegate := range map[string]object{
		"macvlan":     {"type": "macvlan", "master": "br-site", "mode": "bridge"},
		"bridge":      {"type": "bridge", "bridge": "br-site"},
		"host-device": {"type": "host-device", "device": "spare"},
	} {
		s := l.pod(t, l.network(t, name, object{"cniVersion": "1.0.0", "name": name, "type": "dhcp-meta", "delegate": delegate}, nil))
		s.Add(t)
		addr := l.leased(t, s, "net1", server)
		if other, twice := seen[addr]; twice {
			t.Errorf("%s and %s have the same address %v", name, other, addr)
		}
		seen[addr] = name
		l.expectPing(t, s, addr)
		pods = append(pods, s)
	}
	for _, s := range pods {
		s.Del(t)
	}
	server.AwaitHeld(t, "empty", rig.Nothing)
	if out, err := n.TryIP("link", "show", "dev", "spare"); err != nil {
		t.Errorf("host-device did not give its device back: %s", out)
	}
}

// Without a server ADD fails well within the runtime's limit, says why in one line,
// and leaves nothing behind; Multus's own clean-up after it does no harm. The delegate's
// time counts too.
func TestP02SilentServerFailsInTime(t *testing.T) {
	t.Parallel()
	l := newLab(t, kube.Multus{})
	s := l.pod(t, l.network(t, "site", delegateNetwork(object{"timeout": "5s"}), nil))
	runtimeLimit, cancel := context.WithTimeout(t.Context(), 120*time.Second)
	defer cancel()
	begin := time.Now()
	_, err := s.TryAdd(runtimeLimit)
	if err == nil {
		t.Fatal("ADD succeeded without a server")
	}
	if took := time.Since(begin); took > 60*time.Second {
		t.Errorf("ADD failed after %v", took)
	}
	for _, word := range []string{"net1", "DHCP", "5s"} {
		if !strings.Contains(err.Error(), word) {
			t.Errorf("the error does not say %q: %v", word, err)
		}
	}
	l.expectGone(t, s, "net1")
	l.engine.AwaitNoRecords(t)
	if adds, dels := l.called(t, s, "macvlan", "net1", "ADD"), l.called(t, s, "macvlan", "net1", "DEL"); len(adds) != 1 || len(dels) != 1 {
		t.Errorf("macvlan was called for ADD %d times and for DEL %d times, want once each", len(adds), len(dels))
	}
	s.Del(t)

	// The same pod gets its address once there is a server.
	server := rig.StartDnsmasq(t, l.Server, rig.Pool(0, 0))
	again := l.runtime.Sandbox(t, s.Object)
	again.Add(t)
	l.leased(t, again, "net1", server)
}

// A pod whose ADD waits for a server says so long before the ADD fails, in an event
// that is all that is to be seen of it until then; with a server it starts.
func TestPodThatWaitsForAServerSaysSo(t *testing.T) {
	t.Parallel()
	l := newLab(t, kube.Multus{})
	s := l.pod(t, l.network(t, "site", delegateNetwork(nil), nil))
	addC := tryAdd(t, s)
	l.awaitEvent(t, s, "WaitingForAddress", "net1: no address from network site so far: no answer to 3 messages in 15s")
	select {
	case err := <-addC:
		t.Fatalf("ADD has ended before: %v", err)
	default:
	}
	server := rig.StartDnsmasq(t, l.Server, rig.Pool(0, 0))
	if err := <-addC; err != nil {
		t.Fatalf("ADD with a server: %v", err)
	}
	l.leased(t, s, "net1", server)
	l.awaitEvent(t, s, "AddressLeased", "net1: address ")
}

// A pod is deleted while its ADD waits for a server that there is not: the ADD ends,
// long before its time does, and with it what the runtime waits for.
func TestPodThatIsDeletedWhileItWaits(t *testing.T) {
	t.Parallel()
	l := newLab(t, kube.Multus{})
	s := l.pod(t, l.network(t, "site", delegateNetwork(nil), nil))
	addC := tryAdd(t, s)
	l.Capture.AwaitType(t, 0, rig.Patience, dhcpv4.MessageTypeDiscover, nil)
	begin, grace := time.Now(), int64(30)
	if err := l.kube.Client.CoreV1().Pods(l.ns).Delete(t.Context(), s.Pod, metav1.DeleteOptions{GracePeriodSeconds: &grace}); err != nil {
		t.Fatal(err)
	}
	err := <-addC
	if err == nil || !strings.Contains(err.Error(), "canceled: the pod is being deleted") {
		t.Errorf("ADD, %s after the deletion: %v", time.Since(begin), err)
	}
	l.engine.AwaitNoRecords(t)
	l.expectGone(t, s, "net1")
	s.Del(t)
}

// tryAdd begins an ADD that takes its time.
func tryAdd(t *testing.T, s *kube.Sandbox) <-chan error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 120*time.Second) // as a runtime
	c := make(chan error, 1)
	go func() {
		defer cancel()
		_, err := s.TryAdd(ctx)
		c <- err
	}()
	return c
}

// awaitEvent waits for an event on a pod, whose message says word.
func (l *lab) awaitEvent(t *testing.T, s *kube.Sandbox, reason, word string) {
	t.Helper()
	of := metav1.ListOptions{FieldSelector: fields.Set{"involvedObject.uid": s.UID, "reason": reason}.String()}
	eventually(t, "event "+reason+" on pod "+s.Pod, func() bool {
		list, err := l.kube.Client.CoreV1().Events(l.ns).List(t.Context(), of)
		return err == nil && slices.ContainsFunc(list.Items, func(e corev1.Event) bool { return strings.Contains(e.Message, word) })
	})
}

// A node whose engine is down says so in one line, at once, and the pod starts when
// it is back.
func TestB89NoEngine(t *testing.T) {
	t.Parallel()
	l := newLab(t, kube.Multus{})
	server := rig.StartDnsmasq(t, l.Server, rig.Pool(0, 0))
	for name, conf := range map[string]object{
		"conf": delegateNetwork(nil),
		"list": {"cniVersion": "1.0.0", "name": "site", "plugins": []object{
			{"type": "dhcp-meta", "delegate": wire("macvlan", nil)}, {"type": "tuning"},
		}},
	} {
		l.network(t, name, conf, nil)
		s := l.pod(t, name)
		l.engine.Stop(t)
		_, err := s.TryAdd(t.Context())
		if err == nil {
			t.Fatalf("%s: ADD without an engine succeeded", name)
		}
		line, _, _ := strings.Cut(err.Error(), "\n")
		if !strings.Contains(line, "/run/dhcp-meta/engine.sock") || !strings.Contains(line, "is the dhcp-engine of this node running?") {
			t.Errorf("%s: ADD without an engine: %v", name, err)
		}
		s.Del(t)
		l.engine.Start(t)
		again := l.runtime.Sandbox(t, s.Object)
		again.Add(t)
		l.leased(t, again, "net1", server)
	}
}

// A pod that is on no node yet is no work of this engine's, and no error.
func TestP05UnscheduledPod(t *testing.T) {
	t.Parallel()
	l := newLab(t, kube.Multus{})
	server := rig.StartDnsmasq(t, l.Server, rig.Pool(0, 0))
	l.network(t, "site", delegateNetwork(nil), nil)
	waiting := l.kube.Pod(t, l.ns, kube.PodSpec{Networks: "site"})
	s := l.pod(t, "site")
	s.Add(t)
	l.leased(t, s, "net1", server)
	for _, line := range l.engine.Log() {
		if strings.Contains(line, waiting.Name) {
			t.Errorf("the engine knows the unscheduled pod: %s", line)
		}
		if strings.Contains(line, "level=ERROR") {
			t.Errorf("the engine logs an error: %s", line)
		}
	}
	if writes := l.kube.PodWrites(t, waiting); len(writes) != 0 {
		t.Errorf("the unscheduled pod was written: %v", writes)
	}
}

// Where dhcp-meta stands before other plugins, a network without a mark and the default
// network are as they were without it: the plugin gets the same call, the pod the
// same addresses, and no DHCP is on the wire; whether the engine is up, hung or down,
// and although its wrappers are found first.
func TestK30K96UnmarkedNetworks(t *testing.T) {
	t.Parallel()
	l := newLab(t, kube.Multus{Interposed: true})
	static := object{"type": "static", "addresses": []object{{"address": "10.77.0.9/24"}}}
	nad := l.ns + "/plain"
	l.network(t, "plain", localnet(nad, object{"name": "plain", "ipam": static, "unknown": object{"z": 1, "a": nil}}), nil)

	var first []byte
	for _, state := range []struct {
		name string
		set  func()
	}{
		{"up", func() {}},
		{"hung", func() { l.engine.Signal(t, unix.SIGSTOP) }},
		{"down", func() { l.engine.Kill(t) }},
		{"never installed", func() { l.uninstall(t) }},
	} {
		state.set()
		s := l.sandbox(t, kube.PodSpec{
			Networks:    `[{"name":"plain"}]`,
			Annotations: map[string]string{podNetworks: entry(l.ns, "plain", "0a:77:00:00:00:09")},
		})
		begin := time.Now()
		s.Add(t)
		if took := time.Since(begin); took > 20*time.Second {
			t.Errorf("engine %s: ADD took %v", state.name, took)
		}
		if ips := s.StatusOf(t, "net1").IPs; len(ips) != 1 || ips[0] != "10.77.0.9" {
			t.Errorf("engine %s: network status has %v", state.name, ips)
		}
		adds := l.called(t, s, ovnPlugin, "net1", "ADD")
		if len(adds) != 1 {
			t.Fatalf("engine %s: %s was called %d times", state.name, ovnPlugin, len(adds))
		}
		if first == nil {
			first = adds[0].Stdin
		} else if diff := cmp.Diff(string(first), string(adds[0].Stdin)); diff != "" {
			t.Errorf("engine %s: %s got another configuration (-up +this):\n%s", state.name, ovnPlugin, diff)
		}
		if got := annotation(l.kube.GetPod(t, l.ns, s.Pod), podNetworks); strings.Contains(got, "ipam_mode") {
			t.Errorf("engine %s: the annotation has an ipam_mode: %s", state.name, got)
		}
		s.Del(t)
		if dels := l.called(t, s, ovnPlugin, "net1", "DEL"); len(dels) != 1 {
			t.Errorf("engine %s: %d DELs of %s", state.name, len(dels), ovnPlugin)
		}
		l.expectGone(t, s, "net1")
		l.expectGone(t, s, "eth0")
	}
	l.noDHCP(t, 0)
}

// uninstall takes all wrappers away: the cluster as it is without dhcp-meta.
func (l *lab) uninstall(t *testing.T) {
	t.Helper()
	for _, name := range []string{ovnPlugin, "macvlan", "bridge"} {
		wrapper := l.node.Path("/opt/cni/bin/dhcp-meta-wrappers/" + name)
		if err := os.Remove(wrapper); err != nil {
			t.Fatal(err)
		}
	}
}

// A marked network whose engine is down gets no pod, also right after a reboot of the
// node, when no engine has ever run there since: the list of marked networks is on
// disk.
func TestK83MarkedNetworkWithoutAnEngine(t *testing.T) {
	t.Parallel()
	l := newLab(t, kube.Multus{Interposed: true})
	server := rig.StartDnsmasq(t, l.Server, rig.Pool(0, 0))
	nad, mac := l.ns+"/marked", "0a:77:00:00:00:0b"
	l.network(t, "marked", localnet(nad, object{"name": "marked", "mac": mac}),
		map[string]string{"dhcp-meta.io/ipam": "dhcp"})
	s := l.ovnPod(t, "marked", mac)
	s.Add(t)
	l.leased(t, s, "net1", server)
	var list map[string]json.RawMessage
	b, err := os.ReadFile(l.node.Path("/var/lib/dhcp-meta/networks.json"))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(b, &list); err != nil || !strings.Contains(string(b), nad) {
		t.Errorf("the list of marked networks is %s (%v), want %s in it", b, err, nad)
	}
	s.Del(t)

	l.engine.Kill(t)
	l.node.Run(t, "rm", "-rf", "/run/dhcp-meta")
	late := l.ovnPod(t, "marked", mac)
	begin := time.Now()
	if _, err := late.TryAdd(t.Context()); err == nil || !strings.Contains(err.Error(), "engine") {
		t.Errorf("ADD of a marked network without an engine: %v", err)
	}
	if took := time.Since(begin); took > 20*time.Second {
		t.Errorf("it failed after %v, want at once", took)
	}
	if calls := l.called(t, late, ovnPlugin, "net1", "ADD"); len(calls) != 0 {
		t.Errorf("%s was called although there is no engine", ovnPlugin)
	}
}
