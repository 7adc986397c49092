package guest

import (
	"os"
	"os/exec"
	"testing"
)

// Unload takes a module out of the kernel. At the end of the test it is back.
func Unload(t testing.TB, module string) {
	t.Helper()
	Run(t, "rmmod", module)
	t.Cleanup(func() { Run(t, "modprobe", module) })
}

// Remove takes a module from the disk, as on a node whose kernel was built without
// it. At the end of the test it is back.
func Remove(t testing.TB, module string) {
	t.Helper()
	file := Run(t, "modinfo", "-n", module)
	aside := file + ".aside"
	move := func(from, to string) {
		if err := os.Rename(from, to); err != nil {
			t.Fatal(err)
		}
		Run(t, "depmod")
	}
	move(file, aside)
	t.Cleanup(func() { move(aside, file) })
}

// Blacklist tells modprobe not to load a module for a device, until the test ends.
func Blacklist(t testing.TB, module string) {
	t.Helper()
	const file = "/etc/modprobe.d/test.conf"
	if err := os.WriteFile(file, []byte("blacklist "+module+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.Remove(file) })
}

// Loaded tells whether a module is in the kernel.
func Loaded(module string) bool {
	return exec.Command("grep", "-q", "^"+module+" ", "/proc/modules").Run() == nil
}
