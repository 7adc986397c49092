// Package kubelet makes nodes that run pods: a real kubelet, containerd with runc and
// kube-proxy in namespaces of their own, joined to a cluster of rig/kube, and a registry for their images.
//
//	namespace srv          node: pid, mount, net, uts, ipc         namespace api
//	+-------------+        +---------------------------+   veth    +-----------------------+
//	| DHCP server =--------= uplink               eth0 =-----------= etcd, kube-apiserver  |
//	+-------------+        | containerd, kubelet,      |           | kube-controller-manager|
//	                       | kube-proxy, pods          |           | kube-scheduler        |
//	                       +---------------------------+           | registry              |
//	                                                               +-----------------------+
//
//	c := kube.Shared(t)
//	c.StartControllers(t)
//	kubelet.StartRegistry(t, c)
//	n := kubelet.Start(t, c, lan.Node)     // Ready, with a bridge as the pods' network
//	n.Push(t, "bin/dhcp-meta.tar", kubelet.Registry+"/net/dhcp-meta:v1")
//	n.Import(t, kubelet.Image{...})        // an image that is in no registry
//	n.InstallMultus(t)                     // Multus's own DaemonSet
//
// All files of the node are memory, and go with its processes, which end with the first
// of them; its cgroups are removed at the end of the test, or at the start of the next.
package kubelet
