package vm

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dhcp-meta/dhcp-meta/tests/rig"
)

// silence is how long a machine may say nothing.
const silence = 5 * time.Minute

// Build compiles the tests of a package below tests/vm/guest, which becomes the file
// "test" of a machine. They must do without the C library of this one.
func Build(t testing.TB, tests string) map[string]string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "test")
	cmd := exec.Command("go", "test", "-c", "-trimpath", "-ldflags=-s -w", "-o", file, "./tests/vm/guest/"+tests)
	cmd.Dir, cmd.Env = moduleRoot(t), append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build the tests of %s: %v\n%s", tests, err, out)
	}
	return map[string]string{"test": file}
}

// RunTests boots a machine whose files have a test binary under the name "test", and
// shows each of its tests as a subtest. Those that -run leaves out do not run in it
// either.
func RunTests(t *testing.T, cfg Config) {
	t.Helper()
	rig.Need(t)
	pattern := "."
	if _, inner, ok := strings.Cut(flag.Lookup("test.run").Value.String(), "/"); ok && inner != "" {
		pattern = inner
	}
	first, _, _ := strings.Cut(pattern, "/")
	out, err := exec.Command(cfg.Files["test"], "-test.list", first).Output()
	if err != nil {
		t.Fatalf("list the machine's tests: %v", err)
	}
	names := slices.DeleteFunc(strings.Fields(string(out)), func(n string) bool { return !strings.HasPrefix(n, "Test") })
	if len(names) == 0 {
		t.Skip("no test of the machine is asked for")
	}
	cfg.Start = fmt.Sprintf("#!/bin/sh\nexec ./test -test.v -test.timeout=%s -test.run='%s'\n", limit, pattern)
	begin := time.Now()
	m := Boot(t, cfg)
	mark := 0
	for _, name := range names {
		t.Run(name, func(t *testing.T) { mark = m.relay(t, name, mark) })
	}
	status, kernel, err := m.Wait()
	if err != nil {
		t.Fatal(err)
	}
	if status != 0 {
		t.Errorf("the tests in the machine ended with status %d", status)
	}
	clocks, _, _ := strings.Cut(kernel, "\n")
	t.Logf("the machine ran for %v; %s", time.Since(begin).Round(time.Second), clocks)
	if t.Failed() {
		lines := strings.Split(kernel, "\n")
		t.Logf("its kernel said at the end:\n%s", strings.Join(lines[max(0, len(lines)-60):], "\n"))
		t.Logf("behind the last test it said:\n%s", strings.Join(m.Said.Since(mark), "\n"))
	}
}

// A test's last line; those of its subtests are indented.
var verdict = regexp.MustCompile(`^--- (PASS|FAIL|SKIP): (\w+) \(`)

// relay waits for the verdict on a test among the lines from mark on, and makes it
// that of t. It returns the mark behind it.
func (m *Machine) relay(t *testing.T, name string, mark int) int {
	t.Helper()
	from := mark
	for {
		line, next, err := m.next(mark)
		if err != nil {
			m.end() // nothing can be expected of it any more
			t.Fatalf("no verdict on %s: %v; the machine said:\n%s", name, err, strings.Join(m.Said.Since(from), "\n"))
		}
		mark = next
		v := verdict.FindStringSubmatch(line)
		if v == nil || v[2] != name {
			continue
		}
		mark = m.subtests(mark)
		t.Logf("in the machine:\n%s", strings.Join(m.Said.Since(from)[:mark-from], "\n"))
		switch v[1] {
		case "FAIL":
			t.Fail()
		case "SKIP":
			t.Skip("skipped in the machine")
		}
		return mark
	}
}

// subtests is the mark behind the verdicts on a test's subtests, which stand below its
// own, indented.
func (m *Machine) subtests(mark int) int {
	for {
		line, next, err := m.next(mark)
		if err != nil || !strings.HasPrefix(line, " ") {
			return mark
		}
		mark = next
	}
}

// next is the line at mark, which the machine has yet to say perhaps.
func (m *Machine) next(mark int) (string, int, error) {
	ctx, cancel := context.WithTimeout(context.Background(), silence)
	defer cancel()
	return m.Said.Next(ctx, mark, func(string) bool { return true })
}

func moduleRoot(t testing.TB) string {
	t.Helper()
	root, err := rig.ModuleRoot()
	if err != nil {
		t.Fatal(err)
	}
	return root
}
