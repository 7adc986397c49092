package sriov

import (
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/dhcp-meta/dhcp-meta/pkg/sriov/sysfstest"
)

// The kernel's silence: a probe that fails, or finds no driver, is a write that
// succeeds. Only the device tells.
func TestProbeThatFailsSaysNothing(t *testing.T) {
	tree := newTree(t)
	h := openTree(t, tree)
	must(t, h.Unbind(vf0))
	tree.Fail("igbvf", true)
	if d, err := h.Probe(vf0); err != nil || d != "" {
		t.Errorf("probe that fails: %q, %v", d, err)
	}
	tree.Fail("igbvf", false)
	must(t, h.SetOverride(vf0, "not-there"))
	if d, err := h.Probe(vf0); err != nil || d != "" {
		t.Errorf("override of a driver that is not there: %q, %v", d, err)
	}
	must(t, h.SetOverride(vf0, ""))
	if got, err := h.Override(vf0); err != nil || got != "" {
		t.Errorf("cleared override reads %q, %v", got, err)
	}
	if d, err := h.Probe(vf0); err != nil || d != "igbvf" {
		t.Errorf("probe: %q, %v", d, err)
	}
}

// A physical function that keeps drivers off its virtual functions lets one have
// them that is named.
func TestAutoprobeOff(t *testing.T) {
	tree := newTree(t)
	must(t, tree.Put("sys/bus/pci/devices/"+pf+"/sriov_drivers_autoprobe", "0\n"))
	h := openTree(t, tree)
	if h.Autoprobe(pf) || !h.Autoprobe("0000:09:00.0") {
		t.Error("autoprobe is not read")
	}
	must(t, h.Unbind(vf0))
	if d, err := h.Probe(vf0); err != nil || d != "" {
		t.Errorf("probe without a name: %q, %v", d, err)
	}
	must(t, h.SetOverride(vf0, "igbvf"))
	if d, err := h.Probe(vf0); err != nil || d != "igbvf" {
		t.Errorf("probe with a name: %q, %v", d, err)
	}
}

func TestFailedWrites(t *testing.T) {
	for kind, try := range map[string]func(*Host) error{
		"unbind of":              func(h *Host) error { return h.Unbind(vf0) },
		"driver_override of":     func(h *Host) error { return h.SetOverride(vf0, "igbvf") },
		"look for a driver for ": func(h *Host) error { _, err := h.Probe(vf0); return err },
	} {
		tree := newTree(t)
		tree.Before = func(sysfstest.Op) error { return unix.EIO }
		err := try(openTree(t, tree))
		if err == nil || !strings.Contains(err.Error(), vf0) || !strings.Contains(err.Error(), "input/output error") {
			t.Errorf("%s: %v", kind, err)
		}
		if got := tree.Driver(vf0); got != "vfio-pci" {
			t.Errorf("%s: device is on %q", kind, got)
		}
	}
}
