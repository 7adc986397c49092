package kube

import (
	"encoding/json"
	"strings"
	"testing"

	nadv1 "github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/apis/k8s.cni.cncf.io/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine/api"
)

// nadWith is the definition lab/office; annotations are key, value, key, value...
func nadWith(config string, annotations ...string) *nadv1.NetworkAttachmentDefinition {
	n := &nadv1.NetworkAttachmentDefinition{
		ObjectMeta: metav1.ObjectMeta{Namespace: "lab", Name: "office", Annotations: map[string]string{}},
		Spec:       nadv1.NetworkAttachmentDefinitionSpec{Config: config},
	}
	for i := 0; i < len(annotations); i += 2 {
		n.Annotations[annotations[i]] = annotations[i+1]
	}
	return n
}

// ovnConf is a configuration of OVN-Kubernetes with more keys behind it.
func ovnConf(more string) string {
	return `{"cniVersion":"1.0.0","name":"office","type":"ovn-k8s-cni-overlay","netAttachDefName":"lab/office"` + more + `}`
}

const localnet = `,"topology":"localnet","role":"secondary","physicalNetworkName":"lan"`

func TestDefine(t *testing.T) {
	for _, tt := range []struct {
		name     string
		nad      *nadv1.NetworkAttachmentDefinition
		inline   string
		settings string
		ovn      bool
	}{
		{name: "nothing of ours", nad: nadWith(`{"type":"macvlan"}`)},
		{name: "no configuration: it is a file on the node", nad: nadWith("")},
		{name: "mark alone", nad: nadWith(ovnConf(localnet), ipamAnnotation, "dhcp"), ovn: true},
		{name: "role left out", nad: nadWith(ovnConf(`,"topology":"localnet"`), ipamAnnotation, "dhcp"), ovn: true},
		{name: "empty subnets are none", nad: nadWith(ovnConf(localnet+`,"subnets":""`), ipamAnnotation, "dhcp"), ovn: true},
		{
			name:     "mark and settings",
			nad:      nadWith(ovnConf(localnet), ipamAnnotation, "dhcp", configAnnotation, `{"hostname":""}`),
			settings: `{"hostname":""}`, ovn: true,
		},
		{name: "a dhcp object is a mark", nad: nadWith(ovnConf(localnet + `,"dhcp":{}`)), ovn: true},
		{
			name:     "a dhcp object that says nothing, and settings in the annotation",
			nad:      nadWith(ovnConf(localnet+`,"dhcp":{}`), configAnnotation, `{"hostname":""}`),
			settings: `{"hostname":""}`, ovn: true,
		},
		{name: "both marks agree", nad: nadWith(ovnConf(localnet+`,"dhcp":{"hostname":"x"}`), ipamAnnotation, "dhcp"), inline: `{"hostname":"x"}`, ovn: true},
		{
			name: "our own type is a mark",
			nad: nadWith(`{"type":"dhcp-meta","delegate":{"type":"macvlan"}}`,
				configAnnotation, `{"mac":"derive"}`),
			settings: `{"mac":"derive"}`,
		},
		{
			name: "both keys", ovn: true,
			nad: nadWith(`{"type":"dhcp-meta","plugins":[` + ovnConf(localnet) + `]}`),
		},
		{
			name: "our type in a list, wrapping",
			nad:  nadWith(`{"plugins":[{"type":"dhcp-meta","delegate":`+ovnConf(localnet)+`},{"type":"tuning"}]}`, configAnnotation, `{}`),
			ovn:  true, settings: `{}`,
		},
		{name: "keys in another case are OVN-Kubernetes's, as it reads them", nad: nadWith(`{"Type":"ovn-k8s-cni-overlay"}`), ovn: true},
		{
			name: "a network that asks for its address itself needs no mark for its settings", ovn: true,
			nad:      nadWith(ovnConf(localnet+`,"ipam":{"type":"dhcp"}`), configAnnotation, `{"clientID":"duid"}`),
			settings: `{"clientID":"duid"}`,
		},
		{name: "a dhcp key that is no object is somebody else's", nad: nadWith(`{"type":"x","dhcp":true}`)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d, err := define(tt.nad, json.RawMessage(tt.inline))
			if err != nil {
				t.Fatal(err)
			}
			if d.name != "lab/office" || string(d.settings) != tt.settings || d.ovn != tt.ovn {
				t.Errorf("name %q, settings %s, ovn %v; want lab/office, %s, %v", d.name, d.settings, d.ovn, tt.settings, tt.ovn)
			}
		})
	}
}

// Each of these is refused with api.CodeConfig and a text that names the
// definition and what is wrong.
func TestDefineProblems(t *testing.T) {
	for _, tt := range []struct {
		name   string
		nad    *nadv1.NetworkAttachmentDefinition
		inline string
		want   []string
	}{
		{"another value of the mark", nadWith(`{}`, ipamAnnotation, "dhpc"), "", []string{`annotation dhcp-meta.io/ipam is "dhpc"; the only value is "dhcp"`}},
		{"an empty mark", nadWith(`{}`, ipamAnnotation, ""), "", []string{`dhcp-meta.io/ipam is ""`}},
		{"another plugin for the address is no mark", nadWith(ovnConf(localnet+`,"ipam":{"type":"static"}`), configAnnotation, `{}`), "", []string{"the mark is missing"}},
		{"settings without a mark", nadWith(ovnConf(localnet), configAnnotation, `{}`), "", []string{`annotation dhcp-meta.io/config is there, and the mark is missing: annotation dhcp-meta.io/ipam`}},
		{
			"settings twice", nadWith(ovnConf(localnet+`,"dhcp":{"hostname":"a"}`), ipamAnnotation, "dhcp", configAnnotation, `{"hostname":"b"}`), "",
			[]string{"both have settings"},
		},
		{
			"settings twice, those of the caller", nadWith("", ipamAnnotation, "dhcp", configAnnotation, `{"hostname":"b"}`), `{"hostname":"a"}`,
			[]string{"both have settings"},
		},
		{"settings are no JSON", nadWith(`{}`, ipamAnnotation, "dhcp", configAnnotation, `{"hostname"`), "", []string{"annotation dhcp-meta.io/config is no JSON object"}},
		{"settings are a list", nadWith(`{}`, ipamAnnotation, "dhcp", configAnnotation, `[]`), "", []string{"annotation dhcp-meta.io/config is no JSON object"}},
		{"a key that is not known", nadWith(`{}`, ipamAnnotation, "dhcp", configAnnotation, `{"hostnam":""}`), "", []string{"annotation dhcp-meta.io/config: dhcp.hostnam: unknown key"}},
		{"a key that is there twice", nadWith(`{}`, ipamAnnotation, "dhcp", configAnnotation, `{"hostname":"","hostname":""}`), "", []string{"is there twice"}},
		{"a key of the plugin", nadWith(`{}`, ipamAnnotation, "dhcp", configAnnotation, `{"socket":"/run/x.sock"}`), "", []string{"socket can stand in spec.config only"}},
		{"a configuration that is no JSON", nadWith(`{"type":`, ipamAnnotation, "dhcp"), "", []string{"spec.config: is no JSON object"}},
		{"a plugin that is none", nadWith(`{"plugins":[1]}`, ipamAnnotation, "dhcp"), "", []string{"spec.config: a plugin in it"}},
		{"a delegate that is none", nadWith(`{"plugins":[{"delegate":{"type":1}}]}`, ipamAnnotation, "dhcp"), "", []string{"delegate of a plugin in it"}},
		{
			"the name is missing", nadWith(`{"type":"ovn-k8s-cni-overlay"`+localnet+`}`, ipamAnnotation, "dhcp"), "",
			[]string{`netAttachDefName is missing: OVN-Kubernetes wants it to be "lab/office"`},
		},
		{
			"another name", nadWith(`{"type":"ovn-k8s-cni-overlay","netAttachDefName":"a/b"`+localnet+`}`, ipamAnnotation, "dhcp"), "",
			[]string{`netAttachDefName is "a/b"`},
		},
		{
			"asks for an address itself", nadWith(ovnConf(localnet+`,"ipam":{"type":"dhcp"}`), ipamAnnotation, "dhcp"), "",
			[]string{`ipam.type is "dhcp"`, "only one of them can"},
		},
		{
			"all at once", nadWith(`{"type":"dhcp-meta","plugins":[{"type":"ovn-k8s-cni-overlay","topology":"layer2","subnets":"10.1.0.0/16"}]}`, ipamAnnotation, "yes"), "",
			[]string{`dhcp-meta.io/ipam is "yes"`, "netAttachDefName is missing", layer2Refused, subnetsForbidden},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := define(tt.nad, json.RawMessage(tt.inline))
			refused(t, err, append(tt.want, "NetworkAttachmentDefinition lab/office: ")...)
		})
	}
}

// refused wants an error with api.CodeConfig whose text has all of want.
func refused(t *testing.T, err error, want ...string) {
	t.Helper()
	if err == nil {
		t.Fatalf("no error; want one that says %q", want)
	}
	if code := api.CodeOf(err); code != api.CodeConfig {
		t.Errorf("code %d, want %d", code, api.CodeConfig)
	}
	for _, w := range want {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("%q does not say %q", err, w)
		}
	}
}

// A mark has one value, as ipam.mode has three and no other.
func TestK20MarkHasOneValue(t *testing.T) {
	for _, value := range []string{"", "DHCP", "Enabled", "Disabled", "dhcp ", "none"} {
		_, err := define(nadWith(ovnConf(localnet), ipamAnnotation, value), nil)
		refused(t, err, ipamAnnotation)
	}
	if _, err := define(nadWith(ovnConf(localnet), ipamAnnotation, "dhcp"), nil); err != nil {
		t.Error(err)
	}
}

func TestK21SubnetsAreForbidden(t *testing.T) {
	for _, subnets := range []string{`"10.1.0.0/16"`, `"10.1.0.0/16,fd00::/64"`, `["10.1.0.0/16"]`} {
		_, err := define(nadWith(ovnConf(localnet+`,"subnets":`+subnets), ipamAnnotation, "dhcp"), nil)
		refused(t, err, "Subnets is forbidden when ipam.mode is DHCP; addresses are assigned by the external DHCP server")
	}
}

func TestK22RoleIsSecondary(t *testing.T) {
	for _, where := range []string{`,"topology":"localnet","role":"primary"`, `,"topology":"layer3","role":"secondary"`, ``} {
		_, err := define(nadWith(ovnConf(where), ipamAnnotation, "dhcp"), nil)
		refused(t, err, "DHCP ipam.mode is only supported for Localnet Secondary networks")
	}
}

func TestK23Layer2IsRefused(t *testing.T) {
	_, err := define(nadWith(ovnConf(`,"topology":"layer2"`), ipamAnnotation, "dhcp"), nil)
	refused(t, err, "DHCP ipam.mode is not supported for Layer2 topology, use Localnet topology instead")
}

// Networks without a mark are nobody's business, whatever they say.
func TestK24K30UnmarkedNetworksAreLeftAlone(t *testing.T) {
	for _, conf := range []string{
		ovnConf(`,"topology":"layer2","subnets":"10.1.0.0/16"`),
		ovnConf(`,"topology":"localnet","role":"primary","subnets":"10.1.0.0/16","ipam":{"type":"x"}`),
		ovnConf(localnet + `,"subnets":"10.1.0.0/16"`),
		ovnConf(localnet),
		`{"type":"ovn-k8s-cni-overlay","topology":"layer3"}`,
	} {
		nad := nadWith(conf)
		if annotated(nad) {
			t.Errorf("marked: %s", conf)
		}
		if d, err := define(nad, nil); err != nil || d.settings != nil {
			t.Errorf("%s: settings %s, error %v", conf, d.settings, err)
		}
	}
}

// A half mark is a mark: it is refused with a reason later, not passed over.
func TestAnnotated(t *testing.T) {
	for _, tt := range []struct {
		nad  *nadv1.NetworkAttachmentDefinition
		want bool
	}{
		{nadWith(`{}`), false},
		{nadWith(`{}`, "k8s.v1.cni.cncf.io/resourceName", "x"), false},
		{nadWith(`{}`, ipamAnnotation, "dhcp"), true},
		{nadWith(`{}`, ipamAnnotation, "dhpc"), true},
		{nadWith(`{}`, configAnnotation, "{}"), true},
		{nadWith(ovnConf(`,"ipam":{"type":"dhcp"}`), configAnnotation, "{}"), false},
		{nadWith(ovnConf(`,"ipam":{"type":"dhcp"}`), configAnnotation, "{}", ipamAnnotation, "dhcp"), true},
		{nadWith(ovnConf(`,"ipam":{"type":"x"}`), configAnnotation, "{}"), true},
		{nadWith(ovnConf(`,"ipam":"dhcp"`), configAnnotation, "{}"), true},
	} {
		if got := annotated(tt.nad); got != tt.want {
			t.Errorf("%v: %v", tt.nad.Annotations, got)
		}
	}
}

func FuzzDefine(f *testing.F) {
	f.Add(ovnConf(localnet), "dhcp", `{"hostname":"x"}`, `{}`)
	f.Add(`{"type":"dhcp-meta","plugins":[`+ovnConf(localnet)+`]}`, "dhcp", "", "")
	f.Add(`{"plugins":[{"type":"dhcp-meta","delegate":{"type":"macvlan","dhcp":{"hostname":""}}}]}`, "x", "null", "null")
	f.Add(`{"type":"a","delegate":{"delegate":{"delegate":{}}},"plugins":null}`, "dhcp", "[]", "{")
	f.Fuzz(func(t *testing.T, conf, ipam, config, inline string) {
		nad := nadWith(conf, ipamAnnotation, ipam, configAnnotation, config)
		d, err := define(nad, json.RawMessage(inline))
		if err != nil && api.CodeOf(err) != api.CodeConfig {
			t.Errorf("code %d: %v", api.CodeOf(err), err)
		}
		if err == nil && (!isObject(d.settings) || ipam != "dhcp") {
			t.Errorf("taken: mark %q, settings %q", ipam, d.settings)
		}
	})
}
