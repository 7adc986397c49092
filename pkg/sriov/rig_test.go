package sriov

import (
	"testing"

	"github.com/dhcp-meta/dhcp-meta/pkg/sriov/sysfstest"
)

const (
	pf  = "0000:01:00.0"
	vf0 = "0000:01:10.0"
	vf1 = "0000:01:10.2"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// newTree is a node with an Intel 82576: its physical function on igb and two
// virtual functions on vfio-pci, whose driver igbvf is loaded.
func newTree(t testing.TB) *sysfstest.Tree {
	t.Helper()
	tree, err := sysfstest.New(t.TempDir())
	must(t, err)
	igbvf := sysfstest.Driver{Name: "igbvf", Module: "igbvf", IDs: []string{"8086:10ca"}}
	must(t, tree.Register(sysfstest.Driver{Name: "igb", Module: "igb", IDs: []string{"8086:10c9"}}))
	must(t, tree.AddModule(igbvf))
	must(t, tree.Register(igbvf))
	must(t, tree.Add(sysfstest.Function{Address: pf, ID: "8086:10c9", Driver: "igb", Group: "10", VFs: 7}))
	must(t, tree.Add(sysfstest.Function{Address: vf0, ID: "8086:10ca", Driver: "vfio-pci", Group: "11", PF: pf}))
	must(t, tree.Add(sysfstest.Function{Address: vf1, ID: "8086:10ca", Driver: "vfio-pci", Group: "12", PF: pf, VF: 1}))
	return tree
}

func openTree(t testing.TB, tree *sysfstest.Tree) *Host {
	t.Helper()
	h, err := Open(Config{Root: tree.Root, Release: sysfstest.Release, Write: tree.Write, LoadModule: tree.Load})
	must(t, err)
	return h
}
