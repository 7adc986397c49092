package delegate

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/google/go-cmp/cmp"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine/api"
)

// O08: the engine looks settings up by the name of the NetworkAttachmentDefinition;
// without one the defaults hold.
func TestO08RequestNamesTheNAD(t *testing.T) {
	tests := []struct {
		name string
		keys []string
		want api.Request // NAD, Wrapped, DeviceID
		err  string
	}{
		{name: "OK in our object", keys: []string{`"netAttachDefName":"prod/vlan77"`, `"delegate":{"type":"macvlan"}`}, want: api.Request{NAD: "prod/vlan77", Wrapped: "macvlan"}},
		{name: "OK in the delegate's", keys: []string{ovnKeys}, want: api.Request{NAD: "prod/localnet-77", Wrapped: ovnPlugin}},
		{name: "OK in both", keys: []string{`"netAttachDefName":"prod/localnet-77"`, ovnKeys}, want: api.Request{NAD: "prod/localnet-77", Wrapped: ovnPlugin}},
		{name: "OK chained", keys: []string{`"netAttachDefName":"prod/office"`, `"prevResult":` + macvlanResult}, want: api.Request{NAD: "prod/office"}},
		{name: "OK none", keys: []string{`"delegate":{"type":"macvlan"}`}, want: api.Request{Wrapped: "macvlan"}},
		{name: "OK device of Multus", keys: []string{`"delegate":{"type":"macvlan"}`, `"deviceID":"0000:03:02.1"`, `"pciBusID":"0000:03:02.1"`}, want: api.Request{Wrapped: "macvlan", DeviceID: "0000:03:02.1"}},
		{name: "OK device by its other name", keys: []string{`"delegate":{"type":"macvlan"}`, `"pciBusID":"0000:03:02.1"`}, want: api.Request{Wrapped: "macvlan", DeviceID: "0000:03:02.1"}},
		{name: "OK device as a capability", keys: []string{`"delegate":{"type":"macvlan"}`, `"runtimeConfig":{"deviceID":"0000:03:02.1"}`}, want: api.Request{Wrapped: "macvlan", DeviceID: "0000:03:02.1"}},
		{name: "OK device of the network", keys: []string{`"delegate":{"type":"macvlan","pciBusID":"0000:03:02.1"}`}, want: api.Request{Wrapped: "macvlan", DeviceID: "0000:03:02.1"}},
		{name: "OK device of another kind", keys: []string{`"delegate":{"type":"macvlan"}`, `"deviceID":"mlx5_core.sf.4"`}, want: api.Request{Wrapped: "macvlan"}},
		{name: "bad two names", keys: []string{`"netAttachDefName":"prod/a"`, ovnKeys}, err: `netAttachDefName: is "prod/a", and "prod/localnet-77" in the wrapped plugin's object: which one is it?`},
		{name: "bad name", keys: []string{`"netAttachDefName":"vlan77"`, `"delegate":{"type":"macvlan"}`}, err: `netAttachDefName: "vlan77" is not <namespace>/<name>`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t)
			r.start()
			r.args.ContainerID = ovnSandbox
			r.conf("1.1.0", tt.keys...)
			if tt.err != "" {
				if got := r.mustFail(r.plugin.Add, api.CodeConfig); got != tt.err {
					t.Errorf("error %q, want %q", got, tt.err)
				}
				r.journal.want(t)
				r.must(r.plugin.Del) // what is wrong with a network keeps no pod from ending
				return
			}
			r.must(r.plugin.Add)
			for _, got := range r.engine.requests {
				if diff := cmp.Diff(tt.want, api.Request{NAD: got.NAD, Wrapped: got.Wrapped, DeviceID: got.DeviceID}); diff != "" {
					t.Errorf("request (-want +got):\n%s", diff)
				}
			}
		})
	}
}

// P16: the pod's UID goes with every request, so that the engine can tell a pod that
// was made again from the one before.
func TestP16RequestsNameThePodByUID(t *testing.T) {
	r := newRig(t)
	r.start()
	r.must(r.plugin.Add)
	r.args.Args = strings.Replace(r.args.Args, "K8S_POD_UID=u1", "K8S_POD_UID=u2", 1)
	r.args.ContainerID = "c2"
	r.must(r.plugin.Add)
	var got []string
	for _, q := range r.engine.requests {
		got = append(got, q.Pod.UID)
	}
	if diff := cmp.Diff([]string{"u1", "u1", "u2", "u2"}, got); diff != "" {
		t.Errorf("UIDs (-want +got):\n%s", diff)
	}
}

// What the wrapped plugin did to the interface: OVN-Kubernetes may have put addresses
// there from an earlier lease.
func TestRequestTellsTheResult(t *testing.T) {
	r := newOVN(t)
	r.exec.on["ADD"] = func(context.Context, run) (string, error) {
		return `{"cniVersion":"1.0.0","interfaces":[{"name":"0123_1","mac":"0a:58:00:00:00:02"},{"name":"net1","mac":"0a:58:0a:4d:00:09","sandbox":"/run/netns/a"}],
		  "ips":[{"interface":1,"address":"10.77.0.9/24","gateway":"10.77.0.1"},{"interface":0,"address":"192.0.2.1/24"},{"interface":1,"address":"fd00::5/64"},{"address":"10.1.0.1/16"}]}`, nil
	}
	r.must(r.plugin.Add)
	got := r.engine.requests
	if got[0].HardwareAddr != "" || got[0].Addresses != nil {
		t.Errorf("Prepare knows the result: %+v", got[0])
	}
	want := []string{"10.77.0.9/24", "fd00::5/64", "10.1.0.1/16"}
	if diff := cmp.Diff(want, got[1].Addresses); diff != "" || got[1].HardwareAddr != "0a:58:0a:4d:00:09" {
		t.Errorf("MAC %s, addresses (-want +got):\n%s", got[1].HardwareAddr, diff)
	}
}

// P01: OVN-Kubernetes waits for its controller for up to two minutes, so the delegate
// has all the time that the verb has.
func TestP01DelegateHasAllTheTime(t *testing.T) {
	for _, verb := range []string{"ADD", "DEL", "CHECK"} {
		r := newRig(t)
		r.start()
		r.conf("1.0.0", `"delegate":{"type":"macvlan"}`, `"prevResult":{"cniVersion":"1.0.0","ips":[{"address":"10.77.0.50/24"}]}`)
		deadline := time.Now().Add(verbLimit)
		ctx, cancel := context.WithDeadline(t.Context(), deadline)
		defer cancel()
		r.exec.on[verb] = func(ctx context.Context, _ run) (string, error) {
			if got, ok := ctx.Deadline(); !ok || !got.Equal(deadline) {
				t.Errorf("%s: the delegate has until %v, %v, want %v", verb, got, ok, deadline)
			}
			return macvlanResult, nil
		}
		for _, f := range []func(context.Context, *skel.CmdArgs) error{r.plugin.Add, r.plugin.Check, r.plugin.Del} {
			if err := f(ctx, r.args); err != nil {
				t.Fatal(err)
			}
		}
		if r.exec.count(verb) != 1 {
			t.Errorf("%s ran %d times", verb, r.exec.count(verb))
		}
	}
}

// P02: DHCP has what the delegate has left of the runtime's time.
func TestP02AttachHasWhatIsLeft(t *testing.T) {
	r := newRig(t)
	r.start()
	ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
	defer cancel()
	var left time.Duration
	r.exec.on["ADD"] = func(ctx context.Context, _ run) (string, error) {
		begin := time.Now()
		for time.Since(begin) < time.Millisecond { // the delegate takes its time
		}
		deadline, _ := ctx.Deadline()
		left = time.Until(deadline)
		return macvlanResult, nil
	}
	if err := r.plugin.Add(ctx, r.args); err != nil {
		t.Fatal(err)
	}
	if got := r.engine.requests[1].Timeout; got <= 0 || got > left {
		t.Errorf("Attach may take %v, and %v are left", got, left)
	}
}

// P23, P24: the delegate gave up, for want of an annotation or of flows, or its time
// is over: nothing is left, and the next try works.
func TestP23P24NothingLeftOfADelegateThatGaveUp(t *testing.T) {
	tests := map[string]func(cancel func(), ctx context.Context) error{
		"the annotation does not come": func(func(), context.Context) error {
			return errors.New("timed out waiting for annotations")
		},
		"the runtime's time is over": func(cancel func(), ctx context.Context) error {
			cancel()
			<-ctx.Done()
			return ctx.Err()
		},
	}
	for name, giveUp := range tests {
		t.Run("bad "+name, func(t *testing.T) {
			r := newOVN(t)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			r.exec.on["ADD"] = func(ctx context.Context, _ run) (string, error) { return "", giveUp(cancel, ctx) }
			if err := r.plugin.Add(ctx, r.args); err == nil {
				t.Fatal("no error")
			}
			r.journal.want(t, "engine prepare", "delegate ADD")
			r.nothingLeft()
			if r.stdout.Len() != 0 {
				t.Errorf("a failed ADD printed %s", r.stdout.String())
			}
			r.plugin.remarks = nil
			for range 2 {
				r.must(r.plugin.Del)
			}
			r.journal.want(t, "engine detach", "engine detach")
			r.exec.on["ADD"] = func(context.Context, run) (string, error) { return ovnResult, nil }
			r.must(r.plugin.Add)
		})
	}
}

// P25: a server without a free address is an error to try again with, and the next
// try works.
func TestP25NoFreeAddress(t *testing.T) {
	r := newRig(t)
	r.start()
	r.engine.on["attach"] = func(context.Context) error {
		return api.WithCode(api.CodeTryAgain, errors.New("10.77.0.1 has no free address"))
	}
	if got := r.mustFail(r.plugin.Add, api.CodeTryAgain); got != "10.77.0.1 has no free address" {
		t.Errorf("error %q", got)
	}
	r.nothingLeft()
	delete(r.engine.on, "attach")
	r.must(r.plugin.Add)
}

// K83: without an engine a marked network fails at once, with a word about what to
// look at, in every form.
func TestK83EngineDown(t *testing.T) {
	for name, keys := range map[string]string{
		"delegate": `"delegate":{"type":"macvlan"}`, "both keys": ovnKeys, "chained": `"prevResult":` + macvlanResult,
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t) // no engine
			r.args.ContainerID = ovnSandbox
			r.conf("1.1.0", keys)
			got := r.mustFail(r.plugin.Add, api.CodeTryAgain)
			if !strings.Contains(got, r.socket) || !strings.Contains(got, "is the dhcp-engine of this node running?") {
				t.Errorf("error %q", got)
			}
			r.journal.want(t)
			r.nothingLeft()
		})
	}
}

// What the engine says of marks that disagree, and of settings in two places, reaches
// the runtime as it is.
func TestEngineRefusesTheNetwork(t *testing.T) {
	r := newOVN(t)
	const said = `prod/localnet-77: dhcp object in the configuration and annotation dhcp-meta.io/config: only one of them can be`
	r.engine.on["prepare"] = func(context.Context) error { return api.WithCode(api.CodeConfig, errors.New(said)) }
	if got := r.mustFail(r.plugin.Add, api.CodeConfig); got != said {
		t.Errorf("error %q", got)
	}
	r.journal.want(t, "engine prepare")
	r.nothingLeft()
}

// A setting beside the dhcp object, where nobody would read it, is an error of the form
// delegate alone: elsewhere it may be the wrapped plugin's.
func TestSettingBesideTheDHCPObject(t *testing.T) {
	const head = `{"cniVersion":"1.0.0","name":"n",`
	tests := []struct {
		name, program, conf, want string // want is empty: no error
	}{
		{"OK what CNI, Multus and capabilities have there", pluginName, head + `"type":"dhcp-meta","delegate":{"type":"macvlan"},"capabilities":{"mac":true},
			"runtimeConfig":{"mac":"02:00:00:00:00:01"},"mac":"02:00:00:00:00:01","args":{"cni":{}},"dns":{},"deviceID":"d","pciBusID":"d","ipMasq":false,"disableCheck":true,
			"netAttachDefName":"prod/n","logLevel":"debug","vlan":7}`, ""},
		{"OK null is absent", pluginName, head + `"type":"dhcp-meta","delegate":{"type":"macvlan"},"hostname":null}`, ""},
		{"OK of the wrapped plugin", pluginName, head + `"type":"dhcp-meta","delegate":{"type":"macvlan","hostname":"web","mac":"derive"}}`, ""},
		{"OK both keys", pluginName, head + `"type":"dhcp-meta","plugins":[{"type":"macvlan"}],"hostname":"web"}`, ""},
		{"OK interposed", "macvlan", head + `"type":"macvlan","dhcp":{},"hostname":"web","mac":"derive"}`, ""},
		{"bad one", pluginName, head + `"type":"dhcp-meta","delegate":{"type":"macvlan"},"hostname":"web"}`, "hostname: belongs into the dhcp object"},
		{"bad beside a dhcp object", pluginName, head + `"type":"dhcp-meta","delegate":{"type":"macvlan"},"dhcp":{"hostname":"web"},"clientID":"duid"}`,
			"clientID: belongs into the dhcp object"},
		{"bad beside one in the delegate", pluginName, head + `"type":"dhcp-meta","delegate":{"type":"macvlan","dhcp":{}},"mac":"derive"}`, "mac: belongs into the dhcp object"},
		{"bad under another program's name", "macvlan", head + `"type":"dhcp-meta","delegate":{"type":"macvlan"},"mac":"keep"}`, "mac: belongs into the dhcp object"},
		{"bad many", pluginName, head + `"type":"dhcp-meta","delegate":{"type":"macvlan"},"routes":{"deny":["0.0.0.0/0"]},"timeout":30,"hostname":""}`,
			"hostname: belongs into the dhcp object; routes: belongs into the dhcp object; timeout: belongs into the dhcp object"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := Refusal(tt.program, []byte(tt.conf), false)
			if got := text(err); got != tt.want {
				t.Errorf("error %q, want %q", got, tt.want)
			}
			if err != nil && api.CodeOf(err) != api.CodeConfig {
				t.Errorf("code %d", api.CodeOf(err))
			}
		})
	}
}

// Such a network keeps no pod from ending.
func TestSettingBesideTheDHCPObjectAtDel(t *testing.T) {
	r := newRig(t)
	r.start()
	r.must(r.plugin.Add)
	r.conf("1.1.0", `"delegate":{"type":"macvlan"}`, `"hostname":"web"`)
	r.must(r.plugin.Del)
	r.journal.want(t, "engine prepare", "delegate ADD", "engine attach", "engine detach", "delegate DEL")
	if got := r.mustFail(r.plugin.Add, api.CodeConfig); got != "hostname: belongs into the dhcp object" {
		t.Errorf("error %q", got)
	}
	r.journal.want(t)
	r.nothingLeft()
}

// A network that is half one form and half another is refused with one sentence.
func TestHalfOurs(t *testing.T) {
	tests := []struct {
		name, program, conf, want string
	}{
		{
			"bad interposed with a delegate", ovnPlugin, `{"cniVersion":"1.0.0","name":"n","type":"ovn-k8s-cni-overlay","dhcp":{},"delegate":{"type":"macvlan"}}`,
			`delegate and plugins: stand beside "type": "dhcp-meta" only, and the type is "ovn-k8s-cni-overlay"`,
		},
		{
			"bad marked by annotation, with a dhcp that is no object", ovnPlugin, `{"cniVersion":"1.0.0","name":"n","type":"ovn-k8s-cni-overlay","dhcp":"yes"}`,
			"dhcp: is a string, not an object",
		},
		{
			"bad delegate and plugins", pluginName, `{"cniVersion":"1.0.0","name":"n","type":"dhcp-meta","delegate":{"type":"macvlan"},"plugins":[]}`,
			"delegate and plugins: only one of them can be",
		},
		{
			"bad dhcp in two places", pluginName, `{"cniVersion":"1.0.0","name":"n","type":"dhcp-meta","dhcp":{},"delegate":{"type":"macvlan","dhcp":{}}}`,
			"dhcp and delegate.dhcp: only one of them can be",
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := newOVN(t)
			r.plugin.Name = tt.program
			r.args.StdinData = []byte(tt.conf)
			if got := r.mustFail(r.plugin.Add, api.CodeConfig); got != tt.want {
				t.Errorf("error %q, want %q", got, tt.want)
			}
			r.journal.want(t)
		})
	}
}
