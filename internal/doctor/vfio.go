package doctor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/dhcp-meta/dhcp-meta/pkg/sriov"
)

func (e *examination) checkVFIO(context.Context) ([]Finding, string) {
	found := judgeBorrowed(filepath.Join(e.cfg.StateDir, "borrowed"), e.cfg.VFIOWindow, time.Now())
	v, err := openVFIO(e.cfg.PCI)
	if err != nil {
		return append(found, Finding{VFIODev, Warning, "the PCI devices of the node cannot be read", err.Error(), "mount the node's /sys"}), ""
	}
	addresses := v.addresses()
	for _, address := range addresses {
		found = append(found, v.judge(address, linkState)...)
	}
	return found, fmt.Sprintf("devices on vfio-pci: %d", len(addresses))
}

// vfio looks at devices that hand themselves to processes.
type vfio struct {
	root string
	host *sriov.Host
	// loadable is set when a module would have been loaded.
	loadable bool
}

func openVFIO(cfg sriov.Config) (*vfio, error) {
	v := &vfio{root: cfg.Root}
	// Whether there is a driver is asked as the engine does it, but nothing is loaded.
	cfg.LoadModule = func(path, _ string) error {
		if _, err := os.Stat(path); err != nil {
			return err
		}
		v.loadable = true
		return nil
	}
	var err error
	v.host, err = sriov.Open(cfg)
	return v, err
}

func (v *vfio) path(elem ...string) string { return filepath.Join("/", v.root, filepath.Join(elem...)) }

// addresses are the devices on vfio-pci.
func (v *vfio) addresses() (list []string) {
	links, _ := filepath.Glob(v.path("sys/bus/pci/drivers", sriov.VFIOPCI, "*:*:*.*")) // the pattern is good
	for _, link := range links {
		list = append(list, filepath.Base(link))
	}
	return list
}

// judge holds a virtual function against what borrowing it needs. Other devices are
// nobody's business here.
func (v *vfio) judge(address string, state func(string) (bool, error)) (found []Finding) {
	d, err := v.host.Find(address)
	if err != nil || d.CheckVF() != nil {
		return nil
	}
	if d.Group == "" {
		found = append(found, Finding{VFIOIOMMU, Error, "device " + address + " is on vfio-pci without an IOMMU", "it has no iommu_group in sysfs",
			"switch the IOMMU on in the firmware and on the kernel's command line (intel_iommu=on)"})
	}
	v.loadable = false
	if _, err := v.host.EnsureDriver(d); err != nil && !v.loadable {
		id, do := VFIODriver, "load its driver at boot (/etc/modules-load.d), or have the node's kernel get it; docs/vfio.md"
		if !errors.Is(err, sriov.ErrNoDriver) {
			do = "mount the node's /lib/modules read-only into the engine's container"
		}
		found = append(found, Finding{id, Error, "device " + address + " has no driver that could ask for an address", err.Error(), do})
	}
	if err := v.host.CheckWritable(address); err != nil {
		found = append(found, Finding{VFIOReadOnly, Error, "the engine cannot move device " + address + " to its driver", err.Error(),
			"mount the node's /sys writable into the engine's container"})
	}
	if _, err := os.Stat(v.path("dev/vfio")); err != nil {
		found = append(found, Finding{VFIODev, Error, "it cannot be seen whether device " + address + " is in use", err.Error(),
			"mount the node's /dev/vfio into the engine's container"})
	}
	return append(found, v.physical(d, state)...)
}

// physical looks at the interface of the physical function, without which a virtual
// one has no carrier.
func (v *vfio) physical(d sriov.Device, state func(string) (bool, error)) []Finding {
	interfaces, err := v.host.Interfaces(d.PF)
	switch {
	case err != nil || len(interfaces) == 0:
		return []Finding{{VFIOPhysical, Warning, "the physical function of device " + d.Address + " has no interface here",
			seen("%s has none in this network namespace", d.PF), "run the engine with hostNetwork: true, and the physical function on its kernel driver"}}
	default:
		if up, err := state(interfaces[0].Name); err == nil && up {
			return nil
		}
	}
	return []Finding{{VFIOPhysical, Warning, "the physical function of device " + d.Address + " is down, so that the device has no carrier",
		seen("interface %s of %s is not up", interfaces[0].Name, d.PF), "ip link set " + interfaces[0].Name + " up"}}
}

// judgeBorrowed looks for devices that were lent and have not come back.
func judgeBorrowed(dir string, window time.Duration, now time.Time) []Finding {
	entries, _ := os.ReadDir(dir) // none where nothing was ever borrowed
	var late []string
	for _, entry := range entries {
		fi, err := entry.Info()
		if err == nil && filepath.Ext(entry.Name()) == ".json" && now.Sub(fi.ModTime()) > 2*window {
			late = append(late, strings.TrimSuffix(entry.Name(), ".json"))
		}
	}
	if len(late) == 0 {
		return nil
	}
	return []Finding{{VFIOBorrowed, Error, "devices have not come back to vfio-pci: " + strings.Join(late, ", "),
		seen("%s has journal entries older than twice --vfio-window (%s)", dir, window), "the engine tries every ten seconds while it runs; its log says what is in the way"}}
}
