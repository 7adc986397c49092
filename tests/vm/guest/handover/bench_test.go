package handover

import (
	"io"
	"net/http"
	"os/exec"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/dhcp-meta/dhcp-meta/tests/vm/guest"
)

// BenchmarkWindow measures for how long the device is away from vfio-pci: as the
// engine counts it, and what driver and server alone take of it, with the same driver
// bound by hand and busybox's client, which is the least that a window can be.
func BenchmarkWindow(b *testing.B) {
	const metrics = "127.0.0.1:9105"
	vf := guest.VF(b, 0)
	l := guest.NewLab(b, "--metrics-address="+metrics)
	var alone time.Duration
	for b.Loop() {
		p := newPod(b, l, vf, discover)
		mustHave(b, l, p, l.Node.Add(b, p.call), 0)
		l.Node.Del(b, p.call)
		alone += byHand(b, vf)
	}
	sum, count := windows(b, "http://"+metrics+"/metrics")
	if count != float64(b.N) {
		b.Fatalf("the engine counts %v windows of %d", count, b.N)
	}
	b.ReportMetric(sum/count*1000, "ms/window")
	b.ReportMetric(float64(alone.Milliseconds())/float64(b.N), "ms/by-hand")
}

// byHand is the hand-over without the engine: how long the device was away.
func byHand(b *testing.B, vf guest.Device) time.Duration {
	b.Helper()
	begin := time.Now()
	vf.Bind(b, "")
	name := vf.Netdev(b)
	guest.Run(b, "ip", "link", "set", name, "up")
	cmd := exec.Command("busybox", "udhcpc", "-i", name, "-f", "-q", "-n", "-t", "40", "-T", "1", "-s", "/bin/true")
	if out, err := cmd.CombinedOutput(); err != nil {
		b.Fatalf("udhcpc: %v\n%s", err, out)
	}
	vf.Bind(b, "vfio-pci")
	guest.Write(b, vf.Path("driver_override"), "\n")
	return time.Since(begin)
}

var windowLine = regexp.MustCompile(`(?m)^dhcp_engine_vfio_window_seconds_(sum|count)(?:\{[^}]*\})? (\S+)$`)

// windows are the sum and the number of the windows that the engine has measured.
func windows(b *testing.B, url string) (sum, count float64) {
	b.Helper()
	answer, err := http.Get(url)
	if err != nil {
		b.Fatal(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		b.Fatal(err)
	}
	for _, m := range windowLine.FindAllStringSubmatch(string(text), -1) {
		v, err := strconv.ParseFloat(m[2], 64)
		if err != nil {
			b.Fatal(err)
		}
		if m[1] == "sum" {
			sum += v
		} else {
			count += v
		}
	}
	return sum, count
}
