// Package kube is Kubernetes for tests: a real etcd and a real kube-apiserver in a
// network namespace of their own, nodes that are joined to it, and the real Multus
// (thick daemon and shim) on them, driven as a container runtime drives it. There
// is no kubelet, no scheduler and no controller: pods are objects that stay as the
// test made them, and sandboxes are made by the test.
//
//	namespace srv           node (tests/rig/node)                 namespace api
//	+--------------+        +-------------------------+   veth    +---------------+
//	| DHCP server  =--------= uplink             eth0 =-----------= br0           |
//	+--------------+        | multus-daemon           | 172.30/16 | etcd          |
//	                        | dhcp-engine             |           | kube-apiserver|
//	                        +-----------=-------------+           +---------------+
//	                                    | net1, eth0
//	                               namespace pod
//
// A package has one cluster, started (in 4 to 10 seconds) by the first test that
// asks for it; each test takes a Kubernetes namespace and nodes of its own:
//
//	func TestMain(m *testing.M) { kube.Main(m) }
//
//	c := kube.Shared(t)                    // kube.Start(t): one of the test's own
//	ns := c.Namespace(t)
//	lan := rig.NewLAN(t)
//	n := node.New(t, lan.Node)
//	n.InstallPlugins(t)
//	c.Join(t, n)                           // its eth0, and an object Node
//	runtime := c.StartMultus(t, n, kube.Multus{})
//	engine := c.Engine(t, n)               // with manifests/' rights; not started yet
//	engine.Start(t)
//	c.NAD(t, ns, "site", config, nil)      // nil or its annotations
//	pod := c.Pod(t, ns, kube.PodSpec{Node: n.Name, Networks: "site"})
//	s := runtime.Sandbox(t, pod)
//	result := s.Add(t)                     // the whole pod: eth0, net1, ...
//	status := s.NetworkStatus(t)           // from the API, as Multus wrote it
//	s.Del(t)
//
// More: c.Client and c.REST for the API as cluster admin; c.Apply for manifests
// (kubectl apply --server-side); c.Token, c.Kubeconfig and c.AwaitAccess for service
// accounts (the ClusterRoles admin, edit and view are empty: a controller fills them);
// c.AwaitPod waits for a pod's state by a watch; c.Requests tells who asked what of
// the API, with the bodies of writes, from the server's audit log; c.StopAPI and
// c.StartAPI take it away for a while, which only a cluster of the test's own may do.
package kube
