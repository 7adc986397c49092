package sriov

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// ErrNoDriver says that the kernel has no driver for a device, and cannot get one.
var ErrNoDriver = errors.New("no kernel driver")

// Driver is a kernel driver for a device.
type Driver struct {
	// Name is the driver's on the PCI bus; Module may be another name.
	Name, Module string
}

// userspace are drivers that take any device, to hand it to a process. None makes
// a network interface of it.
var userspace = []string{VFIOPCI, "uio_pci_generic", "igb_uio", "pci-stub", "xen-pciback"}

// EnsureDriver returns the driver that the kernel would give the device, loading
// its module if there is one that may be loaded. When it fails with ErrNoDriver
// nothing has changed. The kernel chooses by the same modalias; where several
// drivers fit, it may be another one of them.
func (h *Host) EnsureDriver(d Device) (Driver, error) {
	operator, err := h.readModprobe()
	if err != nil {
		return Driver{}, err
	}
	modules, err := h.claims(d.Modalias, operator)
	if err != nil {
		return Driver{}, err
	}
	for _, module := range modules {
		if name := h.driverOf(module); name != "" {
			return Driver{name, module}, nil
		}
	}
	var reasons []string
	for _, module := range modules {
		if why := operator.refuses(module); why != "" {
			reasons = append(reasons, fmt.Sprintf("module %s %s", module, why))
			continue
		}
		if err := h.loadModule(module, operator); err != nil {
			reasons = append(reasons, err.Error())
			continue
		}
		if name := h.driverOf(module); name != "" {
			return Driver{name, module}, nil
		}
		reasons = append(reasons, fmt.Sprintf("module %s is loaded and has no driver for PCI devices", module))
	}
	if len(modules) == 0 {
		reasons = append(reasons, fmt.Sprintf("no module of kernel %s claims it", h.release))
	}
	return Driver{}, fmt.Errorf("%w fits %s (%s, modalias %s): %s", ErrNoDriver, d.Address, d.ID, d.Modalias, strings.Join(reasons, "; "))
}

// claims are the modules that say a modalias is theirs: by the operator's word,
// built in, or in a file.
func (h *Host) claims(modalias string, operator *modprobe) ([]string, error) {
	var modules []string
	for _, a := range operator.aliases {
		if match(a.pattern, modalias) {
			modules = add(modules, a.module)
		}
	}
	folder := h.path("lib/modules", h.release)
	// A kernel without built-in drivers may lack the first file, one without
	// modules the second.
	info, err := os.ReadFile(filepath.Join(folder, "modules.builtin.modinfo"))
	for _, m := range builtinClaims(info, modalias) {
		modules = add(modules, m)
	}
	f, err2 := os.Open(filepath.Join(folder, "modules.alias"))
	if err != nil && err2 != nil {
		return nil, fmt.Errorf("find a driver by modalias: %w (the engine's container needs the node's /lib/modules)", err2)
	}
	if err2 == nil {
		defer f.Close()
		found, err := claims(f, modalias)
		if err != nil {
			return nil, fmt.Errorf("find a driver by modalias: %s: %w", f.Name(), err)
		}
		for _, m := range found {
			modules = add(modules, m)
		}
	}
	return modules, nil
}

// driverOf is the driver that a module has registered on the PCI bus; empty: none.
func (h *Host) driverOf(module string) string {
	links, err := filepath.Glob(h.path("sys/bus/pci/drivers/*/module"))
	if err != nil {
		return ""
	}
	for _, link := range links {
		name := filepath.Base(filepath.Dir(link))
		if underscored(linked(link)) == module && !slices.Contains(userspace, name) {
			return name
		}
	}
	return ""
}

// loadModule loads a module after those that it needs.
func (h *Host) loadModule(module string, operator *modprobe) error {
	folder := h.path("lib/modules", h.release)
	f, err := os.Open(filepath.Join(folder, "modules.dep"))
	if err != nil {
		return fmt.Errorf("load module %s: %w", module, err)
	}
	defer f.Close()
	list, err := files(f, module)
	if err != nil {
		return fmt.Errorf("load module %s: %s: %w", module, f.Name(), err)
	}
	if list == nil {
		return fmt.Errorf("load module %s: modules.dep of kernel %s does not know it", module, h.release)
	}
	for _, file := range list {
		name := moduleOf(file)
		if _, err := os.Stat(h.path("sys/module", name)); err == nil {
			continue
		}
		if !filepath.IsAbs(file) {
			file = filepath.Join(folder, file)
		} else {
			file = h.path(file)
		}
		if err := h.load(file, strings.Join(operator.options[name], " ")); err != nil {
			return fmt.Errorf("load module %s: %w", name, err)
		}
	}
	return nil
}

// Userspace tells whether a driver hands its devices to processes.
func Userspace(driver string) bool { return slices.Contains(userspace, driver) }
