package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// Whether a network is ours is decided before the packages are initialised that take
// their time. Go's order of initialisation depends on names and imports, so nothing but
// a look at it can tell.
func TestStandsAsideBeforeItsPackagesAreReady(t *testing.T) {
	dir := t.TempDir()
	wrap, real := filepath.Join(dir, "wrap"), filepath.Join(dir, "real")
	for _, d := range []string{wrap, real} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	program := filepath.Join(wrap, "macvlan")
	if out, err := exec.Command("go", "build", "-o", program, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if err := os.WriteFile(filepath.Join(real, "macvlan"), []byte("#!/bin/sh\necho stepped aside >&2\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	run := func(verb string) []string {
		c := exec.Command(program)
		c.Env = []string{"GODEBUG=inittrace=1", "CNI_COMMAND=" + verb, "CNI_PATH=" + wrap + ":" + real,
			"CNI_CONTAINERID=c1", "CNI_IFNAME=net1", "DHCP_ENGINE_STATE_DIR=" + t.TempDir(), "DHCP_ENGINE_SOCKET=" + filepath.Join(dir, "s")}
		c.Stdin = strings.NewReader(`{"cniVersion":"1.0.0","name":"n","type":"macvlan","netAttachDefName":"prod/n"}`)
		var trace bytes.Buffer
		c.Stderr = &trace
		if err := c.Run(); err != nil || !strings.Contains(trace.String(), "stepped aside\n") {
			t.Fatalf("%s: %v: %s", verb, err, trace.String())
		}
		var ready []string
		for _, m := range regexp.MustCompile(`(?m)^init (\S+) @`).FindAllStringSubmatch(trace.String(), -1) {
			ready = append(ready, m[1])
		}
		return ready
	}
	for _, verb := range []string{"ADD", "DEL", "CHECK", "STATUS", "GC", "VERSION"} {
		ready := run(verb)
		if !slices.Contains(ready, "runtime") {
			t.Fatalf("%s: no trace of the initialisation: %q", verb, ready)
		}
		for _, late := range []string{"os", "reflect", "unicode", "encoding/json", "net", "regexp", "log", "golang.org/x/sys/unix"} {
			if slices.Contains(ready, late) {
				t.Errorf("%s: %s was initialised before: %q", verb, late, ready)
			}
		}
	}
}
