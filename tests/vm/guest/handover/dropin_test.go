package handover

import (
	"bytes"
	"encoding/json"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/insomniacslk/dhcp/dhcpv4"

	"github.com/dhcp-meta/dhcp-meta/tests/rig"
	"github.com/dhcp-meta/dhcp-meta/tests/vm/guest"
)

// dropIn is the engine in the place of the reference's dhcp daemon, and a folder in
// which other plugins find our dhcp.
type dropIn struct {
	*guest.Lab
	socket, plugins string
}

func newDropIn(t *testing.T, plugin string) *dropIn {
	t.Helper()
	folder := t.TempDir()
	d := &dropIn{socket: filepath.Join(folder, "run", "dhcp.sock"), plugins: folder}
	for name, program := range map[string]string{plugin: filepath.Join(rig.Plugins(), plugin), "dhcp": rig.Program("dhcp-meta")} {
		if err := os.Symlink(program, filepath.Join(folder, name)); err != nil {
			t.Fatal(err)
		}
	}
	d.Lab = guest.NewLab(t, "--dhcp-socket="+d.socket)
	return d
}

// run executes the plugin of a network as a runtime does; prev is for CHECK.
func (d *dropIn) run(t *testing.T, verb string, s *rig.Sandbox, network rig.Object, prev *current.Result) *current.Result {
	t.Helper()
	conf := rig.Object{"cniVersion": "1.0.0", "name": "office-lan", "ipam": rig.Object{"type": "dhcp", "daemonSocketPath": d.socket}}
	for key, value := range network {
		conf[key] = value
	}
	if prev != nil {
		conf["prevResult"] = prev
	}
	in, err := json.Marshal(conf)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(filepath.Join(d.plugins, conf["type"].(string)))
	cmd.Env = append(os.Environ(), "CNI_COMMAND="+verb, "CNI_CONTAINERID="+s.ID, "CNI_IFNAME=net1", "CNI_NETNS="+s.Path, "CNI_ARGS=", "CNI_PATH="+d.plugins)
	var out bytes.Buffer
	cmd.Stdin, cmd.Stdout = bytes.NewReader(in), &out
	if err := d.Node.Do(cmd.Start); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Fatalf("%s: %v: %s", verb, err, out.String())
	}
	if verb != "ADD" {
		return nil
	}
	r := new(current.Result)
	if err := json.Unmarshal(out.Bytes(), r); err != nil || len(r.IPs) != 1 {
		t.Fatalf("result %s: %v", out.String(), err)
	}
	return r
}

// upToCheck is ADD, the adoption, and a CHECK that sends nothing. It returns the
// address.
func (d *dropIn) upToCheck(t *testing.T, s *rig.Sandbox, network rig.Object) netip.Addr {
	t.Helper()
	r := d.run(t, "ADD", s, network, nil)
	addr, ok := netip.AddrFromSlice(r.IPs[0].Address.IP.To4())
	if !ok || !guest.Pool(addr) {
		t.Fatalf("the result has the address %v", r.IPs[0].Address)
	}
	guest.Await(t, "the address ends with its lease", func() bool {
		have := s.Addresses(t, "net1")
		return len(have) == 1 && have[0].Addr.Addr() == addr && have[0].Valid <= 120
	})
	mark := d.Capture.Len()
	d.run(t, "CHECK", s, network, r)
	nothing(t, d.Capture, mark, "CHECK sent", rig.Frame.FromClient)
	return addr
}

// down is a DEL, whose RELEASE comes from the leased address.
func (d *dropIn) down(t *testing.T, s *rig.Sandbox, network rig.Object, addr netip.Addr) {
	t.Helper()
	mark := d.Capture.Len()
	d.run(t, "DEL", s, network, nil)
	f, _ := d.Capture.AwaitType(t, mark, rig.Patience, dhcpv4.MessageTypeRelease, nil)
	if f.Src.Addr() != addr || f.Dst.Addr() != rig.ServerAddr.Addr() {
		t.Errorf("RELEASE %v, want one from %v", f, addr)
	}
	d.Server.AwaitHeld(t, "no lease of "+addr.String(), func(held []rig.Held) bool {
		return !slices.ContainsFunc(held, func(h rig.Held) bool { return h.Addr == addr })
	})
}

// A virtual function that has its kernel driver is a pod's, with an address by the
// drop-in: host-device moves it into the pod and back.
func TestO05K53K55K64DropInVirtualFunction(t *testing.T) {
	vf := guest.VF(t, 0)
	vf.Bind(t, "") // the kernel chooses its driver
	name := vf.Netdev(t)
	t.Cleanup(func() {
		vf.Bind(t, "vfio-pci")
		guest.Write(t, vf.Path("driver_override"), "\n")
	})
	d := newDropIn(t, "host-device")
	s, network := rig.NewSandbox(t), rig.Object{"type": "host-device", "pciBusID": string(vf)}
	addr := d.upToCheck(t, s, network)
	if mac := s.HardwareAddr(t, "net1").String(); mac != guest.MAC(0).String() {
		t.Errorf("net1 has %s, the virtual function %v", mac, guest.MAC(0))
	}
	d.Server.AwaitHeld(t, "the lease of the virtual function", rig.Holds(guest.MAC(0), addr))
	d.down(t, s, network, addr)
	if back := vf.Netdev(t); back != name || vf.Driver() != "igbvf" {
		t.Errorf("after DEL %v has the interface %q, before it had %q", vf, back, name)
	}
	d.Engine.AwaitNoRecords(t)
}

// Two pods on ipvlan share the MAC of their parent: each is a client of its own, and
// the end of one leaves the other its lease.
func TestDropInIPVLAN(t *testing.T) {
	guest.Run(t, "modprobe", "ipvlan")
	d := newDropIn(t, "ipvlan")
	network := rig.Object{"type": "ipvlan", "master": guest.PF.Netdev(t), "mode": "l2"}
	first, second := rig.NewSandbox(t), rig.NewSandbox(t)
	addr, other := d.upToCheck(t, first, network), d.upToCheck(t, second, network)
	if addr == other || first.HardwareAddr(t, "net1").String() != second.HardwareAddr(t, "net1").String() {
		t.Errorf("two pods with %v and %v", addr, other)
	}
	if held := d.Server.Held(t); len(held) != 2 {
		t.Errorf("the server holds %v", held)
	}
	d.down(t, first, network, addr)
	if held := d.Server.Held(t); len(held) != 1 || held[0].Addr != other {
		t.Errorf("after the end of %v the server holds %v, want %v", addr, held, other)
	}
	d.down(t, second, network, other)
	d.Engine.AwaitNoRecords(t)
}
