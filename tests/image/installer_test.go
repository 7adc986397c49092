package image

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/dhcp-meta/dhcp-meta/tests/rig"
)

// builder is the user of an archive's files, as tar leaves them when root unpacks it.
const builder = 1001

// TestU20InstallerInAFolderOfAnotherUser: with its one capability the image's installer
// works where /opt/cni/bin and the plugins in it are another user's, and the uninstaller
// leaves that as it was. Without it neither does, and says where. In a folder of root's
// none is needed.
func TestU20InstallerInAFolderOfAnotherUser(t *testing.T) {
	t.Parallel()
	archives(t)
	swap := []string{"install", "--bin-dir=/opt/cni/bin", "--mode=swap", "--wrap=macvlan"}
	undo := []string{"uninstall", "--bin-dir=/opt/cni/bin"}
	for name, tt := range map[string]struct {
		owner   int
		without bool
		ok      bool
	}{
		"another user's":                         {owner: builder, ok: true},
		"another user's, without the capability": {owner: builder, without: true},
		"root's, without the capability":         {owner: 0, without: true, ok: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newContainer(t, rig.NewNetns(t, "node"), "install")
			if tt.without {
				c.capabilities = nil
			}
			folder := filepath.Join(c.host, "opt/cni/bin")
			plugin := filepath.Join(folder, "macvlan")
			if out, err := exec.Command("cp", "--dereference", filepath.Join(rig.Plugins(), "macvlan"), plugin).CombinedOutput(); err != nil {
				t.Fatalf("cp: %v\n%s", err, out)
			}
			for _, path := range []string{folder, plugin} {
				if err := os.Chown(path, tt.owner, tt.owner); err != nil {
					t.Fatal(err)
				}
			}
			before := listing(t, folder)
			said, ok := c.run(t, swap...)
			if ok != tt.ok || !ok && !strings.Contains(said, "/opt/cni/bin") {
				t.Fatalf("install: done %v, want %v:\n%s", ok, tt.ok, said)
			}
			if tt.ok {
				if diff := cmp.Diff(before, listing(t, folder)); diff == "" {
					t.Error("nothing was installed")
				}
				if said, ok := c.run(t, undo...); !ok {
					t.Errorf("uninstall:\n%s", said)
				}
			}
			if diff := cmp.Diff(before, listing(t, folder)); diff != "" {
				t.Errorf("files afterwards (-before +after):\n%s", diff)
			}
		})
	}
}

// run has the container execute a command of the engine, and returns what it said and
// whether it was done.
func (c *container) run(t *testing.T, args ...string) (said string, ok bool) {
	t.Helper()
	p := c.Start(t, args[0], exec.Command("dhcp-engine", args...))
	code := p.AwaitExit(t)
	return strings.Join(p.Lines.Since(0), "\n"), code == 0
}

// listing is what ls tells of a folder and all below it, with a digest of each file.
func listing(t *testing.T, folder string) string {
	t.Helper()
	cmd := exec.Command("sh", "-c", "find . -printf '%P %y %m %U %G %i\\n' | sort; find . -type f -exec sha256sum {} + | sort")
	cmd.Dir = folder
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}
