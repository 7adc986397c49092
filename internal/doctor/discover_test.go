package doctor

import (
	"errors"
	"testing"

	nadv1 "github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/apis/k8s.cni.cncf.io/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine/api"
)

func TestOffers(t *testing.T) {
	one := api.Offer{Server: "10.77.0.1", Address: "10.77.0.50/24"}
	other := api.Offer{Server: "10.77.0.9", Address: "10.77.0.90/24"}
	finds(t, judgeOffers("a/b", "net1", api.ProbeReport{Offers: []api.Offer{one, one}}))
	finds(t, judgeOffers("a/b", "net1", api.ProbeReport{Offers: []api.Offer{one, other}}), DiscoverTwoServer)
	finds(t, judgeOffers("a/b", "net1", api.ProbeReport{Hint: "nothing came back"}), DiscoverSilent)
	one.Problem = "no mask"
	finds(t, judgeOffers("a/b", "net1", api.ProbeReport{Offers: []api.Offer{one}}), DiscoverUnusable)
}

// A DISCOVER is sent where an address is given by us, and nowhere else.
func TestDiscoverOnANamedNetwork(t *testing.T) {
	asking := []pluginConf{{Type: "bridge"}}
	asking[0].IPAM.Type = ipamType
	c := &cluster{networks: []definition{{name: "a/ours", ours: true}, {name: "a/asks", plugins: asking}, {name: "a/plain", plugins: []pluginConf{{Type: "bridge"}}}}}
	for _, tt := range []struct {
		name, dhcpSocket string
		want             []ID
	}{
		{"a/ours", "", nil},
		{"a/asks", "/run/cni/dhcp.sock", nil},
		{"a/asks", "", []ID{DiscoverUnmarked}},
		{"a/plain", "/run/cni/dhcp.sock", []ID{DiscoverUnmarked}},
		{"a/none", "", []ID{DiscoverUnknown}},
	} {
		t.Run(tt.name+" "+tt.dhcpSocket, func(t *testing.T) {
			e := examination{cfg: Config{DHCPSocket: tt.dhcpSocket}, cluster: c}
			finds(t, e.judgeNamed(tt.name), tt.want...)
		})
	}
}

// A network may be named as its configuration calls it, if that is clear.
func TestDiscoverOnANetworkByItsOwnName(t *testing.T) {
	named := func(name, config string) nadv1.NetworkAttachmentDefinition { return nad(name, config, nil) }
	defined := &cluster{networks: defineAll([]nadv1.NetworkAttachmentDefinition{
		named("office", `{"cniVersion":"1.0.0","name":"office-lan","type":"dhcp-meta",`+macv+`}`), named("nameless", `{"cniVersion":"1.0.0","type":"dhcp-meta",`+macv+`}`),
		named("a", head+`"type":"dhcp-meta",`+macv+`}`), named("b", head+`"type":"dhcp-meta",`+macv+`}`), named("file", ""), named("cut", `{`),
	})}
	unknown := &cluster{networkErr: errors.New("forbidden")}
	kept := func(pairs ...string) (all []attachment) {
		for i := 0; i < len(pairs); i += 2 {
			all = append(all, attachment{Network: pairs[i], NAD: pairs[i+1], State: "BOUND"})
		}
		return all
	}
	for name, tt := range map[string]struct {
		cluster     *cluster
		attachments []attachment
		network     string
		want        string
		found       []ID
		on          bool // that an attachment is found
	}{
		"its own name":            {defined, kept("office-lan", "shop/office"), "office-lan", "shop/office", nil, true},
		"its definition":          {defined, kept("office-lan", "shop/office"), "shop/office", "shop/office", nil, true},
		"none in it":              {defined, nil, "nameless", "shop/nameless", nil, false},
		"in a file":               {defined, nil, "file", "shop/file", []ID{DiscoverUnmarked}, false},
		"several":                 {defined, nil, "n", "", []ID{DiscoverUnknown}, false},
		"nobody's":                {defined, kept("lab", "shop/lab"), "lab", "lab", []ID{DiscoverUnknown}, true},
		"no cluster":              {nil, kept("office-lan", "shop/office", "office-lan", "shop/office"), "office-lan", "office-lan", nil, true},
		"no cluster, no other":    {nil, kept("office-lan", ""), "office-lan", "office-lan", nil, true},
		"no cluster, several":     {nil, kept("office-lan", "shop/office", "office-lan", "depot/office"), "office-lan", "", []ID{DiscoverUnknown}, false},
		"no cluster, nobody's":    {nil, kept("office-lan", "shop/office"), "office", "office", nil, false},
		"definitions not read":    {unknown, kept("office-lan", "shop/office"), "office-lan", "office-lan", nil, true},
		"definitions, by another": {unknown, kept("office-lan", "shop/office"), "shop/office", "shop/office", nil, true},
	} {
		t.Run(name, func(t *testing.T) {
			e := examination{cluster: tt.cluster, attachments: tt.attachments}
			got, found := e.called(tt.network)
			if got != tt.want {
				t.Errorf("it is %q, want %q", got, tt.want)
			}
			if found == nil {
				found = e.judgeNamed(got)
			}
			finds(t, found, tt.found...)
			if _, on := e.attachmentOn(got); on != tt.on {
				t.Errorf("an attachment is on it: %v, want %v", on, tt.on)
			}
		})
	}
}

// The interface on a network is known by what the engine has of it, or by what Multus
// wrote on its pod.
func TestAttachmentOnANetwork(t *testing.T) {
	pod := func(status string) *cluster {
		p := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "p", Annotations: map[string]string{nadv1.NetworkStatusAnnot: status}}}
		return &cluster{pods: []corev1.Pod{{ObjectMeta: metav1.ObjectMeta{Namespace: "b", Name: "p"}}, p}}
	}
	of := func(nad, state string) attachment {
		a := attachment{NAD: nad, State: state}
		a.Network, a.IfName, a.Pod.Namespace, a.Pod.Name = "office", "net1", "a", "p"
		return a
	}
	const here = `[{"name":"a/office","interface":"net1"}]`
	for name, tt := range map[string]struct {
		cluster     *cluster
		attachments []attachment
		want        string // its state; empty: none
	}{
		"its definition":               {nil, []attachment{of("a/office", "BOUND")}, "BOUND"},
		"its definition, no status":    {pod(""), []attachment{of("a/office", "SELECTING")}, "SELECTING"},
		"its definition, another's":    {pod(`[{"name":"a/other","interface":"net1"}]`), []attachment{of("a/office", "BOUND")}, "BOUND"},
		"another definition":           {pod(""), []attachment{of("a/other", "BOUND")}, ""},
		"the status of its pod":        {pod(here), []attachment{of("", "BOUND")}, "BOUND"},
		"the status of its other link": {pod(`[{"name":"a/office","interface":"net2"}]`), []attachment{of("", "BOUND")}, ""},
		"a pod that is not known":      {&cluster{}, []attachment{of("", "BOUND")}, ""},
		"the name of the network":      {nil, []attachment{of("", "BOUND")}, "BOUND"},
		"one with a lease first":       {nil, []attachment{of("a/office", "SELECTING"), of("a/office", "BOUND"), of("a/office", "SELECTING")}, "BOUND"},
	} {
		t.Run(name, func(t *testing.T) {
			e := examination{cluster: tt.cluster, attachments: tt.attachments}
			a, ok := e.attachmentOn("a/office")
			if ok != (tt.want != "") || a.State != tt.want {
				t.Errorf("%v, %+v; want %q", ok, a, tt.want)
			}
		})
	}
}
