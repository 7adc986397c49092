package delegate

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/google/go-cmp/cmp"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine/api"
)

// added returns a rig whose engine runs and which has done an ADD.
func added(t *testing.T) (r *rig, stop func()) {
	t.Helper()
	r = newRig(t)
	stop = r.start()
	r.must(r.plugin.Add)
	r.journal.want(t, "engine prepare", "delegate ADD", "engine attach")
	return r, stop
}

func TestDelegateDelRunsOnce(t *testing.T) {
	r, _ := added(t)
	// The engine comes first: it releases while the link is there.
	r.must(r.plugin.Del)
	r.journal.want(t, "engine detach", "delegate DEL")
	r.nothingLeft()
	for range 2 {
		r.must(r.plugin.Del)
		r.journal.want(t, "engine detach")
	}
}

// A DEL that failed is not done: the runtime calls again, and so do we.
func TestDelegateDelThatFailedRunsAgain(t *testing.T) {
	r, _ := added(t)
	r.exec.on["DEL"] = func(context.Context, run) (string, error) { return "", &types.Error{Code: 105, Msg: "link is busy"} }
	if got := r.mustFail(r.plugin.Del, 105); got != "link is busy" {
		t.Errorf("error %q", got)
	}
	r.journal.want(t, "engine detach", "delegate DEL")
	delete(r.exec.on, "DEL")
	r.must(r.plugin.Del)
	r.journal.want(t, "engine detach", "delegate DEL")
	r.nothingLeft()
}

// Two runs of the delegate's DEL at a time are two too many as well.
func TestDelegateDelRunsOnceForManyCallers(t *testing.T) {
	r, _ := added(t)
	const callers = 8
	errs := make(chan error)
	for range callers {
		go func() {
			p := *r.plugin // a process of its own
			errs <- p.Del(t.Context(), r.args)
		}()
	}
	for range callers {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	if dels := r.exec.count("DEL"); dels != 1 {
		t.Errorf("the delegate's DEL ran %d times", dels)
	}
	r.nothingLeft()
}

func TestDelPassesTheDelegateItsOwnResult(t *testing.T) {
	r := newRig(t)
	r.start()
	r.engine.lease.MTU = 1400
	r.exec.on["ADD"] = func(context.Context, run) (string, error) {
		return `{"cniVersion":"1.1.0","interfaces":[{"name":"net1","mac":"02:00:00:00:00:09","mtu":1500,"sandbox":"/run/netns/a"}],"ips":[{"interface":0,"address":"fd00::5/64"}]}`, nil
	}
	r.must(r.plugin.Add)
	// The runtime hands back the merged result; the delegate never said that.
	r.conf("1.1.0", `"delegate":{"type":"macvlan"}`, `"prevResult":`+r.stdout.String())
	want := `{"cniVersion":"1.1.0","interfaces":[{"name":"net1","mac":"02:00:5e:00:53:01","mtu":1400,"sandbox":"/run/netns/a"}],"ips":[{"interface":0,"address":"fd00::5/64"}]}`
	for _, verb := range []struct {
		name string
		run  func(context.Context, *skel.CmdArgs) error
	}{{"CHECK", r.plugin.Check}, {"DEL", r.plugin.Del}} {
		r.must(verb.run)
		got := r.exec.last()
		if got.verb != verb.name {
			t.Fatalf("%s ran %s of the delegate", verb.name, got.verb)
		}
		if diff := cmp.Diff(reformat(t, []byte(want)), reformat(t, got.stdin["prevResult"])); diff != "" {
			t.Errorf("%s: prevResult (-want +got):\n%s", verb.name, diff)
		}
	}
}

func TestDelPrevResult(t *testing.T) {
	const merged = `"prevResult":{"cniVersion":"1.0.0","ips":[{"address":"10.77.0.50/24"}]}`
	tests := []struct {
		name    string
		version string
		spoil   bool // the ledger's entry
		want    string
	}{
		{"OK the delegate's own", "1.0.0", false, `{"cniVersion":"1.0.0","interfaces":[{"mac":"02:00:5e:00:53:01","name":"net1","sandbox":"/run/netns/a"}]}`},
		{"OK the runtime's, where the ledger cannot be read", "1.0.0", true, `{"cniVersion":"1.0.0","ips":[{"address":"10.77.0.50/24"}]}`},
		{"OK none before CNI 0.4.0", "0.3.1", false, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t)
			r.start()
			r.conf(tt.version, `"delegate":{"type":"macvlan"}`)
			r.must(r.plugin.Add)
			if tt.spoil {
				if err := os.WriteFile(filepath.Join(r.stateDir, "delegates", "c1:net1.json"), []byte("{"), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			r.conf(tt.version, `"delegate":{"type":"macvlan"}`, merged)
			r.must(r.plugin.Del)
			got := string(r.exec.last().stdin["prevResult"])
			if got != "" {
				got = reformat(t, []byte(got))
			}
			want := tt.want
			if want != "" {
				want = reformat(t, []byte(want))
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("prevResult (-want +got):\n%s", diff)
			}
			r.nothingLeft()
		})
	}
}

func TestB33DelOfTheUnknown(t *testing.T) {
	r := newRig(t)
	r.start()
	for range 3 {
		r.must(r.plugin.Del)
	}
	r.journal.want(t, "engine detach", "engine detach", "engine detach")
	if got := files(t, r.stateDir); len(got) != 0 {
		t.Errorf("a DEL of the unknown made %q", got)
	}
}

func TestB36DelWithoutNetns(t *testing.T) {
	for name, netns := range map[string]string{"OK empty": "", "OK gone": "/run/netns/was-here"} {
		t.Run(name, func(t *testing.T) {
			r, _ := added(t)
			r.args.Netns = netns
			r.must(r.plugin.Del)
			r.journal.want(t, "engine detach", "delegate DEL")
			r.nothingLeft()
		})
	}
}

func TestB42EngineAwayAtDel(t *testing.T) {
	r, stop := added(t)
	stop()
	if err := r.plugin.Del(t.Context(), r.args); err != nil {
		t.Fatal(err)
	}
	r.journal.want(t, "delegate DEL")
	if len(r.plugin.remarks) != 1 || !strings.HasPrefix(r.plugin.remarks[0], errAway.Error()) {
		t.Errorf("remarks %q", r.plugin.remarks)
	}
	r.nothingLeft()
	if diff := cmp.Diff([]string{r.args.ContainerID + ":" + r.args.IfName}, files(t, filepath.Join(r.stateDir, api.EndedFolder))); diff != "" {
		t.Errorf("notes for the engine (-want +got):\n%s", diff)
	}
}

// An engine that is being restarted is waited for.
func TestB42EngineBackDuringDel(t *testing.T) {
	r, stop := added(t)
	stop()
	asked := make(chan struct{})
	r.plugin.Dial = func(socket string) Engine { return &tapped{Client: api.Client{Socket: socket}, asked: asked} }
	done := make(chan error)
	go func() { done <- r.plugin.Del(t.Context(), r.args) }()
	<-asked // in vain
	r.start()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	r.journal.want(t, "engine detach", "delegate DEL")
}

// tapped tells when the engine's health was asked for the first time.
type tapped struct {
	api.Client
	asked chan struct{}
}

func (e *tapped) Healthy(ctx context.Context) error {
	err := e.Client.Healthy(ctx)
	if e.asked != nil {
		close(e.asked)
		e.asked = nil
	}
	return err
}

// What the engine could not do is the runtime's to try again, after the
// delegate had its turn.
func TestDelErrorOfTheEngine(t *testing.T) {
	r, _ := added(t)
	r.engine.on["detach"] = func(context.Context) error { return api.WithCode(api.CodeTryAgain, errors.New("device is still ours")) }
	if got := r.mustFail(r.plugin.Del, api.CodeTryAgain); got != "device is still ours" {
		t.Errorf("error %q", got)
	}
	r.journal.want(t, "engine detach", "delegate DEL")
	r.nothingLeft()
}

// The network was spoiled after the ADD: the pod must end all the same.
func TestDelWithSpoiledDHCP(t *testing.T) {
	r, _ := added(t)
	r.args.StdinData = []byte(strings.Replace(string(r.args.StdinData), `"socket"`, `"mac":"random","socket"`, 1))
	r.must(r.plugin.Del)
	r.journal.want(t, "engine detach", "delegate DEL")
	r.nothingLeft()
}

// Multus 4.2.3 sends the DEL of a default network without most of its keys. The
// ledger has them.
func TestDelWithLostConfiguration(t *testing.T) {
	r, _ := added(t)
	r.conf("1.1.0")
	r.must(r.plugin.Del)
	r.journal.want(t, "engine detach", "delegate DEL")
	got, err := r.exec.last().stdin.encode()
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(got), `"master":"eth1"`) {
		t.Errorf("configuration of the delegate: %s", got)
	}
	r.nothingLeft()
}

// A DEL for an ADD that still runs, as Multus sends it when the kubelet has
// given up: it cancels the ADD in the engine, and one of the two runs the
// delegate's DEL.
func TestDelDuringAdd(t *testing.T) {
	r := newRig(t)
	r.start()
	attaching, cancelled := make(chan struct{}), make(chan struct{})
	r.engine.on["attach"] = func(context.Context) error {
		close(attaching)
		<-cancelled
		return api.WithCode(api.CodeTryAgain, errors.New("detached meanwhile"))
	}
	first := true
	r.engine.on["detach"] = func(context.Context) error {
		if first {
			first = false
			close(cancelled)
		}
		return nil
	}
	added := make(chan error)
	adder := *r.plugin
	go func() { added <- adder.Add(t.Context(), r.args) }()
	<-attaching
	r.must(r.plugin.Del)
	if err := <-added; err == nil || err.Error() != "detached meanwhile" {
		t.Errorf("ADD: %v", err)
	}
	if dels := r.exec.count("DEL"); dels != 1 {
		t.Errorf("the delegate's DEL ran %d times", dels)
	}
	r.nothingLeft()
}

// A DEL that overtakes the delegate's ADD waits for it, and then detaches what
// was attached meanwhile.
func TestDelDuringDelegateAdd(t *testing.T) {
	r := newRig(t)
	r.start()
	running, detached := make(chan struct{}), make(chan struct{})
	r.exec.on["ADD"] = func(context.Context, run) (string, error) {
		close(running)
		<-detached // the DEL's first, in vain
		return macvlanResult, nil
	}
	first := true
	r.engine.on["detach"] = func(context.Context) error {
		if first {
			first = false
			close(detached)
		}
		return nil
	}
	added := make(chan error)
	adder := *r.plugin
	go func() { added <- adder.Add(t.Context(), r.args) }()
	<-running
	if err := r.plugin.Del(t.Context(), r.args); err != nil {
		t.Fatal(err)
	}
	if err := <-added; err != nil {
		t.Errorf("ADD: %v", err)
	}
	lines := strings.Join(r.journal.lines, ", ")
	if !strings.HasPrefix(lines, "engine prepare, delegate ADD, engine detach, engine attach") || !strings.HasSuffix(lines, "delegate DEL") {
		t.Errorf("what happened: %s", lines)
	}
	if r.plugin.remarks != nil {
		t.Errorf("remarks %q", r.plugin.remarks)
	}
	r.nothingLeft()
}

// A runtime that sends ADD again for what stands must not lose it: the delegate
// refuses, and what the first ADD has made stays, with one DEL to come.
func TestSecondAddLeavesTheFirstAlone(t *testing.T) {
	r, _ := added(t)
	r.exec.on["ADD"] = func(context.Context, run) (string, error) {
		return "", &types.Error{Code: 100, Msg: "net1 exists already"}
	}
	if got := r.mustFail(r.plugin.Add, 100); got != "net1 exists already" {
		t.Errorf("error %q", got)
	}
	r.journal.want(t, "engine prepare", "delegate ADD")
	r.must(r.plugin.Del)
	r.journal.want(t, "engine detach", "delegate DEL")
	if got := string(r.exec.last().stdin["prevResult"]); !strings.Contains(got, "net1") {
		t.Errorf("prevResult at DEL is %s, not the result of the first ADD", got)
	}
	r.nothingLeft()
}

func TestB33DelOfWhatCanNotHaveBeenAdded(t *testing.T) {
	r := newRig(t)
	r.start()
	r.args.ContainerID = strings.Repeat("c", 250)
	r.must(r.plugin.Del)
	r.journal.want(t, "engine detach")
}
