package doctor

import (
	"testing"

	nadv1 "github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/apis/k8s.cni.cncf.io/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A network is held against what an ADD on it does, in all forms.
func TestNetworks(t *testing.T) {
	const (
		head     = `{"cniVersion":"1.0.0","name":"n",`
		ours     = head + `"type":"dhcp-meta",`
		macv     = `"delegate":{"type":"macvlan"}`
		localnet = head + `"type":"ovn-k8s-cni-overlay","topology":"localnet"`
	)
	marked := map[string]string{"dhcp-meta.io/ipam": "dhcp"}
	for name, tt := range map[string]struct {
		config string
		marks  map[string]string
		ours   bool
		want   Level // of network-wrong; empty: well
	}{
		"wrapping":                    {ours + macv + `}`, nil, true, ""},
		"no name":                     {`{"cniVersion":"1.0.0","type":"dhcp-meta",` + macv + `}`, nil, true, ""},
		"in a file":                   {"", nil, false, ""},
		"behind another":              {head + `"plugins":[{"type":"macvlan"},{"type":"dhcp-meta"}]}`, nil, true, ""},
		"before another":              {head + `"plugins":[{"type":"dhcp-meta"},{"type":"tuning"}]}`, nil, true, Error},
		"nothing to wrap":             {ours + `"dhcp":{}}`, nil, true, Error},
		"wraps a name":                {ours + `"delegate":"macvlan"}`, nil, true, Error},
		"wraps no list":               {ours + `"plugins":{}}`, nil, true, Error},
		"dhcp is a word":              {ours + macv + `,"dhcp":"always"}`, nil, true, Error},
		"dhcp is a list":              {ours + macv + `,"dhcp":[]}`, nil, true, Error},
		"dhcp is a word inside":       {ours + `"delegate":{"type":"macvlan","dhcp":true}}`, nil, true, Error},
		"dhcp is a word in a list":    {head + `"plugins":[{"type":"macvlan"},{"type":"dhcp-meta","dhcp":1}]}`, nil, true, Error},
		"another's dhcp is a word":    {localnet + `,"netAttachDefName":"shop/n","dhcp":"always"}`, nil, false, Warning},
		"another's dhcp is null":      {localnet + `,"netAttachDefName":"shop/n","dhcp":null}`, nil, false, ""},
		"marked, and dhcp is a word":  {localnet + `,"netAttachDefName":"shop/n","dhcp":"always"}`, marked, true, Error},
		"old version":                 {`{"cniVersion":"0.2.0","name":"n","type":"dhcp-meta",` + macv + `}`, nil, true, Error},
		"no version":                  {`{"name":"n","type":"dhcp-meta",` + macv + `}`, nil, true, Error},
		"old version of a list":       {`{"cniVersion":"0.2.0","name":"n","plugins":[{"type":"macvlan"},{"type":"dhcp-meta"}]}`, nil, true, Error},
		"old version of another's":    {`{"cniVersion":"0.2.0","name":"n","type":"macvlan"}`, nil, false, ""},
		"cut short":                   {ours + `"delegate":`, nil, true, Error},
		"cut short, marked":           {`{"type":`, marked, true, Error},
		"cut short, another's":        {`{"type":"macvlan"`, nil, false, ""},
		"no type":                     {head + macv + `,"dhcp":{}}`, nil, true, Error},
		"empty list":                  {head + `"plugins":[]}`, marked, true, Error},
		"names itself":                {ours + `"netAttachDefName":"shop/n",` + macv + `}`, nil, true, ""},
		"names none there is":         {ours + `"netAttachDefName":"shop/gone",` + macv + `}`, nil, true, Error},
		"names another":               {ours + `"netAttachDefName":"shop/other",` + macv + `}`, nil, true, Warning},
		"names another inside":        {ours + `"delegate":{"type":"macvlan","netAttachDefName":"shop/other"}}`, nil, true, Warning},
		"names another that is wrong": {ours + `"netAttachDefName":"shop/bad",` + macv + `}`, nil, true, Error},
		"no namespace":                {ours + `"netAttachDefName":"n",` + macv + `}`, nil, true, Error},
		"marked":                      {localnet + `,"netAttachDefName":"shop/n"}`, marked, true, ""},
		"marked, no namespace":        {localnet + `,"netAttachDefName":"n"}`, marked, true, Error},
		"marked, not told":            {head + `"type":"bridge"}`, marked, true, Error},
		"marked, told of another":     {head + `"type":"bridge","netAttachDefName":"shop/other"}`, marked, true, Error},
		"marked, told":                {head + `"type":"bridge","netAttachDefName":"shop/n"}`, marked, true, ""},
		"marked, asks itself":         {head + `"type":"bridge","ipam":{"type":"dhcp"}}`, marked, true, ""},
		"an object, names none":       {head + `"type":"bridge","dhcp":{}}`, nil, true, ""},
		"an object, names none there": {head + `"type":"bridge","dhcp":{},"netAttachDefName":"shop/gone"}`, nil, true, Error},
	} {
		t.Run(name, func(t *testing.T) {
			nad := func(name, config string, marks map[string]string) definition {
				return define(&nadv1.NetworkAttachmentDefinition{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, Annotations: marks},
					Spec: nadv1.NetworkAttachmentDefinitionSpec{Config: config}})
			}
			d := nad("n", tt.config, tt.marks)
			e := examination{cluster: &cluster{networks: []definition{d, nad("other", ours+macv+"}", nil), nad("bad", ours+macv+"}", map[string]string{"dhcp-meta.io/ipam": "x"})}}}
			if d.ours != tt.ours {
				t.Errorf("ours is %v: %+v", d.ours, d)
			}
			found := e.judgeADD(d)
			if !d.ours {
				found = judgeMisread(d)
			}
			if tt.want == "" {
				finds(t, found)
				return
			}
			finds(t, found, NetworkWrong)
			if got := levels(found)[NetworkWrong]; got != tt.want {
				t.Errorf("level %s, want %s: %+v", got, tt.want, found)
			}
		})
	}
}
