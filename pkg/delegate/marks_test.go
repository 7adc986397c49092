package delegate

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine/api"
)

// The tests in this file run the program itself under the name of OVN-Kubernetes'
// plugin, for a network that only its NetworkAttachmentDefinition marks.

// Not what encoding/json would write: order, spaces and numbers must arrive.
const annotated = "{ \"type\": \"ovn-k8s-cni-overlay\", \"name\":\"localnet-77\", \"cniVersion\": \"1.0.0\",\n \"netAttachDefName\":\"prod/localnet-77\", \"big\": 9007199254740993.0 }\n"

func newAnnotated(t *testing.T) *process {
	t.Helper()
	p := newProcess(t, "wrap", ovnPlugin, ovnPlugin)
	p.args.StdinData = []byte(annotated)
	p.env = []string{
		"CNI_CONTAINERID=" + ovnSandbox,
		"CNI_ARGS=IgnoreUnknown=1;K8S_POD_NAMESPACE=prod;K8S_POD_NAME=web-0;K8S_POD_UID=u1",
	}
	return p
}

// mark lists the network as the engine does; with nil it lists none.
func (p *process) mark(nads ...string) {
	p.t.Helper()
	raw, err := json.Marshal(api.Networks{Marked: nads})
	if err != nil {
		p.t.Fatal(err)
	}
	if err := os.MkdirAll(p.stateDir, 0o700); err != nil {
		p.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(p.stateDir, api.NetworksFile), raw, 0o600); err != nil {
		p.t.Fatal(err)
	}
}

func (p *process) note(folder string) bool {
	_, err := os.Stat(filepath.Join(p.stateDir, folder, ovnSandbox+":net1"))
	return err == nil
}

// passed holds that the real plugin had the call as if we were not there.
func (p *process) passed(verb string) {
	p.t.Helper()
	if diff := cmp.Diff(annotated, p.said(verb, "stdin")); diff != "" {
		p.t.Errorf("standard input of the real plugin at %s (-want +got):\n%s", verb, diff)
	}
	if got, want := strings.TrimSpace(p.said(verb, "name")), filepath.Join(p.root, "real", ovnPlugin); got != want {
		p.t.Errorf("ran as %s, want %s", got, want)
	}
}

func TestAnnotatedListed(t *testing.T) {
	p := newAnnotated(t)
	p.mark("a/b", "prod/localnet-77")
	// Without an engine: code 11, and nothing was done. Right after a reboot it is
	// the same, the list is on disk.
	stdout, stderr, err := p.call("ADD", ovnPlugin)
	if err == nil || !strings.Contains(stdout, `"code": 11`) || !strings.Contains(stderr, p.socket) {
		t.Errorf("%v: %s%s", err, stdout, stderr)
	}
	if p.said("ADD", "stdin") != "" || p.note(api.PassedFolder) {
		t.Error("the real plugin ran, or there is a note")
	}
	p.start()
	stdout, stderr, err = p.call("ADD", ovnPlugin)
	if err != nil || !strings.Contains(stdout, "10.77.0.50/24") {
		t.Fatalf("%v: %s%s", err, stdout, stderr)
	}
	p.journal.want(t, "engine prepare", "engine attach") // nobody had to be asked
	want := api.Request{
		AttachmentID: api.AttachmentID{ContainerID: ovnSandbox, IfName: "net1"}, Netns: "/run/netns/a", Network: "localnet-77",
		Pod: api.Pod{Namespace: "prod", Name: "web-0", UID: "u1"}, NAD: "prod/localnet-77", Wrapped: ovnPlugin,
	}
	if diff := cmp.Diff(want, p.engine.requests[0]); diff != "" {
		t.Errorf("request (-want +got):\n%s", diff)
	}
}

func TestAnnotatedByTheEnginesWord(t *testing.T) {
	for _, marked := range []bool{true, false} {
		p := newAnnotated(t)
		p.start()
		p.mark("a/b")
		p.engine.marked = marked
		stdout, stderr, err := p.call("ADD", ovnPlugin)
		if err != nil || strings.Contains(stdout, "10.77.0.50/24") != marked {
			t.Fatalf("marked %v: %v: %s%s", marked, err, stdout, stderr)
		}
		if marked {
			p.journal.want(t, "engine marked", "engine prepare", "engine attach")
		} else {
			p.journal.want(t, "engine marked")
			p.passed("ADD")
		}
		want := api.Request{
			AttachmentID: api.AttachmentID{ContainerID: ovnSandbox, IfName: "net1"}, Netns: "/run/netns/a", Network: "localnet-77",
			Pod: api.Pod{Namespace: "prod", Name: "web-0", UID: "u1"}, NAD: "prod/localnet-77", Wrapped: ovnPlugin,
		}
		if diff := cmp.Diff(want, p.engine.requests[0]); diff != "" {
			t.Errorf("question (-want +got):\n%s", diff)
		}
		if p.note(api.PassedFolder) {
			t.Error("a note, though the engine answered")
		}
	}
}

// Nobody said whether the network is ours: the pod has its network, the engine a note;
// and at DEL it ends what it made of that before the interface goes.
func TestAnnotatedLetPass(t *testing.T) {
	p := newAnnotated(t)
	if stdout, stderr, err := p.call("ADD", ovnPlugin); err != nil || stderr != "" {
		t.Fatalf("%v: %s%s", err, stdout, stderr)
	}
	p.passed("ADD")
	if !p.note(api.PassedFolder) {
		t.Fatal("no note for the engine")
	}
	stop := p.start()
	p.mark("prod/localnet-77") // it turned out to be ours
	p.engine.on["detach"] = func(context.Context) error {
		if p.said("DEL", "stdin") != "" {
			t.Error("the real plugin's DEL came before the engine's")
		}
		return nil
	}
	if stdout, stderr, err := p.call("DEL", ovnPlugin); err != nil || stdout+stderr != "" {
		t.Fatalf("%v: %s%s", err, stdout, stderr)
	}
	p.passed("DEL")
	p.journal.want(t, "engine detach")
	if p.note(api.PassedFolder) {
		t.Error("the note is still there")
	}
	stop()
}

func TestAnnotatedLetPassAndTheEngineAwayAtDel(t *testing.T) {
	p := newAnnotated(t)
	for _, verb := range []string{"ADD", "DEL"} {
		if stdout, stderr, err := p.call(verb, ovnPlugin); err != nil {
			t.Fatalf("%s: %v: %s%s", verb, err, stdout, stderr)
		}
		p.passed(verb)
	}
	if p.note(api.PassedFolder) || !p.note(api.EndedFolder) {
		t.Errorf("notes: passed %v, ended %v", p.note(api.PassedFolder), p.note(api.EndedFolder))
	}
}

// An engine whose word is an error has not answered either: its API server may be away.
func TestAnnotatedEngineDoesNotKnow(t *testing.T) {
	p := newAnnotated(t)
	p.start()
	p.engine.marked = true
	p.engine.on["marked"] = func(context.Context) error { return errors.New("the API server is away") }
	if stdout, stderr, err := p.call("ADD", ovnPlugin); err != nil || stderr != "" {
		t.Fatalf("%v: %s%s", err, stdout, stderr)
	}
	p.passed("ADD")
	if !p.note(api.PassedFolder) {
		t.Error("no note for the engine")
	}
}

// The DEL goes by the record: the mark has gone, and the attachment is still ours.
func TestAnnotatedMarkGoneAtDel(t *testing.T) {
	p := newAnnotated(t)
	netns, _ := newNetns(t, "net1")
	p.env = append(p.env, "CNI_NETNS="+netns)
	p.start()
	p.mark("prod/localnet-77")
	if stdout, stderr, err := p.call("ADD", ovnPlugin); err != nil {
		t.Fatalf("%v: %s%s", err, stdout, stderr)
	}
	p.mark()
	if stdout, stderr, err := p.call("DEL", ovnPlugin); err != nil || stderr != "" {
		t.Fatalf("%v: %s%s", err, stdout, stderr)
	}
	p.journal.want(t, "engine prepare", "engine attach", "engine detach")
	if got := p.said("DEL", "stdin"); !strings.Contains(got, `"prevResult"`) {
		t.Errorf("the delegate's DEL got %q", got)
	}
	p.nothingLeft()
	// From now on the network is none of ours.
	if stdout, stderr, err := p.call("STATUS", ovnPlugin); err != nil {
		t.Fatalf("%v: %s%s", err, stdout, stderr)
	}
	p.passed("STATUS")
}

// The trap, with a real namespace: its interface is gone, so the second DEL would take
// the pod's first one.
func TestAnnotatedOVNDelWithoutTheInterface(t *testing.T) {
	p := newAnnotated(t)
	netns, end := newNetns(t, "net1")
	empty, _ := newNetns(t, "eth0")
	p.start()
	p.mark("prod/localnet-77")
	for _, at := range []string{netns, empty} {
		p.env = append(p.env, "CNI_NETNS="+netns)
		if stdout, stderr, err := p.call("ADD", ovnPlugin); err != nil {
			t.Fatalf("%v: %s%s", err, stdout, stderr)
		}
		if at == netns {
			p.env = append(p.env, "CNI_NETNS="+empty)
			_, stderr, err := p.call("DEL", ovnPlugin)
			if err != nil || !strings.Contains(stderr, "another network namespace stands at") {
				t.Errorf("another namespace: %v: %s", err, stderr)
			}
			continue
		}
		end()
		_, stderr, err := p.call("DEL", ovnPlugin)
		if err != nil || !strings.Contains(stderr, "is gone") {
			t.Errorf("namespace gone: %v: %s", err, stderr)
		}
	}
	if got := p.said("DEL", "stdin"); got != "" {
		t.Errorf("the delegate's DEL ran: %s", got)
	}
	p.nothingLeft()
}

// K30, K96: a network without a mark is none of ours at any verb, with the engine there
// or not, and no question is asked of the default network.
func TestK30K96UnmarkedIsNoneOfOurs(t *testing.T) {
	for _, up := range []bool{true, false} {
		for _, verb := range []string{"ADD", "CHECK", "STATUS", "GC", "DEL"} {
			p := newAnnotated(t)
			if up {
				p.start()
			}
			p.mark("a/b")
			if stdout, stderr, err := p.call(verb, ovnPlugin); err != nil || stderr != "" {
				t.Fatalf("%s: %v: %s%s", verb, err, stdout, stderr)
			}
			p.passed(verb)
			if up && verb == "ADD" {
				p.journal.want(t, "engine marked")
			} else {
				p.journal.want(t)
			}
			p.args.StdinData = []byte(`{"cniVersion":"1.0.0","name":"ovn-kubernetes","type":"ovn-k8s-cni-overlay"}`)
			if stdout, stderr, err := p.call(verb, ovnPlugin); err != nil || stderr != "" {
				t.Fatalf("default network, %s: %v: %s%s", verb, err, stdout, stderr)
			}
			p.journal.want(t)
		}
	}
}

// K50: the wrapped plugin has the environment that it would have had, to the last
// variable, in every form.
func TestK50EnvironmentOfTheDelegate(t *testing.T) {
	variables := func(text string) []string {
		list := strings.Split(strings.TrimSpace(text), "\n")
		// What a shell sets itself.
		list = slices.DeleteFunc(list, func(kv string) bool {
			return strings.HasPrefix(kv, "_=") || strings.HasPrefix(kv, "PWD=") || strings.HasPrefix(kv, "SHLVL=") || strings.HasPrefix(kv, "OLDPWD=")
		})
		slices.Sort(list)
		return list
	}
	for _, name := range []string{ovnPlugin, pluginName} {
		for _, marked := range []bool{true, false} {
			if name == pluginName && !marked {
				continue // it is always ours
			}
			t.Run(name, func(t *testing.T) {
				p := newProcess(t, "wrap", name, ovnPlugin)
				p.start()
				p.env = []string{"CNI_CONTAINERID=" + ovnSandbox, "SOMETHING=else=1", "EMPTY="}
				p.args.StdinData = []byte(annotated)
				if name == pluginName {
					p.conf("1.0.0", ovnKeys)
				}
				if marked {
					p.mark("prod/localnet-77")
				}
				if stdout, stderr, err := p.call("ADD", name); err != nil {
					t.Fatalf("%v: %s%s", err, stdout, stderr)
				}
				got := variables(p.said("ADD", "environ"))
				bare := p.command("ADD", name)
				direct := exec.Command(filepath.Join(p.root, "real", ovnPlugin))
				direct.Env, direct.Stdin = bare.Env, bare.Stdin
				if out, err := direct.CombinedOutput(); err != nil {
					t.Fatalf("%v: %s", err, out)
				}
				if diff := cmp.Diff(variables(p.said("ADD", "environ")), got); diff != "" {
					t.Errorf("environment (-without us +with us):\n%s", diff)
				}
			})
		}
	}
}
