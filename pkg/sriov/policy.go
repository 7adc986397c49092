package sriov

import (
	"fmt"
	"slices"
	"strings"
)

// ID is vendor and device of a PCI device.
type ID struct{ Vendor, Device uint16 }

// String is the id as people write it: 8086:154c.
func (id ID) String() string { return fmt.Sprintf("%04x:%04x", id.Vendor, id.Device) }

// ParseID reads vendor:device, four hexadecimal digits each.
func ParseID(s string) (ID, error) {
	vendor, device, _ := strings.Cut(s, ":")
	v, ok1 := hexadecimal(vendor, 4, 4, 0xffff)
	d, ok2 := hexadecimal(device, 4, 4, 0xffff)
	if !ok1 || !ok2 {
		return ID{}, fmt.Errorf("%q is no vendor:device of four hexadecimal digits each, such as 8086:154c", s)
	}
	return ID{uint16(v), uint16(d)}, nil
}

// Policy is which devices may be touched.
type Policy struct {
	// Allow names those that may; empty: all.
	Allow []ID
	// Deny names those that may not, whatever Allow says.
	Deny []ID
}

// Check refuses a device that must not be touched.
func (p Policy) Check(d Device) error {
	switch {
	case slices.Contains(p.Deny, d.ID):
		return fmt.Errorf("devices of kind %s are on the deny-list", d.ID)
	case len(p.Allow) > 0 && !slices.Contains(p.Allow, d.ID):
		return fmt.Errorf("devices of kind %s are not on the allow-list", d.ID)
	}
	return nil
}
