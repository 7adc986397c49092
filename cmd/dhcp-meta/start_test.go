package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// BenchmarkStart starts the program and, in turn, a static program that does
// nothing, and reports the ratio: the machine falls out of it. The plugin is
// started once for every interface of every pod.
func BenchmarkStart(b *testing.B) {
	dir := b.TempDir()
	nothing := filepath.Join(dir, "nothing.go")
	if err := os.WriteFile(nothing, []byte("package main\n\nfunc main() {}\n"), 0o644); err != nil {
		b.Fatal(err)
	}
	build := func(name, source string) string {
		path := filepath.Join(dir, name)
		c := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", path, source)
		c.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := c.CombinedOutput(); err != nil {
			b.Fatalf("%v: %s", err, out)
		}
		return path
	}
	plugin, empty := build("dhcp-meta", "."), build("nothing", nothing)
	start := func(path string) time.Duration {
		c := exec.Command(path)
		c.Env = []string{"CNI_COMMAND=VERSION"}
		began := time.Now()
		if err := c.Run(); err != nil {
			b.Fatal(err)
		}
		return time.Since(began)
	}
	var ours, theirs time.Duration
	for b.Loop() {
		ours += start(plugin)
		theirs += start(empty)
	}
	b.ReportMetric(float64(ours)/float64(b.N)/1e6, "ms/start")
	b.ReportMetric(float64(ours)/float64(theirs), "x-empty-program")
}
