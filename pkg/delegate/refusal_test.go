package delegate

import (
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine/api"
)

// What is said of a configuration before there is a pod is what an ADD says of it.
func TestRefusalIsThatOfAnADD(t *testing.T) {
	for _, conf := range []string{
		`{"cniVersion":"1.0.0","name":"n","type":"dhcp-meta"}`,
		`{"cniVersion":"1.0.0","name":"n","type":"dhcp-meta","dhcp":"always","delegate":{"type":"macvlan"}}`,
		`{"cniVersion":"1.0.0","name":"n","type":"dhcp-meta","dhcp":{"timout":"3s"},"delegate":{"type":"macvlan"}}`,
		`{"cniVersion":"1.0.0","name":"n","type":"dhcp-meta","delegate":"macvlan"}`,
		`{"cniVersion":"1.0.0","name":"n","type":"dhcp-meta","plugins":[]}`,
		`{"cniVersion":"1.0.0","name":"n","type":"dhcp-meta","netAttachDefName":"office","delegate":{"type":"macvlan"}}`,
		`{"cniVersion":"1.0.0","name":"n","type":"dhcp-meta","netAttachDefName":"a/b","delegate":{"type":"macvlan","netAttachDefName":"a/c"}}`,
	} {
		_, err := Refusal(pluginName, []byte(conf), false)
		if err == nil {
			t.Errorf("%s is not refused", conf)
			continue
		}
		r := newRig(t)
		r.start()
		r.args.StdinData = []byte(conf)
		if got := r.mustFail(r.plugin.Add, api.CodeOf(err)); got != err.Error() {
			t.Errorf("%s: an ADD says %q, and before it is said %q", conf, got, err)
		}
		r.journal.want(t)
	}
}

func TestRefusal(t *testing.T) {
	const body = `"type":"dhcp-meta","dhcp":{"timeout":"30s"},"netAttachDefName":"shop/office"`
	for _, tt := range []struct {
		name, conf string
		behind     bool
		code       uint // 0: taken
		want, nad  string
	}{
		{"OK behind another", `{"cniVersion":"1.0.0","name":"n",` + body + `}`, true, 0, "", "shop/office"},
		{"OK wrapping", `{"cniVersion":"1.1.0","name":"n",` + body + `,"delegate":{"type":"macvlan"}}`, false, 0, "", "shop/office"},
		{"bad the first of a list", `{"cniVersion":"1.0.0","name":"n",` + body + `}`, false, api.CodeConfig, "neither delegate", "shop/office"},
		{"bad old version", `{"cniVersion":"0.2.0","name":"n",` + body + `}`, true, types.ErrIncompatibleCNIVersion, "0.2.0", "shop/office"},
		{"bad no version", `{"name":"n",` + body + `}`, true, types.ErrIncompatibleCNIVersion, "0.1.0", "shop/office"},
		{"bad no such version", `{"cniVersion":"2.0.0","name":"n",` + body + `}`, true, types.ErrIncompatibleCNIVersion, "2.0.0", "shop/office"},
		{"bad version that is a number", `{"cniVersion":1,"name":"n",` + body + `}`, true, types.ErrDecodingFailure, "cniVersion", "shop/office"},
		{"bad name", `{"cniVersion":"1.0.0","name":"a b",` + body + `}`, true, api.CodeConfig, "a b", "shop/office"},
		{"bad JSON", `{"cniVersion":`, true, types.ErrDecodingFailure, "", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			nad, err := Refusal(pluginName, []byte(tt.conf), tt.behind)
			if tt.code == 0 && err != nil || tt.code != 0 && (err == nil || api.CodeOf(err) != tt.code || !strings.Contains(err.Error(), tt.want)) {
				t.Errorf("error %v, want code %d and %q", err, tt.code, tt.want)
			}
			if nad != tt.nad {
				t.Errorf("names %q, want %q", nad, tt.nad)
			}
		})
	}
}
