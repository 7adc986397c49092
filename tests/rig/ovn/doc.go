// Package ovn is a real Open vSwitch and OVN in the laboratory: the programs of
// Debian's packages on the userspace datapath, so that no kernel module is needed.
//
//	namespace srv          namespace node                         namespace pod
//	+---------------+      +------------------------------+      +---------+
//	| dnsmasq, kea  | veth |  br-phys === br-int          | veth |         |
//	| capture    v0 =------=           |                  =------= net1    |
//	+---------------+      |  localnet switch, pod's port |      +---------+
//	                       |  ovsdb-servers, vswitchd,    |
//	                       |  northd, ovn-controller      |
//	                       +------------------------------+
//
// Start brings all of it up in about a second, in a network namespace, and with
// sockets and databases in a folder, of the test's own: the machine's /run, and
// what may run there, is never touched. Several run side by side. A test that plays
// OVN-Kubernetes makes switches and ports as that does (NewLocalnet, AddPort); a
// server sits behind the provider bridge (Provider).
//
// Where a test has a node with a file system of its own, Start(t, On(n)) runs
// everything there, with the sockets where ovs-vsctl and ovn-nbctl look for them.
//
// On the userspace datapath checksums that the kernel leaves to an offload are
// never filled in, so it is switched off on every interface that AddPort and
// Provider make.
package ovn
