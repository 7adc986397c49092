package doctor

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/dhcp-meta/dhcp-meta/pkg/sriov"
	"github.com/dhcp-meta/dhcp-meta/pkg/sriov/sysfstest"
)

const (
	pf = "0000:01:00.0"
	vf = "0000:01:10.0"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// newTree is a node with an igb whose virtual function is on vfio-pci, with an
// interface for the physical one.
func newTree(t testing.TB, group string) *sysfstest.Tree {
	t.Helper()
	tree, err := sysfstest.New(t.TempDir())
	must(t, err)
	must(t, tree.Register(sysfstest.Driver{Name: "igb", Module: "igb", IDs: []string{"8086:10c9"}}))
	must(t, tree.Add(sysfstest.Function{Address: pf, ID: "8086:10c9", Driver: "igb", Group: "10", VFs: 7}))
	must(t, tree.Add(sysfstest.Function{Address: vf, ID: "8086:10ca", Driver: "vfio-pci", Group: group, PF: pf}))
	must(t, tree.Appear(pf, "enp1s0f0", 7))
	return tree
}

func TestVFIO(t *testing.T) {
	igbvf := sysfstest.Driver{Name: "igbvf", Module: "igbvf", IDs: []string{"8086:10ca"}}
	up := func(string) (bool, error) { return true, nil }
	loaded := func(t *testing.T, tree *sysfstest.Tree) {
		must(t, tree.AddModule(igbvf))
		must(t, tree.Register(igbvf))
	}
	for name, tt := range map[string]struct {
		group string
		setUp func(*testing.T, *sysfstest.Tree)
		state func(string) (bool, error)
		want  []ID
	}{
		"well":                    {"11", loaded, up, nil},
		"driver that is loadable": {"11", func(t *testing.T, tree *sysfstest.Tree) { must(t, tree.AddModule(igbvf)) }, up, nil},
		"no driver":               {"11", func(*testing.T, *sysfstest.Tree) {}, up, []ID{VFIODriver}},
		"driver blacklisted": {"11", func(t *testing.T, tree *sysfstest.Tree) {
			must(t, tree.AddModule(igbvf))
			must(t, tree.Put("etc/modprobe.d/no.conf", "blacklist igbvf\n"))
		}, up, []ID{VFIODriver}},
		"modules not mounted": {"11", func(t *testing.T, tree *sysfstest.Tree) {
			must(t, os.RemoveAll(filepath.Join(tree.Root, "lib/modules")))
		}, up, []ID{VFIODriver}},
		"no IOMMU": {"", loaded, up, []ID{VFIOIOMMU}},
		"no /dev/vfio": {"11", func(t *testing.T, tree *sysfstest.Tree) {
			loaded(t, tree)
			must(t, os.RemoveAll(filepath.Join(tree.Root, "dev/vfio")))
		}, up, []ID{VFIODev}},
		"physical function down": {"11", loaded, func(string) (bool, error) { return false, nil }, []ID{VFIOPhysical}},
		"drivers not writable": {"11", func(t *testing.T, tree *sysfstest.Tree) {
			loaded(t, tree)
			must(t, os.Remove(filepath.Join(tree.Root, "sys/bus/pci/drivers_probe")))
		}, up, []ID{VFIOReadOnly}},
	} {
		t.Run(name, func(t *testing.T) {
			tree := newTree(t, tt.group)
			tt.setUp(t, tree)
			v, err := openVFIO(sriov.Config{Root: tree.Root, Release: sysfstest.Release, Write: tree.Write})
			must(t, err)
			addresses := v.addresses()
			if len(addresses) != 1 || addresses[0] != vf {
				t.Fatalf("on vfio-pci: %v", addresses)
			}
			finds(t, v.judge(vf, tt.state), tt.want...)
			if tree.Driver(vf) != "vfio-pci" {
				t.Error("the device was touched")
			}
		})
	}
}
