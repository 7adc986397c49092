// Package onenode proves dhcp-meta as it is installed: the image, the manifests and the
// installer on a real node, with kubelet, containerd and Multus's own DaemonSet.
package onenode

import (
	"testing"

	"github.com/dhcp-meta/dhcp-meta/tests/rig/kube"
)

func TestMain(m *testing.M) { kube.Main(m) }
