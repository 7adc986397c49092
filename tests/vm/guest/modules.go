package guest

import (
	"bytes"
	"debug/elf"
	"errors"
	"fmt"
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

// Break makes a function of a module on the disk return -EIO, whatever it was made
// for. The module must not be loaded. At the end of the test it is as it was, on the
// disk and in the kernel.
func Break(t testing.TB, module, function string) {
	t.Helper()
	file := Run(t, "modinfo", "-n", module)
	whole, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	at, err := bodyOf(whole, function)
	if err != nil {
		t.Fatalf("break %s of %s: %v", function, file, err)
	}
	broken := append([]byte(nil), whole...)
	copy(broken[at:], giveUp)
	t.Cleanup(func() {
		if Loaded(module) {
			Run(t, "rmmod", module)
		}
		write(t, file, whole)
	})
	write(t, file, broken)
}

func write(t testing.TB, file string, b []byte) {
	t.Helper()
	if err := os.WriteFile(file, b, 0o644); err != nil {
		t.Fatal(err)
	}
}

// giveUp is "mov $-5, %eax; ret".
var giveUp = []byte{0xb8, 0xfb, 0xff, 0xff, 0xff, 0xc3}

// bodyOf finds in a module's file where the code of a function begins that is its own:
// behind the call of __fentry__, which the kernel writes itself when it loads it.
func bodyOf(file []byte, function string) (int, error) {
	f, err := elf.NewFile(bytes.NewReader(file))
	if err != nil {
		return 0, err
	}
	symbols, err := f.Symbols()
	if err != nil {
		return 0, err
	}
	for _, s := range symbols {
		if s.Name != function || elf.ST_TYPE(s.Info) != elf.STT_FUNC {
			continue
		}
		at := int(f.Sections[s.Section].Offset + s.Value)
		if bytes.HasPrefix(file[at:], []byte{0xf3, 0x0f, 0x1e, 0xfa}) { // endbr64
			at += 4
		}
		const call = 0xe8
		if file[at] != call {
			return 0, fmt.Errorf("the function begins with % x", file[at:at+8])
		}
		return at + 5, nil
	}
	return 0, errors.New("no such function")
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
