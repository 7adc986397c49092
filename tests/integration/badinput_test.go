package integration

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine/api"
	"github.com/dhcp-meta/dhcp-meta/tests/rig"
)

// A wrong dhcp object is refused as a whole, with all that is wrong in it, before
// the delegate has done anything.
func TestBadSettings(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	recorder := rig.NewRecorder(t, []string{"macvlan"})
	pod := newSandbox(t)
	call := pod.Call("net1", l.Macvlan(object{"colour": "red", "timeout": "tomorrow", "servers": []string{"::1"}}))
	call.Path = recorder.Folder
	l.Node.Refuse(t, "ADD", call, 7, "dhcp.colour", "dhcp.timeout", "dhcp.servers[0]")
	if calls := recorder.Calls(t); len(calls) != 0 {
		t.Errorf("the delegate was called: %+v", calls)
	}
	l.expectNothingLeft(t)
}

// The engine enters only namespaces below its roots, and never the node's own. The
// plugin asks before the delegate runs, so nothing is plugged either.
func TestBadNetns(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	pod := newSandbox(t)
	folder := t.TempDir()
	file := filepath.Join(folder, "file")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	outside := filepath.Join(folder, "outside")
	if err := os.WriteFile(outside, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	command(t, "mount", "--bind", pod.Path, outside)
	t.Cleanup(func() { command(t, "umount", outside) })
	regular := "/run/netns/" + filepath.Base(pod.Path) + "-file"
	if err := os.WriteFile(regular, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.Remove(regular) })
	link := regular + "-link"
	if err := os.Symlink(outside, link); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.Remove(link) })

	for _, tt := range []struct{ name, path string }{
		{"bad missing", "/run/netns/dm-not-there"},
		{"bad regular file below a root", regular},
		{"bad outside the roots", outside},
		{"bad link out of a root", link},
		{"bad node's own", l.Node.Path},
		{"bad engine's own", "/proc/self/ns/net"},
		{"bad init's", "/proc/1/ns/net"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			request := api.Request{
				AttachmentID: api.AttachmentID{ContainerID: pod.ID, IfName: "lo"},
				Netns:        tt.path, Network: "site", Timeout: seconds(5),
			}
			client := l.Engine.Client()
			for verb, err := range map[string]error{
				"Prepare": client.Prepare(t.Context(), request),
				"Attach":  func() error { _, err := client.Attach(t.Context(), request); return err }(),
			} {
				if api.CodeOf(err) != api.CodeEnv || !strings.Contains(err.Error(), tt.path) {
					t.Errorf("%s: %v (code %d), want code %d and the path", verb, err, api.CodeOf(err), api.CodeEnv)
				}
			}
		})
	}
	if frames := l.Capture.Since(0); len(frames) != 0 {
		t.Errorf("DHCP was sent: %v", frames)
	}
	l.expectNothingLeft(t)
}

func TestBadInterface(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	pod := newSandbox(t)
	call := pod.Call("net1", object{
		"cniVersion": "1.1.0", "name": "site", "type": "dhcp-meta", "dhcp": l.Settings(nil),
		"prevResult": object{"cniVersion": "1.1.0", "interfaces": []object{{"name": "net1", "sandbox": pod.Path}}},
	})
	l.Node.Refuse(t, "ADD", call, 4, "net1", pod.Path)
	l.expectNothingLeft(t)
}

// A second engine on the socket ends with a clear word, and the first one works on.
func TestSecondEngineOnTheSocket(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	rig.StartDnsmasq(t, l.Server, rig.Pool(0, 0))
	second := l.Node.Start(t, "second engine", exec.Command(rig.Program("dhcp-engine"),
		"run", "--no-kubernetes", "--socket="+l.Engine.Socket, "--state-dir="+t.TempDir()))
	if code := second.AwaitExit(t); code <= 0 {
		t.Errorf("the second engine ended with %d, want a failure", code)
	}
	if second.Lines.Count(0, contains(l.Engine.Socket)) == 0 {
		t.Errorf("the second engine does not name the socket: %q", second.Lines.Since(0))
	}
	pod := newSandbox(t)
	call := pod.Call("net1", l.Macvlan(nil))
	pod.mustAdd(t, l, call)
	l.Node.Del(t, call)
}

// labOnTmpfs is a lab whose engine keeps its state on a small filesystem of its own.
// The engine does not run yet.
func labOnTmpfs(t *testing.T) *lab {
	t.Helper()
	lan := rig.NewLAN(t)
	l := &lab{&rig.Lab{LAN: lan, Engine: rig.NewEngine(t, lan.Node)}}
	if err := os.MkdirAll(l.Engine.StateDir, 0o700); err != nil {
		t.Fatal(err)
	}
	command(t, "mount", "-t", "tmpfs", "-o", "size=256k,mode=0700", "tmpfs", l.Engine.StateDir)
	t.Cleanup(func() { command(t, "umount", "--lazy", l.Engine.StateDir) })
	return l
}

// When records cannot be written, nothing is begun: the error names the folder,
// and what was there before stays as it was.
func TestStateFolderIsFull(t *testing.T) {
	t.Parallel()
	l := labOnTmpfs(t)
	l.Engine.Start(t)
	server := rig.StartDnsmasq(t, l.Server, rig.Pool(0, 0))
	kept := newSandbox(t)
	addr := leased(t, kept.mustAdd(t, l, kept.Call("net1", l.Macvlan(nil))))
	recorder := rig.NewRecorder(t, []string{"macvlan"})

	fill(t, l.Engine.StateDir)
	mark := l.Capture.Len()
	pod := newSandbox(t)
	call := pod.Call("net1", l.Macvlan(nil))
	call.Path = recorder.Folder
	l.Node.Refuse(t, "ADD", call, 11, l.Engine.StateDir)
	if err := l.Engine.Client().Ready(t.Context()); err == nil {
		t.Error("the engine says that it is ready")
	}
	l.Node.Refuse(t, "STATUS", call, 50, l.Engine.StateDir)
	if frames := l.Capture.Since(mark); len(frames) != 0 {
		t.Errorf("DHCP was sent: %v", frames)
	}
	if calls := recorder.Calls(t, "ADD"); len(calls) != 0 {
		t.Errorf("the delegate was called: %+v", calls)
	}
	if have := kept.Addresses(t, "net1"); len(have) != 1 || have[0].Addr != addr {
		t.Errorf("the pod that was there carries %v, want %v", have, addr)
	}
	// What is there can still be given back.
	l.Node.Del(t, kept.Call("net1", l.Macvlan(nil)))
	server.AwaitHeld(t, "empty", rig.Nothing)

	if err := os.Remove(filepath.Join(l.Engine.StateDir, "filler")); err != nil {
		t.Fatal(err)
	}
	pod.mustAdd(t, l, call)
	l.Node.Del(t, call)
	server.AwaitHeld(t, "empty", rig.Nothing)
	l.expectNothingLeft(t)
}

// An engine that finds its folder read-only keeps the leases that it can read of,
// but takes on no new one, and says why it is not ready.
func TestStateFolderIsReadOnly(t *testing.T) {
	t.Parallel()
	l := labOnTmpfs(t)
	l.Engine.Start(t)
	server := rig.StartDnsmasq(t, l.Server, rig.Pool(0, 0))
	pod := newSandbox(t)
	call := pod.Call("net1", l.Macvlan(nil))
	addr := leased(t, pod.mustAdd(t, l, call))
	l.Engine.Kill(t)

	command(t, "mount", "-o", "remount,ro", l.Engine.StateDir)
	l.Engine.Launch(t)
	l.Engine.AwaitHealthy(t)
	if err := l.Engine.Client().Ready(t.Context()); err == nil || !contains(l.Engine.StateDir)(err.Error()) {
		t.Errorf("readiness: %v, want an error that names %s", err, l.Engine.StateDir)
	}
	if st := l.status(t, pod, "net1"); st.Address != addr.String() {
		t.Errorf("the engine lists %+v, want %v", st, addr)
	}
	other := newSandbox(t)
	l.Node.Refuse(t, "ADD", other.Call("net1", l.Macvlan(nil)), 11, l.Engine.StateDir)
	if have := pod.Addresses(t, "net1"); len(have) != 1 || have[0].Addr != addr {
		t.Errorf("the pod that was there carries %v, want %v", have, addr)
	}

	l.Engine.Kill(t)
	command(t, "mount", "-o", "remount,rw", l.Engine.StateDir)
	l.Engine.Start(t)
	if st := l.status(t, pod, "net1"); st.Address != addr.String() {
		t.Errorf("the engine lists %+v, want %v", st, addr)
	}
	l.Node.Del(t, call)
	server.AwaitHeld(t, "empty", rig.Nothing)
	l.expectNothingLeft(t)
}

// fill writes until there is no room left.
func fill(t *testing.T, folder string) {
	t.Helper()
	f, err := os.Create(filepath.Join(folder, "filler"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for block := make([]byte, 4096); ; {
		if _, err := f.Write(block); err != nil {
			return
		}
	}
}

func command(t testing.TB, name string, args ...string) {
	t.Helper()
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
}
