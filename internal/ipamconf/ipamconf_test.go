package ipamconf

import (
	"encoding/hex"
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine/network"
)

func conf(ipam string) string {
	return `{"cniVersion": "1.0.0", "name": "office-lan", "type": "macvlan", "ipam": ` + ipam + `}`
}

func TestParse(t *testing.T) {
	const plain = `{"defaultRoute":"always","hostname":""}`
	with := func(more string) string {
		all := map[string]any{"defaultRoute": "always", "hostname": ""}
		if err := json.Unmarshal([]byte(more), &all); err != nil {
			t.Fatal(err)
		}
		raw, err := json.Marshal(all)
		if err != nil {
			t.Fatal(err)
		}
		return string(raw)
	}
	for _, tt := range []struct{ name, ipam, args, want, remark string }{
		{"OK type only", `{"type": "dhcp"}`, "", plain, ""},
		{"OK keys of other IPAM plugins", `{"type": "dhcp", "subnet": "10.0.0.0/8", "routes": []}`, "", plain, ""},
		{"OK keys in other case, as the reference takes them", `{"Priority": 7}`, "", with(`{"routeMetric":7}`), ""},
		{"OK host name from CNI_ARGS", `{"provide": [{"option": "host-name", "fromArg": "K8S_POD_NAME"}]}`,
			"IgnoreUnknown=1;K8S_POD_NAME=web-0", with(`{"hostname":"web-0"}`), ""},
		{"OK argument over value", `{"provide": [{"option": "12", "value": "a", "fromArg": "N"}]}`, "N=b", with(`{"hostname":"b"}`), ""},
		{"OK value where there is no such argument", `{"provide": [{"option": "12", "value": "a", "fromArg": "N"}]}`, "M=b", with(`{"hostname":"a"}`), ""},
		{"OK neither value nor argument", `{"provide": [{"option": "host-name"}]}`, "", plain, ""},
		{"OK vendor class", `{"provide": [{"option": "vendor-class-identifier", "value": "cam"}]}`, "", with(`{"vendorClass":"cam"}`), ""},
		{"OK client identifier, byte by byte", `{"provide": [{"option": "dhcp-client-identifier", "value": "abc"}]}`, "", with(`{"clientID":"hex:616263"}`), ""},
		{"OK user class and a number", `{"provide": [{"option": "user-class", "value": "u"}, {"option": "224", "value": "é"}]}`, "",
			with(`{"options":[{"code":77,"value":"hex:75"},{"code":224,"value":"hex:c3a9"}]}`), ""},
		{"OK the later of two", `{"provide": [{"option": "77", "value": "a"}, {"option": "user-class", "value": "b"}]}`, "",
			with(`{"options":[{"code":77,"value":"hex:62"}]}`), ""},
		{"OK address", `{"provide": [{"option": "50", "value": "10.0.0.9"}]}`, "", with(`{"address":"10.0.0.9"}`), ""},
		{"OK no address", `{"provide": [{"option": "50", "value": "soon"}]}`, "", plain, "no address"},
		{"OK no host name", `{"provide": [{"option": "host-name", "value": "{pod}"}]}`, "", plain, "host-name"},
		{"OK options of the client's own", `{"provide": [{"option": "53", "value": "x"}]}`, "", plain, "option 53"},
		{"OK request", `{"request": [{"option": "3"}, {"option": "routers"}, {"skipDefault": true}, {"option": "42"}]}`, "", with(`{"request":[3,42]}`), ""},
		{"OK request that is required", `{"request": [{"option": "routers", "required": true}, {"option": "42"}, {"option": "3", "required": true}]}`, "",
			with(`{"request":[3,42],"require":[3]}`), ""},
		{"OK request of no option", `{"request": [{"option": "0"}]}`, "", plain, "no option"},
		{"OK our own keys win", `{"priority": 7, "dhcp": {"routeMetric": 9, "defaultRoute": "never", "clientID": "none"}}`, "",
			with(`{"routeMetric":9,"defaultRoute":"never","clientID":"none"}`), ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c, err := Parse([]byte(conf(tt.ipam)), tt.args)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(with(tt.want), string(c.DHCP)); diff != "" {
				t.Errorf("dhcp object (-want +got):\n%s", diff)
			}
			if remarks := strings.Join(c.Remarks, "; "); (tt.remark == "") != (remarks == "") || !strings.Contains(remarks, tt.remark) {
				t.Errorf("remarks are %q, want %q", remarks, tt.remark)
			}
			if c.Network != "office-lan" || c.Version != "1.0.0" || c.Socket != DefaultSocket {
				t.Errorf("read %+v", c)
			}
			if _, err := network.Parse(c.DHCP); err != nil {
				t.Errorf("the engine takes it for wrong: %v", err)
			}
		})
	}
}

func TestParseRefuses(t *testing.T) {
	for _, tt := range []struct{ name, stdin, want string }{
		{"bad no ipam: it ends the reference daemon", `{"name": "a"}`, "ipam: is missing"},
		{"bad null ipam", conf("null"), "ipam: is missing"},
		{"bad no object", `[]`, "configuration"},
		{"bad nothing", ``, "configuration"},
		{"bad name of an option", conf(`{"provide": [{"option": "hostname"}]}`), "ipam.provide[0]"},
		{"bad number of an option", conf(`{"request": [{"option": "256"}]}`), "ipam.request[0]"},
		{"bad long value", conf(`{"provide": [{"option": "77", "value": "` + strings.Repeat("x", 256) + `"}]}`), "256 bytes"},
		{"bad dhcp object", conf(`{"dhcp": 7}`), "ipam.dhcp: is no object"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if _, err := Parse([]byte(tt.stdin), ""); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error is %v, want one with %q", err, tt.want)
			}
		})
	}
}

// TestO06O07Socket: a network may name the daemon's socket, and need not.
func TestO06O07Socket(t *testing.T) {
	for ipam, want := range map[string]string{
		`{}`: "/run/cni/dhcp.sock", `{"daemonSocketPath": "/tmp/d.sock"}`: "/tmp/d.sock",
	} {
		if c, err := Parse([]byte(conf(ipam)), ""); err != nil || c.Socket != want {
			t.Errorf("of %s: socket %q, %v, want %q", ipam, c.Socket, err, want)
		}
	}
}

func TestOver(t *testing.T) {
	c, err := Parse([]byte(conf(`{"priority": 7}`)), "")
	if err != nil {
		t.Fatal(err)
	}
	got := string(c.Over(map[string]json.RawMessage{"routeMetric": json.RawMessage("1"), "clientID": json.RawMessage(`"duid"`)}))
	if want := `{"clientID":"duid","defaultRoute":"always","hostname":"","routeMetric":7}`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func FuzzParseIPAM(f *testing.F) {
	f.Add([]byte(conf(`{"provide": [{"option": "host-name", "fromArg": "A"}], "request": [{"option": "3"}], "priority": 5}`)), "A=b")
	f.Add([]byte(conf("null")), "")
	f.Add([]byte(`{"ipam": {"dhcp": {"clientID": null}}, "dhcp": {}}`), ";=;")
	f.Fuzz(func(t *testing.T, stdin []byte, args string) {
		c, err := Parse(stdin, args)
		if err != nil {
			return
		}
		s, err := network.Parse(c.DHCP)
		if err != nil {
			return // what the configuration says itself may be wrong
		}
		if id, ok := strings.CutPrefix(s.ClientID, "hex:"); ok {
			if _, err := hex.DecodeString(id); err != nil {
				t.Errorf("client identifier %q", s.ClientID)
			}
		}
	})
}
