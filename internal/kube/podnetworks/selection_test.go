package podnetworks

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestSelections(t *testing.T) {
	for _, tt := range []struct {
		name, annotation string
		want             []Selection
	}{
		{"none", "", nil},
		{"blank", "  ", nil},
		{"an empty list", "[]", nil},
		{"a name", "lan", []Selection{{NAD: "pods/lan", IfName: "net1"}}},
		{
			"the short form with all there is", " lan , lab/office@eth7,lan@x1",
			[]Selection{{NAD: "pods/lan", IfName: "net1"}, {NAD: "lab/office", IfName: "eth7"}, {NAD: "pods/lan", IfName: "x1", Nth: 1}},
		},
		{
			// The place counts, not how many before it had no name.
			"names of interfaces", `[{"name":"a","interface":"e0"},{"name":"b"},{"name":"c"}]`,
			[]Selection{{NAD: "pods/a", IfName: "e0"}, {NAD: "pods/b", IfName: "net2"}, {NAD: "pods/c", IfName: "net3"}},
		},
		{
			"all that is read",
			`[{"name":"office","namespace":"lab","ips":["fd00::7/64","10.7.0.9/24"],"mac":"02:00:00:00:00:07","default-route":["10.7.0.1"],"cni-args":{"x":1},"unknown":true}]`,
			[]Selection{{NAD: "lab/office", IfName: "net1", IPs: []string{"fd00::7/64", "10.7.0.9/24"}, MAC: "02:00:00:00:00:07", DefaultRoute: true}},
		},
		{
			"a default route of IPv6 only", `[{"name":"a","default-route":["fd00::1"]}]`,
			[]Selection{{NAD: "pods/a", IfName: "net1"}},
		},
		{
			"two interfaces of one network", `[{"name":"a"},{"name":"a","namespace":"pods"},{"name":"a","namespace":"lab"}]`,
			[]Selection{{NAD: "pods/a", IfName: "net1"}, {NAD: "pods/a", IfName: "net2", Nth: 1}, {NAD: "lab/a", IfName: "net3"}},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := Selections(tt.annotation, "pods")
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestSelectionProblems(t *testing.T) {
	for _, annotation := range []string{
		`[{"name":"a"}`, `{"name":"a"}`, `"a"`, `[null]`, `[{"name":"a"},null]`, `[{"namespace":"lab"}]`, `[{"name":1}]`,
		"a/b/c", "a@b@c", "A", ",", "a,,b",
		`[{"name":"a","default-route":["x"]}]`,
	} {
		if got, err := Selections(annotation, "pods"); err == nil {
			t.Errorf("%s: taken as %v", annotation, got)
		} else if !strings.HasPrefix(err.Error(), "annotation k8s.v1.cni.cncf.io/networks: ") {
			t.Errorf("%s: %v", annotation, err)
		}
	}
}

func FuzzSelections(f *testing.F) {
	for _, seed := range []string{"a,b/c@d", `[{"name":"a","ips":["10.0.0.1"],"default-route":["10.0.0.2"]}]`, "[null]", `[{}]`, "null", `"`, "{", "[[", ","} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, annotation string) {
		list, err := Selections(annotation, "pods")
		if err != nil && len(list) > 0 {
			t.Error("both a list and an error")
		}
		for _, s := range list {
			if s.IfName == "" || !strings.Contains(s.NAD, "/") || strings.HasSuffix(s.NAD, "/") {
				t.Errorf("%+v", s)
			}
		}
	})
}
