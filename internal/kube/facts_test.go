package kube

import (
	"errors"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/dhcp-meta/dhcp-meta/internal/kube/podnetworks"
	"github.com/dhcp-meta/dhcp-meta/pkg/engine"
	"github.com/dhcp-meta/dhcp-meta/pkg/engine/api"
)

func attachment(ifName, nad string) engine.Attachment {
	a := engine.Attachment{NAD: nad, Pod: engine.Pod{Namespace: "pods", Name: "web", UID: "u1"}}
	a.IfName = ifName
	return a
}

func TestQuestion(t *testing.T) {
	pod := podWith(nil, map[string]string{
		podnetworks.NetworksKey:            `[{"name":"office","namespace":"lab","ips":["10.0.0.8"]},{"name":"lan","interface":"x"}]`,
		"office.lab.dhcp-meta.io/hostname": "web",
		"lan.pods.dhcp-meta.io/hostname":   "lan-web",
	})
	for _, tt := range []struct {
		name, ifName, nad string
		wantNAD           string
		selected          bool
		overlay           string
	}{
		{"by the interface", "net1", "", "lab/office", true, `{"address":"10.0.0.8","hostname":"web"}`},
		{"by the interface's name", "x", "", "pods/lan", true, `{"hostname":"lan-web"}`},
		{"the caller and the pod agree", "net1", "lab/office", "lab/office", true, `{"address":"10.0.0.8","hostname":"web"}`},
		{"the caller knows better", "net1", "pods/lan", "pods/lan", false, `{"hostname":"lan-web"}`},
		{"an interface that the pod does not ask for", "net9", "", "", false, ""},
		{"the same, and the caller knows", "net9", "lab/office", "lab/office", false, `{"hostname":"web"}`},
	} {
		q, err := question(attachment(tt.ifName, tt.nad), pod)
		if err != nil {
			t.Errorf("%s: %v", tt.name, err)
			continue
		}
		dhcp, err := q.overlay.over(nil)
		if q.nad != tt.wantNAD || (q.selection != nil) != tt.selected || string(dhcp) != tt.overlay || err != nil {
			t.Errorf("%s: nad %q, selection %v, overlay %s, %v", tt.name, q.nad, q.selection, dhcp, err)
		}
	}
}

// Settings of a network of another namespace go by that namespace, not by the
// pod's.
func TestQ25SettingsGoByTheNetworksNamespace(t *testing.T) {
	pod := podWith(nil, map[string]string{
		podnetworks.NetworksKey:            "lab/office",
		"office.pods.dhcp-meta.io/address": "10.0.0.7",
		"office.lab.dhcp-meta.io/address":  "10.0.0.8",
	})
	q, err := question(attachment("net1", ""), pod)
	if err != nil {
		t.Fatal(err)
	}
	if dhcp, _ := q.overlay.over(nil); q.nad != "lab/office" || string(dhcp) != `{"address":"10.0.0.8"}` {
		t.Errorf("nad %s, %s", q.nad, dhcp)
	}
}

func TestServable(t *testing.T) {
	c := &Cluster{node: "n1"}
	if err := c.servable(podWith(nil, nil)); err != nil {
		t.Error(err)
	}
	host := podWith(nil, nil)
	host.Spec.HostNetwork = true
	refused(t, c.servable(host), "pod pods/web uses the network of its host")

	for node, want := range map[string]string{"": "on no node yet", "n2": "is on node n2, says the Kubernetes API, and this engine was told --node-name n1"} {
		pod := podWith(nil, nil)
		pod.Spec.NodeName = node
		err := c.servable(pod)
		if err == nil || api.CodeOf(err) != api.CodeTryAgain || !strings.Contains(err.Error(), want) {
			t.Errorf("node %q: %v", node, err)
		}
	}
}

// A pod that was made again under its name is another one; a static pod has one
// UID at the runtime and another in the API.
func TestP16IsPod(t *testing.T) {
	static := podWith(nil, map[string]string{mirrorAnnotation: "hash"})
	for _, tt := range []struct {
		pod  *corev1.Pod
		uid  string
		want bool
	}{
		{podWith(nil, nil), "u1", true},
		{podWith(nil, nil), "u2", false},
		{podWith(nil, nil), "", true}, // an old runtime tells none
		{static, "hash", true},
		{static, "u1", true},
		{static, "u2", false},
	} {
		if got := isPod(tt.pod, engine.Pod{UID: tt.uid}); got != tt.want {
			t.Errorf("uid %q: %v", tt.uid, got)
		}
	}
	if got := identityOf(static).UID; got != "hash" {
		t.Errorf("a static pod is known by %q", got)
	}
}

func TestPublishedMAC(t *testing.T) {
	const annotation = `{"default":{"mac_address":"0a:58:0a:f4:00:07"},` +
		`"lab/office":{"ip_addresses":null,"mac_address":"0a:58:00:00:00:01","role":"secondary"},` +
		`"lab/office/1":{"mac_address":"0a:58:00:00:00:02"},"lab/none":{},"lab/bad":{"mac_address":"x"},"lab/list":[],"lab/eui":{"mac_address":"00:00:5e:00:53:01:02:03"},"lab/ips":{"ip_addresses":["x"],"mac_address":"0a:58:00:00:00:03"}}`
	for _, tt := range []struct {
		nad  string
		nth  int
		want string
		err  string
	}{
		{"lab/office", 0, "0a:58:00:00:00:01", ""},
		{"lab/office", 1, "0a:58:00:00:00:02", ""},
		{"lab/office", 2, "", ""},
		{"lab/other", 0, "", ""},
		{"lab/none", 0, "", ""},
		{"lab/bad", 0, "", "lab/bad"},
		{"lab/eui", 0, "", "entry lab/eui: 00:00:5e:00:53:01:02:03 is no Ethernet address"},
		{"lab/ips", 0, "0a:58:00:00:00:03", ""},
		{"lab/list", 0, "", "lab/list"},
	} {
		mac, err := publishedMAC(annotation, tt.nad, tt.nth)
		if mac.String() != tt.want || (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) {
			t.Errorf("%s %d: %s, %v", tt.nad, tt.nth, mac, err)
		}
	}
	if _, err := publishedMAC("{", "a/b", 0); err == nil {
		t.Error("{ was taken for JSON")
	}
	if mac, err := publishedMAC("", "a/b", 0); mac != nil || err != nil {
		t.Errorf("no annotation: %s, %v", mac, err)
	}
}

func FuzzPublishedMAC(f *testing.F) {
	f.Add(`{"a/b":{"mac_address":"0a:58:00:00:00:01"}}`, 0)
	f.Add(`{"a/b/1":{"mac_address":"00-00-5e-00-53-01-02-03"}}`, 1)
	f.Add(`{"a/b":null}`, 0)
	f.Fuzz(func(t *testing.T, annotation string, nth int) {
		if mac, err := publishedMAC(annotation, "a/b", nth); err == nil && mac != nil && len(mac) != 6 {
			t.Errorf("%s", mac)
		}
	})
}

func TestParseMAC(t *testing.T) {
	for _, text := range []string{"", "x", "02:00:00:00:00", "00:00:5e:00:53:01:02:03"} {
		if mac, err := parseMAC(text); !errors.Is(err, errNoEthernet) {
			t.Errorf("%q: %s, %v", text, mac, err)
		}
	}
}

func TestSelected(t *testing.T) {
	list, err := podnetworks.Selections("a,b@net1,c@x", "pods")
	if err != nil {
		t.Fatal(err)
	}
	// The first of two that have one name is the one whose interface there is.
	for ifName, want := range map[string]string{"net1": "pods/a", "x": "pods/c"} {
		if s := selected(list, ifName); s == nil || s.NAD != want {
			t.Errorf("%s: %v, want %s", ifName, s, want)
		}
	}
	if s := selected(list, "eth0"); s != nil {
		t.Errorf("eth0: %v", s)
	}
}
