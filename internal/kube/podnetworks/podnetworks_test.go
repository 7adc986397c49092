package podnetworks

import (
	"encoding/json"
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const (
	nad = "default/ovn-localnet-dhcp-vfio"

	// published is the example of OKEP-6224: a pod with an address of an external
	// DHCP server, white space and all.
	published = `{
  "default": {
    "ip_addresses": ["10.220.2.18/24"],
    "mac_address": "0a:58:0a:dc:02:12",
    "gateway_ips": ["10.220.2.1"],
    "role": "primary"
  },

  "default/ovn-localnet-dhcp-vfio": {
    "ip_addresses": ["10.1.192.213/24"],
    "mac_address": "02:00:00:00:20:08",
    "gateway_ips": ["10.1.192.1"],
    "role": "secondary",
    "ipam_mode": "dhcp"
  }
}`

	// plain is how OVN-Kubernetes writes a pod of the default network and one of a
	// network without IPAM, in one line, with what it writes for older readers.
	plain = `{"default":{"ip_addresses":["10.244.0.3/24"],"mac_address":"0a:58:0a:f4:00:03","gateway_ips":["10.244.0.1"],` +
		`"routes":[{"dest":"10.244.0.0/16","nextHop":"10.244.0.1"},{"dest":"10.96.0.0/16","nextHop":"10.244.0.1"},` +
		`{"dest":"169.254.0.5/32","nextHop":"10.244.0.1"},{"dest":"100.64.0.0/16","nextHop":"10.244.0.1"}],` +
		`"ip_address":"10.244.0.3/24","gateway_ip":"10.244.0.1","role":"primary"},` +
		`"default/lan":{"ip_addresses":null,"mac_address":"0a:58:aa:bb:cc:01","role":"secondary"}}`
)

var (
	leased   = netip.MustParsePrefix("10.1.192.213/24")
	gateways = []netip.Addr{netip.MustParseAddr("10.1.192.1")}
)

func mustParse(t *testing.T, text string) Annotation {
	t.Helper()
	a, err := Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// withLease fails the test where it cannot be.
func withLease(t *testing.T, a Annotation, key string, addr netip.Prefix, gateways ...netip.Addr) Annotation {
	t.Helper()
	a, err := a.WithLease(key, addr, gateways)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func macOnly(t *testing.T, a Annotation, key string, keepMode bool) Annotation {
	t.Helper()
	a, err := a.MACOnly(key, keepMode)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// entryText is an entry as it stands in the text.
func entryText(t *testing.T, text, key string) string {
	t.Helper()
	var entries map[string]json.RawMessage
	if err := json.Unmarshal([]byte(text), &entries); err != nil {
		t.Fatalf("%v in %s", err, text)
	}
	return string(entries[key])
}

// The example of the enhancement proposal is read, and what we would write of the
// same lease is the same, byte for byte.
func TestP12ExampleRoundTrips(t *testing.T) {
	a := mustParse(t, published)
	got, ok, err := a.Entry(nad)
	want := Entry{net.HardwareAddr{2, 0, 0, 0, 0x20, 8}, []netip.Prefix{leased}, gateways, ModeDHCP, RoleSecondary}
	if diff := cmp.Diff(want, got, cmp.Comparer(func(a, b netip.Prefix) bool { return a == b }), cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" || !ok || err != nil {
		t.Errorf("%t, %v (-want +got):\n%s", ok, err, diff)
	}
	if got := withLease(t, a, nad, leased, gateways...).String(); got != published {
		t.Errorf("the same lease again:\n%s", cmp.Diff(published, got))
	}
	without := macOnly(t, a, nad, true)
	if got := withLease(t, without, nad, leased, gateways...).String(); !same(got, published) {
		t.Errorf("taken away and put back:\n%s", cmp.Diff(published, got))
	}
	routed := mustParse(t, plain)
	back := macOnly(t, withLease(t, routed, "default/lan", leased, gateways...), "default/lan", false)
	if back.String() != plain {
		t.Errorf("put there and taken away:\n%s", cmp.Diff(plain, back.String()))
	}
}

// An entry of a lease has all that readers go by, in the forms that they know.
func TestK35K39EntryOfALease(t *testing.T) {
	a := withLease(t, mustParse(t, plain), "default/lan", leased, gateways...)
	want := `{"ip_addresses":["10.1.192.213/24"],"mac_address":"0a:58:aa:bb:cc:01","role":"secondary","gateway_ips":["10.1.192.1"],"ipam_mode":"dhcp"}`
	if got := entryText(t, a.String(), "default/lan"); got != want {
		t.Errorf("(-want +got):\n%s", cmp.Diff(want, got))
	}
	two := withLease(t, a, "default/lan", netip.MustParsePrefix("10.1.192.9/20"), gateways[0], netip.MustParseAddr("10.1.192.2"))
	want = `{"ip_addresses":["10.1.192.9/20"],"mac_address":"0a:58:aa:bb:cc:01","role":"secondary","gateway_ips":["10.1.192.1","10.1.192.2"],"ipam_mode":"dhcp"}`
	if got := entryText(t, two.String(), "default/lan"); got != want {
		t.Errorf("mask and two routers (-want +got):\n%s", cmp.Diff(want, got))
	}
}

// Everything that is not ours is the same bytes after an edit: other entries,
// unknown keys, order, white space, numbers and escapes.
func TestK36K37OthersAreByteEqual(t *testing.T) {
	before, entry, after := "\t{ \"default\" : {\"mac_address\":\"0A:58:0a:f4:00:03\" , \"n\":1.50e+02,\"big\":12345678901234567890, \"s\":\"\\u003c\\/\\ud83d\\ude00\"} ,\n\n\"a/b\":[1, 2,{}],",
		"\"default/lan\":{\n  \"unknown\": {\"x\": [ 1,2 ]},\n  \"mac_address\": \"0A:58:AA:BB:CC:01\",\n  \"role\":\"secondary\" }",
		" ,\"z\":null, \"ü\" :\"\u2028\" }\n "
	a := mustParse(t, before+entry+after)
	for name, got := range map[string]Annotation{
		"with a lease": withLease(t, a, "default/lan", leased, gateways...),
		"MAC only":     macOnly(t, withLease(t, a, "default/lan", leased), "default/lan", true),
	} {
		text := got.String()
		if !strings.HasPrefix(text, before) || !strings.HasSuffix(text, after) {
			t.Errorf("%s: others have changed: %s", name, text)
		}
		for _, kept := range []string{`"unknown": {"x": [ 1,2 ]}`, `"mac_address": "0A:58:AA:BB:CC:01"`, `"role":"secondary"`} {
			if !strings.Contains(text, kept) {
				t.Errorf("%s: %s is gone: %s", name, kept, text)
			}
		}
	}
	if got := macOnly(t, a, "default/lan", false).String(); got != before+entry+after {
		t.Errorf("nothing to take away, and it has changed: %s", got)
	}
}

// The legacy keys say the same as the lists, or are not there. OVN-Kubernetes
// deletes the port of a running pod otherwise.
func TestK38LegacyKeysAgree(t *testing.T) {
	legacy := `{"default/lan":{"ip_addresses":["10.0.0.4/8"],"mac_address":"0a:58:aa:bb:cc:01","gateway_ips":["10.0.0.1"],"ip_address":"10.0.0.4/8","gateway_ip":"10.0.0.1","role":"secondary"}}`
	tests := []struct {
		name, text, want string
		gateways         []netip.Addr
	}{
		{"OK both", legacy, `{"ip_addresses":["10.1.192.213/24"],"mac_address":"0a:58:aa:bb:cc:01","gateway_ips":["10.1.192.1"],"ip_address":"10.1.192.213/24","gateway_ip":"10.1.192.1","role":"secondary","ipam_mode":"dhcp"}`, gateways},
		{"OK no router", legacy, `{"ip_addresses":["10.1.192.213/24"],"mac_address":"0a:58:aa:bb:cc:01","ip_address":"10.1.192.213/24","role":"secondary","ipam_mode":"dhcp"}`, nil},
		{"OK none before", `{"default/lan":{}}`, `{"ip_addresses":["10.1.192.213/24"],"ipam_mode":"dhcp"}`, nil},
		{"OK empty before", `{"default/lan":{"gateway_ips":null,"gateway_ip":""}}`, `{"gateway_ip":"10.1.192.1","gateway_ips":["10.1.192.1"],"ip_addresses":["10.1.192.213/24"],"ipam_mode":"dhcp"}`, gateways},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			a := withLease(t, mustParse(t, tt.text), "default/lan", leased, tt.gateways...)
			if got := entryText(t, a.String(), "default/lan"); !same(got, tt.want) {
				t.Errorf("(-want +got):\n%s", cmp.Diff(tt.want, got))
			}
		})
	}
	got := entryText(t, macOnly(t, mustParse(t, legacy), "default/lan", false).String(), "default/lan")
	if want := `{"ip_addresses":null,"mac_address":"0a:58:aa:bb:cc:01","role":"secondary"}`; got != want {
		t.Errorf("MAC only: %s, want %s", got, want)
	}
}

// The mode is only where a lease is: networks of OVN-Kubernetes' own IPAM, or of
// none, beside it have no such key.
func TestK33ModeOnlyWhereDHCPIs(t *testing.T) {
	text := `{"default":{"ip_addresses":["10.244.0.3/24"]},"default/static":{"ip_addresses":["10.3.0.3/24"]},"default/disabled":{"ip_addresses":null},"default/lan":{}}`
	a := withLease(t, mustParse(t, text), "default/lan", leased)
	if n := strings.Count(a.String(), keyMode); n != 1 {
		t.Errorf("%d times in %s", n, a)
	}
	for _, key := range []string{"default", "default/static", "default/disabled"} {
		if e, ok, err := a.Entry(key); e.Mode != "" || !ok || err != nil {
			t.Errorf("%s: %+v, %t, %v", key, e, ok, err)
		}
	}
}

// A reader that has nothing but the annotation tells interfaces with an external
// DHCP server from others, as a sidecar that writes cloud-init data does.
func TestK42ReaderOfTheAnnotationAlone(t *testing.T) {
	var entries map[string]struct {
		Mode string `json:"ipam_mode"`
		MAC  string `json:"mac_address"`
	}
	if err := json.Unmarshal([]byte(withLease(t, mustParse(t, plain), "default/lan", leased, gateways...).String()), &entries); err != nil {
		t.Fatal(err)
	}
	dhcp := map[string]string{}
	for key, e := range entries {
		if e.Mode == "dhcp" {
			dhcp[key] = e.MAC
		}
	}
	if diff := cmp.Diff(map[string]string{"default/lan": "0a:58:aa:bb:cc:01"}, dhcp); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// No IPv6 address gets into an entry by way of a lease.
func TestK31IPv4Only(t *testing.T) {
	a := mustParse(t, `{"default/lan":{"ip_addresses":["fd00::5/64"],"gateway_ips":["fd00::1"]}}`)
	for _, addr := range []string{"fd00::7/64", "::ffff:10.0.0.5/120"} {
		if _, err := a.WithLease("default/lan", netip.MustParsePrefix(addr), nil); err == nil {
			t.Errorf("%s was taken", addr)
		}
	}
	if _, err := a.WithLease("default/lan", netip.Prefix{}, nil); err == nil {
		t.Error("no address was taken")
	}
	if _, err := a.WithLease("default/lan", leased, []netip.Addr{netip.MustParseAddr("fd00::1")}); err == nil {
		t.Error("a router fd00::1 was taken")
	}
	if got := withLease(t, a, "default/lan", leased).String(); strings.Contains(got, "fd00") {
		t.Errorf("left: %s", got)
	}
}

// The key has the namespace of the NetworkAttachmentDefinition; more interfaces of
// one have an index after it.
func TestQ25KeysOfANetwork(t *testing.T) {
	a := mustParse(t, `{"default":{},"infra/lan/10":{},"infra/lan/2":{},"infra/lan":{},"web/lan":{},"infra/lan/x":{},"infra/lan/01":{},"infra/lan/0":{},"infra/lan/-1":{},"infra/lanes":{},"infra/lan/2/3":{}}`)
	if diff := cmp.Diff([]string{"infra/lan", "infra/lan/2", "infra/lan/10"}, a.Keys("infra/lan")); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if got := a.Keys("db/lan"); got != nil {
		t.Errorf("got %q", got)
	}
	if Key("infra/lan", 0) != "infra/lan" || Key("infra/lan", 2) != "infra/lan/2" {
		t.Error("keys are made in another way than they are read")
	}
}

func TestInterfaceOfAnotherPlugin(t *testing.T) {
	mac := net.HardwareAddr{2, 0, 0, 0, 0, 1}
	a, err := mustParse(t, "{}").WithInterface("default/lan", mac)
	if err != nil {
		t.Fatal(err)
	}
	a = withLease(t, a, "default/lan", leased, gateways...)
	want := `{"default/lan":{"mac_address":"02:00:00:00:00:01","role":"secondary","ip_addresses":["10.1.192.213/24"],"gateway_ips":["10.1.192.1"],"ipam_mode":"dhcp"}}`
	if a.String() != want {
		t.Errorf("(-want +got):\n%s", cmp.Diff(want, a.String()))
	}
	again, err := a.WithInterface("default/lan", mac)
	if err != nil || again.String() != want {
		t.Errorf("again: %v, %s", err, again)
	}
	if a, err = a.Without("default/lan"); err != nil || a.String() != "{}" || !a.Empty() {
		t.Errorf("without: %v, %s", err, a)
	}
}

func TestModeAlone(t *testing.T) {
	a, err := mustParse(t, plain).WithMode("default/lan")
	if err != nil {
		t.Fatal(err)
	}
	if got := macOnly(t, a, "default/lan", true); got.String() != a.String() {
		t.Errorf("kept: %s", got)
	}
	if got := macOnly(t, a, "default/lan", false); got.String() != plain {
		t.Errorf("not kept: %s", got)
	}
}
