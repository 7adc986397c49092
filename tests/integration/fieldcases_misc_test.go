package integration

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/insomniacslk/dhcp/dhcpv4"

	"github.com/dhcp-meta/dhcp-meta/tests/rig"
)

// Only root may name a namespace to the engine: by the modes of socket and folder,
// and by asking the kernel who is at the other end.
func TestB82OnlyRootMayAsk(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	folder := filepath.Dir(l.Engine.Socket)
	for path, want := range map[string]os.FileMode{l.Engine.Socket: 0o600, folder: 0o700} {
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if got := info.Mode().Perm(); got != want {
			t.Errorf("%s has mode %o, want %o", path, got, want)
		}
	}
	// Somebody widens the modes: the engine still asks who comes.
	for _, path := range []string{filepath.Dir(folder), folder, l.Engine.Socket} {
		if err := os.Chmod(path, 0o777); err != nil {
			t.Fatal(err)
		}
	}
	program := filepath.Join(filepath.Dir(folder), "dhcp-engine")
	command(t, "cp", rig.Program("dhcp-engine"), program)
	cmd := exec.Command(program, "leases", "--socket", l.Engine.Socket)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	if out, err := cmd.CombinedOutput(); err == nil {
		t.Errorf("nobody could list the leases: %s", out)
	}
	l.Engine.Lines.Await(t, "word of the refused caller", 0, rig.Patience, func(line string) bool {
		return contains("only root may connect")(line) && contains("uid=65534")(line)
	})
	conn, err := net.Dial("unix", l.Engine.Socket)
	if err != nil {
		t.Errorf("root is refused: %v", err)
	} else {
		conn.Close()
	}
}

// The pod's name is its host name at the server, after the renewal too, and what
// the site wants to be sent is in each DISCOVER and REQUEST. (U09)
func TestB91HostNameOverT1(t *testing.T) {
	onThreeServers(t, func(t *testing.T, l *lab, start rig.StartFunc) {
		server := start(t, l.Server, rig.Pool(seconds(3), seconds(60)))
		pod := newSandbox(t)
		pod.mustAdd(t, l, pod.Call("net1", l.Macvlan(object{
			"hostname": "{pod}-{namespace}", "vendorClass": "dhcp-meta-test",
			"options": []object{{"code": 77, "value": "pods"}},
		})))
		mac := pod.HardwareAddr(t, "net1")
		want := pod.Pod + "-shop"
		named := func(held []rig.Held) bool { return len(held) == 1 && held[0].Hostname == want }
		server.AwaitHeld(t, "a lease of "+want, named)
		_, mark := l.Capture.AwaitType(t, 0, rig.Patience, dhcpv4.MessageTypeAck, mac)
		l.Capture.AwaitType(t, mark, rig.Patience, dhcpv4.MessageTypeAck, mac)
		server.AwaitHeld(t, "a lease of "+want+" after T1", named)
		for _, f := range l.Capture.Since(0) {
			if !f.FromClient() {
				continue
			}
			if got := f.Msg.HostName(); got != want {
				t.Errorf("%v has host name %q, want %q", f.Type, got, want)
			}
			if got := f.Msg.ClassIdentifier(); got != "dhcp-meta-test" {
				t.Errorf("%v has vendor class %q", f.Type, got)
			}
			if got := string(f.Msg.Options.Get(dhcpv4.OptionUserClassInformation)); got != "pods" {
				t.Errorf("%v has option 77 %q", f.Type, got)
			}
		}
	})
}
