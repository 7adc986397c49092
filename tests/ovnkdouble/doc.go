// Program ovnkdouble is a test double of OVN-Kubernetes: no more of it than what a
// plugin that wraps it meets, on a real OVN and a real API server. It is not
// OVN-Kubernetes, whose Go module cannot be had here, and proves nothing about it;
// docs/ovn-kubernetes.md says what was seen on the real one.
//
// Started as ovn-k8s-cni-overlay it is the CNI plugin (cnishim.go): it hands its
// call to the server over the socket that the real one uses. Started as ovnkube it
// is controller and CNI server of one node:
//
//   - controller.go makes a logical switch for each localnet network definition, a
//     port and an annotation entry for each pod, and computes the ports again when
//     it starts;
//   - server.go serves ADD and DEL, with what the real one does wrong in them;
//   - dhcp.go has the mode ipam.mode: DHCP, which came later;
//   - annotation.go reads and writes k8s.ovn.org/pod-networks through a struct, and
//     so loses keys that it does not know.
//
// What it imitates was seen on a live OVN-Kubernetes of August 2026 (v1.3.0-748), but
// for dhcp.go, whose source was read.
package main
