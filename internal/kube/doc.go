// Package kube is the engine's view of Kubernetes: it implements engine.Cluster
// and engine.Reporter with client-go.
//
// # What it knows
//
// The pods of its own node, by a watch that the API server narrows, and all
// NetworkAttachmentDefinitions, since any of them may be named by a pod. Of both
// only what is used is kept (trim.go), so its memory grows with the node's pods
// and not with the cluster's.
//
// # What it decides from that
//
// What lies between bytes and a decision is pure and stands in files of its own:
// podnetworks finds a pod's networks, nad.go reads what a
// NetworkAttachmentDefinition says and whether it makes sense, settings.go puts a
// pod's own settings over those of its network, workload.go tells a virtual
// machine from a container.
//
// # When the API is away
//
// A cache is never the last word where a mistake would cost something: a pod that
// is not in it is asked for once, live, since an ADD may be ahead of the watch;
// that a pod is gone is believed to a live answer only; and the file that lists
// the marked networks is not touched before all of them are known. What cannot be
// told now carries api.CodeTryAgain.
package kube
