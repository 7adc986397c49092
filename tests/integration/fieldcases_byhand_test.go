package integration

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/insomniacslk/dhcp/dhcpv4"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine/api"
	"github.com/dhcp-meta/dhcp-meta/tests/rig"
)

// What a person types: leases lists, renew asks the lease's server and rebind all,
// release gives back what goes on to run.
func TestCommandsByHand(t *testing.T) {
	onThreeServers(t, func(t *testing.T, l *lab, start rig.StartFunc) {
		server := start(t, l.Server, rig.Pool(0, 0))
		pod := newSandbox(t)
		call := pod.Call("net1", l.Macvlan(nil))
		addr := leased(t, pod.mustAdd(t, l, call))
		mac := pod.HardwareAddr(t, "net1")

		listed := l.Engine.MustCommand(t, "leases")
		for _, word := range []string{pod.ID[:8], "shop/" + pod.Pod, addr.String(), rig.ServerAddr.Addr().String(), "BOUND"} {
			if !strings.Contains(listed, word) {
				t.Errorf("leases does not say %q:\n%s", word, listed)
			}
		}
		var all []api.Status
		if err := json.Unmarshal([]byte(l.Engine.MustCommand(t, "leases", "-o", "json")), &all); err != nil || len(all) != 1 {
			t.Fatalf("leases -o json: %v, %d", err, len(all))
		}

		for command, broadcast := range map[string]bool{"renew": false, "rebind": true} {
			mark := l.Capture.Len()
			if out := l.Engine.MustCommand(t, command, pod.id()); !strings.Contains(out, "has "+addr.String()) {
				t.Errorf("%s says %q", command, out)
			}
			l.Capture.Await(t, command, mark, rig.Patience, requests(mac, broadcast))
		}

		if r := l.Engine.Command(t, "release", pod.id()); r.Code != 2 {
			t.Errorf("release without --yes: %+v", r)
		}
		l.Engine.MustCommand(t, "release", "--yes", pod.id())
		server.AwaitHeld(t, "empty", rig.Nothing)
		if have := pod.Addresses(t, "net1"); len(have) != 0 {
			t.Errorf("net1 carries %v after release", have)
		}
		l.expectNothingLeft(t)
		l.Node.Del(t, call)
	})
}

// A renewal by hand that nobody answers says so, and costs nothing.
func TestRenewByHandWithoutServer(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	server := rig.StartDnsmasq(t, l.Server, rig.Pool(0, 0))
	pod := newSandbox(t)
	addr := leased(t, pod.mustAdd(t, l, pod.Call("net1", l.Macvlan(nil))))
	server.Stop(t)
	r := l.Engine.Command(t, "renew", pod.id())
	if r.Code != 1 || !strings.Contains(r.Stderr, "no server has answered for "+addr.Addr().String()) {
		t.Errorf("renew without a server: %+v", r)
	}
	pod.carries(t, "net1", addr)
	if st := l.status(t, pod, "net1"); st.State != "BOUND" {
		t.Errorf("the engine lists %s, want BOUND", st.State)
	}
}

// probe asks who offers what, takes nothing, and says where a question stopped
// that nobody answers.
func TestProbe(t *testing.T) {
	onThreeServers(t, func(t *testing.T, l *lab, start rig.StartFunc) {
		pod := newSandbox(t)
		l.Node.IP(t, "link", "add", "link", rig.Uplink, "name", "net1", "netns", pod.Name, "type", "macvlan", "mode", "bridge")
		ask := []string{"probe", "--netns", pod.Path, "--interface", "net1", "--timeout", "2s"}
		if r := l.Engine.Command(t, ask...); r.Code != 1 || !strings.Contains(r.Stdout+r.Stderr, "hint:") {
			t.Errorf("probe without a server: %+v", r)
		}
		server := start(t, l.Server, rig.Pool(0, 0))
		mark := l.Capture.Len()
		out := l.Engine.MustCommand(t, ask...)
		offer, _ := l.Capture.AwaitType(t, mark, rig.Patience, dhcpv4.MessageTypeOffer, nil)
		for _, word := range []string{rig.ServerAddr.Addr().String(), yours(offer).String(), "2m0s"} {
			if !strings.Contains(out, word) {
				t.Errorf("probe does not say %q:\n%s", word, out)
			}
		}
		if n := l.Capture.Count(0, rig.Type(dhcpv4.MessageTypeRequest, nil)); n != 0 {
			t.Errorf("probe sent %d REQUESTs", n)
		}
		server.AwaitHeld(t, "empty", rig.Nothing)
	})
}

// The records of an engine, exported while it runs and imported into an empty
// folder, are the leases of the next one: renewed and given back.
func TestExportAndImport(t *testing.T) {
	onBothServers(t, func(t *testing.T, l *lab, start rig.StartFunc) {
		server := start(t, l.Server, rig.Pool(seconds(6), seconds(60)))
		pod := newSandbox(t)
		call := pod.Call("net1", l.Macvlan(nil))
		addr := leased(t, pod.mustAdd(t, l, call))
		mac := pod.HardwareAddr(t, "net1")
		file := filepath.Join(t.TempDir(), "records.json")
		if err := os.WriteFile(file, []byte(l.Engine.MustCommand(t, "export")), 0o600); err != nil {
			t.Fatal(err)
		}
		if r := l.Engine.Command(t, "import", file); r.Code != 1 {
			t.Errorf("import beside a running engine: %+v", r)
		}

		l.Engine.Kill(t)
		attachments := filepath.Join(l.Engine.StateDir, "attachments")
		if err := os.RemoveAll(attachments); err != nil {
			t.Fatal(err)
		}
		if out := l.Engine.MustCommand(t, "import", file); !strings.Contains(out, "1 added") {
			t.Errorf("import says %q", out)
		}
		mark := l.Capture.Len()
		l.Engine.Start(t)
		if st := l.status(t, pod, "net1"); st.Address != addr.String() {
			t.Errorf("the engine lists %+v", st)
		}
		l.Capture.AwaitType(t, mark, rig.Patience, dhcpv4.MessageTypeAck, mac)
		pod.carries(t, "net1", addr)
		server.AwaitHeld(t, "the lease", rig.Holds(mac, addr.Addr()))
		l.Node.Del(t, call)
		server.AwaitHeld(t, "empty", rig.Nothing)
		l.expectNothingLeft(t)
	})
}
