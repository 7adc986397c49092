package delegate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/google/go-cmp/cmp"

	"github.com/dhcp-meta/dhcp-meta/internal/ipamconf"
	"github.com/dhcp-meta/dhcp-meta/pkg/delegate/aside"
	"github.com/dhcp-meta/dhcp-meta/pkg/engine/api"
	"github.com/dhcp-meta/dhcp-meta/pkg/engine/network"
)

// newIPAM is a rig whose plugin is the IPAM plugin dhcp.
func newIPAM(t *testing.T) *rig {
	t.Helper()
	r := newRig(t)
	r.plugin.Name = aside.IPAMName
	r.ipam("")
	return r
}

// ipam makes the configuration as macvlan hands it on, with more keys in ipam and
// beside it.
func (r *rig) ipam(inside string, beside ...string) {
	keys := append([]string{`"cniVersion":"1.1.0"`, `"name":"office-lan"`, `"type":"macvlan"`,
		fmt.Sprintf(`"ipam":{"type":"dhcp","daemonSocketPath":%q,"dhcp":{"stateDir":%q}%s}`, r.socket, r.stateDir, inside)}, beside...)
	r.args.StdinData = []byte("{" + strings.Join(keys, ",") + "}")
}

func TestIPAMAdd(t *testing.T) {
	r := newIPAM(t)
	r.start()
	r.ipam(`,"provide":[{"option":"host-name","fromArg":"K8S_POD_NAME"}],"priority":7`)
	r.must(r.plugin.ipamAdd)
	want := `{"cniVersion":"1.1.0","ips":[{"address":"10.77.0.50/24","gateway":"10.77.0.1"}]}`
	if diff := cmp.Diff(reformat(t, []byte(want)), reformat(t, r.stdout.Bytes())); diff != "" {
		t.Errorf("result (-want +got):\n%s", diff)
	}
	r.journal.want(t, "engine attach")
	got := r.engine.requests[0]
	got.Timeout = 0
	asked := api.Request{
		AttachmentID: api.AttachmentID{ContainerID: "c1", IfName: "net1"}, Netns: "/run/netns/a", Network: "office-lan",
		Pod: api.Pod{Namespace: "prod", Name: "web-0", UID: "u1"}, Wrapped: "macvlan", IPAM: true,
		DHCP: json.RawMessage(fmt.Sprintf(`{"hostname":"web-0","routeMetric":7,"stateDir":%q}`, r.stateDir)),
	}
	if diff := cmp.Diff(asked, got); diff != "" {
		t.Errorf("asked for (-want +got):\n%s", diff)
	}
}

// TestIPAMAddFails: the lease that the engine may have got goes back.
func TestIPAMAddFails(t *testing.T) {
	r := newIPAM(t)
	r.start()
	r.engine.on["attach"] = func(context.Context) error { return api.WithCode(api.CodeTryAgain, errors.New("no server answered")) }
	if said := r.mustFail(r.plugin.ipamAdd, api.CodeTryAgain); !strings.Contains(said, "no server answered") {
		t.Errorf("error is %s", said)
	}
	r.journal.want(t, "engine attach", "engine detach")
	if r.stdout.Len() > 0 {
		t.Errorf("a result beside an error: %s", &r.stdout)
	}
}

// TestIPAMCheck acquires nothing, which the reference's does: it asks as at ADD.
func TestIPAMCheck(t *testing.T) {
	r := newIPAM(t)
	r.start()
	prev := func(address string) string {
		return fmt.Sprintf(`"prevResult":{"cniVersion":"1.1.0","interfaces":[{"name":"net1","sandbox":"/run/netns/a"}],"ips":[{"interface":0,"address":%q}]}`, address)
	}
	r.must(r.plugin.ipamCheck)
	r.ipam("", prev("10.77.0.50/24"))
	r.must(r.plugin.ipamCheck)
	r.ipam("", prev("10.77.0.51/24"))
	if err := r.plugin.ipamCheck(t.Context(), r.args); err == nil || !strings.Contains(err.Error(), "10.77.0.50/24") {
		t.Errorf("with another address in prevResult: %v", err)
	}
	r.engine.on["check"] = func(context.Context) error { return errors.New("is not known") }
	if err := r.plugin.ipamCheck(t.Context(), r.args); err == nil || !strings.Contains(err.Error(), "is not known") {
		t.Errorf("of what the engine does not know: %v", err)
	}
	r.journal.want(t, "engine check", "engine check", "engine check", "engine check")
}

// TestIPAMCheckOfAnEngineThatHangs ends, as the reference's does not.
func TestIPAMCheckOfAnEngineThatHangs(t *testing.T) {
	r := newIPAM(t)
	r.start()
	r.engine.on["check"] = func(ctx context.Context) error {
		<-ctx.Done()
		return ctx.Err()
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := r.plugin.ipamCheck(ctx, r.args); err == nil {
		t.Error("no error")
	}
}

func TestIPAMDel(t *testing.T) {
	r := newIPAM(t)
	stop := r.start()
	r.must(r.plugin.ipamDel)
	r.journal.want(t, "engine detach")
	// What the engine would take for wrong is no reason to keep a lease.
	r.ipam(`,"dhcp":{"clientID":7}`)
	r.must(r.plugin.ipamDel)
	r.journal.want(t, "engine detach")
	stop()

	r.ipam("")
	r.args.Netns = "" // a runtime may have no namespace any more
	if err := r.plugin.ipamDel(t.Context(), r.args); err != nil {
		t.Fatalf("with the engine away: %v", err)
	}
	if len(r.plugin.remarks) != 1 || !strings.Contains(r.plugin.remarks[0], "is away") {
		t.Errorf("remarks: %q", r.plugin.remarks)
	}
	if notes := files(t, filepath.Join(r.stateDir, api.EndedFolder)); len(notes) != 1 {
		t.Errorf("notes for the engine: %q, want one", notes)
	}
}

func TestIPAMGC(t *testing.T) {
	r := newIPAM(t)
	r.start()
	r.ipam("", `"cni.dev/valid-attachments":[{"containerID":"c1","ifname":"net1"}]`)
	r.must(r.plugin.ipamGC)
	want := []api.Sweep{{Network: "office-lan", Valid: []api.AttachmentID{{ContainerID: "c1", IfName: "net1"}}}}
	if diff := cmp.Diff(want, r.engine.sweeps); diff != "" {
		t.Errorf("swept (-want +got):\n%s", diff)
	}
	r.ipam("", `"cni.dev/valid-attachments":[]`)
	r.must(r.plugin.ipamGC)
	r.journal.want(t, "engine sweep", "engine sweep")
	r.ipam("")
	r.mustFail(r.plugin.ipamGC, api.CodeConfig)
	r.journal.want(t) // all attachments of the network would have ended
}

func TestIPAMStatus(t *testing.T) {
	r := newIPAM(t)
	stop := r.start()
	r.must(r.plugin.ipamStatus)
	r.engine.on["limited"] = func(context.Context) error { return errors.New("Kubernetes does not answer") }
	r.mustFail(r.plugin.ipamStatus, api.CodeLimited)
	r.engine.on["ready"] = func(context.Context) error { return errors.New("reads its records") }
	r.mustFail(r.plugin.ipamStatus, api.CodeNotReady)
	stop()
	r.mustFail(r.plugin.ipamStatus, api.CodeNotReady)
}

// TestIPAMConfigurationsThatHarmTheReference are errors of the caller.
func TestIPAMConfigurationsThatHarmTheReference(t *testing.T) {
	r := newIPAM(t)
	for _, stdin := range []string{`{"cniVersion":"1.1.0","name":"a","type":"dhcp"}`, `{"ipam":null}`, `{"ipam":7}`, `[]`, ``, `{`} {
		r.args.StdinData = []byte(stdin)
		for _, verb := range []func(context.Context) error{
			func(ctx context.Context) error { return r.plugin.ipamAdd(ctx, r.args) },
			func(ctx context.Context) error { return r.plugin.ipamCheck(ctx, r.args) },
			func(ctx context.Context) error { return r.plugin.ipamDel(ctx, r.args) },
			func(ctx context.Context) error { return r.plugin.ipamGC(ctx, r.args) },
			func(ctx context.Context) error { return r.plugin.ipamStatus(ctx, r.args) },
		} {
			r.wantError(verb(t.Context()), api.CodeConfig)
		}
	}
}

func TestIPAMSocket(t *testing.T) {
	for _, tt := range []struct{ name, own, reference, environ, want string }{
		{"OK nobody says", network.DefaultSocket, ipamconf.DefaultSocket, "", "/run/cni/dhcp.sock"},
		{"OK the node says", network.DefaultSocket, ipamconf.DefaultSocket, "DHCP_ENGINE_SOCKET=/env", "/env"},
		{"OK the network says, as the reference's", network.DefaultSocket, "/ref", "DHCP_ENGINE_SOCKET=/env", "/ref"},
		{"OK the network says, as ours", "/own", "/ref", "DHCP_ENGINE_SOCKET=/env", "/own"},
	} {
		c := ipamCall{Plugin: &Plugin{Environ: []string{tt.environ}}, Config: ipamconf.Config{Socket: tt.reference}, settings: network.Settings{Socket: tt.own}}
		if got := c.socket(); got != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, got, tt.want)
		}
	}
}

// TestProcessIPAMVersions: the result has the form of the caller's version, of all
// that the reference knows.
func TestProcessIPAMVersions(t *testing.T) {
	p := newProcess(t, "bin", "dhcp", "")
	p.start()
	for version, want := range map[string]string{
		"0.1.0": `"ip4":{"ip":"10.77.0.50/24"`, "0.2.0": `"ip4":{"ip":"10.77.0.50/24"`,
		"0.3.0": `"version":"4"`, "0.3.1": `"version":"4"`, "0.4.0": `"version":"4"`,
		"1.0.0": `"ips":[{"address":"10.77.0.50/24"`, "1.1.0": `"ips":[{"address":"10.77.0.50/24"`,
	} {
		p.ipam("")
		p.args.StdinData = []byte(strings.Replace(string(p.args.StdinData), "1.1.0", version, 1))
		stdout, stderr, err := p.call("ADD", "dhcp")
		if err != nil || stderr != "" {
			t.Fatalf("%s: %v: %s%s", version, err, stdout, stderr)
		}
		if flat := strings.Join(strings.Fields(stdout), ""); !strings.Contains(flat, `"cniVersion":"`+version+`"`) || !strings.Contains(flat, want) {
			t.Errorf("%s: no %s in %s", version, want, flat)
		}
	}
	for _, verb := range []string{"CHECK", "DEL", "STATUS"} {
		p.ipam("")
		if stdout, stderr, err := p.call(verb, "dhcp"); err != nil || stdout+stderr != "" {
			t.Errorf("%s: %v: %s%s", verb, err, stdout, stderr)
		}
	}
	p.args.StdinData = []byte(`{"cniVersion":"1.1.0","name":"a","type":"dhcp"}`)
	stdout, stderr, err := p.call("ADD", "dhcp")
	var said types.Error
	if exit := (*exec.ExitError)(nil); !errors.As(err, &exit) || json.Unmarshal([]byte(stdout), &said) != nil || said.Code != api.CodeConfig || strings.Count(stderr, "\n") != 1 {
		t.Errorf("without ipam: %v: %s%s", err, stdout, stderr)
	}
}
