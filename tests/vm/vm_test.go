package vm

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dhcp-meta/dhcp-meta/tests/rig"
)

// TestHandover runs the tests of guest/handover in a machine without a cluster.
func TestHandover(t *testing.T) {
	rig.Need(t)
	files := Build(t, "handover", "dhcp-engine", "dhcp-meta")
	addPlugins(t, files)
	RunTests(t, Config{Files: files})
}

// addPlugins gives the machine the reference CNI plugins that its tests wrap.
func addPlugins(t testing.TB, files map[string]string) {
	t.Helper()
	folder := os.Getenv("DHCP_META_PLUGINS")
	if folder == "" {
		out, err := exec.Command(filepath.Join(sourceFolder(t), "tests/tool-cache"), "plugins").Output()
		if err != nil {
			t.Fatalf("tests/tool-cache plugins: %v", err)
		}
		folder = strings.TrimSpace(string(out))
	}
	for _, p := range []string{"host-device", "macvlan"} {
		files["plugins/"+p] = filepath.Join(folder, p)
	}
}
