package bench

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine/api"
	"github.com/dhcp-meta/dhcp-meta/tests/rig"
)

// What a network that is not ours costs when the program stands before its plugin: the
// plugin is a static Go program that does nothing, executed alone and behind ours, in
// turns. The figure is what comes on top, in starts of that program.
func BenchmarkInterposed(b *testing.B) {
	const unmarked = `{"cniVersion":"1.0.0","name":"localnet-77","type":"ovn-k8s-cni-overlay","topology":"localnet","physicalNetworkName":"datacenter","netAttachDefName":"prod/localnet-77"}`
	const defaultNetwork = `{"cniVersion":"1.0.0","name":"ovn-kubernetes","type":"ovn-k8s-cni-overlay","ipam":{},"dns":{},"logFile":"/var/log/ovn-kubernetes/ovn-k8s-cni-overlay.log","logLevel":"4"}`
	lan := rig.NewLAN(b)
	up, down := rig.StartEngine(b, lan.Node), rig.NewEngine(b, lan.Node)
	hung := rig.StartEngine(b, lan.Node)
	if err := syscall.Kill(hung.PID(), syscall.SIGSTOP); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = syscall.Kill(hung.PID(), syscall.SIGCONT) })
	p := newInterposed(b)
	for _, c := range []struct {
		name   string
		conf   string
		engine *rig.Engine
		turns  int
	}{
		{"default-network", defaultNetwork, up, 400},
		{"engine-up", unmarked, up, 400},
		{"engine-down", unmarked, down, 400},
		{"engine-hung", unmarked, hung, 5},
	} {
		b.Run(c.name, func(b *testing.B) {
			for b.Loop() {
				var alone, behind []time.Duration
				for turn := range c.turns {
					alone = append(alone, p.run(b, p.real, c.conf, c.engine, turn))
					behind = append(behind, p.run(b, p.ours, c.conf, c.engine, turn))
				}
				more := median(behind) - median(alone)
				b.ReportMetric(ms(median(alone)), "ms/alone")
				b.ReportMetric(ms(more), "ms/more")
				b.ReportMetric(float64(more)/float64(median(alone)), "more/empty-start")
			}
			// An engine that does not answer is left a note, and one that does is not.
			notes, err := filepath.Glob(filepath.Join(c.engine.StateDir, api.PassedFolder, "*"))
			if err != nil || (len(notes) > 0) != (c.engine != up) {
				b.Errorf("%d notes, %v", len(notes), err)
			}
		})
	}
}

// interposed is the program under the name of a plugin, and that plugin.
type interposed struct{ ours, real, cniPath string }

func newInterposed(b *testing.B) interposed {
	b.Helper()
	const name = "ovn-k8s-cni-overlay"
	dir := b.TempDir()
	wrap, real := filepath.Join(dir, "wrap"), filepath.Join(dir, "real")
	for _, d := range []string{wrap, real} {
		if err := os.Mkdir(d, 0o755); err != nil {
			b.Fatal(err)
		}
	}
	p := interposed{filepath.Join(wrap, name), filepath.Join(real, name), wrap + ":" + real}
	if err := os.Symlink(rig.Program("dhcp-meta"), p.ours); err != nil {
		b.Fatal(err)
	}
	if err := os.Symlink(emptyProgram(b), p.real); err != nil {
		b.Fatal(err)
	}
	return p
}

// run executes an ADD of a new sandbox and returns how long it took.
func (p interposed) run(b *testing.B, program, conf string, e *rig.Engine, turn int) time.Duration {
	b.Helper()
	cmd := exec.Command(program)
	cmd.Env = []string{
		"CNI_COMMAND=ADD", fmt.Sprintf("CNI_CONTAINERID=0123456789abcdef%04d", turn), "CNI_IFNAME=net1", "CNI_NETNS=/run/netns/a",
		"CNI_PATH=" + p.cniPath, "CNI_ARGS=IgnoreUnknown=1;K8S_POD_NAMESPACE=prod;K8S_POD_NAME=web-0;K8S_POD_UID=u1",
		"DHCP_ENGINE_SOCKET=" + e.Socket, "DHCP_ENGINE_STATE_DIR=" + e.StateDir,
	}
	cmd.Stdin = bytes.NewReader([]byte(conf))
	begin := time.Now()
	if out, err := cmd.CombinedOutput(); err != nil {
		b.Fatalf("%s: %v: %s", program, err, out)
	}
	return time.Since(begin)
}
