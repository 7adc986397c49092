// Package kubelet makes nodes that run pods: a real kubelet, containerd with runc and
// kube-proxy in namespaces of their own, joined to a cluster of rig/kube.
//
//	namespace srv          node: pid, mount, net, uts, ipc         namespace api
//	+-------------+        +---------------------------+   veth    +-----------------------+
//	| DHCP server =--------= uplink               eth0 =-----------= etcd, kube-apiserver  |
//	+-------------+        | containerd, kubelet,      |           | kube-controller-manager|
//	                       | kube-proxy, pods          |           | kube-scheduler        |
//	                       +---------------------------+           +-----------------------+
//
//	c := kube.Shared(t)
//	c.StartControllers(t)
//	n := kubelet.Start(t, c, lan.Node)     // Ready, with a bridge as the pods' network
//	n.Import(t, kubelet.Image{...})        // images come from files: there is no registry
//	n.InstallMultus(t)                     // Multus's own DaemonSet
//
// All files of the node are memory, and go with its processes, which end with the first
// of them; its cgroups are removed at the end of the test, or at the start of the next.
package kubelet
