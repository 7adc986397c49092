// Package engine is the node's DHCP client for the interfaces of pods. It keeps
// a session for every attachment (one interface of one sandbox): it asks the
// site's DHCP server for an address, puts it on the interface, keeps the lease
// for the life of the pod, also over restarts of the engine, and gives it back.
//
// What it asks of the world stands in ports.go, and the real things are handed
// to it by Config; the protocol itself is package dhcp4.
//
// # Invariants
//
//  1. Persist, then configure, then answer. A claim is persisted before the
//     REQUEST that may turn it into a lease.
//  2. (borrowed devices: not in this package yet)
//  3. A Put that fails stops what it was for; a Delete that fails is carried on,
//     for restore prunes what is left over.
//  4. The engine removes from an interface only what a record says it added.
//  5. Attach is idempotent: the same attachment twice is the same lease. Detach
//     of the unknown is a quick success.
//  6. The caller's context ends the work: a plugin killed by its timeout leaves
//     no lease, no address and no record.
//  7. An address never outlives its lease: the kernel holds it with the lease's
//     lifetime, and the routes go with the address.
//  8. A pod holds at most one lease an interface and network, however often its
//     sandbox is created again; a DEL of an older sandbox touches only its record.
//  9. The engine enters no namespace that Links refuses, the host's own first.
//
// # Goroutines
//
// A verb of the API runs in its caller's goroutine. Verbs of one attachment take
// turns (turns.go). A session that has its lease is handed to one goroutine of
// its own, which Run starts and which waits for T1 without a socket, a
// descriptor or a thread. Whoever runs a session, the verb or that goroutine,
// owns its machine and record; all others see a copy (session.look). A verb that
// needs a kept session stops its goroutine first and owns it from then on.
package engine
