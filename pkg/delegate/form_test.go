package delegate

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func mustObject(t *testing.T, raw string) object {
	t.Helper()
	o, err := decodeObject("test", []byte(raw))
	if err != nil {
		t.Fatal(err)
	}
	return o
}

func TestClassify(t *testing.T) {
	type want struct {
		Form     form
		Delegate string // its type
		DHCP     string
	}
	tests := []struct {
		name string
		base string // of the program; empty: dhcp-meta
		conf string
		want want
		err  string
	}{
		{name: "OK delegate", conf: `{"type":"dhcp-meta","delegate":{"type":"macvlan"},"dhcp":{"mac":"keep"}}`, want: want{wrapping, "macvlan", `{"mac":"keep"}`}},
		{name: "OK delegate without dhcp object", conf: `{"type":"dhcp-meta","delegate":{"type":"macvlan"}}`, want: want{wrapping, "macvlan", ""}},
		{name: "OK dhcp object inside", conf: `{"type":"dhcp-meta","delegate":{"type":"macvlan","dhcp":{}}}`, want: want{wrapping, "macvlan", `{}`}},
		{name: "OK delegate behind another plugin", conf: `{"type":"dhcp-meta","delegate":{"type":"macvlan"},"prevResult":{}}`, want: want{wrapping, "macvlan", ""}},
		{name: "OK both keys", conf: `{"type":"dhcp-meta","plugins":[{"type":"ovn-k8s-cni-overlay"}],"dhcp":{}}`, want: want{bothKeys, "ovn-k8s-cni-overlay", `{}`}},
		{name: "OK both keys with the dhcp object inside", conf: `{"type":"dhcp-meta","plugins":[{"type":"ovn-k8s-cni-overlay","dhcp":{}}]}`, want: want{bothKeys, "ovn-k8s-cni-overlay", `{}`}},
		{name: "OK chained", conf: `{"type":"dhcp-meta","prevResult":{},"dhcp":{}}`, want: want{chained, "", `{}`}},
		{name: "OK null is absent", conf: `{"type":"dhcp-meta","delegate":null,"plugins":null}`, want: want{chained, "", ""}},
		{name: "OK interposed", base: "ovn-k8s-cni-overlay", conf: `{"type":"ovn-k8s-cni-overlay","dhcp":{}}`, want: want{interposed, "ovn-k8s-cni-overlay", `{}`}},
		{name: "OK interposed plugin with a key like ours", base: "multi", conf: `{"type":"multi","delegate":{"type":"x"},"plugins":[],"dhcp":{}}`, want: want{interposed, "multi", `{}`}},
		{name: "OK our type under another name", base: "ovn-k8s-cni-overlay", conf: `{"type":"dhcp-meta","delegate":{"type":"macvlan"}}`, want: want{wrapping, "macvlan", ""}},
		{name: "bad delegate and plugins", conf: `{"type":"dhcp-meta","delegate":{"type":"a"},"plugins":[{"type":"b"}]}`, err: "delegate and plugins: only one of them can be"},
		{name: "bad two plugins", conf: `{"type":"dhcp-meta","plugins":[{"type":"a"},{"type":"b"}]}`, err: `plugins: has 2 entries; beside "type": "dhcp-meta" it must be one, the wrapped plugin`},
		{name: "bad no plugin", conf: `{"type":"dhcp-meta","plugins":[]}`, err: `plugins: has 0 entries; beside "type": "dhcp-meta" it must be one, the wrapped plugin`},
		{name: "bad plugins is an object", conf: `{"type":"dhcp-meta","plugins":{}}`, err: "plugins: is no list: json: cannot unmarshal object into Go value of type []json.RawMessage"},
		{name: "bad plugin is null", conf: `{"type":"dhcp-meta","plugins":[null]}`, err: "plugins[0]: is null, not an object"},
		{name: "bad delegate's type is a number", conf: `{"type":"dhcp-meta","delegate":{"type":5}}`, err: "delegate.type: is not the name of a plugin"},
		{name: "bad ipam beside delegate", conf: `{"type":"dhcp-meta","ipam":{"type":"host-local"},"delegate":{"type":"macvlan"}}`, err: "ipam: dhcp-meta takes none of its own; ipam of type \"host-local\" belongs into delegate"},
		{name: "bad delegate is text", conf: `{"type":"dhcp-meta","delegate":"macvlan"}`, err: "delegate: is no JSON object"},
		{name: "bad delegate without type", conf: `{"type":"dhcp-meta","delegate":{}}`, err: "delegate.type: is missing: which plugin makes the interface?"},
		{name: "bad delegate is ourselves", conf: `{"type":"dhcp-meta","delegate":{"type":"dhcp-meta"}}`, err: "delegate.type: dhcp-meta cannot wrap itself"},
		{name: "bad two dhcp objects", conf: `{"type":"dhcp-meta","delegate":{"type":"a","dhcp":{}},"dhcp":{}}`, err: "dhcp and delegate.dhcp: only one of them can be"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			base := tt.base
			if base == "" {
				base = pluginName
			}
			s, err := classify(base, mustObject(t, tt.conf))
			if diff := cmp.Diff(tt.err, text(err)); diff != "" {
				t.Fatalf("error (-want +got):\n%s", diff)
			}
			got := want{s.form, s.delegate.text("type"), string(s.dhcp)}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("shape (-want +got):\n%s", diff)
			}
		})
	}
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
