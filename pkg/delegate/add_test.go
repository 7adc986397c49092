package delegate

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/google/go-cmp/cmp"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine/api"
)

func TestAdd(t *testing.T) {
	r := newRig(t)
	r.start()
	r.must(r.plugin.Add)
	r.journal.want(t, "engine prepare", "delegate ADD", "engine attach")

	want := `{"cniVersion":"1.1.0",
	  "interfaces":[{"name":"net1","mac":"02:00:5e:00:53:01","sandbox":"/run/netns/a"}],
	  "ips":[{"interface":0,"address":"10.77.0.50/24","gateway":"10.77.0.1"}]}`
	if diff := cmp.Diff(reformat(t, []byte(want)), reformat(t, r.stdout.Bytes())); diff != "" {
		t.Errorf("result (-want +got):\n%s", diff)
	}
	for i, got := range r.engine.requests {
		want := api.Request{
			AttachmentID: testID(), Netns: "/run/netns/a", Network: "vlan77",
			Pod:     api.Pod{Namespace: "prod", Name: "web-0", UID: "u1"},
			DHCP:    got.DHCP, // compared below
			Wrapped: "macvlan",
		}
		if i == 1 { // Attach: the delegate has run
			want.HardwareAddr = "02:00:00:00:00:09"
		}
		want.Timeout = got.Timeout
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("request %d (-want +got):\n%s", i, diff)
		}
		if !strings.Contains(string(got.DHCP), r.stateDir) {
			t.Errorf("request %d: dhcp object %s", i, got.DHCP)
		}
	}
	add := r.exec.runs[0]
	if diff := cmp.Diff([]string{"CNI_ARGS=FOO=BAR", "PATH=/bin", "CNI_COMMAND=ADD"}, add.environ); diff != "" {
		t.Errorf("environment of the delegate (-want +got):\n%s", diff)
	}
	if got, _ := add.stdin.encode(); string(got) != `{"cniVersion":"1.1.0","master":"eth1","name":"vlan77","type":"macvlan"}` {
		t.Errorf("configuration of the delegate: %s", got)
	}
	if diff := cmp.Diff([]string{"c1:net1.json"}, r.ledgerFiles()); diff != "" {
		t.Errorf("ledger (-want +got):\n%s", diff)
	}
}

// The ledger knows of the delegate before it runs: a crash in its ADD must not
// lose the DEL.
func TestAddWritesTheLedgerFirst(t *testing.T) {
	r := newRig(t)
	r.start()
	r.exec.on["ADD"] = func(context.Context, run) (string, error) {
		if diff := cmp.Diff([]string{"c1:net1.json"}, r.ledgerFiles()); diff != "" {
			t.Errorf("ledger at ADD (-want +got):\n%s", diff)
		}
		return macvlanResult, nil
	}
	r.must(r.plugin.Add)
}

func TestAddChained(t *testing.T) {
	r := newRig(t)
	r.start()
	r.conf("1.0.0", `"prevResult":{"cniVersion":"1.0.0","interfaces":[{"name":"br0"},{"name":"net1","sandbox":"/run/netns/a"}],"ips":[{"interface":1,"address":"fd00::5/64"}]}`)
	r.must(r.plugin.Add)
	r.journal.want(t, "engine prepare", "engine attach")
	want := `{"cniVersion":"1.0.0",
	  "interfaces":[{"name":"br0"},{"name":"net1","mac":"02:00:5e:00:53:01","sandbox":"/run/netns/a"}],
	  "ips":[{"interface":1,"address":"fd00::5/64"},{"interface":1,"address":"10.77.0.50/24","gateway":"10.77.0.1"}]}`
	if diff := cmp.Diff(reformat(t, []byte(want)), reformat(t, r.stdout.Bytes())); diff != "" {
		t.Errorf("result (-want +got):\n%s", diff)
	}
	r.must(r.plugin.Del)
	r.journal.want(t, "engine detach")
	r.nothingLeft()
}

func TestAddInterposed(t *testing.T) {
	r := newRig(t)
	r.start()
	wrap, real := filepath.Join(r.stateDir, "wrap"), filepath.Join(r.stateDir, "real")
	for _, dir := range []string{wrap, real} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	r.plugin.Name, r.plugin.Dir = "ovn-k8s-cni-overlay", wrap
	r.args.Path = wrap + ":" + real
	r.args.ContainerID = "0123456789abcdef"
	r.conf("1.1.0", `"topology":"localnet"`)
	r.args.StdinData = []byte(strings.Replace(string(r.args.StdinData), `"type":"dhcp-meta"`, `"type":"ovn-k8s-cni-overlay"`, 1))
	r.must(r.plugin.Add)
	r.journal.want(t, "engine prepare", "delegate ADD", "engine attach")
	if got, want := r.exec.runs[0].path, filepath.Join(real, "ovn-k8s-cni-overlay"); got != want {
		t.Errorf("ran %s, want %s", got, want)
	}
	if r.exec.runs[0].stdin.has("dhcp") {
		t.Error("the delegate got our dhcp object")
	}
	r.must(r.plugin.Del)
	r.journal.want(t, "engine detach", "delegate DEL")
}

// What is wrong before the delegate has run touches nothing.
func TestAddRefuses(t *testing.T) {
	tests := []struct {
		name    string
		prepare func(*rig)
		code    uint
		want    string
	}{
		{
			"bad dhcp object",
			func(r *rig) {
				r.args.StdinData = []byte(strings.Replace(string(r.args.StdinData), `"socket"`, `"foo":1,"timeout":"3m","socket"`, 1))
			},
			api.CodeConfig, "dhcp.foo: unknown key; dhcp.timeout: 3m0s is not between 1s and 1m50s (the runtime ends a plugin after 2m)",
		},
		{
			"bad nothing to wrap and nothing before us", func(r *rig) { r.conf("1.1.0") },
			api.CodeConfig, "neither delegate, nor plugins, nor prevResult: a network of type dhcp-meta wraps a plugin or stands behind one in a list",
		},
		{
			"bad delegate that is not installed", func(r *rig) { r.conf("1.1.0", `"delegate":{"type":"ipvlan"}`) },
			api.CodeConfig, "find plugin ipvlan in [/opt/cni/bin]",
		},
		{
			"bad network namespace of our own", func(r *rig) { r.args.Netns = "/proc/self/ns/net" },
			types.ErrInvalidNetNS, "CNI_NETNS is the plugin's own network namespace; /proc/self/ns/net",
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t)
			r.start()
			tt.prepare(r)
			got := r.mustFail(r.plugin.Add, tt.code)
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("error (-want +got):\n%s", diff)
			}
			r.journal.want(t)
			r.nothingLeft()
		})
	}
}

// Engine down, or not ready: code 11 at once, and nothing was touched.
func TestAddEngineAway(t *testing.T) {
	r := newRig(t)
	if got := r.mustFail(r.plugin.Add, api.CodeTryAgain); !strings.Contains(got, r.socket) {
		t.Errorf("the error does not name the socket: %s", got)
	}
	r.journal.want(t)
	r.nothingLeft()
}

func TestAddEngineNotReady(t *testing.T) {
	r := newRig(t)
	r.start()
	r.engine.on["prepare"] = func(context.Context) error {
		return api.WithCode(api.CodeNotReady, errors.New("records are being restored"))
	}
	got := r.mustFail(r.plugin.Add, api.CodeTryAgain)
	if diff := cmp.Diff("records are being restored", got); diff != "" {
		t.Errorf("error (-want +got):\n%s", diff)
	}
	r.journal.want(t, "engine prepare")
	r.nothingLeft()
}

func TestUndoAfterNoAddress(t *testing.T) {
	r := newRig(t)
	r.start()
	r.engine.on["attach"] = func(context.Context) error {
		return api.WithCode(api.CodeTryAgain, errors.New("no server answered on net1 (02:00:00:00:00:09): 5 tries in 30s"))
	}
	got := r.mustFail(r.plugin.Add, api.CodeTryAgain)
	if diff := cmp.Diff("no server answered on net1 (02:00:00:00:00:09): 5 tries in 30s", got); diff != "" {
		t.Errorf("error (-want +got):\n%s", diff)
	}
	// The lease first, if there is one: it is given back over the link.
	r.journal.want(t, "engine prepare", "delegate ADD", "engine attach", "engine detach", "delegate DEL")
	if r.stdout.Len() != 0 {
		t.Errorf("a failed ADD printed %s", r.stdout.String())
	}
	r.nothingLeft()

	// The runtime sends DEL after a failed ADD: the delegate has had its own.
	r.must(r.plugin.Del)
	r.journal.want(t, "engine detach")
}

func TestUndoAfterFailedDelegate(t *testing.T) {
	r := newRig(t)
	r.start()
	r.exec.on["ADD"] = func(context.Context, run) (string, error) {
		return "", &types.Error{Code: 103, Msg: "master eth1 not found", Details: "look at the node"}
	}
	err := coded(r.plugin.Add(t.Context(), r.args))
	if diff := cmp.Diff(&types.Error{Code: 103, Msg: "master eth1 not found", Details: "look at the node"}, err); diff != "" {
		t.Errorf("the delegate's error (-want +got):\n%s", diff)
	}
	r.journal.want(t, "engine prepare", "delegate ADD", "delegate DEL")
	r.nothingLeft()
}

// Everything that can go wrong after the delegate's ADD.
func TestUndoAfter(t *testing.T) {
	tests := []struct {
		name  string
		spoil func(*rig)
		want  string
		calls []string
	}{
		{
			"bad result of the delegate",
			func(r *rig) { r.exec.on["ADD"] = func(context.Context, run) (string, error) { return "", nil } },
			"result of /opt/cni/bin/macvlan: is empty",
			[]string{"engine prepare", "delegate ADD", "delegate DEL"},
		},
		{
			"bad interface of the delegate",
			func(r *rig) {
				r.exec.on["ADD"] = func(context.Context, run) (string, error) { return `{"interfaces":[{"name":"net1"}]}`, nil }
			},
			"plugin macvlan: its result has no interface net1 with a sandbox: it has net1 on the host",
			[]string{"engine prepare", "delegate ADD", "delegate DEL"},
		},
		{
			"bad lease",
			func(r *rig) { r.engine.lease.Address = "10.77.0.50" },
			"address of the lease: invalid CIDR address: 10.77.0.50",
			[]string{"engine prepare", "delegate ADD", "engine attach", "engine detach", "delegate DEL"},
		},
		{
			"bad standard output",
			func(r *rig) { r.plugin.Stdout = brokenPipe{} },
			"print the result: broken pipe",
			[]string{"engine prepare", "delegate ADD", "engine attach", "engine detach", "delegate DEL"},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t)
			r.start()
			tt.spoil(r)
			err := coded(r.plugin.Add(t.Context(), r.args))
			if diff := cmp.Diff(tt.want, text(err)); diff != "" {
				t.Errorf("error (-want +got):\n%s", diff)
			}
			r.journal.want(t, tt.calls...)
			r.nothingLeft()
		})
	}
}

type brokenPipe struct{}

func (brokenPipe) Write([]byte) (int, error) { return 0, errors.New("broken pipe") }

// An error of an undo comes beside the first one, not in its place, and keeps
// what was not undone for the runtime's DEL.
func TestUndoThatFails(t *testing.T) {
	r := newRig(t)
	r.start()
	r.engine.on["attach"] = func(context.Context) error { return errors.New("no address") }
	r.engine.on["detach"] = func(context.Context) error { return errors.New("state folder is full") }
	r.exec.on["DEL"] = func(context.Context, run) (string, error) { return "", errors.New("link is busy") }

	if got := r.mustFail(r.plugin.Add, api.CodeInternal); got != "no address" {
		t.Errorf("error %q", got)
	}
	r.journal.want(t, "engine prepare", "delegate ADD", "engine attach", "engine detach", "delegate DEL")
	if diff := cmp.Diff([]string{"undo: state folder is full", "undo: link is busy"}, r.plugin.remarks); diff != "" {
		t.Errorf("remarks (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"c1:net1.json"}, r.ledgerFiles()); diff != "" {
		t.Errorf("ledger (-want +got):\n%s", diff)
	}
	delete(r.engine.on, "detach")
	delete(r.exec.on, "DEL")
	r.plugin.remarks = nil
	r.must(r.plugin.Del)
	r.journal.want(t, "engine detach", "delegate DEL")
	r.nothingLeft()
}

// The runtime's SIGTERM ends the waiting for an address; the undo still runs.
func TestUndoAfterCancel(t *testing.T) {
	r := newRig(t)
	r.start()
	ctx, cancel := context.WithCancel(t.Context())
	attached := make(chan struct{})
	r.engine.on["attach"] = func(ctx context.Context) error {
		cancel()
		<-ctx.Done() // the engine sees that its caller has gone
		close(attached)
		return ctx.Err()
	}
	err := r.plugin.Add(ctx, r.args)
	if !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
	<-attached
	r.journal.want(t, "engine prepare", "delegate ADD", "engine attach", "engine detach", "delegate DEL")
	r.nothingLeft()
}

// The delegate need not be the first of a list.
func TestAddDelegateBehindAnotherPlugin(t *testing.T) {
	r := newRig(t)
	r.start()
	r.conf("1.0.0", `"delegate":{"type":"macvlan"}`, `"prevResult":{"cniVersion":"1.0.0","ips":[{"address":"10.1.0.1/24"}]}`)
	r.must(r.plugin.Add)
	if got := string(r.exec.runs[0].stdin["prevResult"]); got != `{"cniVersion":"1.0.0","ips":[{"address":"10.1.0.1/24"}]}` {
		t.Errorf("prevResult of the delegate: %s", got)
	}
}

// A state folder that cannot be written is found out before the delegate runs.
func TestAddLedgerCannotBeWritten(t *testing.T) {
	r := newRig(t)
	r.start()
	if err := os.WriteFile(r.stateDir, []byte("a file where the folder should be"), 0o600); err != nil {
		t.Fatal(err)
	}
	got := r.mustFail(r.plugin.Add, types.ErrIOFailure)
	if !strings.Contains(got, r.stateDir) || !strings.Contains(got, "stateDir") {
		t.Errorf("error %q", got)
	}
	r.journal.want(t, "engine prepare")
}
