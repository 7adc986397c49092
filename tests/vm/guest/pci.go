package guest

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dhcp-meta/dhcp-meta/tests/rig"
)

// A Device is the address of a PCI device, "0000:01:10.0".
type Device string

// What the machine is made of: the physical function of the igb that has virtual
// ones, one that has none, the server's end of the wire, the SSD, and one of the two
// NICs that share a group.
var PF, BarePF, PeerDevice, SSD, Neighbour Device

// VFs is how many virtual functions PF has.
const VFs = 2

const devices = "/sys/bus/pci/devices"

func findHardware() error {
	for _, d := range []struct {
		vendor, device string
		at             int // among those of this kind
		to             *Device
	}{
		{"0x8086", "0x10c9", 0, &PF}, {"0x8086", "0x10c9", 1, &BarePF}, {"0x8086", "0x10d3", 0, &PeerDevice},
		{"0x1b36", "0x0010", 0, &SSD}, {"0x8086", "0x100e", 0, &Neighbour},
	} {
		found, err := withID(d.vendor, d.device)
		if err != nil {
			return err
		}
		if len(found) <= d.at {
			return fmt.Errorf("the machine has %d devices %s:%s", len(found), d.vendor, d.device)
		}
		*d.to = found[d.at]
	}
	return nil
}

// withID lists the devices of a kind by their addresses.
func withID(vendor, device string) ([]Device, error) {
	entries, err := os.ReadDir(devices)
	if err != nil {
		return nil, err
	}
	var found []Device
	for _, e := range entries {
		d := Device(e.Name())
		if d.read("vendor") == vendor && d.read("device") == device {
			found = append(found, d)
		}
	}
	slices.Sort(found)
	return found, nil
}

// virtualFunctions makes the virtual functions of PF. They are made while it is down:
// otherwise it loses its link for seconds.
func virtualFunctions() error {
	pf, err := PF.netdev()
	if err != nil {
		return err
	}
	if err := os.WriteFile(PF.Path("sriov_numvfs"), fmt.Append(nil, VFs), 0); err != nil {
		return err
	}
	if err := command("ip", "link", "set", pf, "up"); err != nil {
		return err
	}
	for i := range VFs {
		if err := command("ip", "link", "set", pf, "vf", fmt.Sprint(i), "mac", MAC(i).String()); err != nil {
			return err
		}
	}
	if err := await(func() bool { return hasCarrier(pf) }); err != nil {
		return fmt.Errorf("no link on %s: %w", pf, err)
	}
	return nil
}

func hasCarrier(ifName string) bool {
	b, err := os.ReadFile("/sys/class/net/" + ifName + "/carrier")
	return err == nil && strings.TrimSpace(string(b)) == "1"
}

// MAC is what PF has set for its virtual function.
func MAC(i int) net.HardwareAddr { return net.HardwareAddr{0x52, 0x54, 0, 0, 1, byte(i)} }

// Path is the path of an attribute.
func (d Device) Path(attribute string) string { return filepath.Join(devices, string(d), attribute) }

func (d Device) read(attribute string) string {
	b, err := os.ReadFile(d.Path(attribute))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

func (d Device) link(name string) string {
	target, err := os.Readlink(d.Path(name))
	if err != nil {
		return ""
	}
	return filepath.Base(target)
}

// Driver is the driver that has it, "" for none.
func (d Device) Driver() string { return d.link("driver") }

// Override is what driver_override says, "" when it is clear.
func (d Device) Override() string {
	if o := d.read("driver_override"); o != "(null)" {
		return o
	}
	return ""
}

// Group is the number of its IOMMU group.
func (d Device) Group() string { return d.link("iommu_group") }

func (d Device) String() string {
	return fmt.Sprintf("%s driver=%q override=%q", string(d), d.Driver(), d.Override())
}

// netdev is the name of its interface in the machine's namespace.
func (d Device) netdev() (string, error) {
	entries, err := os.ReadDir(d.Path("net"))
	if err != nil {
		return "", err
	}
	if len(entries) != 1 {
		return "", fmt.Errorf("%s has %d interfaces", d, len(entries))
	}
	return entries[0].Name(), nil
}

// Netdev is the name of its interface in the machine's namespace, now.
func (d Device) Netdev(t testing.TB) string {
	t.Helper()
	name, err := d.netdev()
	if err != nil {
		t.Fatal(err)
	}
	return name
}

// Write writes an attribute.
func Write(t testing.TB, path, value string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(value), 0); err != nil {
		t.Fatal(err)
	}
}

// Bind gives the device to a driver as a node's agent does, with its override left
// there; an empty driver clears the override and lets the kernel choose.
func (d Device) Bind(t testing.TB, driver string) {
	t.Helper()
	d.bind(t, driver)
	if have := d.Driver(); driver != "" && have != driver {
		t.Fatalf("%s has driver %q, want %q", string(d), have, driver)
	}
}

// bind is Bind without a look at what came of it.
func (d Device) bind(t testing.TB, driver string) {
	t.Helper()
	if d.Driver() != "" {
		Write(t, d.Path("driver/unbind"), string(d))
	}
	Write(t, d.Path("driver_override"), driver+"\n")
	Write(t, "/sys/bus/pci/drivers_probe", string(d))
}

// Function is a virtual function of a physical one.
func Function(t testing.TB, pf Device, i int) Device {
	t.Helper()
	d := Device(pf.link(fmt.Sprint("virtfn", i)))
	if d == "" {
		t.Fatalf("%s has no virtual function %d", string(pf), i)
	}
	return d
}

// MakeVFs makes the virtual functions of PF again, when a test has taken them away.
func MakeVFs(t testing.TB) {
	t.Helper()
	// With the physical function up it would lose its link for seconds.
	Run(t, "ip", "link", "set", PF.Netdev(t), "down")
	if err := virtualFunctions(); err != nil {
		t.Fatal(err)
	}
}

// VF is a virtual function of PF on vfio-pci, as the SR-IOV operator leaves it: the
// override clear. At the end of the test it must be so again.
func VF(t testing.TB, i int) Device {
	t.Helper()
	d := Function(t, PF, i)
	d.Bind(t, "vfio-pci")
	Write(t, d.Path("driver_override"), "\n")
	t.Cleanup(func() { d.MustBeBack(t) })
	return d
}

// MustBeBack sees that a device is on vfio-pci with a clear override, that its
// interface is nowhere, and that its group can be opened, which is what a virtual
// machine does next.
func (d Device) MustBeBack(t testing.TB) {
	t.Helper()
	if d.Driver() != "vfio-pci" || d.Override() != "" {
		t.Errorf("the device is not back on vfio-pci with a clear override: %v", d)
		return
	}
	if entries, err := os.ReadDir(d.Path("net")); err == nil && len(entries) > 0 {
		t.Errorf("%v has an interface still", d)
	}
	g, err := OpenGroup(d)
	if err != nil {
		t.Errorf("%v cannot be opened: %v", d, err)
		return
	}
	g.Close()
}

// await waits until ok says yes. What sysfs says has no event to wait for.
func await(ok func() bool) error {
	deadline := time.After(rig.Patience)
	again := time.NewTicker(20 * time.Millisecond)
	defer again.Stop()
	for !ok() {
		select {
		case <-again.C:
		case <-deadline:
			return errors.New("not within " + rig.Patience.String())
		}
	}
	return nil
}

// Await waits until ok says yes.
func Await(t testing.TB, what string, ok func() bool) {
	t.Helper()
	if err := await(ok); err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}
