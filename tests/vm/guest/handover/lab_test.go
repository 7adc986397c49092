package handover

import (
	"strings"
	"testing"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"golang.org/x/sys/unix"

	"github.com/dhcp-meta/dhcp-meta/tests/rig"
	"github.com/dhcp-meta/dhcp-meta/tests/vm/guest"
)

func TestMain(m *testing.M) { guest.Main(m) }

// The hardware does what the tests need of it: a virtual function goes from vfio-pci
// to its driver, gets an address from the server, and comes back.
func TestLaboratoryVFAsksForAnAddress(t *testing.T) {
	l := guest.NewLabWithout(t)
	l.Server = guest.StartServer(t)
	vf := guest.VF(t, 0)
	vf.Bind(t, "")
	if vf.Driver() != "igbvf" {
		t.Fatalf("the kernel chose %q", vf.Driver())
	}
	guest.Run(t, "ip", "link", "set", vf.Netdev(t), "up")
	guest.Run(t, "busybox", "udhcpc", "-i", vf.Netdev(t), "-f", "-q", "-n", "-t", "10", "-s", "/bin/true")
	l.Capture.AwaitType(t, 0, rig.Patience, dhcpv4.MessageTypeAck, guest.MAC(0))
	if held := l.Server.Held(t); len(held) != 1 || held[0].MAC != guest.MAC(0).String() {
		t.Errorf("the server holds %v", held)
	}
	vf.Bind(t, "vfio-pci")
	guest.Write(t, vf.Path("driver_override"), "\n")
}

// A group that somebody holds cannot be opened, and a device that somebody holds is
// seen.
func TestLaboratoryHeldGroup(t *testing.T) {
	vf := guest.VF(t, 0)
	g := guest.Hold(t, vf)
	if f, err := guest.OpenGroup(vf); err == nil {
		f.Close()
		t.Error("a second open of the group succeeded")
	}
	g.Release()
}

// A program that is killed at a write to sysfs has not written, or has written and
// does not know it; one that is refused a write goes on.
func TestLaboratoryTracer(t *testing.T) {
	vf := guest.VF(t, 0)
	file := vf.Path("driver_override")
	t.Cleanup(func() { guest.Write(t, file, "\n") })
	const script = `echo one >"$0"; echo two >"$0"; echo three >"$0"`
	for _, tt := range []struct {
		name    string
		at      string
		verdict guest.Verdict
		want    string
		steps   int
	}{
		{"killed before", "two", guest.Verdict{Kill: true}, "one", 2},
		{"killed after", "two", guest.Verdict{Kill: true, Done: true}, "two", 2},
		{"refused", "three", guest.Verdict{Err: unix.EIO}, "two", 3},
		{"let pass", "", guest.Verdict{}, "three", 3},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p, tr := guest.TraceProgram(t, "sh", func(s guest.Step) guest.Verdict {
				if s.Sysfs() && s.Value == tt.at {
					return tt.verdict
				}
				return guest.Verdict{}
			}, "/bin/dash", "-c", script, file)
			p.AwaitExit(t)
			<-tr.Ended()
			if have := vf.Override(); have != tt.want || len(writes(tr)) != tt.steps {
				t.Errorf("the override is %q after %v, want %q", have, tr.Steps(), tt.want)
			}
		})
	}
}

// A client of the node asks on an interface that appears, so that its silence
// elsewhere says something.
func TestLaboratoryHotplugClientAsks(t *testing.T) {
	l := guest.NewLabWithout(t)
	vf := guest.VF(t, 0)
	guest.StartHotplug(t)
	vf.Bind(t, "")
	l.Capture.Await(t, "DISCOVER of the node's client", 0, rig.Patience, guest.OfHotplug)
	vf.Bind(t, "vfio-pci")
	guest.Write(t, vf.Path("driver_override"), "\n")
}

// udev renames an interface that appears.
func TestLaboratoryUdevRenames(t *testing.T) {
	vf := guest.VF(t, 0)
	guest.StartUdev(t)
	vf.Bind(t, "")
	guest.Await(t, "udev has renamed the interface", func() bool { return strings.HasPrefix(vf.Netdev(t), "en") })
	vf.Bind(t, "vfio-pci")
	guest.Write(t, vf.Path("driver_override"), "\n")
}

// A driver that is taken from the node and given back.
func TestLaboratoryModules(t *testing.T) {
	vf := guest.VF(t, 0)
	t.Run("away", func(t *testing.T) {
		guest.Unload(t, "igbvf")
		guest.Remove(t, "igbvf")
		guest.Write(t, vf.Path("driver/unbind"), string(vf))
		guest.Write(t, "/sys/bus/pci/drivers_probe", string(vf))
		if guest.Loaded("igbvf") || vf.Driver() != "" {
			t.Errorf("%v, want no driver", vf)
		}
		vf.Bind(t, "vfio-pci")
		guest.Write(t, vf.Path("driver_override"), "\n")
	})
	if !guest.Loaded("igbvf") {
		t.Error("igbvf is not back")
	}
}
