package cluster

import (
	"encoding/json"
	"net/netip"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/dhcp-meta/dhcp-meta/tests/rig"
	"github.com/dhcp-meta/dhcp-meta/tests/rig/kube"
)

// A network as a ClusterUserDefinedNetwork makes it, one plugin and no list, serves
// a container and a virtual machine, and is after that what it was before, to the
// resource version. Nobody but us writes the address that the server gave: it is in
// the pod's entry and in its network status, and whatever else there is in the
// annotation stays as it is, byte for byte, until the entry is as before at DEL.
func TestK26K27B60OneNetworkForAllAndItsAddressIsWritten(t *testing.T) {
	t.Parallel()
	l := newLab(t, kube.Multus{Interposed: true})
	server := rig.StartDnsmasq(t, l.Server, rig.Pool(0, 0))
	nad := l.ns + "/site"
	config := localnet(nad, nil)
	if _, list := config["plugins"]; list || config["topology"] != "localnet" || config["role"] != "secondary" || config["physicalNetworkName"] == nil {
		t.Fatalf("not what OVN-Kubernetes makes: %v", config)
	}
	made := l.kube.NAD(t, l.ns, "site", config, map[string]string{"dhcp-meta.io/ipam": "dhcp"})

	const foreign = `{ "default":{"ip_addresses":["10.244.0.5/24"],"mac_address":"0a:58:0a:f4:00:05","n":1.0} , "`
	const other = `"infra/other" : {"mac_address":"0a:58:0a:f4:00:06","ip_address":"10.9.0.1\/8"}, "x":{}}`
	// The VM comes last: what the server holds for its guest stays there.
	for _, tt := range []struct {
		name   string
		labels map[string]string
	}{{"container", nil}, {"VM", map[string]string{"kubevirt.io": "virt-launcher"}}} {
		name, labels := tt.name, tt.labels
		before := foreign + nad + `":{"ip_addresses":null,"mac_address":"02:00:00:00:60:01","role":"secondary","unknown":[1, 2]},` + other
		s := l.sandbox(t, kube.PodSpec{Networks: "site", Labels: labels, Annotations: map[string]string{podNetworks: before}})
		s.Add(t)
		ips := s.StatusOf(t, "net1").IPs
		if len(ips) != 1 {
			t.Fatalf("%s: network status has %v", name, ips)
		}
		addr := netip.MustParseAddr(ips[0])
		mac := s.HardwareAddr(t, "net1").String()
		server.AwaitHeld(t, "the lease that is reported", rig.Holds(s.HardwareAddr(t, "net1"), addr))
		if have := s.Addresses(t, "net1"); (len(have) > 0) != (labels == nil) {
			t.Errorf("%s: net1 (%s) carries %v", name, mac, have)
		}

		now := annotation(l.kube.GetPod(t, l.ns, s.Pod), podNetworks)
		ours, ok := strings.CutPrefix(now, foreign+nad+`":`)
		ours, ok2 := strings.CutSuffix(ours, ","+other)
		if !ok || !ok2 {
			t.Fatalf("%s: something else has changed: %s", name, now)
		}
		var e struct {
			Addresses []string `json:"ip_addresses"`
			MAC       string   `json:"mac_address"`
			Gateways  []string `json:"gateway_ips"`
			Mode      string   `json:"ipam_mode"`
			Role      string   `json:"role"`
		}
		if err := json.Unmarshal([]byte(ours), &e); err != nil {
			t.Fatal(err)
		}
		if len(e.Addresses) != 1 || e.Addresses[0] != addr.String()+"/24" || e.MAC != "02:00:00:00:60:01" || len(e.Gateways) != 1 ||
			e.Gateways[0] != rig.ServerAddr.Addr().String() || e.Mode != "dhcp" || e.Role != "secondary" || !strings.Contains(ours, `"unknown":[1, 2]`) {
			t.Errorf("%s: %s says %s", name, nad, ours)
		}

		s.Del(t)
		if labels == nil {
			server.AwaitHeld(t, "empty", rig.Nothing)
		}
		if after := annotation(l.kube.GetPod(t, l.ns, s.Pod), podNetworks); after != before {
			t.Errorf("%s: after DEL\n%s\nwant\n%s", name, after, before)
		}
	}
	now, err := l.kube.NADs.K8sCniCncfIoV1().NetworkAttachmentDefinitions(l.ns).Get(t.Context(), "site", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if now.ResourceVersion != made.ResourceVersion || now.Spec.Config != made.Spec.Config {
		t.Errorf("the network was written: %s", now.Spec.Config)
	}
}
