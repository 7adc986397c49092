package kube

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// fullPod is a pod as a mesh's webhooks leave it: some 30 KB.
func fullPod(n int) *corev1.Pod {
	env := make([]corev1.EnvVar, 100)
	for i := range env {
		env[i] = corev1.EnvVar{Name: fmt.Sprintf("VARIABLE_%d_%d", n, i), Value: strings.Repeat("v", 100)}
	}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "pods", Name: fmt.Sprintf("web-%d", n), UID: "u1", ResourceVersion: "7",
			Labels: map[string]string{"app": fmt.Sprint("web", n), "kubevirt.io": "virt-launcher", "vm.kubevirt.io/name": "vm1"},
			Annotations: map[string]string{
				"kubectl.kubernetes.io/last-applied-configuration": strings.Repeat("c", 10_000) + fmt.Sprint(n),
				"k8s.v1.cni.cncf.io/network-status":                strings.Repeat("s", 1000),
				"k8s.v1.cni.cncf.io/networks":                      "lab/office",
				"k8s.ovn.org/pod-networks":                         `{"default":{"mac_address":"0a:58:0a:f4:00:07"}}`,
				"dhcp-meta.io/pod-networks":                        "{}",
				"office.lab.dhcp-meta.io/address":                  "10.0.0.9",
				"kubevirt.io/domain":                               "vm1",
				"dhcp-meta.io.example.com/x":                       "not ours",
			},
			ManagedFields: []metav1.ManagedFieldsEntry{{FieldsV1: metav1.NewFieldsV1(strings.Repeat("f", 5000))}},
		},
		Spec:   corev1.PodSpec{NodeName: "n1", HostNetwork: true, Containers: []corev1.Container{{Name: "c", Env: env}}},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, Message: strings.Repeat("m", 1000)},
	}
}

func TestTrimPod(t *testing.T) {
	got, err := trimPod(fullPod(1))
	if err != nil {
		t.Fatal(err)
	}
	want := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "pods", Name: "web-1", UID: "u1", ResourceVersion: "7",
			Labels: map[string]string{"kubevirt.io": "virt-launcher", "vm.kubevirt.io/name": "vm1"},
			Annotations: map[string]string{
				"k8s.v1.cni.cncf.io/networks":     "lab/office",
				"k8s.ovn.org/pod-networks":        `{"default":{"mac_address":"0a:58:0a:f4:00:07"}}`,
				"dhcp-meta.io/pod-networks":       "{}",
				"office.lab.dhcp-meta.io/address": "10.0.0.9",
				"kubevirt.io/domain":              "vm1",
			},
		},
		Spec:   corev1.PodSpec{NodeName: "n1", HostNetwork: true},
		Status: corev1.PodStatus{Phase: corev1.PodRunning},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestTrimNAD(t *testing.T) {
	nad := nadWith(`{"type":"x"}`, ipamAnnotation, "dhcp", "k8s.v1.cni.cncf.io/resourceName", "intel.com/vf")
	nad.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "m"}}
	nad.Finalizers = []string{"k8s.ovn.org/x"}
	got, err := trimNAD(nad)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(nadWith(`{"type":"x"}`, ipamAnnotation, "dhcp"), got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// What is kept of a pod and of a definition is bounded, however large they are.
func TestMemoryOfWhatIsKept(t *testing.T) {
	const count = 500
	kept := make([]any, 0, 2*count)
	perObject := func(trim func(any) (any, error), make func(i int) any) int {
		before := heap()
		for i := range count {
			small, err := trim(make(i))
			if err != nil {
				t.Fatal(err)
			}
			kept = append(kept, small)
		}
		return int(heap()-before) / count
	}
	pod := perObject(trimPod, func(i int) any { return fullPod(i) })
	nad := perObject(trimNAD, func(i int) any {
		n := nadWith(fmt.Sprintf(`{"name":"n%d"}`, i), ipamAnnotation, "dhcp",
			"kubectl.kubernetes.io/last-applied-configuration", strings.Repeat("c", 10_000)+fmt.Sprint(i))
		n.ManagedFields = []metav1.ManagedFieldsEntry{{FieldsV1: metav1.NewFieldsV1(strings.Repeat("f", 5000+i))}}
		return n
	})
	t.Logf("%d bytes a pod, %d bytes a definition", pod, nad)
	if pod > 4<<10 {
		t.Errorf("%d bytes are kept of a pod of 30 KB", pod)
	}
	if nad > 2<<10 {
		t.Errorf("%d bytes are kept of a definition of 15 KB", nad)
	}
	runtime.KeepAlive(kept)
}

func heap() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// Other things than objects come by as well, and go on as they are.
func TestTrimLeavesOthersAlone(t *testing.T) {
	status := &metav1.Status{Reason: metav1.StatusReasonExpired}
	for _, trim := range []func(any) (any, error){trimPod, trimNAD} {
		if got, err := trim(status); got != status || err != nil {
			t.Errorf("%v, %v", got, err)
		}
	}
}
