package network

import (
	"encoding/json"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// with changes the defaults.
func with(change func(*Settings)) Settings {
	s := defaults()
	change(&s)
	return s
}

func prefixes(texts ...string) []netip.Prefix {
	var out []netip.Prefix
	for _, s := range texts {
		out = append(out, netip.MustParsePrefix(s))
	}
	return out
}

func TestParse(t *testing.T) {
	tests := []struct {
		name string
		raw  string
		want Settings
	}{
		{"OK nothing", ``, defaults()},
		{"OK null", ` null `, defaults()},
		{"OK empty object", `{}`, defaults()},
		{"OK null is absent", `{"timeout":null,"hostname":null,"request":null,"broadcast":null}`, defaults()},
		{
			"OK everything",
			`{"socket":"/run/other//engine.sock","stateDir":"/srv/dhcp/","timeout":"1m30s","mac":"derive",
			  "clientID":"{namespace}/{pod}","hostname":"{pod}-{interface}","vendorClass":"dhcp-meta",
			  "request":[43,66],"require":[67],"options":[{"code":77,"value":"pods"},{"code":43,"value":"hex:0A0b"}],
			  "defaultRoute":"always","routeMetric":1024,"servers":["10.77.0.1","10.77.0.2"],"broadcast":true,
			  "denyServers":["10.77.0.9"],"routes":{"allow":["10.0.0.0/8"],"deny":["10.1.0.0/16","10.2.3.4/32"]},
			  "rapidCommit":true,"conflictDetection":"full","defend":true,"onChange":"keep-and-report",
			  "address":"10.77.0.60","portSecurity":"address","publish":"eventual","vfioContainers":"discover"}`,
			Settings{
				Socket: "/run/other/engine.sock", StateDir: "/srv/dhcp", Timeout: 90 * time.Second, DeriveMAC: true,
				ClientID: "{namespace}/{pod}", Hostname: "{pod}-{interface}", VendorClass: "dhcp-meta",
				Request:      []uint8{43, 66},
				Require:      []uint8{67},
				Options:      []Option{{77, []byte("pods")}, {43, []byte{0x0a, 0x0b}}},
				DefaultRoute: true, RouteMetric: 1024, Broadcast: true,
				Servers:     []netip.Addr{netip.MustParseAddr("10.77.0.1"), netip.MustParseAddr("10.77.0.2")},
				DenyServers: []netip.Addr{netip.MustParseAddr("10.77.0.9")},
				Routes:      Routes{Allow: prefixes("10.0.0.0/8"), Deny: prefixes("10.1.0.0/16", "10.2.3.4/32")},
				RapidCommit: true, ConflictDetection: ConflictDetectionFull, Defend: true, OnChange: OnChangeKeep,
				ClientIDSet: true, Address: netip.MustParseAddr("10.77.0.60"),
				PortSecurity: PortSecurityAddress, Publish: PublishEventual, DiscoverVFIO: true,
			},
		},
		{
			"OK the defaults in words",
			`{"mac":"keep","defaultRoute":"never","clientID":"mac","conflictDetection":"fast","defend":false,"onChange":"apply",
			  "rapidCommit":false,"servers":[],"denyServers":[],"routes":{"allow":[],"deny":[]},
			  "portSecurity":"auto","publish":"auto","vfioContainers":"refuse"}`, with(func(s *Settings) { s.ClientIDSet = true }),
		},
		{"OK a policy of null is none", `{"clientID":null,"address":null}`, defaults()},
		{"OK port security of the MAC", `{"portSecurity":"mac"}`, with(func(s *Settings) { s.PortSecurity = PortSecurityMAC })},
		{"OK publication required", `{"publish":"require"}`, with(func(s *Settings) { s.Publish = PublishRequire })},
		{"OK no conflict detection", `{"conflictDetection":"off"}`, with(func(s *Settings) { s.ConflictDetection = ConflictDetectionOff })},
		{"OK defence after a fast probe", `{"defend":true}`, with(func(s *Settings) { s.Defend = true })},
		{"OK no routes at all", `{"routes":{"deny":["0.0.0.0/0"]}}`, with(func(s *Settings) { s.Routes.Deny = prefixes("0.0.0.0/0") })},
		{
			"OK all routes, and the metadata service", `{"routes":{"allow":["0.0.0.0/0","169.254.169.254/32"]}}`,
			with(func(s *Settings) { s.Routes.Allow = prefixes("0.0.0.0/0", "169.254.169.254/32") }),
		},
		{
			"OK a hole in what is allowed, beside a default route", `{"defaultRoute":"always","routes":{"allow":["10.0.0.0/8"],"deny":["10.1.0.0/16","11.0.0.0/8"]}}`,
			with(func(s *Settings) {
				s.DefaultRoute = true
				s.Routes = Routes{Allow: prefixes("10.0.0.0/8"), Deny: prefixes("10.1.0.0/16", "11.0.0.0/8")}
			}),
		},
		{"OK routes of null", `{"routes":null}`, defaults()},
		{"OK routes of nothing", `{"routes":{"deny":null}}`, defaults()},
		{"OK no client identifier", `{"clientID":"none"}`, with(func(s *Settings) { s.ClientID, s.ClientIDSet = ClientIDNone, true })},
		{"OK duid", `{"clientID":"duid"}`, with(func(s *Settings) { s.ClientID, s.ClientIDSet = ClientIDDUID, true })},
		{"OK no host name", `{"hostname":""}`, with(func(s *Settings) { s.Hostname = "" })},
		{"OK one host name for all", `{"hostname":"printer"}`, with(func(s *Settings) { s.Hostname = "printer" })},
		{"OK shortest timeout", `{"timeout":"1s"}`, with(func(s *Settings) { s.Timeout = time.Second })},
		{"OK longest timeout", `{"timeout":"110s"}`, with(func(s *Settings) { s.Timeout = 110 * time.Second })},
		{"OK largest metric", `{"routeMetric":4294967295}`, with(func(s *Settings) { s.RouteMetric = 4294967295 })},
		{
			"OK numbers that were floats", `{"routeMetric":1.024e3,"request":[1e1,42.0]}`,
			with(func(s *Settings) { s.RouteMetric = 1024; s.Request = []uint8{10, 42} }),
		},
		{
			"OK FQDN in place of the host name", `{"hostname":"","options":[{"code":81,"value":"hex:000000"}]}`,
			with(func(s *Settings) { s.Hostname = ""; s.Options = []Option{{81, []byte{0, 0, 0}}} }),
		},
		{
			"OK code of a value that is text with a colon", `{"options":[{"code":77,"value":"oct:1"}]}`,
			with(func(s *Settings) { s.Options = []Option{{77, []byte("oct:1")}} }),
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := Parse(json.RawMessage(tt.raw))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, got, cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{}), cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("settings (-want +got):\n%s", diff)
			}
		})
	}
}

func TestParseProblems(t *testing.T) {
	long := strings.Repeat("x", 256)
	tests := []struct {
		name string
		raw  string
		want Problems
	}{
		{"bad not an object", `["mac"]`, Problems{"dhcp: is a list, not an object"}},
		{"bad a word", `true`, Problems{"dhcp: is true or false, not an object"}},
		{"bad unknown key", `{"foo":1}`, Problems{"dhcp.foo: unknown key"}},
		{"bad key in another case", `{"clientid":"mac"}`, Problems{"dhcp.clientid: unknown key"}},
		{"bad key twice", `{"mac":"keep","mac":"derive"}`, Problems{"dhcp.mac: is there twice"}},
		{"bad broken JSON", `{"mac":`, Problems{"dhcp: is no JSON: EOF"}},
		{"bad something behind it", `{} {}`, Problems{"dhcp: is no JSON: something follows its end"}},
		{
			"bad all at once, sorted",
			`{"zap":1,"timeout":5,"routeMetric":-1,"request":[0,43,43],"servers":["::1"],"broadcast":"yes","mac":"random"}`,
			Problems{
				"dhcp.broadcast: is a string, not true or false",
				`dhcp.mac: "random" is neither "keep" nor "derive"`,
				"dhcp.request[0]: 0 is no option code, which is 1 to 254",
				"dhcp.request[2]: 43 is asked for twice",
				"dhcp.routeMetric: -1 is not between 0 and 4294967295",
				`dhcp.servers[0]: "::1" is no IPv4 address`,
				"dhcp.timeout: is a number, not a string",
				"dhcp.zap: unknown key",
			},
		},
		{"bad relative socket", `{"socket":"engine.sock"}`, Problems{`dhcp.socket: "engine.sock" is no absolute path`}},
		{"bad socket too long for an address", `{"socket":"/` + strings.Repeat("s", 107) + `"}`, Problems{"dhcp.socket: has 108 bytes, a unix socket's path at most 107"}},
		{"bad empty state folder", `{"stateDir":""}`, Problems{`dhcp.stateDir: "" is no absolute path`}},
		{"bad duration", `{"timeout":"30"}`, Problems{`dhcp.timeout: "30" is no duration; write "30s" or "1m30s"`}},
		{"bad timeout too short", `{"timeout":"999ms"}`, Problems{"dhcp.timeout: 999ms is not between 1s and 1m50s (the runtime ends a plugin after 2m)"}},
		{"bad timeout too long", `{"timeout":"2m"}`, Problems{"dhcp.timeout: 2m0s is not between 1s and 1m50s (the runtime ends a plugin after 2m)"}},
		{"bad policy", `{"clientID":"MAC"}`, Problems{`dhcp.clientID: "MAC" is an unknown policy; known are "mac", "none", "duid", and templates with a placeholder such as {pod}`}},
		{"bad empty policy", `{"clientID":""}`, Problems{`dhcp.clientID: "" is an unknown policy; known are "mac", "none", "duid", and templates with a placeholder such as {pod}`}},
		{"bad placeholder", `{"clientID":"{nam}"}`, Problems{`dhcp.clientID: template "{nam}" has the unknown placeholder {nam}; known are {namespace} {pod} {name} {uid} {network} {interface} {container} {mac}`}},
		{"bad open brace", `{"hostname":"a{pod"}`, Problems{`dhcp.hostname: template "a{pod" has a { without a } after it`}},
		{"bad closing brace", `{"hostname":"pod}"}`, Problems{`dhcp.hostname: template "pod}" has a } without a { before it`}},
		{"bad host name of dots", `{"hostname":"-.-"}`, Problems{`dhcp.hostname: "-.-" has no letter or digit of a host name`}},
		{"bad empty vendor class", `{"vendorClass":""}`, Problems{"dhcp.vendorClass: has 0 bytes, not 1 to 255"}},
		{"bad long vendor class", `{"vendorClass":"` + long + `"}`, Problems{"dhcp.vendorClass: has 256 bytes, not 1 to 255"}},
		{"bad require", `{"require":[0,66,66]}`, Problems{"dhcp.require[0]: 0 is no option code, which is 1 to 254", "dhcp.require[2]: 66 is asked for twice"}},
		{"bad request of the end", `{"request":[255]}`, Problems{"dhcp.request[0]: 255 is no option code, which is 1 to 254"}},
		{"bad request of text", `{"request":["43"]}`, Problems{"dhcp.request[0]: is a string, not a number"}},
		{"bad request of a fraction", `{"request":[4.5]}`, Problems{"dhcp.request[0]: 4.5 is no whole number in range"}},
		{"bad request of a giant", `{"request":[1e400]}`, Problems{"dhcp.request[0]: 1e400 is no whole number in range"}},
		{"bad request is no list", `{"request":43}`, Problems{"dhcp.request: is a number, not a list"}},
		{"bad metric", `{"routeMetric":4294967296}`, Problems{"dhcp.routeMetric: 4294967296 is not between 0 and 4294967295"}},
		{"bad option without value", `{"options":[{"code":43}]}`, Problems{"dhcp.options[0].value: is missing"}},
		{"bad option of null", `{"options":[null]}`, Problems{"dhcp.options[0].code: is missing", "dhcp.options[0].value: is missing"}},
		{"bad option with another key", `{"options":[{"code":43,"value":"a","text":"b"}]}`, Problems{"dhcp.options[0].text: unknown key"}},
		{"bad option twice", `{"options":[{"code":43,"value":"a"},{"code":43,"value":"b"}]}`, Problems{"dhcp.options[1].code: 43 is sent twice"}},
		{"bad odd hex", `{"options":[{"code":43,"value":"hex:0A0"}]}`, Problems{`dhcp.options[0].value: "hex:0A0" has no even number of hexadecimal digits after hex:`}},
		{"bad empty hex", `{"options":[{"code":43,"value":"hex:"}]}`, Problems{"dhcp.options[0].value: has 0 bytes, not 1 to 255"}},
		{"bad long value", `{"options":[{"code":43,"value":"` + long + `"}]}`, Problems{"dhcp.options[0].value: has 256 bytes, not 1 to 255"}},
		{"bad host name as option", `{"options":[{"code":12,"value":"a"}]}`, Problems{"dhcp.options[0].code: 12 is not free: use hostname"}},
		{"bad vendor class as option", `{"options":[{"code":60,"value":"a"}]}`, Problems{"dhcp.options[0].code: 60 is not free: use vendorClass"}},
		{"bad client identifier as option", `{"options":[{"code":61,"value":"a"}]}`, Problems{"dhcp.options[0].code: 61 is not free: use clientID"}},
		{"bad option of a relay", `{"options":[{"code":82,"value":"a"}]}`, Problems{"dhcp.options[0].code: 82 is not free: relay agents set it (RFC 3046)"}},
		{"bad padding", `{"options":[{"code":0,"value":"a"}]}`, Problems{"dhcp.options[0].code: 0 is no option code, which is 1 to 254"}},
		{"bad FQDN beside a host name", `{"options":[{"code":81,"value":"a"}]}`, Problems{`dhcp.options[0].code: 81 (client FQDN) takes the place of the host name: set hostname to ""`}},
		{"bad server multicast", `{"servers":["224.0.0.1"]}`, Problems{"dhcp.servers[0]: 224.0.0.1 cannot be the address of a server"}},
		{"bad server broadcast", `{"servers":["255.255.255.255"]}`, Problems{"dhcp.servers[0]: 255.255.255.255 cannot be the address of a server"}},
		{"bad server twice", `{"servers":["10.0.0.1","10.0.0.1"]}`, Problems{"dhcp.servers[1]: 10.0.0.1 is there twice"}},
		{"bad denied server", `{"denyServers":["10.0.0.300"]}`, Problems{`dhcp.denyServers[0]: "10.0.0.300" is no IPv4 address`}},
		{
			"bad servers that are denied", `{"servers":["10.0.0.1","10.0.0.2","10.0.0.3"],"denyServers":["10.0.0.3","10.0.0.9","10.0.0.1"]}`,
			Problems{"dhcp.denyServers: 10.0.0.1 is in servers too", "dhcp.denyServers: 10.0.0.3 is in servers too"},
		},
		{"bad conflict detection", `{"conflictDetection":"on"}`, Problems{`dhcp.conflictDetection: "on" is none of ["off" "fast" "full"]`}},
		{"bad conflict detection of a truth", `{"conflictDetection":false}`, Problems{"dhcp.conflictDetection: is true or false, not a string"}},
		{
			"bad defence of what was never probed", `{"conflictDetection":"off","defend":true}`,
			Problems{`dhcp.defend: needs conflictDetection "fast" or "full": an address that was never probed cannot be defended`},
		},
		{"bad policy of change", `{"onChange":"Apply"}`, Problems{`dhcp.onChange: "Apply" is none of ["apply" "keep-and-report"]`}},
		{"bad rapid commit", `{"rapidCommit":"yes"}`, Problems{"dhcp.rapidCommit: is a string, not true or false"}},
		{"bad rapid commit as option", `{"options":[{"code":80,"value":"a"}]}`, Problems{"dhcp.options[0].code: 80 is not free: use rapidCommit"}},
		{"bad routes is a list", `{"routes":["10.0.0.0/8"]}`, Problems{"dhcp.routes: is a list, not an object"}},
		{"bad key of routes", `{"routes":{"Allow":[]}}`, Problems{"dhcp.routes.Allow: unknown key"}},
		{"bad key of routes twice", `{"routes":{"deny":[],"deny":[]}}`, Problems{"dhcp.routes.deny: is there twice"}},
		{
			"bad prefixes", `{"routes":{"allow":["10.0.0.1/8","10.0.0.1","::/0","10.0.0.0/33",8,"10.0.0.0/8","10.0.0.0/8"]}}`,
			Problems{
				"dhcp.routes.allow[0]: 10.0.0.1/8 has bits behind its mask; is 10.0.0.0/8 meant?",
				`dhcp.routes.allow[1]: "10.0.0.1" is no IPv4 prefix; write "10.9.0.0/16"`,
				`dhcp.routes.allow[2]: "::/0" is no IPv4 prefix; write "10.9.0.0/16"`,
				`dhcp.routes.allow[3]: "10.0.0.0/33" is no IPv4 prefix; write "10.9.0.0/16"`,
				"dhcp.routes.allow[4]: is a number, not a string",
				"dhcp.routes.allow[6]: 10.0.0.0/8 is there twice",
			},
		},
		{
			"bad allowed route that is denied", `{"routes":{"allow":["10.1.0.0/16","10.0.0.0/8"],"deny":["10.0.0.0/8"]}}`,
			Problems{
				"dhcp.routes.allow: 10.0.0.0/8 lies inside 10.0.0.0/8 of deny: nothing of it would be allowed",
				"dhcp.routes.allow: 10.1.0.0/16 lies inside 10.0.0.0/8 of deny: nothing of it would be allowed",
			},
		},
		{
			"bad default route that is denied", `{"defaultRoute":"always","routes":{"deny":["128.0.0.0/1","10.0.0.0/8"]}}`,
			Problems{`dhcp.routes.deny: 128.0.0.0/1 denies a default route, and defaultRoute is "always"`},
		},
		{
			"bad allowed routes that nobody installs", `{"routes":{"allow":["127.0.0.0/8","239.1.0.0/16","0.0.0.0/8","255.255.255.255/32"]}}`,
			Problems{
				"dhcp.routes.allow: 0.0.0.0/8 lies inside 0.0.0.0/8, to which no route is ever installed",
				"dhcp.routes.allow: 127.0.0.0/8 lies inside 127.0.0.0/8, to which no route is ever installed",
				"dhcp.routes.allow: 239.1.0.0/16 lies inside 224.0.0.0/4, to which no route is ever installed",
				"dhcp.routes.allow: 255.255.255.255/32 lies inside 240.0.0.0/4, to which no route is ever installed",
			},
		},
		{"bad address with a mask", `{"address":"10.0.0.1/24"}`, Problems{`dhcp.address: "10.0.0.1/24" is no IPv4 address`}},
		{"bad address of nobody", `{"address":"0.0.0.0"}`, Problems{"dhcp.address: 0.0.0.0 cannot be the address of a client"}},
		{"bad address of the other family", `{"address":"2001:db8::1"}`, Problems{`dhcp.address: "2001:db8::1" is no IPv4 address`}},
		{"bad port security", `{"portSecurity":"off"}`, Problems{`dhcp.portSecurity: "off" is none of ["auto" "address" "mac"]`}},
		{"bad publication", `{"publish":true}`, Problems{"dhcp.publish: is true or false, not a string"}},
		{"bad VFIO containers", `{"vfioContainers":"allow"}`, Problems{`dhcp.vfioContainers: "allow" is neither "refuse" nor "discover"`}},
		{"bad server with a mask", `{"servers":["10.0.0.1/24"]}`, Problems{`dhcp.servers[0]: "10.0.0.1/24" is no IPv4 address`}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := Parse(json.RawMessage(tt.raw))
			var got Problems
			if !errors.As(err, &got) {
				t.Fatalf("got %v, want Problems", err)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("problems (-want +got):\n%s", diff)
			}
		})
	}
}

// All options that the machine owns are refused, with a word on what to do.
func TestParseRefusesOptionsOfTheMachine(t *testing.T) {
	for _, code := range []int{12, 50, 51, 52, 53, 54, 55, 56, 57, 58, 59, 60, 61, 80, 82} {
		raw, err := json.Marshal(map[string]any{"options": []any{map[string]any{"code": code, "value": "x"}}})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Parse(raw); err == nil || !strings.Contains(err.Error(), "is not free: ") {
			t.Errorf("option %d: got %v", code, err)
		}
	}
}

// A DEL must find the engine and the ledger though the rest is wrong.
func TestParseReturnsWhatItUnderstood(t *testing.T) {
	got, err := Parse(json.RawMessage(`{"socket":"/run/x.sock","stateDir":"/srv/x","timeout":"soon","tiemout":"1s"}`))
	if err == nil {
		t.Fatal("no error")
	}
	want := with(func(s *Settings) { s.Socket = "/run/x.sock"; s.StateDir = "/srv/x" })
	if diff := cmp.Diff(want, got, cmpopts.EquateComparable(netip.Addr{})); diff != "" {
		t.Errorf("settings (-want +got):\n%s", diff)
	}
}

func FuzzParse(f *testing.F) {
	for _, seed := range []string{
		``, `null`, `{}`, `{"timeout":"30s","mac":"derive"}`, `{"clientID":"{pod}"}`, `{"hostname":"{pod}.{namespace}"}`,
		`{"request":[1,1e1,255],"options":[{"code":43,"value":"hex:0A"}]}`, `{"servers":["10.0.0.1"]}`,
		`{"routeMetric":1e308}`, `{"a":{"a":[`, `{"mac":"keep","mac":"keep"}`,
		`{"routes":{"allow":["10.0.0.0/8"],"deny":["10.1.0.0/16"]},"denyServers":["10.0.0.9"]}`,
		`{"conflictDetection":"full","defend":true,"onChange":"keep-and-report","rapidCommit":true}`,
		`{"address":"10.0.0.5","portSecurity":"mac","publish":"require","vfioContainers":"discover"}`,
	} {
		f.Add([]byte(seed))
	}
	id := Identity{
		Namespace: "prod", Pod: "web-0", UID: "u", Network: "net", IfName: "net1", ContainerID: "c",
		HardwareAddr: []byte{2, 0, 0, 0, 0, 1},
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		s, err := Parse(raw)
		if s.Socket == "" || s.StateDir == "" || s.ClientID == "" {
			t.Fatalf("a setting without default: %+v", s)
		}
		if err != nil {
			var p Problems
			if !errors.As(err, &p) || len(p) == 0 || !slices.IsSorted(p) {
				t.Fatalf("error %#v is no sorted list of problems", err)
			}
			return
		}
		if s.ConflictDetection == "" || s.OnChange == "" || s.PortSecurity == "" || s.Publish == "" || s.Defend && s.ConflictDetection == ConflictDetectionOff {
			t.Fatalf("policies: %+v", s)
		}
		for _, p := range slices.Concat(s.Routes.Allow, s.Routes.Deny) {
			if !p.Addr().Is4() || p != p.Masked() {
				t.Fatalf("prefix %s", p)
			}
		}
		if s.Timeout != 0 && (s.Timeout < MinTimeout || s.Timeout > MaxTimeout) || s.RouteMetric < 0 {
			t.Fatalf("out of range: %+v", s)
		}
		for _, o := range s.Options {
			if ownedBy(o.Code) != "" || len(o.Value) == 0 || len(o.Value) > maxOption {
				t.Fatalf("option %+v", o)
			}
		}
		if value, err := s.ClientIdentifier(id); err == nil && len(value) > maxOption {
			t.Fatalf("client identifier of %d bytes", len(value))
		}
		checkHostname(t, s.HostnameFor(id))
	})
}
