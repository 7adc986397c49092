package bench

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os/exec"
	"path/filepath"
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
		atOnce(b, 16, theirs, func(pod *rig.Sandbox) error {
			return reference(l, "ADD", pod, rig.Object{"type": "dhcp", "daemonSocketPath": socket})
		})
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

// reference executes the reference macvlan plugin, with an ipam object or without.
func reference(l *rig.Lab, verb string, pod *rig.Sandbox, ipam rig.Object) error {
	conf := rig.Object{"cniVersion": "1.0.0", "name": "site", "type": "macvlan", "master": rig.Uplink}
	if ipam != nil {
		conf["ipam"] = ipam
	}
	stdin, err := json.Marshal(conf)
	if err != nil {
		return err
	}
	cmd := exec.Command(filepath.Join(rig.Plugins(), "macvlan"))
	cmd.Env = []string{"CNI_COMMAND=" + verb, "CNI_CONTAINERID=" + pod.ID, "CNI_NETNS=" + pod.Path,
		"CNI_IFNAME=net1", "CNI_PATH=" + rig.Plugins()}
	var out bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(stdin), &out, &out
	if err := l.Node.Do(cmd.Start); err != nil {
		return err
	}
	if err := cmd.Wait(); err != nil {
		return fmt.Errorf("%s by the reference plugins: %w: %s", verb, err, out.String())
	}
	return nil
}
