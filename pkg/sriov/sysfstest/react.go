package sysfstest

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Write is a write to a file of the tree's sysfs, with what the kernel makes of it.
func (t *Tree) Write(path string, data []byte) error {
	if _, err := os.Stat(path); err != nil {
		return err
	}
	word := strings.TrimRight(string(data), "\n\x00")
	op := Op{Kind: filepath.Base(path), Address: word}
	dir := filepath.Base(filepath.Dir(path))
	switch op.Kind {
	case "unbind", "bind":
		op.Driver = dir
		// ".../devices/<address>/driver/unbind" is the same file.
		if real, err := filepath.EvalSymlinks(filepath.Dir(path)); err == nil {
			op.Driver = filepath.Base(real)
		}
	case "driver_override":
		op.Driver, op.Address = word, dir
	}
	if t.Before != nil {
		if err := t.Before(op); err != nil {
			return &os.PathError{Op: "write", Path: path, Err: err}
		}
	}
	if err := t.react(op); err != nil {
		return &os.PathError{Op: "write", Path: path, Err: err}
	}
	return nil
}

func (t *Tree) react(op Op) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, err := os.Stat(t.path("sys/bus/pci/devices", op.Address)); err != nil {
		return unix.ENODEV
	}
	switch op.Kind {
	case "unbind":
		if t.driver(op.Address) != op.Driver {
			return unix.ENODEV
		}
		t.unbind(op.Address)
		return nil
	case "bind":
		if d := t.find(op.Driver); t.driver(op.Address) != "" || d == nil || !t.wants(d, op.Address) {
			return unix.ENODEV
		} else if d.Fails {
			return unix.EINVAL
		}
		return t.bind(op.Address, op.Driver)
	case "driver_override":
		if op.Driver == "" {
			op.Driver = "(null)"
		}
		return t.put("sys/bus/pci/devices/"+op.Address+"/driver_override", op.Driver+"\n")
	case "drivers_probe":
		if t.driver(op.Address) != "" {
			return nil
		}
		return t.probe(op.Address)
	}
	return fmt.Errorf("%s: %w", op.Kind, unix.EPERM)
}

// Load is the loading of a module from its file.
func (t *Tree) Load(path, _ string) error {
	name := strings.TrimSuffix(filepath.Base(path), ".ko")
	if t.Before != nil {
		if err := t.Before(Op{Kind: "load", Address: name}); err != nil {
			return err
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	d, known := t.modules[name]
	if _, err := os.Stat(path); err != nil || !known {
		return fmt.Errorf("load %s: %w", path, unix.ENOENT)
	}
	if d.Name == "" { // one that others need
		return os.MkdirAll(t.path("sys/module", name), 0o755)
	}
	return t.register(d)
}

// wants tells whether the kernel would offer a device to a driver.
func (t *Tree) wants(d *Driver, address string) bool {
	override := t.text(address, "driver_override")
	if override != "(null)" {
		return override == d.Name
	}
	return slices.Contains(d.IDs, t.id(address))
}

func (t *Tree) id(address string) string {
	return strings.TrimPrefix(t.text(address, "vendor"), "0x") + ":" + strings.TrimPrefix(t.text(address, "device"), "0x")
}

func (t *Tree) text(address, file string) string {
	b, _ := os.ReadFile(t.path("sys/bus/pci/devices", address, file))
	return strings.TrimSpace(string(b))
}

// probe offers a device to all drivers. Nobody is told when none takes it.
func (t *Tree) probe(address string) error {
	physical := t.path("sys/bus/pci/devices", address, "physfn/sriov_drivers_autoprobe")
	if b, err := os.ReadFile(physical); err == nil && strings.TrimSpace(string(b)) == "0" && t.text(address, "driver_override") == "(null)" {
		return nil
	}
	for _, d := range t.drivers {
		if t.wants(d, address) && !d.Fails {
			return t.bind(address, d.Name)
		}
	}
	return nil
}

// bind gives a device to a driver, with all that appears then.
func (t *Tree) bind(address, driver string) error {
	device := t.path("sys/bus/pci/devices", address)
	err := errors.Join(os.Symlink("../../../bus/pci/drivers/"+driver, filepath.Join(device, "driver")),
		os.Symlink("../../../../devices/pci0000:00/"+address, t.path("sys/bus/pci/drivers", driver, address)))
	if err != nil {
		return err
	}
	if driver == "vfio-pci" {
		group := t.group(address)
		if group == "" {
			return nil
		}
		t.minor++
		return errors.Join(t.put("sys/class/vfio/"+group+"/dev", "242:"+strconv.Itoa(t.minor)+"\n"),
			t.put("dev/vfio/"+group, ""))
	}
	if !strings.HasPrefix(t.text(address, "class"), "0x02") {
		return nil
	}
	// The index is another one each time, and so may be the name.
	t.next++
	name, index := "eth"+strconv.Itoa(t.next), t.next
	if t.Bound != nil {
		name, index = t.Bound(address, driver)
	}
	if name == "" {
		return nil
	}
	return t.put("sys/bus/pci/devices/"+address+"/net/"+name+"/ifindex", strconv.Itoa(index)+"\n")
}

// unbind takes a device from its driver. Where a process has it open the link is
// gone at once, and the rest follows when it is closed.
func (t *Tree) unbind(address string) {
	driver := t.driver(address)
	if driver == "" {
		return
	}
	device := t.path("sys/bus/pci/devices", address)
	os.Remove(filepath.Join(device, "driver"))
	os.Remove(t.path("sys/bus/pci/drivers", driver, address))
	if c := t.held[address]; c != nil && driver == "vfio-pci" {
		t.mu.Unlock()
		<-c
		t.mu.Lock()
	}
	if group := t.group(address); driver == "vfio-pci" && group != "" {
		os.RemoveAll(t.path("sys/class/vfio", group))
		os.Remove(t.path("dev/vfio", group))
	}
	if driver != "vfio-pci" && t.Unbound != nil {
		t.Unbound(address, driver)
	}
	os.RemoveAll(filepath.Join(device, "net"))
}

func (t *Tree) group(address string) string {
	to, err := os.Readlink(t.path("sys/bus/pci/devices", address, "iommu_group"))
	if err != nil {
		return ""
	}
	return filepath.Base(to)
}
