package kube

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestSelections(t *testing.T) {
	for _, tt := range []struct {
		name, annotation string
		want             []selection
	}{
		{"none", "", nil},
		{"blank", "  ", nil},
		{"an empty list", "[]", nil},
		{"a name", "lan", []selection{{nad: "pods/lan", ifName: "net1"}}},
		{
			"the short form with all there is", " lan , lab/office@eth7,lan@x1",
			[]selection{{nad: "pods/lan", ifName: "net1"}, {nad: "lab/office", ifName: "eth7"}, {nad: "pods/lan", ifName: "x1", nth: 1}},
		},
		{
			// The place counts, not how many before it had no name.
			"names of interfaces", `[{"name":"a","interface":"e0"},{"name":"b"},{"name":"c"}]`,
			[]selection{{nad: "pods/a", ifName: "e0"}, {nad: "pods/b", ifName: "net2"}, {nad: "pods/c", ifName: "net3"}},
		},
		{
			"all that is read",
			`[{"name":"office","namespace":"lab","ips":["fd00::7/64","10.7.0.9/24"],"mac":"02:00:00:00:00:07","default-route":["10.7.0.1"],"cni-args":{"x":1},"unknown":true}]`,
			[]selection{{nad: "lab/office", ifName: "net1", ips: []string{"fd00::7/64", "10.7.0.9/24"}, mac: "02:00:00:00:00:07", defaultRoute: true}},
		},
		{
			"a default route of IPv6 only", `[{"name":"a","default-route":["fd00::1"]}]`,
			[]selection{{nad: "pods/a", ifName: "net1"}},
		},
		{
			"two interfaces of one network", `[{"name":"a"},{"name":"a","namespace":"pods"},{"name":"a","namespace":"lab"}]`,
			[]selection{{nad: "pods/a", ifName: "net1"}, {nad: "pods/a", ifName: "net2", nth: 1}, {nad: "lab/a", ifName: "net3"}},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := selectionsIn(tt.annotation, "pods")
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, got, cmp.AllowUnexported(selection{})); diff != "" {
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
		if got, err := selectionsIn(annotation, "pods"); err == nil {
			t.Errorf("%s: taken as %v", annotation, got)
		} else if !strings.HasPrefix(err.Error(), "annotation k8s.v1.cni.cncf.io/networks: ") {
			t.Errorf("%s: %v", annotation, err)
		}
	}
}

func TestSelected(t *testing.T) {
	list, err := selectionsIn("a,b@net1,c@x", "pods")
	if err != nil {
		t.Fatal(err)
	}
	// The first of two that have one name is the one whose interface there is.
	for ifName, want := range map[string]string{"net1": "pods/a", "x": "pods/c"} {
		if s := selected(list, ifName); s == nil || s.nad != want {
			t.Errorf("%s: %v, want %s", ifName, s, want)
		}
	}
	if s := selected(list, "eth0"); s != nil {
		t.Errorf("eth0: %v", s)
	}
}

func FuzzSelections(f *testing.F) {
	for _, seed := range []string{"a,b/c@d", `[{"name":"a","ips":["10.0.0.1"],"default-route":["10.0.0.2"]}]`, "[null]", `[{}]`, "null", `"`, "{", "[[", ","} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, annotation string) {
		list, err := selectionsIn(annotation, "pods")
		if err != nil && len(list) > 0 {
			t.Error("both a list and an error")
		}
		for _, s := range list {
			if s.ifName == "" || !strings.Contains(s.nad, "/") || strings.HasSuffix(s.nad, "/") {
				t.Errorf("%+v", s)
			}
		}
	})
}
