package kube

import (
	"errors"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/dhcp-meta/dhcp-meta/internal/kube/podnetworks"
	"github.com/dhcp-meta/dhcp-meta/pkg/engine"
)

func TestOwner(t *testing.T) {
	const first, second = "0a:58:00:00:00:01", "0a:58:00:00:00:02"
	pod := func(name, networks, ovn string) *corev1.Pod {
		p := podWith(nil, map[string]string{podnetworks.NetworksKey: networks, podnetworks.OVNKey: ovn})
		p.Name = name
		return p
	}
	entry := func(key, mac string) string { return `{"` + key + `":{"mac_address":"` + mac + `"}}` }
	over := pod("over", "lab/office", entry("lab/office", first))
	over.Status.Phase = corev1.PodSucceeded
	web := pod("web", "lab/office", entry("lab/office", first))
	errAPI := errors.New("the API is away")
	names := map[string]string{"lab/office": "office-lan", "lab/other": "other-lan", "pods/office": "office-lan"}
	for _, tt := range []struct {
		name    string
		pods    []*corev1.Pod
		ifName  string
		network string
		pod     string
		nad     string
		err     string
	}{
		{"its pod", []*corev1.Pod{pod("no", "lab/office", entry("lab/office", second)), web}, "net1", "office-lan", "web", "lab/office", ""},
		{"the second interface on a network", []*corev1.Pod{pod("web", "lab/office,lab/office", entry("lab/office/1", first))}, "net2", "office-lan", "web", "lab/office", ""},
		{"a network of the pod's namespace", []*corev1.Pod{pod("web", "office", entry("pods/office", first))}, "net1", "office-lan", "web", "pods/office", ""},
		{"pods that are over have no interface", []*corev1.Pod{over, web}, "net1", "office-lan", "web", "lab/office", ""},
		{"annotations that cannot be read are no pod's", []*corev1.Pod{pod("no", `[{`, "{"), pod("no", "lab/office", "{"), web}, "net1", "office-lan", "web", "lab/office", ""},
		{"no pod", nil, "net1", "office-lan", "", "", "no pod of this node has " + first + " on net1"},
		{"no annotation yet", []*corev1.Pod{pod("web", "lab/office", "")}, "net1", "office-lan", "", "", "no pod of this node"},
		{"another interface", []*corev1.Pod{web}, "net2", "office-lan", "", "", "no pod of this node"},
		{"another network", []*corev1.Pod{web}, "net1", "other-lan", "", "", "no pod of this node"},
		{"a network that is gone", []*corev1.Pod{pod("web", "lab/gone", entry("lab/gone", first))}, "net1", "office-lan", "", "", "no pod of this node"},
		{"two pods", []*corev1.Pod{web, pod("web-2", "pods/office", entry("pods/office", first))}, "net1", "office-lan", "", "", "pods pods/web and pods/web-2 both have " + first},
		{"networks that cannot be asked for", []*corev1.Pod{pod("web", "lab/away", entry("lab/away", first))}, "net1", "office-lan", "", "", "the API is away"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			mac, err := parseMAC(first)
			if err != nil {
				t.Fatal(err)
			}
			a := engine.Attachment{Network: tt.network}
			a.IfName = tt.ifName
			got, nad, err := owner(tt.pods, a, mac, func(nad string) (string, error) {
				if nad == "lab/away" {
					return "", errAPI
				}
				return names[nad], nil
			})
			if tt.err != "" {
				if err == nil || !strings.Contains(err.Error(), tt.err) || errors.Is(err, engine.ErrNoPod) == errors.Is(err, errAPI) {
					t.Errorf("got %v, %v", got, err)
				}
				return
			}
			if err != nil || got.Name != tt.pod || nad != tt.nad {
				t.Errorf("got %v, %s, %v", got, nad, err)
			}
		})
	}
}

func TestNetworkName(t *testing.T) {
	for config, want := range map[string]string{`{"name":"office-lan"}`: "office-lan", `{"type":"x"}`: "office", "": "office", "{": "office"} {
		if got := networkName(nadWith(config)); got != want {
			t.Errorf("%q: %s, want %s", config, got, want)
		}
	}
}
