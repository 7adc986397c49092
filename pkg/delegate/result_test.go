package delegate

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine/api"
)

func testLease() api.Lease {
	return api.Lease{
		HardwareAddr: "02:00:5e:00:53:01",
		Address:      "10.77.0.50/24",
		Gateway:      "10.77.0.1",
		Routes: []api.Route{
			{Dst: "10.99.0.0/16", Gateway: "10.77.0.2", Metric: 300},
			{Dst: "169.254.1.0/24", Metric: 300},
		},
		DNS: api.DNS{Nameservers: []string{"10.77.0.3", "10.77.0.4"}, Domain: "site.example", Search: []string{"site.example"}},
		MTU: 1400,
	}
}

// reformat makes JSON comparable.
func reformat(t *testing.T, raw []byte) string {
	t.Helper()
	var v any
	if err := json.Unmarshal(raw, &v); err != nil {
		t.Fatalf("%v in %s", err, raw)
	}
	out, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

// TestB54LeaseInTheResult is about DNS reaching the result, and all the rest of
// the lease with it, in each version.
func TestB54LeaseInTheResult(t *testing.T) {
	const macvlan = `{"cniVersion":"1.0.0","interfaces":[{"name":"net1","mac":"02:00:00:00:00:09","sandbox":"/run/netns/a"}]}`
	tests := []struct {
		name    string
		version string
		own     string
		lease   func(*api.Lease)
		want    string
	}{
		{
			name: "OK 1.1.0 has MTU, metric and scope", version: "1.1.0", own: macvlan,
			want: `{"cniVersion":"1.1.0",
			  "interfaces":[{"name":"net1","mac":"02:00:5e:00:53:01","mtu":1400,"sandbox":"/run/netns/a"}],
			  "ips":[{"interface":0,"address":"10.77.0.50/24","gateway":"10.77.0.1"}],
			  "routes":[{"dst":"10.99.0.0/16","gw":"10.77.0.2","priority":300},{"dst":"169.254.1.0/24","priority":300,"scope":253}],
			  "dns":{"nameservers":["10.77.0.3","10.77.0.4"],"domain":"site.example","search":["site.example"]}}`,
		},
		{
			name: "OK 1.0.0 has none of them", version: "1.0.0", own: macvlan,
			want: `{"cniVersion":"1.0.0",
			  "interfaces":[{"name":"net1","mac":"02:00:5e:00:53:01","sandbox":"/run/netns/a"}],
			  "ips":[{"interface":0,"address":"10.77.0.50/24","gateway":"10.77.0.1"}],
			  "routes":[{"dst":"10.99.0.0/16","gw":"10.77.0.2"},{"dst":"169.254.1.0/24"}],
			  "dns":{"nameservers":["10.77.0.3","10.77.0.4"],"domain":"site.example","search":["site.example"]}}`,
		},
		{
			name: "OK 0.3.1 says which family an address has", version: "0.3.1", own: strings.Replace(macvlan, "1.0.0", "0.3.1", 1),
			lease: func(l *api.Lease) { l.Routes, l.DNS, l.Gateway = nil, api.DNS{}, "" },
			want: `{"cniVersion":"0.3.1","dns":{},
			  "interfaces":[{"name":"net1","mac":"02:00:5e:00:53:01","sandbox":"/run/netns/a"}],
			  "ips":[{"version":"4","interface":0,"address":"10.77.0.50/24"}]}`,
		},
		{
			name: "OK what the delegate gave stays in front", version: "1.0.0",
			own: `{"cniVersion":"1.0.0",
			  "interfaces":[{"name":"veth1","mac":"0a:00:00:00:00:01"},{"name":"net1","sandbox":"/run/netns/a"}],
			  "ips":[{"interface":1,"address":"fd00::5/64","gateway":"fd00::1"}],
			  "routes":[{"dst":"fd01::/64","gw":"fd00::1"}],
			  "dns":{"nameservers":["fd00::53","10.77.0.3"],"domain":"own.example","options":["ndots:1"]}}`,
			lease: func(l *api.Lease) { l.Routes = l.Routes[:1] },
			want: `{"cniVersion":"1.0.0",
			  "interfaces":[{"name":"veth1","mac":"0a:00:00:00:00:01"},{"name":"net1","mac":"02:00:5e:00:53:01","sandbox":"/run/netns/a"}],
			  "ips":[{"interface":1,"address":"fd00::5/64","gateway":"fd00::1"},{"interface":1,"address":"10.77.0.50/24","gateway":"10.77.0.1"}],
			  "routes":[{"dst":"fd01::/64","gw":"fd00::1"},{"dst":"10.99.0.0/16","gw":"10.77.0.2"}],
			  "dns":{"nameservers":["fd00::53","10.77.0.3","10.77.0.4"],"domain":"own.example","search":["site.example"],"options":["ndots:1"]}}`,
		},
		{
			name: "OK a result without its version", version: "1.0.0", own: `{"interfaces":[{"name":"net1","sandbox":"/run/netns/a"}]}`,
			lease: func(l *api.Lease) { *l = api.Lease{HardwareAddr: l.HardwareAddr, Address: l.Address} },
			want: `{"cniVersion":"1.0.0",
			  "interfaces":[{"name":"net1","mac":"02:00:5e:00:53:01","sandbox":"/run/netns/a"}],
			  "ips":[{"interface":0,"address":"10.77.0.50/24"}]}`,
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			own, err := decodeResult([]byte(tt.own), tt.version)
			if err != nil {
				t.Fatal(err)
			}
			before, err := encodeResult(own, "1.1.0")
			if err != nil {
				t.Fatal(err)
			}
			at, err := target(own, "net1", "/run/netns/a")
			if err != nil {
				t.Fatal(err)
			}
			lease := testLease()
			if tt.lease != nil {
				tt.lease(&lease)
			}
			merged, err := merge(own, at, lease, conf{version: tt.version})
			if err != nil {
				t.Fatal(err)
			}
			got, err := encodeResult(merged, tt.version)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(reformat(t, []byte(tt.want)), reformat(t, got)); diff != "" {
				t.Errorf("result (-want +got):\n%s", diff)
			}
			if !holdsAddress(merged, lease.Address) {
				t.Error("CHECK would not find the address in the result")
			}
			after, err := encodeResult(own, "1.1.0")
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(before), string(after)); diff != "" {
				t.Errorf("the delegate's own result was changed (-before +after):\n%s", diff)
			}
		})
	}
}

func TestMergeRefusesWhatIsNoLease(t *testing.T) {
	tests := []struct {
		name  string
		spoil func(*api.Lease)
		want  string
	}{
		{"bad no mask", func(l *api.Lease) { l.Address = "10.77.0.50" }, "address of the lease: invalid CIDR address: 10.77.0.50"},
		{"bad gateway", func(l *api.Lease) { l.Gateway = "router" }, `gateway of the lease: "router" is no address`},
		{"bad destination", func(l *api.Lease) { l.Routes[0].Dst = "x" }, "route of the lease: invalid CIDR address: x"},
		{"bad router", func(l *api.Lease) { l.Routes[0].Gateway = "x" }, `route of the lease to 10.99.0.0/16: "x" is no address`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			own, err := decodeResult([]byte(`{"interfaces":[{"name":"net1","sandbox":"/a"}]}`), "1.0.0")
			if err != nil {
				t.Fatal(err)
			}
			lease := testLease()
			tt.spoil(&lease)
			_, err = merge(own, 0, lease, conf{version: "1.0.0"})
			if diff := cmp.Diff(tt.want, text(err)); diff != "" {
				t.Errorf("error (-want +got):\n%s", diff)
			}
		})
	}
}

func TestTarget(t *testing.T) {
	tests := []struct {
		name       string
		interfaces string
		want       int
		err        string
	}{
		{name: "OK behind the host's side", interfaces: `[{"name":"veth1"},{"name":"net1","sandbox":"/run/netns/a"}]`, want: 1},
		{name: "OK a host interface of the same name", interfaces: `[{"name":"net1"},{"name":"net1","sandbox":"/run/netns/a"}]`, want: 1},
		{name: "OK the sandbox as in CNI_NETNS first", interfaces: `[{"name":"net1","sandbox":"/proc/7/ns/net"},{"name":"net1","sandbox":"/run/netns/a"}]`, want: 1},
		{name: "OK the sandbox written in another way", interfaces: `[{"name":"net1","sandbox":"/var/run/netns/a"}]`, want: 0},
		{name: "bad none", interfaces: `[]`, err: "its result has no interface net1 with a sandbox: it has no interface at all"},
		{
			name: "bad only others", interfaces: `[{"name":"net1"},{"name":"eth0","sandbox":"/run/netns/a"}]`,
			err: "its result has no interface net1 with a sandbox: it has net1 on the host, eth0 in /run/netns/a",
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r, err := decodeResult([]byte(`{"interfaces":`+tt.interfaces+`}`), "1.0.0")
			if err != nil {
				t.Fatal(err)
			}
			got, err := target(r, "net1", "/run/netns/a")
			if diff := cmp.Diff(tt.err, text(err)); diff != "" {
				t.Fatalf("error (-want +got):\n%s", diff)
			}
			if got != tt.want {
				t.Errorf("interface %d, want %d", got, tt.want)
			}
		})
	}
}

// A plugin that compares MAC and MTU at CHECK must find what is there now; one
// that never told an MTU is not told one.
func TestAsAttached(t *testing.T) {
	own, err := decodeResult([]byte(`{"interfaces":[{"name":"net1","mac":"02:00:00:00:00:09","mtu":1500,"sandbox":"/a"},{"name":"net1b","sandbox":"/a"}]}`), "1.1.0")
	if err != nil {
		t.Fatal(err)
	}
	for at, want := range []string{
		`{"cniVersion":"1.1.0","interfaces":[{"name":"net1","mac":"02:00:5e:00:53:01","mtu":1400,"sandbox":"/a"},{"name":"net1b","sandbox":"/a"}]}`,
		`{"cniVersion":"1.1.0","interfaces":[{"name":"net1","mac":"02:00:00:00:00:09","mtu":1500,"sandbox":"/a"},{"name":"net1b","mac":"02:00:5e:00:53:01","sandbox":"/a"}]}`,
	} {
		got, err := encodeResult(asAttached(own, at, testLease()), "1.1.0")
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(reformat(t, []byte(want)), reformat(t, got)); diff != "" {
			t.Errorf("interface %d (-want +got):\n%s", at, diff)
		}
	}
}

func TestDecodeResultErrors(t *testing.T) {
	for _, tt := range []struct{ name, raw, want string }{
		{"bad nothing", " \n", "is empty"},
		{"bad text", "done", "result: is no JSON object"},
		{"bad null", "null", "result: is null, not an object"},
		{"bad version", `{"cniVersion":"9.0.0"}`, "unsupported CNI result version"},
		{"bad interface of null", `{"cniVersion":"0.4.0","interfaces":[null]}`, "interfaces[0]: is null"},
		{"bad address of null", `{"cniVersion":"1.0.0","ips":[{"address":"10.0.0.1/24"},null]}`, "ips[1]: is null"},
		{"bad key in another case", `{"Interfaces":[null]}`, "Interfaces[0]: is null"},
		{"bad key in capitals", `{"IPS":[{"address":"10.0.0.1/24"},null]}`, "IPS[1]: is null"},
		{"bad key that only folds to ours", `{"routeſ":[null]}`, "routeſ[0]: is null"},
		{"bad first of two", `{"interfaces":[null],"interfaces":[{"name":"net1"}]}`, "interfaces[0]: is null"},
		{"bad second of two, in another case", `{"ips":[],"IPs":[null]}`, "IPs[0]: is null"},
		{"bad list in an object", `{"cniVersion":"0.2.0","ip4":{"ip":"10.0.0.1/24","routes":[null]}}`, "ip4.routes[0]: is null"},
		{"bad list in a list", `{"dns":{"nameservers":[[null]]}}`, "dns.nameservers[0][0]: is null"},
		{"bad route of null", `{"cniVersion":"1.0.0","routes":[null]}`, "routes[0]: is null"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if _, err := decodeResult([]byte(tt.raw), "1.0.0"); err == nil || !strings.HasPrefix(err.Error(), tt.want) {
				t.Errorf("got %v, want %q", err, tt.want)
			}
		})
	}
}

func FuzzDecodeResult(f *testing.F) {
	for _, seed := range []string{
		`{"cniVersion":"1.1.0","interfaces":[{"name":"net1","mtu":1500,"sandbox":"/a"}],"ips":[{"interface":0,"address":"10.0.0.1/24"}],"routes":[{"dst":"0.0.0.0/0","scope":253}],"dns":{}}`,
		`{"cniVersion":"0.3.1","ips":[{"version":"4","address":"10.0.0.1/24"}]}`, `{"cniVersion":"0.2.0","ip4":{"ip":"10.0.0.1/24"}}`,
		`{"Interfaces":[null]}`, `{"IPS":[null]}`, `{"ips":[null],"ips":[]}`, `{"routeſ":[null]}`, `{"cniVersion":"0.2.0","ip4":{"routes":[null]}}`,
		`{"interfaces":[null]}`, `null`, ``, `{"cniVersion":7}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		r, err := decodeResult(raw, "1.0.0")
		if err != nil {
			return
		}
		at, err := target(r, "net1", "/a")
		if err != nil {
			return
		}
		for _, version := range Versions().SupportedVersions() {
			merged, err := merge(r, at, testLease(), conf{version: version})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := encodeResult(merged, version); err != nil {
				t.Fatal(err)
			}
		}
	})
}
