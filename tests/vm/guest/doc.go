// Package guest is the laboratory inside the emulated node of tests/vm: the igb with
// its virtual functions, a DHCP server on the other end of its wire, udev, somebody who
// holds a VFIO group, and a tracer that ends an engine at any of its writes to sysfs.
// The rest is that of tests/rig, which runs here as it does elsewhere.
//
// Tests are in the folders below. They run one after another in one machine, as its
// root; each leaves devices and modules as it found them.
package guest
