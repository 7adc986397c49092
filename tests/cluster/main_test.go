// Package cluster proves dhcp-meta on a real API server and the real Multus.
package cluster

import (
	"testing"

	"github.com/dhcp-meta/dhcp-meta/tests/rig/kube"
)

func TestMain(m *testing.M) { kube.Main(m) }
