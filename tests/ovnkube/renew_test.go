package ovnkube

import (
	"bufio"
	"net/netip"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"

	"github.com/dhcp-meta/dhcp-meta/tests/rig"
	"github.com/dhcp-meta/dhcp-meta/tests/rig/kube"
)

// A lease is renewed over OVN for three of its lifetimes, by unicast and without a
// new exchange, and no packet of the pod is lost meanwhile.
func TestK62K86Renewals(t *testing.T) {
	s := newSite(t)
	cfg := rig.Pool(2*time.Second, 4*time.Second)
	cfg.Lifetime = 6 * time.Second
	server := rig.StartKea(t, s.lan.Server, cfg)
	s.marked(t, "office", "")
	pod := s.pod(t, "office")
	pod.Add(t)
	addr, hw := s.leased(t, pod, "office"), pod.HardwareAddr(t, "net1")
	mark := s.lan.Capture.Len()
	begin := time.Now()
	ping := s.startPing(t, pod, addr)
	for from := mark; time.Since(begin) < 3*cfg.Lifetime; {
		var f rig.Frame
		f, from = s.lan.Capture.AwaitType(t, from, rig.Patience, dhcpv4.MessageTypeRequest, hw)
		if f.Src.Addr() != addr.Addr() || f.Dst.Addr() != rig.ServerAddr.Addr() {
			t.Errorf("not a renewal: %v", f)
		}
		_, from = s.lan.Capture.AwaitType(t, from, rig.Patience, dhcpv4.MessageTypeAck, hw)
	}
	if n := s.lan.Capture.Count(mark, rig.Type(dhcpv4.MessageTypeDiscover, nil)); n > 0 {
		t.Errorf("%d DHCPDISCOVER after the ADD", n)
	}
	if answers, lost := ping.end(t); len(lost) > 0 || answers < 20 {
		t.Errorf("ping had %d answers, and none to %v", answers, lost)
	}
	if s.leased(t, pod, "office") != addr {
		t.Error("the address has changed")
	}
	pod.Del(t)
	server.AwaitHeld(t, "empty", rig.Nothing)
}

// pinging is a ping that goes on.
type pinging struct {
	cmd *exec.Cmd
	out *bufio.Scanner
}

func (s *site) startPing(t *testing.T, pod *kube.Sandbox, from netip.Prefix) pinging {
	t.Helper()
	s.ping(t, pod, from)
	cmd := s.pinger(pod, from, "-i0.2")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	return pinging{cmd, bufio.NewScanner(out)}
}

var sequence = regexp.MustCompile(`icmp_seq=(\d+) `)

// end returns how many answers came, and which did not before the last that did.
func (p pinging) end(t *testing.T) (answers int, lost []int) {
	t.Helper()
	if err := p.cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	came := map[int]bool{}
	last := 0
	for p.out.Scan() {
		if m := sequence.FindStringSubmatch(p.out.Text()); m != nil {
			n, err := strconv.Atoi(m[1])
			if err != nil {
				t.Fatal(err)
			}
			came[n], last = true, max(last, n)
		}
	}
	_ = p.cmd.Wait() // it was interrupted
	for n := 1; n <= last; n++ {
		if !came[n] {
			lost = append(lost, n)
		}
	}
	return len(came), lost
}

// The server gives a pod another address at a renewal: annotation, port and traffic
// follow. The old address is taken out of the annotation before the new one is
// written. The network status stays as Multus wrote it at the ADD.
func TestK79K80ChangedLeaseIsFollowed(t *testing.T) {
	s := newSite(t)
	s.marked(t, "office", "")
	before := rig.RunDnsmasq(t, s.lan.Server, rig.Pool(3*time.Second, 5*time.Second))
	pod := s.pod(t, "office")
	pod.Add(t)
	old := s.leased(t, pod, "office")
	addr := s.moveLease(t, before, pod)
	s.awaitEntry(t, pod, "office", "have the new address", func(e netEntry) bool { return e.carries(addr) })
	s.leased(t, pod, "office")
	s.ping(t, pod, addr)
	s.awaitEvent(t, pod, "LeaseLost", old.Addr().String())
	s.awaitEvent(t, pod, "AddressLeased", addr.Addr().String())

	var states []string
	for _, e := range s.written(t, pod, "office") {
		states = append(states, strings.Join(e.Addresses, " "))
	}
	if want := []string{old.String(), "", addr.String()}; !slices.Equal(states, want) {
		t.Errorf("addresses in the engine's writes: %q, want %q", states, want)
	}
	if status := pod.StatusOf(t, "net1"); !slices.Equal(status.IPs, []string{old.Addr().String()}) {
		t.Errorf("the network status follows a lease by now: %+v; docs/ovn-kubernetes.md says otherwise", status)
	}
}

// moveLease puts a server with another pool in the place of one, and waits until the
// pod has an address of it.
func (s *site) moveLease(t *testing.T, server *rig.Dnsmasq, pod *kube.Sandbox) netip.Prefix {
	t.Helper()
	server.Stop(t)
	cfg := rig.Pool(0, 0)
	cfg.First, cfg.Last = netip.MustParseAddr("10.77.0.180"), netip.MustParseAddr("10.77.0.180")
	rig.RunDnsmasq(t, s.lan.Server, cfg)
	pod.AwaitAddress(t, "net1", cfg.First)
	return address(t, pod, "net1")
}

// OVN-Kubernetes writes another network of the pod, here of a definition that comes
// later: it drops ipam_mode from ours, which is put back. All other entries stay as
// it wrote them.
func TestK36K40ModeIsPutBack(t *testing.T) {
	s := newSite(t)
	s.dnsmasq(t)
	s.marked(t, "office", "")
	pod := s.pod(t, "office")
	pod.Add(t)
	addr := s.leased(t, pod, "office")
	s.addLateNetwork(t, pod)
	s.awaitEntry(t, pod, "late", "be made", netEntry.bare)
	s.awaitEntry(t, pod, "office", "have its mode back", func(e netEntry) bool { return e.carries(addr) })

	double := s.annotations(t, pod, "ovnkube")
	last := double[len(double)-1]
	if strings.Contains(last, "ipam_mode") || !strings.Contains(last, addr.String()) {
		t.Fatalf("the double wrote %s, which is no test of anything", last)
	}
	wrote, now := parseEntries(t, last), parseEntries(t, s.kube.GetPod(t, s.ns, pod.Pod).Annotations[podNetworks])
	for _, key := range []string{"default", s.ns + "/late"} {
		if e := now[key]; e.MAC == "" || e.MAC != wrote[key].MAC || !slices.Equal(e.Addresses, wrote[key].Addresses) || e.Mode != "" {
			t.Errorf("entry %s is %+v, the double wrote %+v", key, e, wrote[key])
		}
	}
	s.leased(t, pod, "office")
}

// addLateNetwork gives a pod a network more, whose definition comes last.
func (s *site) addLateNetwork(t *testing.T, pod *kube.Sandbox) {
	t.Helper()
	networks := "office,late"
	s.kube.Annotate(t, pod.Object, "k8s.v1.cni.cncf.io/networks", &networks)
	s.kube.NAD(t, s.ns, "late", s.localnet("late", nil), nil)
}
