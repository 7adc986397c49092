package delegate

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine/api"
	"github.com/dhcp-meta/dhcp-meta/pkg/engine/network"
)

// What the delegate gets is written out whole: not a byte more, and none less.
func TestK50DelegateGetsWhatTheRuntimeWouldGive(t *testing.T) {
	tests := []struct {
		name string
		base string
		conf string
		want string
	}{
		{
			name: "OK name and version are the network's",
			conf: `{"cniVersion":"1.1.0","name":"vlan77","type":"dhcp-meta","delegate":{"type":"macvlan","master":"eth1","cniVersion":"0.3.1","name":"inner"},"dhcp":{}}`,
			want: `{"cniVersion":"1.1.0","master":"eth1","name":"vlan77","type":"macvlan"}`,
		},
		{
			name: "OK device and args of the runtime, not its other keys",
			conf: `{"cniVersion":"1.0.0","name":"n","type":"dhcp-meta","delegate":{"type":"sriov"},"deviceID":"0000:03:02.1","pciBusID":"0000:03:02.1","args":{"cni":{"mac":"x"}},"foo":1}`,
			want: `{"args":{"cni":{"mac":"x"}},"cniVersion":"1.0.0","deviceID":"0000:03:02.1","name":"n","pciBusID":"0000:03:02.1","type":"sriov"}`,
		},
		{
			name: "OK bytes of numbers, text and unknown keys",
			conf: `{"cniVersion":"1.0.0","name":"n","type":"dhcp-meta","delegate":{"type":"x","big":9007199254740993,"bigger":12345678901234567890,"f":1.50,"html":"<a>&","nested":{"b":1,"a":[null,1e2]},"ünï":"é","nothing":null}}`,
			want: `{"big":9007199254740993,"bigger":12345678901234567890,"cniVersion":"1.0.0","f":1.50,"html":"<a>&","name":"n","nested":{"b":1,"a":[null,1e2]},"nothing":null,"type":"x","ünï":"é"}`,
		},
		{
			name: "OK capabilities that the delegate declares",
			conf: `{"cniVersion":"1.0.0","name":"n","type":"dhcp-meta","capabilities":{"mac":true,"ips":true,"infinibandGUID":true},
			       "delegate":{"type":"x","capabilities":{"mac":true,"ips":false}},"runtimeConfig":{"mac":"02:00:00:00:00:01","ips":["10.0.0.1/24"],"infinibandGUID":"g"}}`,
			want: `{"capabilities":{"mac":true,"ips":false},"cniVersion":"1.0.0","name":"n","runtimeConfig":{"mac":"02:00:00:00:00:01"},"type":"x"}`,
		},
		{
			name: "OK no capability declared",
			conf: `{"cniVersion":"1.0.0","name":"n","type":"dhcp-meta","delegate":{"type":"x"},"runtimeConfig":{"mac":"02:00:00:00:00:01"}}`,
			want: `{"cniVersion":"1.0.0","name":"n","type":"x"}`,
		},
		{
			name: "OK ipam dhcp is taken out",
			conf: `{"cniVersion":"1.0.0","name":"n","type":"dhcp-meta","delegate":{"type":"macvlan","ipam":{"type":"dhcp","daemonSocketPath":"/x"}}}`,
			want: `{"cniVersion":"1.0.0","name":"n","type":"macvlan"}`,
		},
		{
			name: "OK another ipam stays",
			conf: `{"cniVersion":"1.0.0","name":"n","type":"dhcp-meta","delegate":{"type":"macvlan","ipam":{"type":"static","addresses":[]}}}`,
			want: `{"cniVersion":"1.0.0","ipam":{"type":"static","addresses":[]},"name":"n","type":"macvlan"}`,
		},
		{
			name: "OK both keys, dhcp object inside",
			conf: `{"cniVersion":"1.0.0","name":"n","type":"dhcp-meta","plugins":[{"type":"ovn-k8s-cni-overlay","topology":"localnet","dhcp":{"mac":"keep"}}]}`,
			want: `{"cniVersion":"1.0.0","name":"n","topology":"localnet","type":"ovn-k8s-cni-overlay"}`,
		},
		{
			name: "OK attachments of a GC",
			conf: `{"cniVersion":"1.1.0","name":"n","type":"dhcp-meta","delegate":{"type":"x"},"cni.dev/valid-attachments":[{"containerID":"c","ifname":"net1"}],"cni.dev/attachments":[]}`,
			want: `{"cni.dev/attachments":[],"cni.dev/valid-attachments":[{"containerID":"c","ifname":"net1"}],"cniVersion":"1.1.0","name":"n","type":"x"}`,
		},
		{
			name: "OK interposed: all of it but the dhcp object",
			base: "ovn-k8s-cni-overlay",
			conf: `{"cniVersion":"1.0.0","name":"n","type":"ovn-k8s-cni-overlay","netAttachDefName":"ns/n","dhcp":{},"ipam":{},"runtimeConfig":{"x":1},"foo":18446744073709551615}`,
			want: `{"cniVersion":"1.0.0","foo":18446744073709551615,"ipam":{},"name":"n","netAttachDefName":"ns/n","runtimeConfig":{"x":1},"type":"ovn-k8s-cni-overlay"}`,
		},
		{
			name: "OK interposed: not to two DHCP clients",
			base: "macvlan",
			conf: `{"cniVersion":"1.0.0","name":"n","type":"macvlan","dhcp":{},"ipam":{"type":"dhcp"}}`,
			want: `{"cniVersion":"1.0.0","name":"n","type":"macvlan"}`,
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			base := tt.base
			if base == "" {
				base = pluginName
			}
			c, err := parse(base, []byte(tt.conf))
			if err != nil {
				t.Fatal(err)
			}
			got, err := stdin(c.delegate, nil)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, string(got)); diff != "" {
				t.Errorf("configuration of the delegate (-want +got):\n%s", diff)
			}
		})
	}
}

func TestStdinPrevResult(t *testing.T) {
	delegate := mustObject(t, `{"type":"x"}`)
	got, err := stdin(delegate, []byte(`{"ips":[]}`))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(`{"prevResult":{"ips":[]},"type":"x"}`, string(got)); diff != "" {
		t.Errorf("configuration (-want +got):\n%s", diff)
	}
	if delegate.has("prevResult") {
		t.Error("the configuration that is kept was changed")
	}
}

func TestParse(t *testing.T) {
	c, err := parse(pluginName, []byte(`{"cniVersion":"1.1.0","name":"vlan77","type":"dhcp-meta","prevResult":{"ips":[]},
		"dhcp":{"timeout":"30s","stateDir":"/srv/dhcp"},"cni.dev/valid-attachments":[{"containerID":"c1","ifname":"net1"}]}`))
	if err != nil {
		t.Fatal(err)
	}
	if c.form != chained || c.version != "1.1.0" || c.network != "vlan77" || string(c.prevResult) != `{"ips":[]}` {
		t.Errorf("got %+v", c)
	}
	if c.settings.Timeout != 30*time.Second || c.settings.StateDir != "/srv/dhcp" {
		t.Errorf("settings %+v", c.settings)
	}
	if diff := cmp.Diff([]api.AttachmentID{{ContainerID: "c1", IfName: "net1"}}, c.valid); diff != "" {
		t.Errorf("valid attachments (-want +got):\n%s", diff)
	}
}

func TestParseErrors(t *testing.T) {
	tests := []struct {
		name string
		conf string
		want string
	}{
		{"bad not an object", `[]`, "configuration: is no JSON object"},
		{"bad delegate", `{"type":"dhcp-meta","delegate":[]}`, "delegate: is no JSON object"},
		{"bad dhcp", `{"type":"dhcp-meta","dhcp":{"foo":1,"timeout":1}}`, "dhcp.foo: unknown key; dhcp.timeout: is a number, not a string"},
		{"bad dhcp is no object", `{"type":"dhcp-meta","dhcp":true}`, "dhcp: is true or false, not an object"},
		{"bad attachments", `{"type":"dhcp-meta","cni.dev/valid-attachments":{}}`, "cni.dev/valid-attachments: "},
		{"bad capabilities", `{"type":"dhcp-meta","delegate":{"type":"x","capabilities":[]},"runtimeConfig":{}}`, "capabilities of x: "},
		{"bad runtimeConfig", `{"type":"dhcp-meta","delegate":{"type":"x","capabilities":{}},"runtimeConfig":[]}`, "runtimeConfig: is no JSON object"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := parse(pluginName, []byte(tt.conf))
			if err == nil || !strings.HasPrefix(err.Error(), tt.want) {
				t.Errorf("got %v, want %q", err, tt.want)
			}
			if code := api.CodeOf(err); code != api.CodeConfig {
				t.Errorf("code %d, want %d", code, api.CodeConfig)
			}
		})
	}
}

// libcni writes a list of no attachments as null; a list that is not there is
// something else.
func TestValidAttachments(t *testing.T) {
	for conf, want := range map[string][]api.AttachmentID{
		`{}`:                                 nil,
		`{"cni.dev/valid-attachments":null}`: {},
		`{"cni.dev/valid-attachments":[]}`:   {},
	} {
		got, err := validAttachments(mustObject(t, conf))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", conf, diff)
		}
	}
}

func TestPodOf(t *testing.T) {
	tests := []struct {
		name string
		args string
		want api.Pod
	}{
		{"OK as Multus sends them", "IgnoreUnknown=true;K8S_POD_NAMESPACE=prod;K8S_POD_NAME=web-0;K8S_POD_INFRA_CONTAINER_ID=c;K8S_POD_UID=u", api.Pod{Namespace: "prod", Name: "web-0", UID: "u"}},
		{"OK none", "", api.Pod{}},
		{"OK unknown and broken ones", "MAC=02:00:00:00:00:01;;x;K8S_POD_NAME=web-0;=", api.Pod{Name: "web-0"}},
		{"OK value with an equals sign", "K8S_POD_UID=a=b", api.Pod{UID: "a=b"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, podOf(tt.args)); diff != "" {
				t.Errorf("pod (-want +got):\n%s", diff)
			}
		})
	}
}

func FuzzParseConf(f *testing.F) {
	for _, seed := range []string{
		`{"cniVersion":"1.1.0","name":"n","type":"dhcp-meta","delegate":{"type":"macvlan","ipam":{"type":"dhcp"}},"dhcp":{"timeout":"30s"}}`,
		`{"type":"dhcp-meta","plugins":[{"type":"ovn-k8s-cni-overlay"}]}`,
		`{"type":"dhcp-meta","prevResult":{}}`, `{"type":"macvlan","dhcp":{}}`, `null`, `{"type":null,"delegate":{"type":7}}`,
		`{"type":"dhcp-meta","delegate":{"type":"x","capabilities":{"mac":true}},"runtimeConfig":{"mac":"m"}}`,
		`{"type":"dhcp-meta","delegate":{"type":"macvlan"},"hostname":"web","mac":"derive","clientID":null,"netAttachDefName":"a/b"}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		for _, base := range []string{pluginName, "macvlan"} {
			c, err := parse(base, raw)
			var problems network.Problems
			if err != nil && !errors.As(err, &problems) {
				if api.CodeOf(err) != api.CodeConfig {
					t.Fatalf("%v has code %d", err, api.CodeOf(err))
				}
				continue
			}
			if err := c.sound(base, raw); err != nil && api.CodeOf(err) != api.CodeConfig {
				t.Fatalf("%v has code %d", err, api.CodeOf(err))
			}
			if c.delegate == nil {
				continue
			}
			if c.delegate.has("dhcp") || c.delegate.has("prevResult") {
				t.Fatalf("the delegate gets what is ours: %v", c.delegate)
			}
			if _, err := stdin(c.delegate, []byte(`{}`)); err != nil {
				t.Fatal(err)
			}
		}
	})
}
