// Package ovnnb keeps the logical switch ports of pods in step with their leases,
// in OVN's north database.
//
// OVN-Kubernetes computes a port from the pod's annotation when it makes it and
// when it starts, not when the annotation changes. So for each attachment that it
// is told of, a Ports finds the pod's own port and writes two columns of it:
// addresses, and port_security as far as the network wants the port pinned. Without
// a lease both hold the MAC only, so that any DHCP answer reaches the pod. Nothing
// else is written, and no other port.
//
// A port is the pod's own when options:iface-id-ver is the pod's UID, its name ends
// in the pod's namespace and name, and external_ids name the network's
// NetworkAttachmentDefinition. Each write says so again in the transaction itself,
// so a port that has been made anew meanwhile is not hit.
//
// Ports is level-driven: ports of the attachments that it was told of are
// monitored, and set right when another writer, such as OVN-Kubernetes at its
// start, has changed them. Only those are monitored, by a condition on the server's
// side, so memory grows with the node's pods, not with the cluster's. Of the schema
// it knows these columns only, and any version of OVN has them.
//
// A database that is away is no error of New or Run: Run tries again, with Publish
// and Limited telling what is wrong, and what could not be written is written when
// it is back.
package ovnnb
