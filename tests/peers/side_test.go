package peers

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	current "github.com/containernetworking/cni/pkg/types/100"

	"github.com/dhcp-meta/dhcp-meta/tests/rig"
)

// The contenders, which are the columns of the table too. All but delegate are the
// macvlan plugin with ipam of type dhcp.
const (
	reference = "reference" // the reference's plugin and daemon
	engine    = "engine"    // our plugin under the name dhcp, without conflict detection, as the reference has none
	fast      = "fast"      // the same with conflict detection as it is by default
	delegate  = "delegate"  // dhcp-meta before macvlan, without conflict detection
)

// contenders in the order of their turns.
var contenders = []string{reference, engine, fast, delegate}

// side is one of the two: a LAN of its own with a server, a daemon on its node, and
// pods.
type side struct {
	*rig.LAN
	server *rig.Dnsmasq
	pods   []*rig.Sandbox

	folder, socket string       // of plugins, and of the daemon
	engine         *rig.Engine  // nil: the reference
	daemon         *rig.Process // of the reference
	conf           rig.ServerConfig
}

// pair is both sides.
type pair struct{ reference, engine *side }

func newPair(t testing.TB, pods int, conf rig.ServerConfig) pair {
	t.Helper()
	return pair{newSide(t, false, pods, conf), newSide(t, true, pods, conf)}
}

// roomy is a server with an address for everybody, and leases that nobody renews
// while the race runs.
func roomy() rig.ServerConfig {
	return rig.ServerConfig{
		Interface: rig.ServerIface,
		Subnet:    netip.MustParsePrefix("10.77.0.1/16"),
		First:     netip.MustParseAddr("10.77.1.1"),
		Last:      netip.MustParseAddr("10.77.64.254"),
		Lifetime:  12 * time.Hour,
	}
}

func newSide(t testing.TB, ours bool, pods int, conf rig.ServerConfig) *side {
	t.Helper()
	s := &side{LAN: rig.NewLAN(t), conf: conf}
	s.Server.IP(t, "addr", "flush", "dev", rig.ServerIface)
	s.Server.IP(t, "addr", "add", conf.Subnet.String(), "dev", rig.ServerIface)
	s.server = rig.RunDnsmasq(t, s.Server, conf)
	var err error
	if s.folder, err = os.MkdirTemp("", "dm"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(s.folder) })
	s.socket = filepath.Join(s.folder, "run", "dhcp.sock")
	dhcp := filepath.Join(rig.Plugins(), "dhcp")
	if ours {
		dhcp = rig.Program("dhcp-meta")
		// The reference writes two lines a lease, and so do we at this level.
		s.engine = rig.NewEngine(t, s.Node, "--dhcp-socket="+s.socket, "--log-level=info")
	}
	for name, program := range map[string]string{
		"dhcp": dhcp, "macvlan": filepath.Join(rig.Plugins(), "macvlan"), "dhcp-meta": rig.Program("dhcp-meta"),
	} {
		if err := os.Symlink(program, filepath.Join(s.folder, name)); err != nil {
			t.Fatal(err)
		}
	}
	s.start(t)
	for range pods {
		s.pods = append(s.pods, rig.NewSandbox(t))
	}
	return s
}

// start starts the daemon.
func (s *side) start(t testing.TB) {
	t.Helper()
	if s.engine != nil {
		s.engine.Start(t)
		return
	}
	// Over the socket that a dead one left the reference does not start.
	if err := os.Remove(s.socket); err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Dir(s.socket), 0o700); err != nil {
		t.Fatal(err)
	}
	s.daemon = s.Node.Start(t, "reference dhcp daemon", exec.Command(filepath.Join(s.folder, "dhcp"), "daemon", "-socketpath", s.socket))
	if err := rig.AwaitFile(t.Context(), s.socket, rig.Patience); err != nil {
		t.Fatalf("%s: %v", s.daemon.Name, err)
	}
}

// process is the daemon's.
func (s *side) process() *rig.Process {
	if s.engine != nil {
		return s.engine.Process
	}
	return s.daemon
}

// newServer puts another server, which knows of no lease, in the place of the side's.
func (s *side) newServer(t testing.TB, conf rig.ServerConfig) {
	t.Helper()
	s.server.Stop(t)
	s.server = rig.RunDnsmasq(t, s.Server, conf)
}

// form is a side with a way to ask for an address.
type form struct {
	*side
	name    string
	program string
	conf    rig.Object
}

// form returns the side in the form of one of its contenders.
func (p pair) form(name string) form {
	s := p.engine
	if name == reference {
		s = p.reference
	}
	macvlan := rig.Object{"type": "macvlan", "master": rig.Uplink}
	conf := rig.Object{"cniVersion": "1.0.0", "name": "site"}
	switch name {
	case delegate:
		conf["type"], conf["delegate"] = "dhcp-meta", macvlan
		conf["dhcp"] = rig.Object{"socket": s.engine.Socket, "stateDir": s.engine.StateDir, "conflictDetection": "off"}
		return form{s, name, "dhcp-meta", conf}
	case engine:
		conf["dhcp"] = rig.Object{"conflictDetection": "off"}
	}
	for key, value := range macvlan {
		conf[key] = value
	}
	conf["ipam"] = rig.Object{"type": "dhcp", "daemonSocketPath": s.socket}
	return form{s, name, "macvlan", conf}
}

// forms are those of several contenders.
func (p pair) forms(names ...string) []form {
	var list []form
	for _, name := range names {
		list = append(list, p.form(name))
	}
	return list
}

// alone is the form in which the plugin dhcp is executed itself, on an interface that
// is there already.
func (f form) alone() form {
	f.program = "dhcp"
	return f
}

// without is the form in which nobody asks for an address.
func (f form) without() form {
	return f.with("ipam", rig.Object{})
}

// with is the form with another value of a key.
func (f form) with(key string, value any) form {
	conf := rig.Object{}
	for k, v := range f.conf {
		conf[k] = v
	}
	conf[key] = value
	f.conf = conf
	return f
}

// call executes a verb as a runtime does, and tells how long that took. It may be
// called from any goroutine.
func (f form) call(verb string, pod *rig.Sandbox) (netip.Addr, time.Duration, error) {
	stdin, err := json.Marshal(f.conf)
	if err != nil {
		return netip.Addr{}, 0, err
	}
	c := pod.Call("net1", nil)
	cmd := exec.Command(filepath.Join(f.folder, f.program))
	cmd.Env = []string{"CNI_COMMAND=" + verb, "CNI_CONTAINERID=" + c.ContainerID, "CNI_NETNS=" + c.Netns,
		"CNI_IFNAME=" + c.IfName, "CNI_ARGS=" + c.Args, "CNI_PATH=" + f.folder}
	var stdout, stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(stdin), &stdout, &stderr
	begin := time.Now()
	if err := f.Node.Do(cmd.Start); err != nil {
		return netip.Addr{}, 0, err
	}
	err = cmd.Wait()
	took := time.Since(begin)
	if err != nil {
		return netip.Addr{}, took, fmt.Errorf("%s of %s: %w: %s%s", verb, f.name, err, stdout.Bytes(), stderr.Bytes())
	}
	var r current.Result
	if verb != "ADD" || json.Unmarshal(stdout.Bytes(), &r) != nil || len(r.IPs) != 1 {
		return netip.Addr{}, took, nil
	}
	addr, _ := netip.AddrFromSlice(r.IPs[0].Address.IP)
	return addr.Unmap(), took, nil
}

// burst executes a verb for all pods, no more than width at a time.
func (f form) burst(t testing.TB, verb string, width int, pods []*rig.Sandbox) (addrs []netip.Addr, got sample) {
	t.Helper()
	addrs = make([]netip.Addr, len(pods))
	took, errs := make([]time.Duration, len(pods)), make([]error, len(pods))
	slots := make(chan struct{}, width)
	var wg sync.WaitGroup
	for i, pod := range pods {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			addrs[i], took[i], errs[i] = f.call(verb, pod)
		})
	}
	wg.Wait()
	for i, err := range errs {
		switch {
		case err == nil:
			got.took = append(got.took, took[i])
		case f.name == reference: // counted, and shown in the table
			t.Logf("%v", err)
			got.failed++
		default:
			t.Errorf("%v", err)
			got.failed++
		}
	}
	return addrs, got
}

// sandboxes are the first n pods of the side, as new sandboxes of other pods.
func (s *side) sandboxes(n int) []*rig.Sandbox {
	list := make([]*rig.Sandbox, n)
	for i := range list {
		id := rig.RandomHex(32)
		list[i] = &rig.Sandbox{Netns: s.pods[i].Netns, ID: id, Pod: "web-" + id[:6], UID: rig.RandomHex(16)}
	}
	return list
}
