// Package leaseobjects shows the leases of this node as objects of the cluster: one
// DHCPLease for each address that is leased, or reported for a virtual machine, in
// the namespace of its pod and owned by it, so that Kubernetes removes what the
// engine cannot.
//
// A Controller is told by the engine how things stand, and compares that with this
// node's objects, which it watches; of other nodes' objects it knows nothing. What
// differs it writes, after a change and never for a renewal, slowly, and again until
// it works. Nobody waits for that.
package leaseobjects
