package vm

import (
	"context"
	"regexp"
	"strconv"
	"testing"
)

// BenchmarkWindow prints for how long a device is away from vfio-pci on the emulated
// igb: all that the emulated machine does takes about ten times as long as on a real
// one.
func BenchmarkWindow(b *testing.B) {
	m := Boot(b, Config{Files: files(b, "handover"), Start: "#!/bin/sh\nexec ./test -test.run='^$' -test.bench=Window -test.benchtime=10x\n"})
	ctx, cancel := context.WithTimeout(b.Context(), limit)
	defer cancel()
	line, _, err := m.Said.Next(ctx, 0, isFigures)
	if status, kernel, end := m.Wait(); end != nil || status != 0 || err != nil {
		b.Fatalf("no figures (%v, status %d, %v); the machine said:\n%v\n%s", err, status, end, m.Said.Since(0), kernel)
	}
	for _, f := range figure.FindAllStringSubmatch(line, -1) {
		v, err := strconv.ParseFloat(f[1], 64)
		if err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(v, f[2])
	}
	b.ReportMetric(0, "ns/op") // the machine's boot says nothing
}

var figure = regexp.MustCompile(`([0-9.]+) (ms/\S+)`)

func isFigures(line string) bool { return figure.MatchString(line) }
