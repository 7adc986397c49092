package vm

import (
	"path/filepath"
	"testing"

	"github.com/dhcp-meta/dhcp-meta/tests/rig"
	"github.com/dhcp-meta/dhcp-meta/tests/rig/kube"
)

func TestMain(m *testing.M) { kube.Main(m) }

// TestHandover runs the tests of guest/handover in a machine without a cluster.
func TestHandover(t *testing.T) {
	rig.Need(t)
	RunTests(t, Config{Files: files(t, "handover")})
}

// files are what a machine needs for tests of a package below guest: their binary,
// both programs, and the reference CNI plugins that they wrap.
func files(t testing.TB, tests string) map[string]string {
	t.Helper()
	list := Build(t, tests)
	for _, p := range []string{"dhcp-engine", "dhcp-meta"} {
		list[p] = rig.Program(p)
	}
	for _, p := range []string{"host-device", "ipvlan"} {
		list["plugins/"+p] = filepath.Join(rig.Plugins(), p)
	}
	return list
}
