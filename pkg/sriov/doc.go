// Package sriov knows the PCI devices of a node and their kernel drivers: what a
// device is, which driver the kernel would give it, and the few writes to sysfs by
// which a virtual function changes its driver.
//
// It knows no vendors. What a device is comes from its modalias, read by ghw, and
// which driver fits is the kernel's own decision by the same modalias: what this
// package adds is the question beforehand whether there is one, since a device
// without a driver is of no use to anybody.
//
// Nothing is remembered between two calls but where things are: names of
// interfaces and drivers are read anew each time, by PCI address, because both
// change whenever a device changes its driver.
//
// All paths lie below Config.Root, so that tests can bring a tree of their own;
// package sysfstest has one that reacts to writes as the kernel does.
package sriov
