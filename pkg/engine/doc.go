// Package engine is the node's DHCP client for the interfaces of pods. It keeps
// a session for every attachment (one interface of one sandbox): it asks the
// site's DHCP server for an address, puts it on the interface, makes it known
// outside the node, keeps the lease for the life of the pod, also over restarts of
// the engine, and gives it back. For a virtual machine, whose guest has a DHCP
// client of its own, it finds out the address and makes that known, no more.
//
// What it asks of the world stands in ports.go, and the real things are handed
// to it by Config; the protocol itself is package dhcp4.
//
// # Invariants
//
//  1. Persist, then configure, then publish, then answer. A claim is persisted
//     before the REQUEST that may turn it into a lease.
//  2. A device on vfio-pci is recorded as borrowed before its driver is touched, by
//     Devices; every end of an ADD gives it back, and an ADD succeeds only when it
//     is back. What a crash left borrowed is given back before Run serves anybody.
//  3. A Put that fails stops what it was for; a Delete that fails is carried on,
//     for restore prunes what is left over.
//  4. The engine removes from an interface only what a record says it added, and
//     addresses that the wrapped plugin put there and that are not the pod's: all
//     of a VM's, and those that OVN-Kubernetes took from an old annotation.
//  5. Attach is idempotent: the same attachment twice is the same lease. Detach
//     of the unknown is a quick success.
//  6. The caller's context ends the work: a plugin killed by its timeout leaves
//     no lease, no address, no record and no borrowed device.
//  7. An address never outlives its lease: the kernel holds it with the lease's
//     lifetime, and the routes go with the address.
//  8. A pod holds at most one lease an interface and network, however often its
//     sandbox is created again; a DEL of an older sandbox touches only its record.
//  9. The engine enters no namespace that Links refuses, the host's own first.
//  10. What is published comes from an ACK to a REQUEST of the engine's own. A
//     sandbox that a newer one has replaced writes nothing.
//  11. An attachment ends because of its DEL, or because its pod or its namespace is
//     gone; never because somebody could not be asked.
//
// # Goroutines
//
// A verb of the API runs in its caller's goroutine. Verbs of one attachment take
// turns (turns.go). A session that has its lease is handed to one goroutine of
// its own, which Run starts and which waits for T1 without a socket, a
// descriptor or a thread. Whoever runs a session, the verb or that goroutine,
// owns its machine and record; all others see a copy (session.look). A verb that
// needs a kept session stops its goroutine first and owns it from then on. A VM's
// session has none: it belongs to whoever has the attachment's turn.
//
// Run has some more: they hear of namespaces and pods that are gone, and make
// rounds to find those of which nobody told (patrol.go), and they give pods their
// leases that were started while no engine was there (late.go).
package engine
