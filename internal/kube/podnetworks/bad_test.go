package podnetworks

import (
	"net/netip"
	"strings"
	"testing"
)

// What cannot be edited is one error that says where, and nothing is changed.
func TestBadAnnotations(t *testing.T) {
	tests := []struct{ name, text, want string }{
		{"bad empty", ``, "no JSON"},
		{"bad no JSON", `ip=10.0.0.5`, "no JSON"},
		{"bad cut", `{"default":{"mac_address":"02`, "no JSON"},
		{"bad two values", `{} {}`, "no JSON"},
		{"bad null", `null`, "not an object"},
		{"bad list", ` ["default/lan"]`, "not an object"},
		{"bad UTF-8", "{\"default/lan\":{},\"x\":\"\xff\"}", "UTF-8"},
		{"bad equal keys", `{"default/lan":{},"default":{},"default/lan":{}}`, `"default/lan" stands there twice`},
		{"bad equal keys, written otherwise", `{"default/lan":{},"default\/lan":{}}`, `"default/lan" stands there twice`},
		{"bad entry is null", `{"default/lan":null}`, `entry "default/lan" is not an object`},
		{"bad entry is text", `{"default/lan":"10.0.0.5"}`, `entry "default/lan" is not an object`},
		{"bad equal keys in the entry", `{"default/lan":{"role":"a","x":1,"role":"b"}}`, `entry "default/lan": key "role" stands there twice`},
		{"bad other letters", `{"default/lan":{"IP_addresses":[]}}`, `"IP_addresses" is "ip_addresses" in other letters`},
		{"bad no entry", `{"default":{}}`, `there is no entry "default/lan"`},
	}
	edits := map[string]func(Annotation) (Annotation, error){
		"lease":    func(a Annotation) (Annotation, error) { return a.WithLease("default/lan", leased, gateways) },
		"MAC only": func(a Annotation) (Annotation, error) { return a.MACOnly("default/lan", true) },
		"mode":     func(a Annotation) (Annotation, error) { return a.WithMode("default/lan") },
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			for name, edit := range edits {
				a, err := Parse(tt.text)
				if err == nil {
					var after Annotation
					if after, err = edit(a); after.String() != tt.text {
						t.Errorf("%s: has become %s", name, after)
					}
				}
				if err == nil || !strings.Contains(err.Error(), tt.want) {
					t.Errorf("%s: got %v, want it to say %s", name, err, tt.want)
				}
			}
		})
	}
}

// An entry with values that are none is mended by a lease; what can be read of it
// is read.
func TestBrokenValues(t *testing.T) {
	tests := []struct{ name, text, want string }{
		{"bad address", `{"default/lan":{"mac_address":"0a:58:aa:bb:cc:01","ip_addresses":["10.0.0.5"]}}`, "10.0.0.5"},
		{"bad list", `{"default/lan":{"mac_address":"0a:58:aa:bb:cc:01","ip_addresses":"10.0.0.5/24"}}`, "ip_addresses"},
		{"bad router", `{"default/lan":{"mac_address":"0a:58:aa:bb:cc:01","gateway_ips":["router"]}}`, "router"},
		{"bad mode", `{"default/lan":{"mac_address":"0a:58:aa:bb:cc:01","ipam_mode":7}}`, "ipam_mode"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			a := mustParse(t, tt.text)
			e, ok, err := a.Entry("default/lan")
			if !ok || err == nil || !strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), "default/lan") {
				t.Errorf("got %t, %v", ok, err)
			}
			if e.HardwareAddr.String() != "0a:58:aa:bb:cc:01" {
				t.Errorf("MAC %s", e.HardwareAddr)
			}
			e, _, err = withLease(t, a, "default/lan", leased, gateways...).Entry("default/lan")
			if err != nil || len(e.Addrs) != 1 || e.Addrs[0] != leased {
				t.Errorf("after: %+v, %v", e, err)
			}
		})
	}
}

func TestIndexOfTheInterface(t *testing.T) {
	list := `[{"name":"lan"},{"name":"lan","namespace":"infra","interface":"data"},{"name":"lan"},{"name":"tape"},{"name":"lan","interface":"last"}]`
	tests := []struct {
		networks, nad, ifName string
		index                 int
		ok                    bool
	}{
		{list, "default/lan", "net1", 0, true},
		{list, "infra/lan", "data", 0, true},
		{list, "default/lan", "net3", 1, true},
		{list, "default/lan", "last", 2, true},
		{list, "default/lan", "net2", 0, false},
		{list, "default/other", "net1", 0, false},
		{"lan, infra/lan@data ,lan", "default/lan", "net3", 1, true},
		{"lan, infra/lan@data ,lan", "infra/lan", "data", 0, true},
		{"", "default/lan", "net1", 0, false},
		{"[", "default/lan", "net1", 0, false},
		{`{"name":"lan"}`, "default/lan", "net1", 0, false},
		{`[{"name":"lan"},null]`, "default/lan", "net1", 0, false}, // as Multus has it: the whole is none
	}
	for _, tt := range tests {
		if index, ok := Index(tt.networks, "default", tt.nad, tt.ifName); index != tt.index || ok != tt.ok {
			t.Errorf("%s of %s in %s: %d, %t; want %d, %t", tt.ifName, tt.nad, tt.networks, index, ok, tt.index, tt.ok)
		}
	}
}

// Whatever stands in an annotation: an edit leaves all other entries byte for byte,
// its result can be read, and made again it changes nothing.
func FuzzEdit(f *testing.F) {
	for _, text := range []string{published, plain, `{}`, `{"default/lan":{}}`, `{"default/lan":{"ip_addresses":null,"gateway_ip":""},"a":1}`,
		`{ "default/lan" : { "role" : "x" , "ip_address":[{}] } , "b":"\u0000\"" }`, `{"a":[1,{"b":"]}"}],"default/lan":{"ipam_mode":"dhcp"}}`} {
		f.Add(text, "default/lan", uint32(0x0a01c0d5), uint8(24), true)
	}
	f.Fuzz(func(t *testing.T, text, key string, ip uint32, bits uint8, gateway bool) {
		a, err := Parse(text)
		if err != nil {
			return
		}
		addr := netip.PrefixFrom(netip.AddrFrom4([4]byte{byte(ip >> 24), byte(ip >> 16), byte(ip >> 8), byte(ip)}), int(bits%33))
		var routers []netip.Addr
		if gateway {
			routers = gateways
		}
		edits := map[string]func(Annotation) (Annotation, error){
			"lease":    func(a Annotation) (Annotation, error) { return a.WithLease(key, addr, routers) },
			"MAC only": func(a Annotation) (Annotation, error) { return a.MACOnly(key, gateway) },
			"mode":     func(a Annotation) (Annotation, error) { return a.WithMode(key) },
			"made":     func(a Annotation) (Annotation, error) { return a.WithInterface(key, []byte{2, 0, 0, 0, 0, 1}) },
			"removed":  func(a Annotation) (Annotation, error) { return a.Without(key) },
		}
		for name, edit := range edits {
			after, err := edit(a)
			if err != nil {
				if after.String() != text {
					t.Errorf("%s: %v, and it has changed", name, err)
				}
				continue
			}
			othersUnchanged(t, a, after, key)
			again, err := edit(after)
			if err != nil || again.String() != after.String() {
				t.Errorf("%s: again: %v\n%s\n%s", name, err, after, again)
			}
			if e, ok, err := after.Entry(key); name == "lease" && (!ok || err == nil && (len(e.Addrs) != 1 || e.Addrs[0] != addr || e.Mode != ModeDHCP)) {
				t.Errorf("lease is read as %+v, %t", e, ok)
			}
		}
	})
}

// othersUnchanged compares all entries but one, in their order.
func othersUnchanged(t *testing.T, before, after Annotation, key string) {
	t.Helper()
	others := func(a Annotation) (list []string) {
		parsed, err := Parse(a.String())
		if err != nil {
			t.Fatalf("%v in %s", err, a)
		}
		for _, m := range parsed.entries.members {
			if m.name != key {
				list = append(list, a.String()[m.keyStart:m.end])
			}
		}
		return list
	}
	if b, a := strings.Join(others(before), "\n"), strings.Join(others(after), "\n"); a != b {
		t.Errorf("others were\n%s\nand are\n%s", b, a)
	}
}
