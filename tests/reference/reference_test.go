// Package reference runs the tests of the reference dhcp plugin, unchanged, with our
// programs as the daemon.
package reference

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"
	"time"

	"github.com/dhcp-meta/dhcp-meta/tests/rig"
)

func TestMain(m *testing.M) { rig.Main(m) }

// specs is how many the suite of v1.10.0 has; with fewer something was not run.
const specs = 22

// suiteLimit is several times what the suite takes.
const suiteLimit = 15 * time.Minute

// dnsmasq is put before the real one: all specs use its one default lease file, and
// kill a server right after the DEL, so that a RELEASE which it has not read yet takes
// the only address of the next spec's pool. A client whose identifier is the same in
// all specs, as that of the reference is, would get that address again.
const dnsmasq = `#!/bin/sh
exec %s --dhcp-leasefile="$(mktemp -u %s/leases-XXXXXX)" "$@"
`

// TestO02K54ReferenceSuite: all specs pass against the drop-in: the reference's own
// client with each CNI version, DELs at once, an exhausted pool, several links.
func TestO02K54ReferenceSuite(t *testing.T) {
	rig.Need(t)
	suite, err := rig.ToolCache("suite")
	if err != nil {
		t.Fatal(err)
	}
	real, err := exec.LookPath("dnsmasq")
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "dm") // sockets have short paths
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	bin := filepath.Join(dir, "bin")
	if err := os.Mkdir(bin, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, target := range map[string]string{"dhcp": "dhcp-meta", "dhcp-engine": "dhcp-engine"} {
		if err := os.Symlink(rig.Program(target), filepath.Join(bin, name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(bin, "dnsmasq"), fmt.Appendf(nil, dnsmasq, real, dir), 0o755); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), suiteLimit)
	defer cancel()
	// The suite makes folders in /run, and leaves namespaces there.
	cmd := exec.CommandContext(ctx, "unshare", "--mount", "--propagation", "private", "/bin/sh", "-c",
		`mount -t tmpfs run /run && mkdir /run/netns && exec "$0" "$@"`,
		filepath.Join(suite, "dhcp.test"), "-test.v", "-ginkgo.no-color")
	cmd.Dir = dir
	// Nothing else of this machine's: no node name, no networks, no sockets of systemd.
	cmd.Env = []string{"PATH=" + bin + ":" + os.Getenv("PATH"), "HOME=" + dir, "TMPDIR=" + dir,
		"DHCP_ENGINE_STATE_DIR=" + filepath.Join(dir, "state"), "DHCP_ENGINE_SOCKET=" + filepath.Join(dir, "run", "engine.sock")}
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		t.Fatalf("the suite failed: %v\n%s", err, out.Bytes())
	}
	want := fmt.Sprintf(`Ran %d of %d Specs in .*\n.*%d Passed`, specs, specs, specs)
	if !regexp.MustCompile(want).Match(out.Bytes()) {
		t.Errorf("not all %d specs have passed:\n%s", specs, out.Bytes())
	}
}
