package delegate

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/google/go-cmp/cmp"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine/api"
)

// The tests in this file run the program itself, with plugins that are shell
// scripts: testdata/plugin writes down what it got.

// programDir is where the program is built; TestMain removes it.
var programDir = sync.OnceValue(func() string {
	dir, err := os.MkdirTemp("", pluginName)
	if err != nil {
		panic(err)
	}
	return dir
})

// program builds the program, once, and returns its path.
var program = sync.OnceValues(func() (string, error) {
	path := filepath.Join(programDir(), pluginName)
	out, err := exec.Command("go", "build", "-o", path, "../../cmd/dhcp-meta").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("build the program: %w: %s", err, out)
	}
	return path, nil
})

func TestMain(m *testing.M) {
	code := m.Run()
	os.RemoveAll(programDir())
	os.Exit(code)
}

// process is one execution of the program, between a rig's engine and scripts.
type process struct {
	*rig
	root string
	path []string // CNI_PATH
	env  []string // more environment
}

// newProcess installs the program as root/<folder>/<name>, and testdata/plugin
// as root/real/<plugin>.
func newProcess(t *testing.T, folder, name, plugin string) *process {
	t.Helper()
	p := &process{rig: newRig(t), root: t.TempDir()}
	p.path = []string{p.install(folder, name), p.folder("real")}
	if plugin != "" {
		p.copy("testdata/plugin", filepath.Join(p.folder("real"), plugin))
	}
	return p
}

func (p *process) folder(name string) string {
	dir := filepath.Join(p.root, name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		p.t.Fatal(err)
	}
	return dir
}

func (p *process) copy(from, to string) {
	p.t.Helper()
	b, err := os.ReadFile(from)
	if err != nil {
		p.t.Fatal(err)
	}
	if err := os.WriteFile(to, b, 0o755); err != nil {
		p.t.Fatal(err)
	}
}

// install links the program into a folder, and returns the folder.
func (p *process) install(folder, name string) string {
	p.t.Helper()
	built, err := program()
	if err != nil {
		p.t.Fatal(err)
	}
	dir := p.folder(folder)
	if err := os.Symlink(built, filepath.Join(dir, name)); err != nil {
		p.t.Fatal(err)
	}
	return dir
}

// command is a call of the program as a runtime makes it.
func (p *process) command(verb, name string) *exec.Cmd {
	c := exec.Command(filepath.Join(p.path[0], name))
	c.Env = append([]string{
		"PATH=" + os.Getenv("PATH"), "LOG=" + p.folder("log"), "CNI_COMMAND=" + verb, "CNI_CONTAINERID=c1", "CNI_IFNAME=net1",
		"DHCP_ENGINE_SOCKET=" + p.socket, "DHCP_ENGINE_STATE_DIR=" + p.stateDir, "CNI_NETNS=/run/netns/a", "CNI_PATH=" + strings.Join(p.path, ":"), "CNI_ARGS=IgnoreUnknown=1;K8S_POD_NAME=web-0",
	}, p.env...)
	c.Stdin = bytes.NewReader(p.args.StdinData)
	return c
}

// call runs the program and returns what it printed.
func (p *process) call(verb, name string) (stdout, stderr string, err error) {
	c := p.command(verb, name)
	var out, errs bytes.Buffer
	c.Stdout, c.Stderr = &out, &errs
	err = c.Run()
	return out.String(), errs.String(), err
}

// said returns what testdata/plugin wrote down: "stdin", "environ" or "name" of a
// verb; empty when it did not run.
func (p *process) said(verb, what string) string {
	b, err := os.ReadFile(filepath.Join(p.folder("log"), verb+"."+what))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		p.t.Fatal(err)
	}
	return string(b)
}

func TestProcessAddAndDel(t *testing.T) {
	p := newProcess(t, "bin", pluginName, "macvlan")
	p.start()
	stdout, stderr, err := p.call("ADD", pluginName)
	if err != nil || stderr != "" {
		t.Fatalf("ADD: %v: %s%s", err, stdout, stderr)
	}
	want := `{"cniVersion":"1.1.0",
	  "interfaces":[{"name":"net1","mac":"02:00:5e:00:53:01","sandbox":"/run/netns/a"}],
	  "ips":[{"interface":0,"address":"10.77.0.50/24","gateway":"10.77.0.1"}]}`
	if diff := cmp.Diff(reformat(t, []byte(want)), reformat(t, []byte(stdout))); diff != "" {
		t.Errorf("result (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(`{"cniVersion":"1.1.0","master":"eth1","name":"vlan77","type":"macvlan"}`, p.said("ADD", "stdin")); diff != "" {
		t.Errorf("configuration of the delegate (-want +got):\n%s", diff)
	}
	for _, kv := range []string{"CNI_COMMAND=ADD", "CNI_CONTAINERID=c1", "CNI_ARGS=IgnoreUnknown=1;K8S_POD_NAME=web-0", "CNI_NETNS=/run/netns/a"} {
		if !strings.Contains(p.said("ADD", "environ"), kv+"\n") {
			t.Errorf("the delegate lacks %s in\n%s", kv, p.said("ADD", "environ"))
		}
	}
	stdout, stderr, err = p.call("DEL", pluginName)
	if err != nil || stdout+stderr != "" {
		t.Fatalf("DEL: %v: %s%s", err, stdout, stderr)
	}
	p.journal.want(t, "engine prepare", "engine attach", "engine detach")
	if p.said("DEL", "stdin") == "" {
		t.Error("the delegate's DEL did not run")
	}
	p.nothingLeft()
}

func TestProcessFailureIsOneLine(t *testing.T) {
	p := newProcess(t, "bin", pluginName, "macvlan")
	p.start()
	p.engine.on["attach"] = func(context.Context) error {
		return api.WithCode(api.CodeTryAgain, errors.New("no server\nanswered"))
	}
	p.engine.on["detach"] = func(context.Context) error { return errors.New("disk is full") }
	stdout, stderr, err := p.call("ADD", pluginName)
	if exit := (*exec.ExitError)(nil); !errors.As(err, &exit) || exit.ExitCode() != 1 {
		t.Errorf("ended with %v", err)
	}
	if diff := cmp.Diff("dhcp-meta: ADD c1:net1 failed with code 11: no server answered; undo: disk is full\n", stderr); diff != "" {
		t.Errorf("standard error (-want +got):\n%s", diff)
	}
	var got types.Error
	if err := json.Unmarshal([]byte(stdout), &got); err != nil {
		t.Fatalf("%v: %s", err, stdout)
	}
	if diff := cmp.Diff(types.Error{Code: 11, Msg: "no server\nanswered"}, got); diff != "" {
		t.Errorf("error (-want +got):\n%s", diff)
	}
}

// Also what skel finds out before we are asked is one line.
func TestProcessRefusesVersion(t *testing.T) {
	p := newProcess(t, "bin", pluginName, "macvlan")
	p.conf("0.2.0", `"delegate":{"type":"macvlan"}`)
	stdout, stderr, err := p.call("ADD", pluginName)
	if err == nil || !strings.Contains(stdout, `"code": 1`) || strings.Count(stderr, "\n") != 1 {
		t.Errorf("%v: %s%s", err, stdout, stderr)
	}
}

func TestProcessVersion(t *testing.T) {
	p := newProcess(t, "bin", pluginName, "")
	stdout, stderr, err := p.call("VERSION", pluginName)
	if err != nil || stderr != "" {
		t.Fatalf("%v: %s", err, stderr)
	}
	var got struct{ SupportedVersions []string }
	if err := json.Unmarshal([]byte(stdout), &got); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"0.3.1", "0.4.0", "1.0.0", "1.1.0"}, got.SupportedVersions); diff != "" {
		t.Errorf("versions (-want +got):\n%s", diff)
	}
}

// The delegate's own failure, in its own words, whatever they are.
func TestProcessDelegateFails(t *testing.T) {
	tests := []struct {
		name   string
		say    string // what the plugin does instead of its work
		want   types.Error
		stderr string
	}{
		{
			"bad with a CNI error", `echo '{"code":103,"msg":"no master","details":"eth1"}'; echo diagnosis >&2; exit 1`,
			types.Error{Code: 103, Msg: "no master", Details: "eth1"},
			"diagnosis\ndhcp-meta: ADD c1:net1 failed with code 103: no master; eth1\n",
		},
		{
			"bad without one", `echo "eth1: no such device" >&2; exit 3`,
			types.Error{Code: 999, Msg: `run PLUGIN: exit status 3: "eth1: no such device"`},
			"dhcp-meta: ADD c1:net1 failed with code 999: run PLUGIN: exit status 3: \"eth1: no such device\"\n",
		},
		{
			"bad without a word", `exit 3`, types.Error{Code: 999, Msg: "run PLUGIN: exit status 3, and it said nothing"},
			"dhcp-meta: ADD c1:net1 failed with code 999: run PLUGIN: exit status 3, and it said nothing\n",
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p := newProcess(t, "bin", pluginName, "macvlan")
			p.start()
			p.env = []string{"SAY_ADD=" + tt.say}
			stdout, stderr, err := p.call("ADD", pluginName)
			if err == nil {
				t.Fatalf("no error: %s", stdout)
			}
			plugin := filepath.Join(p.root, "real", "macvlan")
			if diff := cmp.Diff(strings.ReplaceAll(tt.stderr, "PLUGIN", plugin), stderr); diff != "" {
				t.Errorf("standard error (-want +got):\n%s", diff)
			}
			var got types.Error
			if err := json.Unmarshal([]byte(stdout), &got); err != nil {
				t.Fatal(err)
			}
			tt.want.Msg = strings.ReplaceAll(tt.want.Msg, "PLUGIN", plugin)
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("error (-want +got):\n%s", diff)
			}
			if p.said("DEL", "environ") == "" {
				t.Error("the delegate's DEL did not run")
			}
		})
	}
}

// The runtime's SIGTERM takes the ADD back before the process ends.
func TestProcessTerminated(t *testing.T) {
	p := newProcess(t, "bin", pluginName, "macvlan")
	p.start()
	attaching := make(chan struct{})
	p.engine.on["attach"] = func(ctx context.Context) error {
		close(attaching)
		<-ctx.Done()
		return ctx.Err()
	}
	c := p.command("ADD", pluginName)
	var stdout, stderr bytes.Buffer
	c.Stdout, c.Stderr = &stdout, &stderr
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	<-attaching
	if err := c.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := c.Wait(); err == nil || !strings.Contains(stdout.String(), `"code": 11`) {
		t.Errorf("%v: %s%s", err, stdout.String(), stderr.String())
	}
	p.journal.want(t, "engine prepare", "engine attach", "engine detach")
	if p.said("DEL", "stdin") == "" {
		t.Error("the delegate's DEL did not run")
	}
	p.nothingLeft()
}

// A runtime that has ended reads no result: nobody will ever send the DEL.
func TestProcessNobodyReadsTheResult(t *testing.T) {
	p := newProcess(t, "bin", pluginName, "macvlan")
	p.start()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	r.Close()
	c := p.command("ADD", pluginName)
	var stderr bytes.Buffer
	c.Stdout, c.Stderr = w, &stderr
	err = c.Run()
	w.Close()
	if err == nil || !strings.Contains(stderr.String(), "print the result") {
		t.Errorf("%v: %s", err, stderr.String())
	}
	p.journal.want(t, "engine prepare", "engine attach", "engine detach")
	p.nothingLeft()
}

// An interposed program must be as if it were not there, with any engine.
func TestProcessStandsAside(t *testing.T) {
	const name = "ovn-k8s-cni-overlay"
	// Not what encoding/json would write: order, spaces and numbers must arrive.
	const stdin = "{ \"type\": \"ovn-k8s-cni-overlay\", \"name\":\"n\", \"cniVersion\": \"0.2.0\", \"big\": 9007199254740993.0 }\n"
	for _, verb := range []string{"ADD", "DEL", "CHECK", "GC", "STATUS", "VERSION", "NEWVERB"} {
		t.Run("OK "+verb, func(t *testing.T) {
			p := newProcess(t, "wrap", name, name)
			p.args.StdinData = []byte(stdin)
			p.env = []string{"SAY_" + verb + "=echo from the plugin; echo its diagnosis >&2; exit 7"}
			stdout, stderr, err := p.call(verb, name)
			if exit := (*exec.ExitError)(nil); !errors.As(err, &exit) || exit.ExitCode() != 7 {
				t.Errorf("ended with %v", err)
			}
			if stdout != "from the plugin\n" || stderr != "its diagnosis\n" {
				t.Errorf("stdout %q, stderr %q", stdout, stderr)
			}
			if diff := cmp.Diff(stdin, p.said(verb, "stdin")); diff != "" {
				t.Errorf("standard input (-want +got):\n%s", diff)
			}
			if got, want := strings.TrimSpace(p.said(verb, "name")), filepath.Join(p.root, "real", name); got != want {
				t.Errorf("ran as %s, want %s", got, want)
			}
		})
	}
	t.Run("OK no JSON", func(t *testing.T) {
		p := newProcess(t, "wrap", name, name)
		p.args.StdinData = []byte("not JSON")
		p.env = []string{"SAY_ADD=exit 7"}
		p.call("ADD", name)
		if got := p.said("ADD", "stdin"); got != "not JSON" {
			t.Errorf("standard input %q", got)
		}
	})
	t.Run("OK a large configuration", func(t *testing.T) {
		p := newProcess(t, "wrap", name, name)
		large := strings.Replace(stdin, "{", `{"more":"`+strings.Repeat("x", 900<<10)+`",`, 1)
		p.args.StdinData = []byte(large)
		p.env = []string{"SAY_ADD=exit 7"}
		p.call("ADD", name)
		if got := p.said("ADD", "stdin"); got != large {
			t.Errorf("standard input of %d bytes, want %d", len(got), len(large))
		}
	})
	t.Run("OK two that stand before a third", func(t *testing.T) {
		p := newProcess(t, "wrap", name, name)
		p.path = []string{p.path[0], p.install("wrap2", name), p.path[1]}
		p.args.StdinData = []byte(stdin)
		p.env = []string{"SAY_ADD=exit 7"}
		p.call("ADD", name)
		if got := p.said("ADD", "stdin"); got != stdin {
			t.Errorf("standard input %q", got)
		}
	})
	t.Run("bad nothing behind it", func(t *testing.T) {
		p := newProcess(t, "wrap", name, "")
		p.args.StdinData = []byte(stdin)
		stdout, stderr, err := p.call("ADD", name)
		if err == nil || !strings.Contains(stdout, p.folder("real")) || strings.Count(stderr, "\n") != 1 {
			t.Errorf("%v: %s%s", err, stdout, stderr)
		}
	})
}

func TestProcessInterposedAndMarked(t *testing.T) {
	const name = "ovn-k8s-cni-overlay"
	p := newProcess(t, "wrap", name, name)
	p.start()
	p.env = []string{"CNI_CONTAINERID=0123456789abcdef"}
	p.conf("1.1.0")
	p.args.StdinData = []byte(strings.Replace(string(p.args.StdinData), `"type":"dhcp-meta"`, `"type":"`+name+`"`, 1))
	stdout, stderr, err := p.call("ADD", name)
	if err != nil || !strings.Contains(stdout, "10.77.0.50/24") {
		t.Fatalf("%v: %s%s", err, stdout, stderr)
	}
	if strings.Contains(p.said("ADD", "stdin"), `"dhcp"`) {
		t.Error("the delegate got our dhcp object")
	}
	p.journal.want(t, "engine prepare", "engine attach")
}
