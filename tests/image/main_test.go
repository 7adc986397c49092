package image

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"testing"

	"github.com/dhcp-meta/dhcp-meta/tests/rig"
)

// work is the folder of the built archives and of what is made of them.
var work string

func TestMain(m *testing.M) {
	var err error
	if work, err = os.MkdirTemp("", "dhcp-meta-image"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	rig.Main(m, func() { os.RemoveAll(work) })
}

type object = rig.Object

var architectures = []string{"amd64", "arm64"}

// built is the image as `make image` builds it of this source tree.
var built = sync.OnceValues(func() (string, error) {
	root, err := rig.ModuleRoot()
	if err != nil {
		return "", err
	}
	folder := filepath.Join(work, "built")
	return folder, build(exec.Command(filepath.Join(root, "images/build"), folder))
})

func build(cmd *exec.Cmd) error {
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("images/build: %w; `make deps` installs what it needs\n%s", err, out)
	}
	return nil
}

// archives is the folder of the built archives.
func archives(t *testing.T) string {
	t.Helper()
	rig.Need(t)
	folder, err := built()
	if err != nil {
		t.Fatal(err)
	}
	return folder
}

// ofArch is the name of the archive for one architecture.
func ofArch(arch string) string { return "dhcp-meta-" + arch + ".tar" }

// unpacked is the root file system of the image for this machine, as a runtime
// unpacks it.
var unpacked = sync.OnceValues(func() (string, error) {
	folder, err := built()
	if err != nil {
		return "", err
	}
	a, err := open(filepath.Join(folder, ofArch(runtime.GOARCH)))
	if err != nil {
		return "", err
	}
	i, err := a.image(a.index.Manifests[0])
	if err != nil {
		return "", err
	}
	root := filepath.Join(work, "rootfs")
	if err := os.Mkdir(root, 0o755); err != nil {
		return "", err
	}
	tar := exec.Command("tar", "--extract", "--gzip", "--preserve-permissions", "--directory", root)
	tar.Stdin = i.layer()
	if out, err := tar.CombinedOutput(); err != nil {
		return "", fmt.Errorf("unpack the layer: %w\n%s", err, out)
	}
	return root, nil
})
