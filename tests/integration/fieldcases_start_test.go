package integration

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/insomniacslk/dhcp/dhcpv4"

	"github.com/dhcp-meta/dhcp-meta/tests/rig"
)

// Pods start before the engine does. Their ADDs fail at once, to be tried again,
// and leave nothing; when the engine is there they succeed.
func TestB43AddBeforeTheEngine(t *testing.T) {
	t.Parallel()
	lan := rig.NewLAN(t)
	l := &lab{&rig.Lab{LAN: lan, Engine: rig.NewEngine(t, lan.Node)}}
	server := rig.StartDnsmasq(t, l.Server, rig.Pool(0, 0))
	recorder := rig.NewRecorder(t, []string{"macvlan"})
	pod := newSandbox(t)
	call := pod.Call("net1", l.Macvlan(nil))
	call.Path = recorder.Folder
	for range 3 {
		l.Node.Refuse(t, "ADD", call, 11, "dhcp-engine", l.Engine.Socket)
		l.Node.Del(t, call)
	}
	if calls := recorder.Calls(t, "ADD"); len(calls) != 0 {
		t.Errorf("the delegate was called: %+v", calls)
	}
	if frames := l.Capture.Since(0); len(frames) != 0 {
		t.Errorf("DHCP was sent: %v", frames)
	}

	l.Engine.Start(t)
	addr := leased(t, pod.mustAdd(t, l, call))
	server.AwaitHeld(t, "the lease", rig.Holds(pod.HardwareAddr(t, "net1"), addr.Addr()))
	l.Node.Del(t, call)
	server.AwaitHeld(t, "empty", rig.Nothing)
	l.expectNothingLeft(t)
}

// The node was rebooted: the record is of another boot, and at its namespace's path
// there is another namespace. Nothing is sent from there; the pod's new sandbox
// gets the lease, by INIT-REBOOT.
func TestB41RecordOfAnotherBoot(t *testing.T) {
	onBothServers(t, func(t *testing.T, l *lab, start rig.StartFunc) {
		server := start(t, l.Server, rig.Pool(0, 0))
		conf := l.Macvlan(object{"mac": "derive"})
		old := newSandbox(t)
		addr := leased(t, old.mustAdd(t, l, old.Call("net1", conf)))
		l.Engine.Kill(t)
		rewriteBoot(t, l.Engine.StateDir)
		old.IP(t, "link", "del", "net1")
		old.Recreate(t)
		l.Node.IP(t, "link", "add", "link", rig.Uplink, "name", "net1", "netns", old.Name, "type", "macvlan", "mode", "bridge")

		mark := l.Capture.Len()
		l.Engine.Start(t)
		l.Engine.Lines.Await(t, "word of the gone interface", 0, rig.Patience, contains("interface is gone"))
		next := old.again(t)
		call := next.Call("net1", conf)
		if got := leased(t, next.mustAdd(t, l, call)); got != addr {
			t.Errorf("the new sandbox got %v, want %v", got, addr)
		}
		mac := next.HardwareAddr(t, "net1")
		first := l.Capture.Since(mark)[0]
		if first.Type != dhcpv4.MessageTypeRequest || !first.Msg.RequestedIPAddress().Equal(addr.Addr().AsSlice()) || first.EthSrc.String() != mac.String() {
			t.Errorf("the first message after the reboot is %v, want INIT-REBOOT of the new sandbox", first)
		}
		if have := old.Addresses(t, "net1"); len(have) != 0 {
			t.Errorf("the namespace at the old path carries %v", have)
		}
		server.AwaitHeld(t, "one lease", rig.Holds(mac, addr.Addr()))
		l.Node.Del(t, old.Call("net1", conf))
		l.Node.Del(t, call)
		server.AwaitHeld(t, "empty", rig.Nothing)
		l.expectNothingLeft(t)
	})
}

// rewriteBoot makes the one record in a state folder one of another boot.
func rewriteBoot(t testing.TB, stateDir string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(stateDir, "attachments", "*"))
	if err != nil || len(files) != 1 {
		t.Fatalf("records: %v, %v", files, err)
	}
	b, err := os.ReadFile(files[0])
	if err != nil {
		t.Fatal(err)
	}
	current, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		t.Fatal(err)
	}
	id := strings.TrimSpace(string(current))
	if !strings.Contains(string(b), id) || !json.Valid(b) {
		t.Fatalf("the record does not name its boot %s: %s", id, b)
	}
	other := strings.ReplaceAll(string(b), id, "00000000-0000-4000-8000-000000000001")
	if err := os.WriteFile(files[0], []byte(other), 0o600); err != nil {
		t.Fatal(err)
	}
}
