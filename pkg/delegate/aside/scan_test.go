package aside

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// lookByTheBook is look with encoding/json.
func lookByTheBook(raw []byte) conf {
	var o map[string]json.RawMessage
	if json.Unmarshal(raw, &o) != nil || o == nil {
		return conf{}
	}
	text := func(raw json.RawMessage) (s string) {
		_ = json.Unmarshal(raw, &s)
		return s
	}
	var dhcp, runtime map[string]json.RawMessage
	_ = json.Unmarshal(o["runtimeConfig"], &runtime)
	n := conf{
		valid: true, kind: text(o["type"]), name: text(o["name"]), nad: text(o["netAttachDefName"]),
		dhcp:     json.Unmarshal(o["dhcp"], &dhcp) == nil && dhcp != nil,
		deviceID: PCIDevice(text(o["deviceID"]), text(o["pciBusID"]), text(runtime["deviceID"])),
	}
	if !IsNAD(n.nad) {
		n.nad = ""
	}
	return n
}

var looks = []struct {
	name string
	raw  string
	want conf
}{
	{"OK a network of OVN-Kubernetes", `{"cniVersion":"1.0.0","name":"localnet-77","type":"ovn","netAttachDefName":"prod/localnet-77"}`,
		conf{valid: true, kind: "ovn", name: "localnet-77", nad: "prod/localnet-77"}},
	{"OK dhcp object", `{"type":"ovn","dhcp":{}}`, conf{valid: true, kind: "ovn", dhcp: true}},
	{"OK dhcp is null", `{"type":"ovn","dhcp":null}`, conf{valid: true, kind: "ovn"}},
	{"OK dhcp is somebody else's key", `{"type":"ovn","dhcp":true}`, conf{valid: true, kind: "ovn"}},
	{"OK IPAM plugin dhcp is not us", `{"type":"macvlan","ipam":{"type":"dhcp"}}`, conf{valid: true, kind: "macvlan"}},
	{"OK the last of two", `{"type":"a","type":"b","dhcp":{},"dhcp":1}`, conf{valid: true, kind: "b"}},
	{"OK spaces everywhere", " \t\r\n{ \"type\" : \"ovn\" , \"x\" : [ 1 , { } , [ ] ] } \n", conf{valid: true, kind: "ovn"}},
	{"OK escapes", `{"\u0074ype":"\u00fc\ud83d\ude00\ud800\"\/\n","x":"\\"}`, conf{valid: true, kind: "ü😀\uFFFD\"/\n"}},
	{"OK numbers", `{"a":-0.5e+10,"b":0,"c":12E3,"type":"x"}`, conf{valid: true, kind: "x"}},
	{"OK a device of the runtime", `{"type":"x","deviceID":"0000:03:02.1","pciBusID":"0000:03:02.2"}`, conf{valid: true, kind: "x", deviceID: "0000:03:02.1"}},
	{"OK a device of another kind", `{"type":"x","deviceID":"mlx5_core.sf.4","pciBusID":"0000:03:02.2"}`, conf{valid: true, kind: "x", deviceID: "0000:03:02.2"}},
	{"OK a device as a capability", `{"type":"x","runtimeConfig":{"deviceID":"0000:03:02.3"}}`, conf{valid: true, kind: "x", deviceID: "0000:03:02.3"}},
	{"OK a name that is none of a NetworkAttachmentDefinition", `{"type":"x","netAttachDefName":"a/b/c"}`, conf{valid: true, kind: "x"}},
	{"OK empty", `{}`, conf{valid: true}},
	{"bad nothing", ``, conf{}},
	{"bad null", `null`, conf{}},
	{"bad list", `[]`, conf{}},
	{"bad half", `{"type":"ovn"`, conf{}},
	{"bad more than one", `{} {}`, conf{}},
	{"bad number", `{"a":01}`, conf{}},
	{"bad word", `{"a":nul}`, conf{}},
	{"bad control character", "{\"a\":\"\x01\"}", conf{}},
	{"bad escape", `{"a":"\u12g4"}`, conf{}},
	{"bad comma", `{"a":1,}`, conf{}},
	{"bad key", `{a:1}`, conf{}},
	{"bad depth", strings.Repeat(`{"a":`, 10001) + "1" + strings.Repeat("}", 10001), conf{}},
}

func TestLook(t *testing.T) {
	for _, tt := range looks {
		t.Run(tt.name, func(t *testing.T) {
			got := look([]byte(tt.raw))
			if !got.valid {
				got = conf{} // of what is no JSON anything may have been read
			}
			if diff := cmp.Diff(tt.want, got, cmp.AllowUnexported(conf{})); diff != "" {
				t.Errorf("network (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(lookByTheBook([]byte(tt.raw)), got, cmp.AllowUnexported(conf{})); diff != "" {
				t.Errorf("encoding/json sees something else (-json +look):\n%s", diff)
			}
		})
	}
}

// What is read of a configuration decides whether a pod gets its network from us, so
// it must be what encoding/json reads, which the rest of the plugin goes by.
func FuzzLook(f *testing.F) {
	for _, tt := range looks {
		f.Add([]byte(tt.raw))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		got := look(raw)
		if !got.valid {
			got = conf{}
		}
		if diff := cmp.Diff(lookByTheBook(raw), got, cmp.AllowUnexported(conf{})); diff != "" {
			t.Errorf("-json +look:\n%s", diff)
		}
		var list []json.RawMessage
		isList := json.Unmarshal(raw, &list) == nil && list != nil
		var elements []json.RawMessage
		if ok := Elements(raw, func(value []byte) { elements = append(elements, value) }); ok != isList {
			t.Errorf("is a list: got %v, want %v", ok, isList)
		} else if ok && len(elements) != len(list) {
			t.Errorf("%d elements, want %d", len(elements), len(list))
		}
	})
}
