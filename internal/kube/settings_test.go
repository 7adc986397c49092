package kube

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/dhcp-meta/dhcp-meta/internal/kube/podnetworks"
	"github.com/dhcp-meta/dhcp-meta/pkg/engine/network"
)

func TestOverlay(t *testing.T) {
	for _, tt := range []struct {
		name        string
		annotations map[string]string
		selection   *podnetworks.Selection
		base, want  string
	}{
		{name: "nothing", want: ""},
		{name: "nothing leaves every byte", base: ` {"hostname" : "a"}`, want: ` {"hostname" : "a"}`},
		{name: "nothing leaves what is wrong to others", base: `{"x`, want: `{"x`},
		{name: "others' annotations", annotations: map[string]string{"other.lab.dhcp-meta.io/address": "10.0.0.9", "dhcp-meta.io/pod-networks": "{}", "a/b": "c"}, want: ""},
		{name: "an address", annotations: map[string]string{"office.lab.dhcp-meta.io/address": "10.0.0.9"}, want: `{"address":"10.0.0.9"}`},
		{
			name: "all three, over the network's",
			annotations: map[string]string{
				"office.lab.dhcp-meta.io/address":  "10.0.0.9",
				"office.lab.dhcp-meta.io/hostname": "web",
				"office.lab.dhcp-meta.io/clientID": "{namespace}/{pod}",
			},
			base: `{"hostname":"x","routes":{"allow":["10.0.0.0/8"]}}`,
			want: `{"address":"10.0.0.9","clientID":"{namespace}/{pod}","hostname":"web","routes":{"allow":["10.0.0.0/8"]}}`,
		},
		{name: "no host name at all", annotations: map[string]string{"office.lab.dhcp-meta.io/hostname": ""}, base: `null`, want: `{"hostname":""}`},
		{name: "ips", selection: &podnetworks.Selection{IPs: []string{"fd00::1", "10.0.0.8/24", "10.0.0.9"}}, want: `{"address":"10.0.0.8"}`},
		{name: "ips of IPv6 only", selection: &podnetworks.Selection{IPs: []string{"fd00::1/64"}}, want: ""},
		{name: "a default route", selection: &podnetworks.Selection{DefaultRoute: true}, base: `{"defaultRoute":"never"}`, want: `{"defaultRoute":"always"}`},
		{
			name:        "the annotation wins",
			annotations: map[string]string{"office.lab.dhcp-meta.io/address": "10.0.0.9"},
			selection:   &podnetworks.Selection{IPs: []string{"10.0.0.8/24"}, DefaultRoute: true},
			want:        `{"address":"10.0.0.9","defaultRoute":"always"}`,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			o, err := overlayOf(tt.annotations, "lab/office", tt.selection)
			if err != nil {
				t.Fatal(err)
			}
			got, err := o.over(json.RawMessage(tt.base))
			if err != nil {
				t.Fatal(err)
			}
			if string(got) != tt.want {
				t.Errorf("%s, want %s", got, tt.want)
			}
		})
	}
}

// What a pod says wrongly is named by the annotation in which it stands.
func TestOverlayProblems(t *testing.T) {
	const key = "office.lab.dhcp-meta.io/"
	for _, tt := range []struct {
		key, value string
		ips        []string
		want       []string
	}{
		{key: key + "address", value: "10.0.0", want: []string{"annotation " + key + `address: `, `"10.0.0" is no IPv4 address`}},
		{key: key + "address", value: "10.0.0.1/24", want: []string{"annotation " + key + "address: "}},
		{key: key + "address", value: "fd00::1", want: []string{"annotation " + key + "address: "}},
		{key: key + "address", value: "", want: []string{"annotation " + key + "address: "}},
		{key: key + "hostname", value: "{pods}", want: []string{"annotation " + key + "hostname: ", "{pods}"}},
		{key: key + "clientID", value: "dud", want: []string{"annotation " + key + "clientID: ", `"dud" is an unknown policy`}},
		{key: key + "adress", value: "10.0.0.1", want: []string{"annotation " + key + "adress: ", `a pod cannot set "adress"; it can set address, hostname, clientID`}},
		{key: "office.dhcp-meta.io/address", value: "10.0.0.1", want: []string{"annotation office.dhcp-meta.io/address: ", "write " + key + "address"}},
		{key: key + "socket", value: "/run/x", want: []string{`a pod cannot set "socket"`}},
		{ips: []string{"10.0.0.300"}, want: []string{"annotation k8s.v1.cni.cncf.io/networks: ips: ", `"10.0.0.300" is no address`}},
		{ips: []string{"127.0.0.1/8"}, want: []string{"annotation k8s.v1.cni.cncf.io/networks: ips: "}},
	} {
		_, err := overlayOf(map[string]string{tt.key: tt.value}, "lab/office", &podnetworks.Selection{IPs: tt.ips})
		if err == nil {
			t.Errorf("%s=%q %q: no error", tt.key, tt.value, tt.ips)
			continue
		}
		for _, w := range tt.want {
			if !strings.Contains(err.Error(), w) {
				t.Errorf("%q does not say %q", err, w)
			}
		}
	}
}

// What is wrong with a network's object is not hidden by what a pod puts over it.
func TestOverlayHidesNothing(t *testing.T) {
	for _, base := range []string{`{"hostname":"a","hostname":"b"}`, `{"x":1}`, `{"hostname":1}`, `[]`, `{`} {
		got, err := overlay{"hostname": json.RawMessage(`"c"`)}.over(json.RawMessage(base))
		if err == nil {
			t.Errorf("%s became %s", base, got)
			continue
		}
		refused(t, err, "dhcp")
	}
}

func FuzzOverlay(f *testing.F) {
	f.Add("address", "10.0.0.1", "10.0.0.2/24", true, `{"hostname":"a"}`)
	f.Add("hostname", "<&>\u2028", "", false, `{"routes":{"allow":["10.0.0.0/8"]}}`)
	f.Add("clientID", "{pod}", "x", false, "null")
	f.Fuzz(func(t *testing.T, key, value, ip string, route bool, base string) {
		o, err := overlayOf(map[string]string{"office.lab.dhcp-meta.io/" + key: value}, "lab/office", &podnetworks.Selection{IPs: []string{ip}, DefaultRoute: route})
		if err != nil {
			return
		}
		if _, err := network.Parse(json.RawMessage(base)); err != nil {
			return
		}
		got, err := o.over(json.RawMessage(base))
		if err != nil {
			t.Fatal(err)
		}
		// Two right objects can contradict each other, and nothing else.
		if s, err := network.Parse(got); err != nil && !strings.Contains(err.Error(), `defaultRoute is "always"`) && !strings.Contains(err.Error(), "host name") {
			t.Errorf("%s over %q gives %s: %v", o, base, got, err)
		} else if err == nil && route && !s.DefaultRoute {
			t.Errorf("%s: the default route got lost", got)
		}
	})
}
