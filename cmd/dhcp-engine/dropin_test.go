package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/rpc"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/containernetworking/cni/pkg/skel"
	current "github.com/containernetworking/cni/pkg/types/100"
)

// place is where an engine of these tests lives.
type place struct{ dir, socket, pidFile string }

func newPlace(t *testing.T) place {
	t.Helper()
	dir, err := os.MkdirTemp("", "dm") // sockets have short paths
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return place{dir: dir, socket: filepath.Join(dir, "cni", "dhcp.sock"), pidFile: filepath.Join(dir, "pid")}
}

// args are those of an engine with the state folder of this name.
func (p place) args(state string, more ...string) []string {
	return append([]string{"--state-dir", filepath.Join(p.dir, state), "--socket", filepath.Join(p.dir, state+"-run", "s"), "--netns-root", p.dir}, more...)
}

// call calls a method as the reference plugin does.
func call(t *testing.T, socket, method, netns, stdin string) error {
	t.Helper()
	c, err := rpc.DialHTTP("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	args := &skel.CmdArgs{ContainerID: "c1", IfName: "net1", Netns: netns, StdinData: []byte(stdin)}
	if method == "Release" {
		return c.Call("DHCP.Release", args, &struct{}{})
	}
	return c.Call("DHCP."+method, args, &current.Result{})
}

const officeLAN = `{"cniVersion": "1.0.0", "name": "office-lan", "type": "macvlan", "ipam": {"type": "dhcp"}}`

// TestDropInSocketAndPIDFile: a live socket is respected and a dead one taken over,
// which the reference cannot; what is there only while the engine is goes with it.
func TestDropInSocketAndPIDFile(t *testing.T) {
	p := newPlace(t)
	first := start(t, p.args("a", "--dhcp-socket", p.socket, "--pidfile", p.pidFile)...)
	first.await(t, "serves the dhcp plugin")
	if err := call(t, p.socket, "Release", "", ""); err != nil {
		t.Errorf("DEL of what was never served: %v", err)
	}
	if pid, err := os.ReadFile(p.pidFile); err != nil || string(pid) != fmt.Sprint(first.cmd.Process.Pid) {
		t.Errorf("pid file holds %q, %v, want %d", pid, err, first.cmd.Process.Pid)
	}
	want := fmt.Sprintf("another engine (pid %d) serves %s", first.cmd.Process.Pid, p.socket)
	if code, said := start(t, p.args("b", "--dhcp-socket", p.socket)...).end(t, 0); code != exitFailed || !strings.Contains(said, want) {
		t.Errorf("second engine: exit code %d, want %q:\n%s", code, want, said)
	}
	if err := call(t, p.socket, "Release", "", ""); err != nil {
		t.Errorf("after a second engine: %v", err)
	}

	first.end(t, syscall.SIGKILL)
	if _, err := os.Lstat(p.socket); err != nil {
		t.Fatalf("no stale socket to take over: %v", err)
	}
	second := start(t, p.args("a", "--dhcp-socket", p.socket, "--pidfile", p.pidFile)...)
	second.await(t, "serves the dhcp plugin")
	if err := call(t, p.socket, "Release", "", ""); err != nil {
		t.Errorf("over the socket that was taken over: %v", err)
	}
	if code, said := second.end(t, syscall.SIGTERM); code != exitOK {
		t.Errorf("after SIGTERM: exit code %d:\n%s", code, said)
	}
	for _, path := range []string{p.socket, p.pidFile} {
		if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("after SIGTERM %s: %v", path, err)
		}
	}
}

// TestDropInRespectsTheReference: also a daemon that is none of ours keeps its socket.
func TestDropInRespectsTheReference(t *testing.T) {
	p := newPlace(t)
	if err := os.Mkdir(filepath.Dir(p.socket), 0o700); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", p.socket)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	code, said := start(t, p.args("a", "--dhcp-socket", p.socket)...).end(t, 0)
	if want := fmt.Sprintf("(pid %d) serves %s", os.Getpid(), p.socket); code != exitFailed || !strings.Contains(said, want) {
		t.Errorf("exit code %d, want %q:\n%s", code, want, said)
	}
	if _, err := net.Dial("unix", p.socket); err != nil {
		t.Errorf("the socket of the other daemon: %v", err)
	}
}

// startActivated starts an engine as systemd starts the service of a socket.
func startActivated(t *testing.T, fds, pid string, file *os.File, args ...string) *daemon {
	t.Helper()
	cmd := exec.Command("/bin/sh", append([]string{"-c", "export LISTEN_PID=" + pid + `; exec "$0" run --no-kubernetes "$@"`, os.Args[0]}, args...)...)
	cmd.Env = []string{asProgram + "=1", "LISTEN_FDS=" + fds, "LISTEN_FDNAMES=dhcp"}
	cmd.ExtraFiles = []*os.File{file, file}
	return startAs(t, cmd)
}

// TestDropInSocketActivation: the socket that systemd has opened is used, and stays
// when the engine ends, so that calls wait for the next one.
func TestDropInSocketActivation(t *testing.T) {
	p := newPlace(t)
	given := filepath.Join(p.dir, "given.sock")
	l, err := net.Listen("unix", given)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	file, err := l.(*net.UnixListener).File()
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	args := p.args("a", "--dhcp-socket", p.socket)

	for _, life := range []string{"first", "second"} {
		d := startActivated(t, "1", "$$", file, args...)
		d.await(t, "serves the dhcp plugin.* activated=true")
		if err := call(t, given, "Release", "", ""); err != nil {
			t.Errorf("%s life: %v", life, err)
		}
		if _, err := os.Lstat(p.socket); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s life: a socket of its own: %v", life, err)
		}
		if code, said := d.end(t, syscall.SIGTERM); code != exitOK {
			t.Errorf("%s life: exit code %d:\n%s", life, code, said)
		}
		if _, err := os.Lstat(given); err != nil {
			t.Fatalf("%s life has removed the socket of systemd: %v", life, err)
		}
	}

	for name, tt := range map[string]struct{ fds, pid string }{
		"none": {"0", "$$"}, "another's": {"1", "1"},
	} {
		d := startActivated(t, tt.fds, tt.pid, file, args...)
		d.await(t, "serves the dhcp plugin.* activated=false")
		if err := call(t, p.socket, "Release", "", ""); err != nil {
			t.Errorf("with %s: %v", name, err)
		}
		d.end(t, syscall.SIGTERM)
	}
	for fds, want := range map[string]string{"2": "2 sockets were handed over", "some": "no number"} {
		if code, said := startActivated(t, fds, "$$", file, args...).end(t, 0); code != exitFailed || !strings.Contains(said, want) {
			t.Errorf("LISTEN_FDS=%s: exit code %d, want %q:\n%s", fds, code, want, said)
		}
	}
	none, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer none.Close()
	if code, said := startActivated(t, "1", "$$", none, args...).end(t, 0); code != exitFailed || !strings.Contains(said, "descriptor 3") {
		t.Errorf("no socket handed over: exit code %d:\n%s", code, said)
	}
}

// TestDropInHostPrefix: the socket and the namespaces of callers are below it.
func TestDropInHostPrefix(t *testing.T) {
	p := newPlace(t)
	d := start(t, p.args("a", "--dhcp-socket", "/cni/dhcp.sock", "--host-prefix", p.dir, "--netns-root", "/run/netns")...)
	d.await(t, "serves the dhcp plugin")
	err := call(t, p.socket, "Allocate", "/run/netns/pod", officeLAN)
	if err == nil || !strings.Contains(err.Error(), p.dir+"/run/netns/pod") {
		t.Errorf("error is %v, want one of %s", err, p.dir+"/run/netns/pod")
	}
}

// TestDropInHarmlessRequests: the process goes on after what ends the reference's.
func TestDropInHarmlessRequests(t *testing.T) {
	p := newPlace(t)
	d := start(t, p.args("a", "--dhcp-socket", p.socket)...)
	d.await(t, "serves the dhcp plugin")
	for stdin, want := range map[string]string{
		`{"cniVersion": "1.0.0", "name": "office-lan", "type": "macvlan"}`: "ipam: is missing", "": "configuration",
	} {
		if err := call(t, p.socket, "Allocate", filepath.Join(p.dir, "netns"), stdin); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error is %v, want %q", stdin, err, want)
		}
	}
	if err := call(t, p.socket, "Release", "", "garbage"); err != nil {
		t.Errorf("the call after them: %v", err)
	}
	if code, said := d.end(t, syscall.SIGTERM); code != exitOK || strings.Contains(said, "panic") {
		t.Errorf("exit code %d:\n%s", code, said)
	}
}

func TestReadNetworks(t *testing.T) {
	file := filepath.Join(t.TempDir(), "networks.json")
	for _, tt := range []struct {
		name, content string
		broadcast     bool
		want, problem string
	}{
		{"OK", `{"blue": {"clientID": "mac"}, "*": {"conflictDetection": "off"}}`, false, `{"*":{"conflictDetection":"off"},"blue":{"clientID":"mac"}}`, ""},
		{"OK broadcast", `{"blue": {"clientID": "mac"}, "red": {"broadcast": false}}`, true,
			`{"*":{"broadcast":true},"blue":{"broadcast":true,"clientID":"mac"},"red":{"broadcast":false}}`, ""},
		{"OK broadcast and an empty object", `{"blue": {}}`, true, `{"*":{"broadcast":true},"blue":{"broadcast":true}}`, ""},
		{"bad object", `{"blue": {"clientID": 7}}`, false, "", `network "blue"`},
		{"bad key", `{"*": {"clientid": "mac"}}`, false, "", `network "*"`},
		{"bad JSON", `[]`, false, "", "no object"},
		{"bad end", `{"blue": {}} {"red": {}}`, false, "", "no object"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if err := os.WriteFile(file, []byte(tt.content), 0o600); err != nil {
				t.Fatal(err)
			}
			got, err := dropInConfig{networks: file, broadcast: tt.broadcast}.readNetworks()
			if tt.problem != "" {
				if err == nil || !strings.Contains(err.Error(), tt.problem) || !strings.Contains(err.Error(), file) {
					t.Errorf("error is %v, want one with %q and the file", err, tt.problem)
				}
				return
			}
			raw, encodeErr := json.Marshal(got)
			if err != nil || encodeErr != nil || string(raw) != tt.want {
				t.Errorf("networks are %s, %v, want %s", raw, errors.Join(err, encodeErr), tt.want)
			}
		})
	}
	if _, err := (dropInConfig{networks: file + ".not"}).readNetworks(); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without the file: %v", err)
	}
	if got, err := (dropInConfig{}).readNetworks(); err != nil || len(got) != 0 {
		t.Errorf("nothing said: %v, %v", got, err)
	}
}
