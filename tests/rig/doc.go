// Package rig is the laboratory of the integration tests and benchmarks: network
// namespaces joined by veth pairs, real DHCP servers, a packet capture on the
// server's side of the wire, the two programs, and the reference CNI plugins.
//
//	namespace srv            namespace node              namespace pod
//	+--------------+         +-----------------+         +-----------+
//	| dnsmasq, kea |   veth  | uplink          |         |           |
//	| capture   v0 =---------= |               | macvlan |           |
//	+--------------+         | +-- net1 ~~~~~~~~~~~~~~~~~= net1      |
//	                         | dhcp-engine,    |  veth.. |           |
//	                         | dhcp-meta       |         +-----------+
//	                         +-----------------+
//
// The programs run in the node's namespace, so nothing touches the links of the
// machine. Everything that a function starts or makes ends in the test's
// Cleanup. What goes wrong in the laboratory itself ends the test by Fatalf,
// with what the servers and programs said up to then; functions that end the
// test must be called from the test's own goroutine.
//
// Nothing here waits by sleeping: a test waits for a log line, a frame, a change
// of a lease file, or the end of a process, each with a deadline.
package rig
