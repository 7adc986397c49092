package bench

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dhcp-meta/dhcp-meta/tests/rig"
)

// The reference dhcp daemon with sixty leases behind the same macvlan plugin, in
// the same run as the engine with sixty.
func BenchmarkPeer(b *testing.B) {
	l := newLab(b)
	socket := filepath.Join(b.TempDir(), "dhcp.sock")
	for b.Loop() {
		b.StopTimer()
		peer := l.Node.Start(b, "reference dhcp daemon", exec.Command(filepath.Join(rig.Plugins(), "dhcp"),
			"daemon", "-socketpath", socket))
		awaitSocket(b, peer, socket)
		none := rig.LoadOf(b, peer.PID())
		theirs, ours := newSandboxes(b, 60), newSandboxes(b, 60)
		own := l.Engine.Load(b)
		b.StartTimer()
		for _, pod := range theirs {
			addByPeer(b, l, pod, socket)
		}
		b.StopTimer()
		all := rig.LoadOf(b, peer.PID())
		each(b, l, "ADD", 16, ours)
		after := l.Engine.Load(b)
		b.ReportMetric(float64(all.Threads), "peer-threads")
		b.ReportMetric(float64(after.Threads), "engine-threads")
		b.ReportMetric(float64(all.Descriptors-none.Descriptors), "peer-fds")
		b.ReportMetric(float64(after.Descriptors-own.Descriptors), "engine-fds")
		b.ReportMetric(float64(all.RSS-none.RSS)/1024/60, "peer-KB/lease")
		b.ReportMetric(float64(after.RSS-own.RSS)/1024/60, "engine-KB/lease")
		each(b, l, "DEL", 16, ours)
		peer.Kill(b)
		b.StartTimer()
	}
}

// awaitSocket waits until the daemon has made its socket; it has no other sign.
func awaitSocket(b *testing.B, peer *rig.Process, socket string) {
	b.Helper()
	if err := rig.AwaitFile(b.Context(), socket, rig.Patience); err != nil {
		b.Fatalf("%s: %v", peer.Name, err)
	}
}

func addByPeer(b *testing.B, l *rig.Lab, pod *rig.Sandbox, socket string) {
	b.Helper()
	conf := `{"cniVersion":"1.0.0","name":"site","type":"macvlan","master":"` + rig.Uplink +
		`","ipam":{"type":"dhcp","daemonSocketPath":"` + socket + `"}}`
	cmd := exec.Command(filepath.Join(rig.Plugins(), "macvlan"))
	cmd.Env = []string{"CNI_COMMAND=ADD", "CNI_CONTAINERID=" + pod.ID, "CNI_NETNS=" + pod.Path,
		"CNI_IFNAME=net1", "CNI_PATH=" + rig.Plugins()}
	cmd.Stdin = strings.NewReader(conf)
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := l.Node.Do(cmd.Start); err != nil {
		b.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		b.Fatalf("ADD by the reference plugins: %v\n%s", err, out.String())
	}
}
