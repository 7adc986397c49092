package kube

import (
	"strings"
	"testing"
	"time"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine/api"
)

func TestDescribe(t *testing.T) {
	const wrapping = `{"type":"dhcp-meta","delegate":{"type":"macvlan"}`
	for _, tt := range []struct {
		name, config string
		annotations  []string
		ours         bool
		timeout      time.Duration
	}{
		{"another's", `{"type":"macvlan"}`, nil, false, 0},
		{"of our type", wrapping + `}`, nil, true, 0},
		{"an object", `{"type":"macvlan","dhcp":{"timeout":"30s"}}`, nil, true, 30 * time.Second},
		{"an object inside", `{"type":"dhcp-meta","delegate":{"type":"macvlan","dhcp":{"timeout":"30s"}}}`, nil, true, 30 * time.Second},
		{"an object in a list", `{"plugins":[{"type":"macvlan"},{"type":"dhcp-meta","dhcp":{"timeout":"30s"}}]}`, nil, true, 30 * time.Second},
		{"marked", `{"type":"macvlan"}`, []string{ipamAnnotation, "dhcp", configAnnotation, `{"timeout":"40s"}`}, true, 40 * time.Second},
		{"marked wrongly", `{"type":"macvlan"}`, []string{ipamAnnotation, "x"}, true, 0},
		{"wrong in part", wrapping + `,"dhcp":{"timeout":"30s","x":1}}`, nil, true, 30 * time.Second},
	} {
		t.Run(tt.name, func(t *testing.T) {
			ours, s := Describe(nadWith(tt.config, tt.annotations...))
			if ours != tt.ours || s.Timeout != tt.timeout {
				t.Errorf("ours %v, timeout %s; want %v, %s", ours, s.Timeout, tt.ours, tt.timeout)
			}
		})
	}
}

// What is refused of a definition is what it says itself, beside the dhcp object of the
// network that names it.
func TestRefusal(t *testing.T) {
	const plain, settings = `{"type":"dhcp-meta"}`, `{"type":"dhcp-meta","dhcp":{"timeout":"30s"}}`
	annotated := []string{configAnnotation, `{"timeout":"40s"}`}
	for _, tt := range []struct {
		name, on, named string
		annotations     []string // of the one that is named
		want            string   // empty: none
	}{
		{"OK", settings, settings, nil, ""},
		{"OK settings of the annotation", plain, plain, annotated, ""},
		{"OK what it is called with", plain, `{"type":"dhcp-meta","dhcp":{"x":1},"hostname":"x"}`, nil, ""},
		{"OK what is wrong with the one that names it", `{"type":`, plain, nil, ""},
		{"bad mark", plain, plain, []string{ipamAnnotation, "x"}, ipamAnnotation},
		{"bad setting of the annotation", plain, plain, []string{configAnnotation, `{"x":1}`}, "dhcp.x"},
		{"bad configuration", plain, `{"type":`, nil, "spec.config"},
		{"bad both have settings", settings, plain, annotated, "only one of them can"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			err := Refusal(nadWith(tt.on), nadWith(tt.named, tt.annotations...))
			switch {
			case tt.want == "" && err == nil:
			case err == nil || tt.want == "" || !strings.Contains(err.Error(), tt.want) || api.CodeOf(err) != api.CodeConfig:
				t.Errorf("error %v with code %d, want %q with %d", err, api.CodeOf(err), tt.want, api.CodeConfig)
			}
		})
	}
}
