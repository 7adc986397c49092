// Package kubevirt proves what dhcp-meta does for virtual machines that are plugged as
// KubeVirt plugs them, on a real API server, the real Multus and real DHCP servers:
//
//	namespace srv     switch      node                  pod of virt-launcher     guest
//	+-------------+  +------+  +------------------+   +----------------------+  +---------+
//	| DHCP server =--= br0  =--= uplink, br-site  =---= <hash>-nic  k6t-<hash>= | eth0    |
//	| capture     |  |      |  | dhcp-engine      |   |             tap<hash> =~= udhcpc  |
//	+-------------+  +---+--+  +------------------+   +----------------------+  +---------+
//	                     |
//	                 other nodes
//
// There is no hypervisor. Between the tap device of the pod and the NIC of the guest,
// a tap device in a namespace of its own, frames are carried by the test, as QEMU does
// it for a virtio NIC. What KubeVirt does in the pod is done step by step as its
// source does it (pkg/network/setup/netpod, of August 2026), see plug_test.go.
package kubevirt

import (
	"testing"

	"github.com/dhcp-meta/dhcp-meta/tests/rig/kube"
)

func TestMain(m *testing.M) { kube.Main(m) }
