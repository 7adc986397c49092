package kube

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubevirtv1 "kubevirt.io/api/core/v1"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine"
)

func podWith(labels, annotations map[string]string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "pods", Name: "web", UID: "u1", Labels: labels, Annotations: annotations},
		Spec:       corev1.PodSpec{NodeName: "n1"},
	}
}

// The table of docs/configuration.md.
func TestK47WorkloadByItsLabels(t *testing.T) {
	for _, tt := range []struct {
		name   string
		labels map[string]string
		want   engine.Workload
	}{
		{"a plain pod", nil, engine.Container},
		{"a virtual machine as KubeVirt makes it", map[string]string{"kubevirt.io": "virt-launcher", "vm.kubevirt.io/name": "vm1"}, engine.VM},
		{"the label that OVN-Kubernetes looks at", map[string]string{"kubevirt.io": "virt-launcher"}, engine.VM},
		{"the label that OKEP-6224 names", map[string]string{"vm.kubevirt.io/name": "vm1"}, engine.VM},
		{"a user's plain pod with that label", map[string]string{"app": "web", "vm.kubevirt.io/name": ""}, engine.VM},
		{"another pod of KubeVirt", map[string]string{"kubevirt.io": "virt-handler"}, engine.Container},
		{"a label of another domain", map[string]string{"my.kubevirt.io/name": "vm1"}, engine.Container},
	} {
		if got := workloadOf(podWith(tt.labels, nil)); got != tt.want {
			t.Errorf("%s: %v, want %v", tt.name, got, tt.want)
		}
	}
}

func TestInstanceOf(t *testing.T) {
	for _, tt := range []struct {
		labels, annotations map[string]string
		want                string
	}{
		{map[string]string{"vm.kubevirt.io/name": "a"}, map[string]string{"kubevirt.io/domain": "b"}, "b"},
		{map[string]string{"vm.kubevirt.io/name": "a"}, nil, "a"},
		{nil, map[string]string{"kubevirt.io/domain": "b"}, "b"},
		{nil, nil, ""},
	} {
		if got := instanceOf(podWith(tt.labels, tt.annotations)); got != tt.want {
			t.Errorf("%v %v: %q", tt.labels, tt.annotations, got)
		}
	}
}

// A server knows a guest by the name that the guest itself will send.
func TestHostnameOf(t *testing.T) {
	for _, tt := range []struct {
		labels, annotations map[string]string
		want                string
	}{
		{map[string]string{"kubevirt.io": "virt-launcher", "vm.kubevirt.io/name": "web"}, map[string]string{"kubevirt.io/domain": "web.v2"}, "web"},
		{map[string]string{"kubevirt.io": "virt-launcher"}, map[string]string{"kubevirt.io/domain": "b"}, "b"},
		{map[string]string{"kubevirt.io": "virt-launcher"}, nil, ""},
		{map[string]string{"vm.kubevirt.io/name": ""}, nil, ""},
		{map[string]string{"app": "web"}, map[string]string{"kubevirt.io/domain": "b"}, ""}, // a container
	} {
		if got := hostnameOf(podWith(tt.labels, tt.annotations)); got != tt.want {
			t.Errorf("%v %v: %q, want %q", tt.labels, tt.annotations, got, tt.want)
		}
	}
}

func machine(networks ...string) *kubevirtv1.VirtualMachineInstance {
	vmi := &kubevirtv1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Namespace: "pods", Name: "vm1"}}
	for _, n := range networks { // name=nad=mac
		f := strings.Split(n, "=")
		network := kubevirtv1.Network{Name: f[0]}
		if f[1] != "" {
			network.Multus = &kubevirtv1.MultusNetwork{NetworkName: f[1]}
		} else {
			network.Pod = &kubevirtv1.PodNetwork{}
		}
		vmi.Spec.Networks = append(vmi.Spec.Networks, network)
		vmi.Spec.Domain.Devices.Interfaces = append(vmi.Spec.Domain.Devices.Interfaces, kubevirtv1.Interface{Name: f[0], MacAddress: f[2]})
	}
	return vmi
}

func TestMACOfAVirtualMachine(t *testing.T) {
	const a, b = "02:00:00:00:00:0a", "02:00:00:00:00:0b"
	for _, tt := range []struct {
		name        string
		vmi         *kubevirtv1.VirtualMachineInstance
		nad, ifName string
		want        string
	}{
		{"the only interface", machine("default==", "lan=lab/office="+a), "lab/office", "net1", a},
		{"a network of the machine's namespace", machine("lan=office=" + a), "pods/office", "net1", a},
		{"another network", machine("lan=lab/office=" + a), "lab/other", "net1", ""},
		{"no MAC is said", machine("lan=lab/office="), "lab/office", "net1", ""},
		{"two on one network, by KubeVirt's name", machine("green=lab/office="+a, "blue=lab/office="+b), "lab/office", "pod16477688c0e", b},
		{"two on one network, and no telling them apart", machine("green=lab/office="+a, "blue=lab/office="+b), "lab/office", "net1", ""},
	} {
		got, err := macOf(tt.vmi, tt.nad, tt.ifName)
		if err != nil || got.String() != tt.want {
			t.Errorf("%s: %s, %v; want %s", tt.name, got, err, tt.want)
		}
	}
	if _, err := macOf(machine("lan=lab/office=02:00"), "lab/office", "net1"); err == nil {
		t.Error("02:00 was taken for a MAC")
	}
}

func TestMigratesTo(t *testing.T) {
	vmi := machine()
	pod := podWith(nil, nil)
	if migratesTo(vmi, pod) {
		t.Error("without a migration")
	}
	state := &kubevirtv1.VirtualMachineInstanceMigrationState{TargetPod: "web"}
	vmi.Status.MigrationState = state
	if !migratesTo(vmi, pod) {
		t.Error("not to its target")
	}
	state.Completed = true
	if migratesTo(vmi, pod) {
		t.Error("still, when it is over")
	}
	*state = kubevirtv1.VirtualMachineInstanceMigrationState{TargetPod: "other"}
	if migratesTo(vmi, pod) {
		t.Error("to the pod that it leaves")
	}
}
