package leaseobjects

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine"
	"github.com/dhcp-meta/dhcp-meta/pkg/engine/dhcp4"
)

// A name is one that the API takes, and of one interface alone.
func TestNames(t *testing.T) {
	long := strings.Repeat("a.", 126) + "a" // 253
	seen := map[string]string{}
	for _, pod := range []string{"web-0", "a", "a.b", "a.net1", long, long[:239], strings.Repeat("x", 253)} {
		for _, ifName := range []string{"net1", "net1.100", "b.net1", "eth_0", "Net1", "net1-", "a@b", "pod16367aacb67a", "-", "é"} {
			for _, uid := range []string{"", "c0ffee00-0000-4000-8000-000000000001", "c0ffee00-0000-4000-8000-000000000002"} {
				name := nameOf(pod, uid, ifName)
				if bad := validation.IsDNS1123Subdomain(name); bad != nil {
					t.Errorf("%s of %s: %q: %v", ifName, pod, name, bad)
				}
				what := fmt.Sprint(pod, " ", uid, " ", ifName)
				if other, twice := seen[name]; twice {
					t.Errorf("%q is the name of %q and of %q", name, other, what)
				}
				seen[name] = what
				if name != nameOf(pod, uid, ifName) {
					t.Errorf("%q has two names", what)
				}
			}
		}
	}
	if got := nameOf("web-0", "u", "net1"); !strings.HasPrefix(got, "web-0.net1-") {
		t.Errorf("%q does not say whose it is", got)
	}
}

func TestLabels(t *testing.T) {
	seen := map[string]bool{}
	for _, name := range []string{"worker-1", strings.Repeat("x", 63), strings.Repeat("x", 64), strings.Repeat("x", 65), strings.Repeat("n.", 60) + "n"} {
		label := labelOf(name)
		if bad := validation.IsValidLabelValue(label); bad != nil {
			t.Errorf("%q: %v", label, bad)
		}
		if seen[label] {
			t.Errorf("%q is the label of two", label)
		}
		seen[label] = true
	}
	if labelOf("worker-1") != "worker-1" {
		t.Error("a short name is not its own label")
	}
}

func TestStates(t *testing.T) {
	kept := leased("c1", "web-0", "uid-0", metav1.Now().Time)
	guest := kept
	guest.Kept, guest.State = false, dhcp4.Stopped
	in := func(s dhcp4.State) engine.Observation { o := kept; o.State = s; return o }
	tests := []struct {
		name        string
		o           engine.Observation
		want        State
		address, lt string
	}{
		{"OK bound", kept, Bound, "10.77.0.50/24", "1h0m0s"},
		{"OK renewing is bound", in(dhcp4.Renewing), Bound, "10.77.0.50/24", "1h0m0s"},
		{"OK after a restart", in(dhcp4.Rebooting), Bound, "10.77.0.50/24", "1h0m0s"},
		{"OK rebinding", in(dhcp4.Rebinding), Rebinding, "10.77.0.50/24", "1h0m0s"},
		{"OK a guest's", guest, Reported, "10.77.0.50/24", ""},
		{"OK lost", phase(kept, engine.Seeking), Lost, "", ""},
		{"OK lost, and asked for again", func() engine.Observation { o := kept; o.Phase = engine.Seeking; return o }(), Lost, "", ""},
		{"OK without an interface", phase(kept, engine.Orphaned), Orphaned, "10.77.0.50/24", "1h0m0s"},
		{"OK superseded", phase(kept, engine.Superseded), "", "", ""},
		{"OK releasing", phase(kept, engine.Releasing), "", "", ""},
		{"OK over", phase(kept, ""), "", "", ""},
		{"OK claimed", phase(kept, engine.Claimed), "", "", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, shown := statusOf(tt.o, "worker-1", metav1.Now())
			if shown != (tt.want != "") || got.State != tt.want || got.Address != tt.address || got.LeaseTime != tt.lt {
				t.Errorf("%+v, %v", got, shown)
			}
		})
	}
	infinite := kept
	infinite.Lease.Lifetime = dhcp4.Infinite
	if got, _ := statusOf(infinite, "worker-1", metav1.Now()); got.LeaseTime != "infinite" {
		t.Errorf("lease time %q", got.LeaseTime)
	}
}

// A static pod is owned by its mirror in the API.
func TestOwns(t *testing.T) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "api", Annotations: map[string]string{corev1.MirrorPodAnnotationKey: "hash"}}}
	for uid, want := range map[string]bool{"": true, "api": true, "hash": true, "other": false} {
		if got := owns(pod, uid); got != want {
			t.Errorf("%q: %v", uid, got)
		}
	}
}
