// Package sysfstest is a sysfs of PCI devices in a folder, which reacts to writes
// as the kernel does: to unbind, bind, driver_override and drivers_probe, and to
// the loading of a module. It was written after what Linux 6.1 was seen to do with
// an Intel 82576, vfio-pci and igbvf, its silences included: a probe that fails is
// a write that succeeds.
package sysfstest

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// Release is the release of the tree's kernel.
const Release = "6.1.0-test"

// Tree is the fake. Its methods are safe for concurrent use.
type Tree struct {
	// Root holds sys, proc, dev, etc and lib.
	Root string

	// Before is asked before the kernel sees a write; an error is the write's, and
	// nothing happens. Set it before the first write.
	Before func(Op) error
	// Bound is told of a device that a driver has taken, and returns the interface
	// that it made; without it the tree makes up names. Unbound is told before the
	// interface of a device goes.
	Bound   func(address, driver string) (name string, index int)
	Unbound func(address, driver string)

	mu      sync.Mutex
	drivers []*Driver // in the order of their registration
	modules map[string]Driver
	held    map[string]chan struct{}
	next    int // the interface index of the next interface
	minor   int
}

// Op is a write as the kernel understands it.
type Op struct {
	// Kind is the file written: unbind, bind, driver_override, drivers_probe; load
	// for a module.
	Kind string
	// Driver is the driver of unbind and bind, and the word in driver_override.
	Driver string
	// Address is the device's; for load the module's name.
	Address string
}

// Driver is a driver on the bus.
type Driver struct {
	Name, Module string
	// IDs are the devices that it takes, "8086:10ca"; none: only by its name.
	IDs []string
	// Fails says that its probe fails.
	Fails bool
}

// Function is a PCI function.
type Function struct {
	Address string
	// ID is vendor and device, "8086:10ca"; Class six digits, 020000 by default.
	ID, Class string
	// Driver has the device at first; empty: none.
	Driver string
	// Group is its IOMMU group; empty: none.
	Group string
	// PF makes it virtual function number VF of another function, which is there.
	PF string
	VF int
	// VFs makes it a physical function that can have as many.
	VFs int
}

// New makes a tree without devices, with the driver vfio-pci.
func New(dir string) (*Tree, error) {
	t := &Tree{Root: dir, modules: map[string]Driver{}, held: map[string]chan struct{}{}, next: 100}
	for _, d := range []string{"sys/bus/pci/devices", "sys/bus/pci/drivers", "sys/devices/pci0000:00",
		"sys/kernel/iommu_groups", "sys/module", "sys/class/vfio", "proc", "dev/vfio", "etc/modprobe.d", "lib/modules/" + Release} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			return nil, err
		}
	}
	err := errors.Join(
		t.put("sys/bus/pci/drivers_probe", ""),
		t.put("lib/modules/"+Release+"/modules.alias", "# Aliases extracted from modules themselves.\n"),
		t.put("lib/modules/"+Release+"/modules.dep", ""),
		t.put("proc/cmdline", "quiet\n"),
		t.Register(Driver{Name: "vfio-pci", Module: "vfio_pci"}),
	)
	return t, err
}

func (t *Tree) path(elem ...string) string {
	return filepath.Join(append([]string{t.Root}, elem...)...)
}

// Put makes a file below the root, with its folder.
func (t *Tree) Put(name, content string) error { return t.put(name, content) }

func (t *Tree) put(name, content string) error {
	if err := os.MkdirAll(filepath.Dir(t.path(name)), 0o755); err != nil {
		return err
	}
	// Who reads beside this sees the old value or the new one, as in sysfs.
	f, err := os.CreateTemp(t.Root, ".new-")
	if err != nil {
		return err
	}
	_, err = f.WriteString(content)
	return errors.Join(err, f.Chmod(0o644), f.Close(), os.Rename(f.Name(), t.path(name)))
}

// AddModule puts a module on the disk: in modules.alias, modules.dep, and a file.
// It needs those named in needs.
func (t *Tree) AddModule(d Driver, needs ...string) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.modules[d.Module] = d
	var aliases, deps strings.Builder
	for _, id := range d.IDs {
		fmt.Fprintf(&aliases, "alias %s %s\n", pattern(id), d.Module)
	}
	fmt.Fprintf(&deps, "kernel/drivers/%s.ko:", d.Module)
	for _, n := range needs {
		fmt.Fprintf(&deps, " kernel/drivers/%s.ko", n)
	}
	folder := "lib/modules/" + Release
	return errors.Join(t.append(folder+"/modules.alias", aliases.String()), t.append(folder+"/modules.dep", deps.String()+"\n"),
		t.put(folder+"/kernel/drivers/"+d.Module+".ko", "a module\n"))
}

func (t *Tree) append(name, more string) error {
	b, err := os.ReadFile(t.path(name))
	if err != nil {
		return err
	}
	return t.put(name, string(b)+more)
}

// pattern is the modules.alias pattern of an id.
func pattern(id string) string {
	vendor, device, _ := strings.Cut(strings.ToUpper(id), ":")
	return "pci:v0000" + vendor + "d0000" + device + "sv*sd*bc*sc*i*"
}

// Register makes a driver known, as loading its module does: devices without a
// driver that fit become its own.
func (t *Tree) Register(d Driver) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.register(d)
}

func (t *Tree) register(d Driver) error {
	folder := "sys/bus/pci/drivers/" + d.Name
	err := errors.Join(t.put(folder+"/bind", ""), t.put(folder+"/unbind", ""), t.put(folder+"/new_id", ""))
	if d.Module != "" {
		err = errors.Join(err, os.MkdirAll(t.path("sys/module", d.Module), 0o755),
			os.Symlink("../../../../module/"+d.Module, t.path(folder, "module")))
	}
	if err != nil {
		return err
	}
	t.drivers = append(t.drivers, &d)
	devices, err := os.ReadDir(t.path("sys/bus/pci/devices"))
	for _, e := range devices {
		if t.driver(e.Name()) == "" {
			err = errors.Join(err, t.probe(e.Name()))
		}
	}
	return err
}

// Fail makes the probes of a driver fail, or work again.
func (t *Tree) Fail(driver string, fails bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, d := range t.drivers {
		if d.Name == driver {
			d.Fails = fails
		}
	}
}

// AddIDs tells a driver of more devices, as a write to new_id does; it changes
// nothing for those that have a driver.
func (t *Tree) AddIDs(driver string, ids ...string) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	d := t.find(driver)
	if d == nil {
		return fmt.Errorf("there is no driver %s", driver)
	}
	d.IDs = append(d.IDs, ids...)
	return nil
}

// Add makes a function.
func (t *Tree) Add(f Function) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if f.Class == "" {
		f.Class = "020000"
	}
	vendor, device, _ := strings.Cut(f.ID, ":")
	real := "sys/devices/pci0000:00/" + f.Address
	modalias := fmt.Sprintf("pci:v0000%sd0000%ssv00000000sd00000000bc%ssc%si%s",
		strings.ToUpper(vendor), strings.ToUpper(device), f.Class[:2], f.Class[2:4], f.Class[4:])
	err := errors.Join(
		t.put(real+"/vendor", "0x"+vendor+"\n"), t.put(real+"/device", "0x"+device+"\n"),
		t.put(real+"/class", "0x"+f.Class+"\n"), t.put(real+"/modalias", modalias+"\n"),
		t.put(real+"/driver_override", "(null)\n"),
		os.Symlink("../../../devices/pci0000:00/"+f.Address, t.path("sys/bus/pci/devices", f.Address)),
	)
	if f.VFs > 0 {
		err = errors.Join(err, t.put(real+"/sriov_totalvfs", strconv.Itoa(f.VFs)+"\n"), t.put(real+"/sriov_drivers_autoprobe", "1\n"))
	}
	if f.PF != "" {
		err = errors.Join(err, os.Symlink("../"+f.PF, t.path(real, "physfn")),
			os.Symlink("../"+f.Address, t.path("sys/devices/pci0000:00", f.PF, "virtfn"+strconv.Itoa(f.VF))))
	}
	if f.Group != "" {
		group := "sys/kernel/iommu_groups/" + f.Group + "/devices"
		err = errors.Join(err, os.MkdirAll(t.path(group), 0o755),
			os.Symlink("../../../kernel/iommu_groups/"+f.Group, t.path(real, "iommu_group")),
			os.Symlink("../../../../devices/pci0000:00/"+f.Address, t.path(group, f.Address)))
	}
	if err == nil && f.Driver != "" {
		err = t.bind(f.Address, f.Driver)
	}
	return err
}

// Remove takes a function away, as sriov_numvfs=0 does; its driver lets it go.
func (t *Tree) Remove(address string) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.unbind(address)
	if pf, err := os.Readlink(t.path("sys/bus/pci/devices", address, "physfn")); err == nil {
		links, _ := filepath.Glob(t.path("sys/devices/pci0000:00", filepath.Base(pf), "virtfn*"))
		for _, l := range links {
			if to, _ := os.Readlink(l); filepath.Base(to) == address {
				os.Remove(l)
			}
		}
	}
	if group := t.group(address); group != "" {
		os.Remove(t.path("sys/kernel/iommu_groups", group, "devices", address))
	}
	return errors.Join(os.Remove(t.path("sys/bus/pci/devices", address)), os.RemoveAll(t.path("sys/devices/pci0000:00", address)))
}

// Hold keeps a device open as a process does that has it on vfio-pci: unbinding it
// blocks until release is called.
func (t *Tree) Hold(address string) (release func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	c := make(chan struct{})
	t.held[address] = c
	return sync.OnceFunc(func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		delete(t.held, address)
		close(c)
	})
}

// Moved takes an interface of a device out of sight, as its move into another
// network namespace does.
func (t *Tree) Moved(address string, index int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	files, _ := filepath.Glob(t.path("sys/bus/pci/devices", address, "net/*/ifindex"))
	for _, f := range files {
		if b, _ := os.ReadFile(f); strings.TrimSpace(string(b)) == strconv.Itoa(index) {
			os.RemoveAll(filepath.Dir(f))
		}
	}
}

// Appear makes an interface of a device visible, as one does that comes back from a
// network namespace that has ended.
func (t *Tree) Appear(address, name string, index int) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.put("sys/bus/pci/devices/"+address+"/net/"+name+"/ifindex", strconv.Itoa(index)+"\n")
}

// Rename gives the interfaces of a device another name, as udev does.
func (t *Tree) Rename(address, name string) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	links, _ := filepath.Glob(t.path("sys/bus/pci/devices", address, "net/*"))
	if len(links) != 1 {
		return fmt.Errorf("%s has %d interfaces", address, len(links))
	}
	return os.Rename(links[0], filepath.Join(filepath.Dir(links[0]), name))
}

// Driver is the driver of a device.
func (t *Tree) Driver(address string) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.driver(address)
}

func (t *Tree) driver(address string) string {
	to, err := os.Readlink(t.path("sys/bus/pci/devices", address, "driver"))
	if err != nil {
		return ""
	}
	return filepath.Base(to)
}

func (t *Tree) find(driver string) *Driver {
	if i := slices.IndexFunc(t.drivers, func(d *Driver) bool { return d.Name == driver }); i >= 0 {
		return t.drivers[i]
	}
	return nil
}
