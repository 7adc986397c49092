package ovn

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/dhcp-meta/dhcp-meta/internal/ovnnb"
	"github.com/dhcp-meta/dhcp-meta/pkg/engine"
	"github.com/dhcp-meta/dhcp-meta/pkg/engine/network"
	"github.com/dhcp-meta/dhcp-meta/tests/rig"
	"github.com/dhcp-meta/dhcp-meta/tests/rig/ovn"
)

// writer is the part of the engine that is tested here, with its log.
type writer struct {
	*ovnnb.Ports
	log     rig.Stream[string]
	metrics *prometheus.Registry
	stop    func()
}

// logLines makes lines of what a slog handler writes.
type logLines struct{ *rig.Stream[string] }

func (l logLines) Write(b []byte) (int, error) {
	l.Add(strings.TrimSpace(string(b)))
	return len(b), nil
}

// startWriter runs a writer until the test ends.
func startWriter(t *testing.T, cfg ovnnb.Config) *writer {
	t.Helper()
	w := &writer{metrics: prometheus.NewRegistry()}
	cfg.Log = slog.New(slog.NewTextHandler(logLines{&w.log}, &slog.HandlerOptions{Level: slog.LevelDebug}))
	cfg.Metrics = w.metrics
	var err error
	if w.Ports, err = ovnnb.New(cfg); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := w.Run(ctx); err != nil {
			t.Errorf("run: %v", err)
		}
	})
	w.stop = sync.OnceFunc(func() { cancel(); wg.Wait() })
	t.Cleanup(func() {
		w.stop()
		if t.Failed() {
			t.Logf("the writer said:\n%s", strings.Join(w.log.Since(0), "\n"))
		}
	})
	return w
}

// writer runs a writer on the site's database.
func (s *site) writer(t *testing.T) *writer {
	t.Helper()
	return startWriter(t, ovnnb.Config{Address: s.NorthAddress()})
}

// value reads a metric; with a label's value, that one of a vector.
func (w *writer) value(t testing.TB, name, label string) float64 {
	t.Helper()
	families, err := w.metrics.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			if label == "" && m.GetGauge() != nil {
				return m.GetGauge().GetValue()
			}
			for _, l := range m.GetLabel() {
				if l.GetValue() == label {
					return m.GetCounter().GetValue()
				}
			}
		}
	}
	t.Fatalf("there is no metric %s %s", name, label)
	return 0
}

// attachmentOf is the pod's interface as the engine knows it.
func attachmentOf(pod *rig.Sandbox, p ovn.PortSpec, ifName string) engine.Attachment {
	return engine.Attachment{
		AttachmentID: engine.AttachmentID{ContainerID: pod.ID, IfName: ifName},
		Network:      netName,
		Pod:          engine.Pod{Namespace: p.Namespace, Name: p.Pod, UID: p.UID},
		NAD:          p.NAD,
		Wrapped:      "ovn-k8s-cni-overlay",
	}
}

func (s *site) attachment() engine.Attachment { return attachmentOf(s.pod, s.port, ifName) }

func leaseOf(a engine.Attachment, mac net.HardwareAddr, addr string, w engine.Workload, security network.PortSecurity) engine.Publication {
	return engine.Publication{
		Attachment: a, Workload: w, HardwareAddr: mac, Addr: netip.MustParsePrefix(addr + "/24"), OVN: true, PortSecurity: security,
	}
}

// lease is a container's lease with the default port security.
func (s *site) lease(addr string) engine.Publication {
	return leaseOf(s.attachment(), s.port.MAC, addr, engine.Container, network.PortSecurityAuto)
}

func patient(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), rig.Patience)
	t.Cleanup(cancel)
	return ctx
}

func must(t testing.TB, what string, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

func (s *site) auto(addr string) string { return s.port.MAC.String() + " " + addr + " 0.0.0.0 ::/0" }

// wants holds a port against what it should carry.
func (s *site) wants(t testing.TB, name, addresses, security string) {
	t.Helper()
	p, ok := s.LSP(t, name)
	if !ok || !slices.Equal(p.Addresses, []string{addresses}) || !slices.Equal(p.PortSecurity, []string{security}) {
		t.Errorf("%s has addresses %q and port security %q, want %q and %q", name, p.Addresses, p.PortSecurity, addresses, security)
	}
}

// awaits waits until a port carries that.
func (s *site) awaits(t testing.TB, name, addresses, security string) {
	t.Helper()
	s.AwaitLSP(t, name, fmt.Sprintf("to carry %q and %q", addresses, security), func(p ovn.LSP) bool {
		return slices.Equal(p.Addresses, []string{addresses}) && slices.Equal(p.PortSecurity, []string{security})
	})
}

// table is all that the north database holds, but the columns that are ours of one
// port.
func (s *site) table(t testing.TB, but string) string {
	t.Helper()
	var out []string
	for _, columns := range []string{"_uuid,name,type,options,external_ids,up,enabled,tag,parent_name,dhcpv4_options,dynamic_addresses", "name,addresses,port_security"} {
		for _, row := range strings.Split(s.NB(t, "--bare", "--format=csv", "--no-headings", "--columns="+columns, "list", "logical_switch_port"), "\n") {
			if !strings.HasPrefix(columns, "name") || !strings.HasPrefix(row, but+",") {
				out = append(out, row)
			}
		}
	}
	slices.Sort(out)
	return strings.Join(out, "\n")
}

// The port carries the lease as long as there is one, and nothing else has changed:
// not in its other columns, not in other ports.
func TestK58K78PortCarriesTheLease(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	w := s.writer(t)
	_, other, _ := s.addPod(t)
	name, mac := s.port.Name(), s.port.MAC.String()
	before := s.table(t, name)

	must(t, "reset", w.Reset(patient(t), s.attachment(), engine.Container))
	s.wants(t, name, mac, mac)
	must(t, "publish", w.Publish(patient(t), s.lease("10.77.0.50")))
	s.wants(t, name, mac+" 10.77.0.50", s.auto("10.77.0.50"))
	s.Sync(t)
	if out := s.South(t, "--bare", "--columns=mac", "find", "port_binding", "logical_port="+name); out != mac+" 10.77.0.50" {
		t.Errorf("port binding has %q", out)
	}
	s.pod.IP(t, "addr", "add", "10.77.0.50/24", "dev", ifName)
	s.reaches(t, "10.77.0.50")
	if diff := cmp.Diff(before, s.table(t, name)); diff != "" {
		t.Errorf("something else has changed (-before +now):\n%s", diff)
	}
	s.wants(t, other.Name(), other.MAC.String(), other.MAC.String())

	must(t, "withdraw", w.Withdraw(patient(t), s.attachment()))
	s.wants(t, name, mac, mac)
	w.Forget(s.attachment())
	s.NB(t, "lsp-set-addresses", name, mac+" 10.77.0.77")
	// Another port goes through the same queue: what would have come for the first
	// one has come when its own is there.
	pod, p, _ := s.addPod(t)
	must(t, "publish another", w.Publish(patient(t), leaseOf(attachmentOf(pod, p, ifName), p.MAC, "10.77.0.51", engine.Container, network.PortSecurityAuto)))
	s.wants(t, name, mac+" 10.77.0.77", mac)
	if w.Limited() != nil || w.value(t, "dhcp_engine_ovn_connected", "") != 1 || w.value(t, "dhcp_engine_ovn_writes_total", "ok") != 3 {
		t.Errorf("limited %v, writes %v, want 3", w.Limited(), w.value(t, "dhcp_engine_ovn_writes_total", "ok"))
	}
}

// Address sets, which ACLs are written with, follow the port, and so does a changed
// lease.
func TestK79K80ChangedLeaseIsFollowed(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	w := s.writer(t)
	s.NB(t, "pg-add", "shop_pods", s.port.Name())
	set := func() string {
		s.Sync(t)
		return s.South(t, "--bare", "--columns=addresses", "find", "address_set", "name=shop_pods_ip4")
	}
	s.pod.IP(t, "addr", "add", "10.77.0.50/24", "dev", ifName)
	s.pod.IP(t, "addr", "add", "10.77.0.51/24", "dev", ifName)
	router := rig.ServerAddr.Addr().String()
	for i, addr := range []string{"10.77.0.50", "10.77.0.51"} {
		must(t, "publish", w.Publish(patient(t), s.lease(addr)))
		s.wants(t, s.port.Name(), s.port.MAC.String()+" "+addr, s.auto(addr))
		if got := set(); got != addr {
			t.Errorf("address set holds %q, want %s", got, addr)
		}
		// The switch's cache of flows follows a moment later.
		ovn.Await(t, "traffic of "+addr+" and no other", func() (bool, string) {
			first, second := pings(s.pod, "10.77.0.50", router), pings(s.pod, "10.77.0.51", router)
			return first == (i == 0) && second == (i == 1), fmt.Sprintf("10.77.0.50 passes %v, 10.77.0.51 %v", first, second)
		})
	}
	must(t, "withdraw", w.Withdraw(patient(t), s.attachment()))
	if got := set(); got != "" {
		t.Errorf("address set holds %q without a lease", got)
	}
}

// What a start of ovnkube computes from the pod's annotation is set right again: a
// container's IPv6 and probes come back, a VM's port is pinned to its MAC only, and
// an address of an earlier lease goes.
func TestP09RestartOfOvnkube(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	w := s.writer(t)
	guest, vm, _ := s.addPod(t)
	a := attachmentOf(guest, vm, ifName)
	must(t, "publish", w.Publish(patient(t), s.lease("10.77.0.50")))
	must(t, "publish the VM's", w.Publish(patient(t), leaseOf(a, vm.MAC, "10.77.0.60", engine.VM, network.PortSecurityAuto)))
	s.wants(t, vm.Name(), vm.MAC.String()+" 10.77.0.60", vm.MAC.String())

	for _, annotated := range [][2]string{{"10.77.0.50", "10.77.0.60"}, {"10.77.0.40", "10.77.0.41"}} {
		s.port.Addresses, vm.Addresses = annotated[:1], annotated[1:]
		s.WriteLSP(t, s.port)
		s.WriteLSP(t, vm)
		s.awaits(t, s.port.Name(), s.port.MAC.String()+" 10.77.0.50", s.auto("10.77.0.50"))
		s.awaits(t, vm.Name(), vm.MAC.String()+" 10.77.0.60", vm.MAC.String())
	}
	if n := w.value(t, "dhcp_engine_ovn_writes_total", "repaired"); n < 4 {
		t.Errorf("%v repairs are counted", n)
	}
	// A port that is made anew under the same name is the pod's own still.
	s.port.Addresses = nil
	s.DeleteLSP(t, s.port)
	s.WriteLSP(t, s.port)
	s.awaits(t, s.port.Name(), s.port.MAC.String()+" 10.77.0.50", s.auto("10.77.0.50"))
}

// A writer that never gives up is answered a few times, then now and then; the
// others are served meanwhile.
func TestP09WriterThatFights(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	w := s.writer(t)
	must(t, "publish", w.Publish(patient(t), s.lease("10.77.0.50")))
	s.port.Addresses = []string{"10.77.0.40"}
	for range 5 {
		s.WriteLSP(t, s.port)
		s.awaits(t, s.port.Name(), s.port.MAC.String()+" 10.77.0.50", s.auto("10.77.0.50"))
	}
	s.WriteLSP(t, s.port)
	w.log.Await(t, "word of the fight", 0, rig.Patience, func(line string) bool { return strings.Contains(line, "again and again") })
	if n := w.value(t, "dhcp_engine_ovn_writes_total", "repaired"); n != 5 {
		t.Errorf("%v repairs, want 5", n)
	}
	ovn.Await(t, "the pending port to be counted", func() (bool, string) {
		n := w.value(t, "dhcp_engine_ovn_pending_ports", "")
		return n == 1, fmt.Sprint(n)
	})
	pod, p, _ := s.addPod(t)
	must(t, "publish another", w.Publish(patient(t), leaseOf(attachmentOf(pod, p, ifName), p.MAC, "10.77.0.51", engine.Container, network.PortSecurityAuto)))
	// A new lease is no fight.
	must(t, "publish a new lease", w.Publish(patient(t), s.lease("10.77.0.52")))
	s.wants(t, s.port.Name(), s.port.MAC.String()+" 10.77.0.52", s.auto("10.77.0.52"))
}

// Two interfaces of a pod on one network are told apart by their MACs.
func TestP13TwoInterfacesOfOneNAD(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	w := s.writer(t)
	second := s.port
	second.Index, second.MAC = 1, randomMAC(t)
	s.AddPort(t, s.pod, "net2", second)
	if want := "shop.office.lan.1_shop_" + s.port.Pod; second.Name() != want {
		t.Errorf("port %s, want %s", second.Name(), want)
	}
	a2 := attachmentOf(s.pod, second, "net2")
	must(t, "publish the first", w.Publish(patient(t), s.lease("10.77.0.50")))
	must(t, "reset the second", w.Reset(patient(t), a2, engine.Container))
	s.wants(t, s.port.Name(), s.port.MAC.String()+" 10.77.0.50", s.auto("10.77.0.50"))
	must(t, "publish the second", w.Publish(patient(t), leaseOf(a2, second.MAC, "10.77.0.51", engine.Container, network.PortSecurityMAC)))
	s.wants(t, second.Name(), second.MAC.String()+" 10.77.0.51", second.MAC.String())
	must(t, "withdraw the first", w.Withdraw(patient(t), s.attachment()))
	s.wants(t, s.port.Name(), s.port.MAC.String(), s.port.MAC.String())
	s.wants(t, second.Name(), second.MAC.String()+" 10.77.0.51", second.MAC.String())
}

// What is not the pod's own is never written, however alike it looks, and the error
// says what is wrong.
func TestP13P15ForeignPorts(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	w := s.writer(t)
	before := s.table(t, "")
	for _, row := range []struct {
		name   string
		change func(*engine.Publication)
		err    string
	}{
		{"another UID", func(p *engine.Publication) { p.Pod.UID = "another" }, "has no port of the pod"},
		{"another pod", func(p *engine.Publication) { p.Pod.Name = "another" }, "has no port of the pod"},
		{"another network", func(p *engine.Publication) { p.NAD = "shop/other" }, "has no port of the pod"},
		{"another MAC", func(p *engine.Publication) { p.HardwareAddr = randomMAC(t) }, "was got with"},
		{"no UID", func(p *engine.Publication) { p.Pod.UID = "" }, "must be known"},
	} {
		p := s.lease("10.77.0.50")
		p.ContainerID = rig.RandomHex(32)
		row.change(&p)
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		err := w.Publish(ctx, p)
		cancel()
		if err == nil || !strings.Contains(err.Error(), row.err) {
			t.Errorf("%s: %v, want %q", row.name, err, row.err)
		}
		w.Forget(p.Attachment)
	}
	p := s.lease("10.77.0.50")
	p.OVN = false
	must(t, "publish of another plugin's interface", w.Publish(patient(t), p))
	if diff := cmp.Diff(before, s.table(t, "")); diff != "" {
		t.Errorf("something has changed (-before +now):\n%s", diff)
	}
}

// A port that comes later than the lease is written when it comes; Publish waits.
func TestP27PortComesLater(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	w := s.writer(t)
	pod := rig.NewSandbox(t)
	p := s.port
	p.Pod, p.UID, p.MAC = pod.Pod, pod.UID, randomMAC(t)
	done := make(chan error, 1)
	ctx := patient(t)
	go func() {
		done <- w.Publish(ctx, leaseOf(attachmentOf(pod, p, ifName), p.MAC, "10.77.0.51", engine.Container, network.PortSecurityMAC))
	}()
	w.log.Await(t, "word of the missing port", 0, rig.Patience, func(line string) bool { return strings.Contains(line, "has no port of the pod") })
	s.AddPort(t, pod, ifName, p)
	must(t, "publish", <-done)
	s.wants(t, p.Name(), p.MAC.String()+" 10.77.0.51", p.MAC.String())
}

// A sandbox that was given up writes nothing any longer, and a new one finds its
// port unpinned, so that the server may give it another address.
func TestB57NewSandboxOldAddressPinned(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	w := s.writer(t)
	mac := s.port.MAC.String()
	must(t, "publish", w.Publish(patient(t), s.lease("10.77.0.50")))
	newer := s.attachment()
	newer.ContainerID = rig.RandomHex(32)
	must(t, "reset of the newer", w.Reset(patient(t), newer, engine.Container))
	s.wants(t, s.port.Name(), mac, mac)
	s.Sync(t)

	// An OFFER of another address, by unicast, reaches the pod.
	pool := rig.Pool(0, 0)
	pool.First = netip.MustParseAddr("10.77.0.51")
	dnsmasq := rig.RunDnsmasq(t, s.lan.Server, pool)
	out := ovn.Busybox(t, s.pod.Netns, "udhcpc", "-i", ifName, "-n", "-q", "-t", "5", "-T", "3", "-s", "/bin/true")
	if e, _ := dnsmasq.Await(t, 0, rig.Patience, "DHCPACK", mac); !strings.Contains(out, e.Addr.String()) {
		t.Errorf("the server gave %v, udhcpc said: %s", e.Addr, out)
	}
	if err := w.Publish(patient(t), s.lease("10.77.0.50")); !errors.Is(err, engine.ErrSuperseded) {
		t.Errorf("the older sandbox publishes: %v", err)
	}
	must(t, "withdrawal of the older", w.Withdraw(patient(t), s.attachment()))
	p := s.lease("10.77.0.52")
	p.Attachment = newer
	must(t, "publish of the newer", w.Publish(patient(t), p))
	must(t, "withdrawal of the older", w.Withdraw(patient(t), s.attachment()))
	w.Forget(s.attachment())
	s.wants(t, s.port.Name(), mac+" 10.77.0.52", s.auto("10.77.0.52"))
}
