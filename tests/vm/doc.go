// Package vm is an emulated node with SR-IOV hardware, for tests of what nothing but
// a kernel of its own can show: virtual functions that change their driver.
//
//	emulated machine (qemu, TCG: no KVM is needed)
//	+---------------------------------------------------------------+
//	| igb 01:00.0 ---- hub ---- e1000e 00:03.0                      |
//	|  | 7 virtual functions     | in namespace srv: dnsmasq,       |
//	|  | 01:10.0, 01:10.2...     | capture, as in tests/rig         |
//	|  | behind an IOMMU                                            |
//	| Debian's kernel with igb, igbvf, vfio-pci; udev; a second igb,|
//	| an nvme with virtual functions, two NICs behind one bridge    |
//	+---------------------------------------------------------------+
//
// image/build makes what it boots from, once, below ~/.cache/dhcp-meta. A boot takes
// about ten seconds. Tests that run inside are Go tests in folders below guest: a
// test here builds them with CGO_ENABLED=0, boots the machine with that binary and the
// real programs, and shows each of its tests as one of its own subtests. Package guest
// has what they share.
//
// The machine has one processor, and a fork and exec in it takes some 10 ms. Its clock
// may run off: no test in it may depend on a short time.
package vm
