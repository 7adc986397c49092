package sriov

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// ErrNoDevice is the error of an address at which no device is.
var ErrNoDevice = errors.New("no such PCI device is on this node")

// Device is a PCI device as it was when it was looked at.
type Device struct {
	Address string
	ID      ID
	// Class is the base class: 02 is a network controller.
	Class string
	// Modalias is the kernel's name of the kind of device, by which drivers say
	// which devices are theirs.
	Modalias string
	// Driver has the device; empty: none.
	Driver string
	// Override names the only driver that may take the device; empty: any.
	Override string
	// Group is the number of its IOMMU group; empty: there is no IOMMU.
	Group string
	// PF is the address of its physical function; empty: it is no virtual function.
	PF string
	// VF is the number that the physical function knows it by.
	VF int
	// VFs is how many virtual functions it can have itself.
	VFs int
}

// networkController is the base class of network interfaces.
const networkController = "02"

// Find tells what the device at an address is.
func (h *Host) Find(address string) (Device, error) {
	address, err := ParseAddress(address)
	if err != nil {
		return Device{}, err
	}
	alias, err := text(h.device(address, "modalias"))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return Device{}, fmt.Errorf("%s: %w", address, ErrNoDevice)
	case err != nil:
		return Device{}, fmt.Errorf("look at device %s: %w", address, err)
	}
	// What ghw keeps of a device is as old as its list, and it keeps none when one
	// device of the machine is odd: so it reads the modalias of this one.
	read := h.pci.ParseDevice(address, alias)
	if read == nil {
		return Device{}, fmt.Errorf("look at device %s: modalias %q is not understood", address, alias)
	}
	d := Device{
		Address: address, Class: read.Class.ID, Modalias: alias,
		Driver: h.Driver(address), Group: linked(h.device(address, "iommu_group")),
	}
	if d.ID, err = ParseID(read.Vendor.ID + ":" + read.Product.ID); err != nil {
		return Device{}, fmt.Errorf("look at device %s: modalias %q: %w", address, alias, err)
	}
	if d.Override, err = h.Override(address); err != nil {
		return Device{}, err
	}
	if total, err := text(h.device(address, "sriov_totalvfs")); err == nil {
		d.VFs, _ = strconv.Atoi(total) // 0 where it is not understood: it is only said
	}
	if d.PF = linked(h.device(address, "physfn")); d.PF != "" {
		if d.VF, err = h.number(d.PF, address); err != nil {
			return Device{}, err
		}
	}
	return d, nil
}

// number is the number of a virtual function at its physical function.
func (h *Host) number(pf, vf string) (int, error) {
	links, err := filepath.Glob(h.device(pf, "virtfn*"))
	if err != nil {
		return 0, fmt.Errorf("look at device %s: %w", pf, err)
	}
	for _, link := range links {
		if linked(link) == vf {
			if n, err := strconv.Atoi(strings.TrimPrefix(filepath.Base(link), "virtfn")); err == nil {
				return n, nil
			}
		}
	}
	return 0, fmt.Errorf("look at device %s: its physical function %s does not name it", vf, pf)
}

// CheckVF refuses what is no virtual function of a network interface.
func (d Device) CheckVF() error {
	switch {
	case d.Class != networkController:
		return fmt.Errorf("device %s (%s) is no network interface: its class is %s", d.Address, d.ID, d.Class)
	case d.PF == "" && d.VFs > 0:
		return fmt.Errorf("device %s (%s) is a physical function, not one of its virtual functions", d.Address, d.ID)
	case d.PF == "":
		return fmt.Errorf("device %s (%s) is no virtual function", d.Address, d.ID)
	}
	return nil
}

// Driver is the driver that has the device now; empty: none. A write by which it
// should change says nothing of whether it did; this does.
func (h *Host) Driver(address string) string { return linked(h.device(address, "driver")) }

// Override is the driver_override of the device; empty: none.
func (h *Host) Override(address string) (string, error) {
	name, err := text(h.device(address, "driver_override"))
	if err != nil {
		return "", fmt.Errorf("look at device %s: %w", address, err)
	}
	if name == "(null)" {
		return "", nil
	}
	return name, nil
}

// Autoprobe tells whether the virtual functions of a physical function are offered
// to drivers without an override that names one (sriov_drivers_autoprobe).
func (h *Host) Autoprobe(pf string) bool {
	on, err := text(h.device(pf, "sriov_drivers_autoprobe"))
	return err != nil || on != "0"
}

// Interface is a network interface of a device.
type Interface struct {
	Name  string
	Index int
}

// Interfaces are the network interfaces of a device that can be seen in the
// namespace that sysfs was mounted in. The index names one for as long as it
// lives; the name may be another one a moment later.
func (h *Host) Interfaces(address string) ([]Interface, error) {
	var all []Interface
	// Right below the device, or below the virtio device on it.
	for _, pattern := range []string{"net/*/ifindex", "virtio*/net/*/ifindex"} {
		files, err := filepath.Glob(h.device(address, pattern))
		if err != nil {
			return nil, fmt.Errorf("look for interfaces of %s: %w", address, err)
		}
		for _, file := range files {
			s, err := text(file)
			if err != nil {
				continue // renamed, moved or gone since
			}
			index, err := strconv.Atoi(s)
			if err != nil {
				return nil, fmt.Errorf("look for interfaces of %s: %s: %w", address, file, err)
			}
			i := Interface{filepath.Base(filepath.Dir(file)), index}
			if !slices.ContainsFunc(all, func(o Interface) bool { return o.Index == i.Index }) {
				all = append(all, i)
			}
		}
	}
	return all, nil
}

// VFIO are the character devices by which processes take a device that is on
// vfio-pci: their paths below /dev and their numbers, "242:0". A kernel has the
// group, the newer device, or both.
func (h *Host) VFIO(d Device) (map[string]string, error) {
	nodes := map[string]string{}
	for _, name := range []string{d.Group, "noiommu-" + d.Group} {
		if d.Group == "" {
			break
		}
		if number, err := text(h.path("sys/class/vfio", name, "dev")); err == nil {
			nodes[filepath.Join("vfio", name)] = number
		}
	}
	entries, err := os.ReadDir(h.device(d.Address, "vfio-dev"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("look for VFIO devices of %s: %w", d.Address, err)
	}
	for _, e := range entries {
		if number, err := text(h.device(d.Address, "vfio-dev", e.Name(), "dev")); err == nil {
			nodes[filepath.Join("vfio/devices", e.Name())] = number
		}
	}
	return nodes, nil
}
