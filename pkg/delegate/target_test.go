package delegate

import (
	"context"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine/api"
)

// K59, P21: the delegate's interfaces in its order, and the lease on the container's.
func TestK59P21ResultOfOVN(t *testing.T) {
	r := newOVN(t)
	r.engine.lease.HardwareAddr = "0a:58:0a:4d:00:09"
	r.engine.lease.Routes = []api.Route{{Dst: "10.0.0.0/8", Gateway: "10.77.0.1"}}
	r.engine.lease.DNS = api.DNS{Nameservers: []string{"10.77.0.1"}}
	r.must(r.plugin.Add)
	want := `{"cniVersion":"1.0.0",
	  "interfaces":[{"name":"0123456789abcde_1","mac":"0a:58:00:00:00:02"},{"name":"net1","mac":"0a:58:0a:4d:00:09","sandbox":"/run/netns/a"}],
	  "ips":[{"interface":1,"address":"10.77.0.50/24","gateway":"10.77.0.1"}],
	  "routes":[{"dst":"10.0.0.0/8","gw":"10.77.0.1"}],"dns":{"nameservers":["10.77.0.1"]}}`
	if diff := cmp.Diff(reformat(t, []byte(want)), reformat(t, r.stdout.Bytes())); diff != "" {
		t.Errorf("result (-want +got):\n%s", diff)
	}
}

// Addresses that OVN-Kubernetes had from an earlier lease are not on the interface any
// longer, and so not in the result, with the routes over their gateways.
func TestStrippedAddressesLeaveTheResult(t *testing.T) {
	r := newOVN(t)
	r.exec.on["ADD"] = func(context.Context, run) (string, error) {
		return `{"cniVersion":"1.0.0","interfaces":[{"name":"net1","mac":"0a:58:0a:4d:00:09","sandbox":"/run/netns/a"}],
		  "ips":[{"interface":0,"address":"10.77.0.9/24","gateway":"10.77.0.1"},{"interface":0,"address":"10.77.0.10/24"},{"interface":0,"address":"fd00::5/64","gateway":"fd00::1"}],
		  "routes":[{"dst":"10.0.0.0/8","gw":"10.77.0.1"},{"dst":"172.16.0.0/12","gw":"10.77.0.7"},{"dst":"fd01::/64","gw":"fd00::1"},{"dst":"192.0.2.0/24"}],"dns":{}}`, nil
	}
	tests := []struct {
		name         string
		stripped     []string
		ips, routing string
	}{
		{"nothing", nil, `{"interface":0,"address":"10.77.0.9/24","gateway":"10.77.0.1"},{"interface":0,"address":"10.77.0.10/24"},`,
			`{"dst":"10.0.0.0/8","gw":"10.77.0.1"},{"dst":"172.16.0.0/12","gw":"10.77.0.7"},`},
		{"one of two on the link", []string{"10.77.0.9/24"}, `{"interface":0,"address":"10.77.0.10/24"},`,
			`{"dst":"10.0.0.0/8","gw":"10.77.0.1"},{"dst":"172.16.0.0/12","gw":"10.77.0.7"},`},
		{"both", []string{"10.77.0.9/24", "10.77.0.10/24"}, "", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r.stdout.Reset()
			r.engine.lease = api.Lease{HardwareAddr: "0a:58:0a:4d:00:09", Address: "10.77.0.50/24", Gateway: "10.77.0.1", Stripped: tt.stripped}
			r.must(r.plugin.Add)
			want := `{"cniVersion":"1.0.0","interfaces":[{"name":"net1","mac":"0a:58:0a:4d:00:09","sandbox":"/run/netns/a"}],
			  "ips":[` + tt.ips + `{"interface":0,"address":"fd00::5/64","gateway":"fd00::1"},{"interface":0,"address":"10.77.0.50/24","gateway":"10.77.0.1"}],
			  "routes":[` + tt.routing + `{"dst":"fd01::/64","gw":"fd00::1"},{"dst":"192.0.2.0/24"}]}`
			if diff := cmp.Diff(reformat(t, []byte(want)), reformat(t, r.stdout.Bytes())); diff != "" {
				t.Errorf("result (-want +got):\n%s", diff)
			}
			r.must(r.plugin.Del)
		})
	}
}

// A device that is handed to the pod without an interface: plugins say that in
// different ways.
func TestResultsOfDevicesOnVFIO(t *testing.T) {
	const device = `"deviceID":"0000:03:02.1"`
	const added = `{"name":"net1","mac":"02:00:5e:00:53:01","sandbox":"/run/netns/a"}`
	tests := []struct {
		name, result, want string
	}{
		{"OVN-Kubernetes: its representor, and the name", `[{"name":"eth4_1","mac":"0a:58:00:00:00:02"},{"name":"net1","mac":"0a:58:0a:4d:00:09","sandbox":"/run/netns/a"}]`,
			`[{"name":"eth4_1","mac":"0a:58:00:00:00:02"},` + added + `]`},
		{"host-device, bound to a userspace driver: no MAC", `[{"name":"net1","sandbox":"/run/netns/a"}]`, `[` + added + `]`},
		{"no interface of the name", `[{"name":"eth4_1","mac":"0a:58:00:00:00:02"}]`, `[{"name":"eth4_1","mac":"0a:58:00:00:00:02"},` + added + `]`},
		{"no interface at all", `[]`, `[` + added + `]`},
	}
	for _, tt := range tests {
		t.Run("OK "+tt.name, func(t *testing.T) {
			r := newRig(t)
			r.start()
			r.conf("1.0.0", `"delegate":{"type":"macvlan"}`, device)
			raw := `{"cniVersion":"1.0.0","interfaces":` + tt.result + `,"dns":{}}`
			r.exec.on["ADD"] = func(context.Context, run) (string, error) { return raw, nil }
			r.must(r.plugin.Add)
			at := "0"
			if strings.Contains(tt.want, "eth4_1") {
				at = "1"
			}
			want := `{"cniVersion":"1.0.0","interfaces":` + tt.want + `,"ips":[{"interface":` + at + `,"address":"10.77.0.50/24","gateway":"10.77.0.1"}]}`
			if diff := cmp.Diff(reformat(t, []byte(want)), reformat(t, r.stdout.Bytes())); diff != "" {
				t.Errorf("result (-want +got):\n%s", diff)
			}
			// The delegate gets its own interfaces back, and no more.
			r.must(r.plugin.Del)
			got, err := decodeResult(r.exec.last().stdin["prevResult"], "1.0.0")
			if err != nil {
				t.Fatal(err)
			}
			if n := strings.Count(tt.result, "name"); len(got.Interfaces) != n {
				t.Errorf("the delegate's DEL got %d interfaces, want %d", len(got.Interfaces), n)
			}
		})
	}
	t.Run("bad without a device", func(t *testing.T) {
		r := newRig(t)
		r.start()
		r.exec.on["ADD"] = func(context.Context, run) (string, error) { return `{"cniVersion":"1.0.0","interfaces":[]}`, nil }
		r.mustFail(r.plugin.Add, api.CodeInternal)
		r.nothingLeft()
	})
}
