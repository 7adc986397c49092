package vfio

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/dhcp-meta/dhcp-meta/internal/atomicfile"
	"github.com/dhcp-meta/dhcp-meta/pkg/sriov"
)

// entryVersion is the form of an entry.
const entryVersion = 1

// entry is what is known on disk of a borrowed device: all that is needed to give
// it back without anything else.
type entry struct {
	Version int    `json:"version"`
	Device  string `json:"device"`
	// ID is its vendor and device: after a reboot another one may be there.
	ID string `json:"id"`
	// Override is its driver_override as it was.
	Override string `json:"override"`
	// PF is the address of its physical function, VF its number there.
	PF string `json:"pf"`
	VF int    `json:"vf"`
	// SetMAC is the MAC that the physical function was given for it, in place of
	// OldMAC; empty: none.
	SetMAC string `json:"setMAC,omitempty"`
	OldMAC string `json:"oldMAC,omitempty"`
	// Netns is the path of the private namespace.
	Netns string `json:"netns"`
	// Container, Interface and Pod tell people for whom it was, PodNetns whose
	// sriov-cni may say it is.
	Container string    `json:"container"`
	Interface string    `json:"interface"`
	Pod       string    `json:"pod,omitempty"`
	PodNetns  string    `json:"podNetns,omitempty"`
	BootID    string    `json:"bootID"`
	Since     time.Time `json:"since"`
}

// journal keeps the entries, a file each. Calls for one device come one after
// another.
type journal struct {
	dir string
	// gate is asked before each change; tests end the engine there.
	gate func(string) error
}

func (j *journal) path(address string) string { return filepath.Join(j.dir, address+".json") }

func (j *journal) ask(what string) error {
	if j.gate == nil {
		return nil
	}
	return j.gate(what)
}

// put makes an entry durable.
func (j *journal) put(e entry) error {
	if err := j.ask("journal put"); err != nil {
		return err
	}
	b, err := json.MarshalIndent(e, "", "  ")
	if err != nil {
		return fmt.Errorf("note that %s is borrowed: %w", e.Device, err)
	}
	if err := atomicfile.Write(j.path(e.Device), append(b, '\n'), 0o600); err != nil {
		return fmt.Errorf("note that %s is borrowed: %w", e.Device, err)
	}
	return nil
}

// remove forgets an entry, durably: one that comes back with the power would name
// a device that has belonged to somebody else since.
func (j *journal) remove(address string) error {
	if err := j.ask("journal remove"); err != nil {
		return err
	}
	err := os.Remove(j.path(address))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		var dir *os.File
		if dir, err = os.Open(j.dir); err == nil {
			err = errors.Join(dir.Sync(), dir.Close())
		}
	}
	if err != nil {
		return fmt.Errorf("note that %s was given back: %w", address, err)
	}
	return nil
}

// get returns the entry of a device; false: there is none.
func (j *journal) get(address string) (entry, bool, error) {
	b, err := os.ReadFile(j.path(address))
	if errors.Is(err, fs.ErrNotExist) {
		return entry{}, false, nil
	}
	if err != nil {
		return entry{}, false, fmt.Errorf("read which devices are borrowed: %w", err)
	}
	e, err := parseEntry(address, b)
	if err != nil {
		return entry{}, false, fmt.Errorf("read which devices are borrowed: %s: %w", j.path(address), err)
	}
	return e, true, nil
}

// parseEntry reads an entry. What would be written somewhere is checked: a file
// that somebody has touched must not lead anywhere else than an entry of ours.
func parseEntry(address string, b []byte) (entry, error) {
	var e entry
	if err := json.Unmarshal(b, &e); err != nil {
		return entry{}, err
	}
	if e.Version != entryVersion {
		return entry{}, fmt.Errorf("version %d is not known", e.Version)
	}
	if own, err := sriov.ParseAddress(e.Device); err != nil || own != e.Device || own != address {
		return entry{}, fmt.Errorf("it is of device %q", e.Device)
	}
	if pf, err := sriov.ParseAddress(e.PF); err != nil || pf != e.PF {
		return entry{}, fmt.Errorf("physical function %q is no PCI address", e.PF)
	}
	for _, mac := range []string{e.SetMAC, e.OldMAC} {
		if _, err := net.ParseMAC(mac); mac != "" && err != nil {
			return entry{}, err
		}
	}
	if e.Netns != "" && (!filepath.IsAbs(e.Netns) || filepath.Base(e.Netns) != e.Device) {
		return entry{}, fmt.Errorf("namespace %q is none of ours", e.Netns)
	}
	return e, nil
}

// devices are the devices that have an entry.
func (j *journal) devices() ([]string, error) {
	files, err := os.ReadDir(j.dir)
	if err != nil {
		return nil, fmt.Errorf("read which devices are borrowed: %w", err)
	}
	var all []string
	for _, f := range files {
		name := f.Name()
		if atomicfile.Temp(name) {
			j.clean(f)
			continue
		}
		address, found := cutJSON(name)
		if a, err := sriov.ParseAddress(address); found && err == nil && a == address {
			all = append(all, address)
		}
	}
	return all, nil
}

// clean removes a temporary file that a crash has left. A younger one may be of a
// write beside this.
func (j *journal) clean(f os.DirEntry) {
	if info, err := f.Info(); err == nil && time.Since(info.ModTime()) > time.Minute {
		os.Remove(filepath.Join(j.dir, f.Name())) // it is harmless where it stays
	}
}

func cutJSON(name string) (string, bool) {
	ext := filepath.Ext(name)
	return name[:len(name)-len(ext)], ext == ".json"
}
