package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine"
	"github.com/dhcp-meta/dhcp-meta/pkg/engine/api"
	"github.com/dhcp-meta/dhcp-meta/tests/rig"
	"github.com/dhcp-meta/dhcp-meta/tests/rig/kube"
)

// One network serves pods and virtual machines; which is which is the pod's alone.
func TestK15OneNetworkForPodsAndVirtualMachines(t *testing.T) {
	c := kube.Shared(t)
	ns := c.Namespace(t)
	w := watch(t, c, ns+"-n")
	nad := ns + "/office"
	c.NAD(t, ns, "office", ovnNetwork(nad, ""), map[string]string{"dhcp-meta.io/ipam": "dhcp"})
	plain := c.Pod(t, ns, kube.PodSpec{Node: w.node, Networks: "office"})
	vm := c.Pod(t, ns, kube.PodSpec{Node: w.node, Networks: "office", Labels: map[string]string{"kubevirt.io": "virt-launcher"}})
	named := c.Pod(t, ns, kube.PodSpec{Node: w.node, Networks: "office", Labels: map[string]string{"vm.kubevirt.io/name": "vm1"}})
	for pod, want := range map[*corev1.Pod]engine.Workload{plain: engine.Container, vm: engine.VM, named: engine.VM} {
		f := facts(t, w, of(pod, "net1"))
		if f.Workload != want || f.NAD != nad || !f.OVN || f.DHCP != nil {
			t.Errorf("%v: %+v", pod.Labels, f)
		}
	}
}

// A pod says in annotations of its own what it wants of a network; a pod that says
// nothing but which network gets the network's settings (O11).
func TestO08O11SettingsOfNetworkAndPod(t *testing.T) {
	c := kube.Shared(t)
	ns := c.Namespace(t)
	w := watch(t, c, ns+"-n")
	prefix := "office." + ns + ".dhcp-meta.io/"
	c.NAD(t, ns, "office", macvlan, map[string]string{"dhcp-meta.io/config": `{"hostname":"{pod}-lan","mac":"derive"}`})
	c.NAD(t, ns, "plain", macvlan, nil)
	alone := c.Pod(t, ns, kube.PodSpec{Node: w.node, Networks: "office,plain"})
	picky := c.Pod(t, ns, kube.PodSpec{
		Node:        w.node,
		Networks:    `[{"name":"office","ips":["10.0.0.7/24"],"mac":"02:00:00:00:00:07","default-route":["10.0.0.1"]},{"name":"plain","interface":"x"}]`,
		Annotations: map[string]string{prefix + "hostname": "picky", "office.other.dhcp-meta.io/hostname": "not this one"},
	})
	if f := facts(t, w, of(alone, "net1")); string(f.DHCP) != `{"hostname":"{pod}-lan","mac":"derive"}` || f.HardwareAddr != nil || f.OVN {
		t.Errorf("the network's settings: %s, %+v", f.DHCP, f)
	}
	if f := facts(t, w, of(alone, "net2")); f.NAD != ns+"/plain" || f.DHCP != nil {
		t.Errorf("no settings at all: %s, %+v", f.DHCP, f)
	}
	f := facts(t, w, of(picky, "net1"))
	if want := `{"address":"10.0.0.7","defaultRoute":"always","hostname":"picky","mac":"derive"}`; string(f.DHCP) != want {
		t.Errorf("the pod's own: %s, want %s", f.DHCP, want)
	}
	if f.HardwareAddr.String() != "02:00:00:00:00:07" {
		t.Errorf("MAC %s", f.HardwareAddr)
	}
	if f := facts(t, w, of(picky, "x")); f.NAD != ns+"/plain" || f.DHCP != nil || f.HardwareAddr != nil {
		t.Errorf("another interface of the same pod: %s, %+v", f.DHCP, f)
	}
	// What the configuration itself said comes first, and stays when nothing is
	// added.
	a := of(alone, "net2")
	a.DHCP = json.RawMessage(`{ "hostname": "a" }`)
	if f := facts(t, w, a); string(f.DHCP) != `{ "hostname": "a" }` {
		t.Errorf("the configuration's own: %s", f.DHCP)
	}

	wrong := c.Pod(t, ns, kube.PodSpec{Node: w.node, Networks: "office", Annotations: map[string]string{prefix + "address": "10.0.0"}})
	refusedFacts(t, w, of(wrong, "net1"), api.CodeConfig, "annotation "+prefix+`address: "10.0.0" is no IPv4 address`)
	none := c.Pod(t, ns, kube.PodSpec{Node: w.node, Networks: "nothing"})
	refusedFacts(t, w, of(none, "net1"), api.CodeConfig, "there is no NetworkAttachmentDefinition "+ns+"/nothing")
	noJSON := c.Pod(t, ns, kube.PodSpec{Node: w.node, Networks: `[{"name":`})
	refusedFacts(t, w, of(noJSON, "net1"), api.CodeConfig, "annotation k8s.v1.cni.cncf.io/networks: ")
}

// A network of another namespace is found, by the pod's request and by the name
// that the configuration has; two interfaces of one network are told apart.
func TestQ25NetworkOfAnotherNamespace(t *testing.T) {
	c := kube.Shared(t)
	theirs, ns := c.Namespace(t), c.Namespace(t)
	w := watch(t, c, ns+"-n")
	nad := theirs + "/office"
	c.NAD(t, theirs, "office", ovnNetwork(nad, ""), map[string]string{"dhcp-meta.io/ipam": "dhcp", "dhcp-meta.io/config": `{"hostname":"theirs"}`})
	c.NAD(t, ns, "office", macvlan, map[string]string{"dhcp-meta.io/config": `{"hostname":"ours"}`})
	pod := c.Pod(t, ns, kube.PodSpec{
		Node: w.node, Networks: "office," + nad + "@a," + nad + "@b",
		Annotations: map[string]string{"k8s.ovn.org/pod-networks": `{"` + nad + `":{"mac_address":"0a:58:00:00:00:01"},"` + nad + `/1":{"mac_address":"0a:58:00:00:00:02"}}`},
	})
	for ifName, want := range map[string]struct{ nad, dhcp, mac string }{
		"net1": {ns + "/office", `{"hostname":"ours"}`, ""},
		"a":    {nad, `{"hostname":"theirs"}`, "0a:58:00:00:00:01"},
		"b":    {nad, `{"hostname":"theirs"}`, "0a:58:00:00:00:02"},
	} {
		f := facts(t, w, of(pod, ifName))
		if f.NAD != want.nad || string(f.DHCP) != want.dhcp || f.HardwareAddr.String() != want.mac {
			t.Errorf("%s: %s %s %s", ifName, f.NAD, f.DHCP, f.HardwareAddr)
		}
	}
	// As OVN-Kubernetes names it, for an interface that the pod does not ask for.
	a := of(pod, "net9")
	a.NAD, a.Wrapped = nad, "ovn-k8s-cni-overlay"
	if f := facts(t, w, a); f.NAD != nad || !f.OVN || string(f.DHCP) != `{"hostname":"theirs"}` {
		t.Errorf("by its name: %+v", f)
	}
}

// Pods that are not on the node never come in, scheduled or not: nothing is asked
// about them, and nothing is written.
func TestP05OtherPodsCauseNoWork(t *testing.T) {
	c := kube.Shared(t)
	ns := c.Namespace(t)
	w := watch(t, c, ns+"-n")
	c.NAD(t, ns, "office", macvlan, nil)
	unscheduled := c.Pod(t, ns, kube.PodSpec{Networks: "office"})
	foreign := c.Pod(t, ns, kube.PodSpec{Node: ns + "-other", Networks: "office"})
	mine := c.Pod(t, ns, kube.PodSpec{Node: w.node, Networks: "office"})
	w.sees(t, mine)

	w.mu.Lock()
	for key := range w.pods {
		if key != ns+"/"+mine.Name && !strings.HasPrefix(key, engineNamespace+"/") {
			t.Errorf("pod %s came in", key)
		}
	}
	w.mu.Unlock()
	if asked := c.Requests(t, func(r kube.Request) bool {
		return r.Agent == w.config.UserAgent && (r.Name == unscheduled.Name || r.Name == foreign.Name || r.Writes())
	}); len(asked) > 0 {
		t.Errorf("asked: %v", asked)
	}
	refusedFacts(t, w, of(unscheduled, "net1"), api.CodeTryAgain, "is on no node yet")
	refusedFacts(t, w, of(foreign, "net1"), api.CodeTryAgain, "is on node "+ns+"-other, says the Kubernetes API, and this engine was told --node-name "+w.node)
}

// A pod in its host's network has no interface that could get an address.
func TestP06HostNetworkPodsAreRefused(t *testing.T) {
	c := kube.Shared(t)
	ns := c.Namespace(t)
	w := watch(t, c, ns+"-n")
	pod := c.Pod(t, ns, kube.PodSpec{Node: w.node, HostNetwork: true})
	refusedFacts(t, w, of(pod, "net1"), api.CodeConfig, "uses the network of its host")
}

// A pod that was made again under its name is another pod; who says that one is
// gone asks the API first.
func TestP16PodsOfOneNameAreToldApart(t *testing.T) {
	c := kube.Shared(t)
	ns := c.Namespace(t)
	w := watch(t, c, ns+"-n")
	goneC := make(chan engine.Pod, 16)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go w.Watch(ctx, func(p engine.Pod) {
		if p != (engine.Pod{}) {
			goneC <- p
		}
	})
	c.NAD(t, ns, "office", macvlan, nil)
	spec := kube.PodSpec{Name: "web", Node: w.node, Networks: "office"}
	first := c.Pod(t, ns, spec)
	w.sees(t, first)
	id := of(first, "net1").Pod
	if gone, err := w.Gone(t.Context(), id); gone || err != nil {
		t.Errorf("a living pod: gone %v, %v", gone, err)
	}
	c.DeletePod(t, first)
	for gone := false; !gone; { // it is told of when its deletion begins, and when it ends
		select {
		case got := <-goneC:
			if got != id {
				t.Errorf("told of %v, want %v", got, id)
			}
		case <-time.After(rig.Patience):
			t.Fatal("nobody tells that the pod is gone")
		}
		var err error
		if gone, err = w.Gone(t.Context(), id); err != nil {
			t.Fatalf("a deleted pod: gone %v, %v", gone, err)
		}
	}
	if _, err := w.Facts(t.Context(), of(first, "net1")); !errors.Is(err, engine.ErrNoPod) {
		t.Errorf("a deleted pod: %v", err)
	}
	// An ADD may be ahead of the watch: whatever the cache has, this one is found.
	second := c.Pod(t, ns, spec)
	if f := facts(t, w, of(second, "net1")); f.NAD != ns+"/office" {
		t.Errorf("%+v", f)
	}
	if _, err := w.Facts(t.Context(), of(first, "net1")); !errors.Is(err, engine.ErrNoPod) || !strings.Contains(err.Error(), string(second.UID)) {
		t.Errorf("the first pod of the name: %v", err)
	}
	if gone, err := w.Gone(t.Context(), id); !gone || err != nil {
		t.Errorf("the first pod of the name: gone %v, %v", gone, err)
	}
}

// The list of marked networks on disk follows marks, and Marked knows a network
// that the cache does not have yet.
func TestListOfMarkedNetworks(t *testing.T) {
	c := kube.Shared(t)
	ns := c.Namespace(t)
	w := watch(t, c, ns+"-n")
	has := func(name string) bool { return slices.Contains(networksFile(t, w), ns+"/"+name) }
	c.NAD(t, ns, "plain", macvlan, nil)
	c.NAD(t, ns, "office", ovnNetwork(ns+"/office", ""), map[string]string{"dhcp-meta.io/ipam": "dhcp"})
	for name, want := range map[string]bool{"office": true, "plain": false, "nothing": false} {
		if got, err := w.Marked(t.Context(), ns+"/"+name); got != want || err != nil {
			t.Errorf("%s: marked %v, %v", name, got, err)
		}
	}
	eventually(t, "the list has the marked network", func() bool { return has("office") })
	if has("plain") {
		t.Error("a network without a mark is listed")
	}
	nads := c.NADs.K8sCniCncfIoV1().NetworkAttachmentDefinitions(ns)
	set := func(name, annotations string) {
		t.Helper()
		body := `{"metadata":{"annotations":` + annotations + `}}`
		if _, err := nads.Patch(t.Context(), name, types.MergePatchType, []byte(body), metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	set("plain", `{"dhcp-meta.io/ipam":"dhcp"}`)
	eventually(t, "the list has the new mark", func() bool { return has("plain") })
	set("office", `{"dhcp-meta.io/ipam":null}`)
	eventually(t, "the list has lost the old mark", func() bool { return !has("office") && has("plain") })
	if err := nads.Delete(t.Context(), "plain", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the list has lost what is deleted", func() bool { return !has("plain") })
}

func networksFile(t *testing.T, w *watching) []string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(w.stateDir, api.NetworksFile))
	if err != nil {
		t.Fatal(err)
	}
	var n api.Networks
	if err := json.Unmarshal(data, &n); err != nil {
		t.Fatalf("%s: %v", data, err)
	}
	return n.Marked
}

// A cluster that uses nothing of ours sees nothing of us: three requests at the
// start, no write, an empty list (K96). And the shipped rights are enough: nothing is forbidden.
func TestK96NothingIsWrittenWhereNothingIsOurs(t *testing.T) {
	c := kube.Shared(t)
	ns := c.Namespace(t)
	w := watch(t, c, ns+"-n")
	nad := c.NAD(t, ns, "plain", ovnNetwork(ns+"/plain", `,"subnets":"10.1.0.0/16"`), nil)
	pod := c.Pod(t, ns, kube.PodSpec{Node: w.node, Networks: "plain"})
	w.sees(t, pod)
	if marked, err := w.Marked(t.Context(), ns+"/plain"); marked || err != nil {
		t.Errorf("marked %v, %v", marked, err)
	}
	if slices.Contains(networksFile(t, w), ns+"/"+nad.Name) {
		t.Error("it is listed")
	}
	requests := c.Requests(t, func(r kube.Request) bool { return r.Agent == w.config.UserAgent })
	for _, r := range requests {
		if r.Writes() || r.Code >= 400 {
			t.Errorf("%v", r)
		}
	}
	if len(requests) > 6 {
		t.Errorf("%d requests: %v", len(requests), requests)
	}
	if got := c.GetPod(t, ns, pod.Name); got.ResourceVersion != pod.ResourceVersion {
		t.Errorf("the pod has changed: %v", got.Annotations)
	}
}

// A virtual machine's MAC is known before its interface is there.
func TestVirtualMachineTellsItsMAC(t *testing.T) {
	c := kube.Shared(t)
	ns := c.Namespace(t)
	w := watch(t, c, ns+"-n")
	c.NAD(t, ns, "office", macvlan, nil)
	vmis := c.Dynamic.Resource(schema.GroupVersionResource{Group: "kubevirt.io", Version: "v1", Resource: "virtualmachineinstances"}).Namespace(ns)
	vmi := &unstructured.Unstructured{Object: rig.Object{
		"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "metadata": rig.Object{"name": "vm1"},
		"spec": rig.Object{
			"domain":   rig.Object{"devices": rig.Object{"interfaces": []any{rig.Object{"name": "lan", "bridge": rig.Object{}, "macAddress": "02:00:00:00:00:0a"}}}},
			"networks": []any{rig.Object{"name": "lan", "multus": rig.Object{"networkName": "office"}}},
		},
	}}
	if _, err := vmis.Create(t.Context(), vmi, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	launcher := func(name, networks string) *corev1.Pod {
		return c.Pod(t, ns, kube.PodSpec{Node: w.node, Networks: networks, Labels: map[string]string{"kubevirt.io": "virt-launcher"}, Annotations: map[string]string{"kubevirt.io/domain": name}})
	}
	if f := facts(t, w, of(launcher("vm1", "office"), "net1")); f.HardwareAddr.String() != "02:00:00:00:00:0a" {
		t.Errorf("MAC %q", f.HardwareAddr)
	}
	// The target of a live migration is another pod of the same machine.
	if f := facts(t, w, of(launcher("vm1", "office@net5"), "net5")); f.HardwareAddr.String() != "02:00:00:00:00:0a" || f.Workload != engine.VM {
		t.Errorf("the target of a migration: MAC %q", f.HardwareAddr)
	}
	// KubeVirt's label has the guest's name where the machine has spec.hostname.
	mail := c.Pod(t, ns, kube.PodSpec{Node: w.node, Networks: "office", Labels: map[string]string{"kubevirt.io": "virt-launcher", "vm.kubevirt.io/name": "mail"},
		Annotations: map[string]string{"kubevirt.io/domain": "vm1"}})
	if f := facts(t, w, of(mail, "net1")); f.HardwareAddr.String() != "02:00:00:00:00:0a" || f.Hostname != "mail" {
		t.Errorf("a machine whose guest has another name: MAC %q, host name %q", f.HardwareAddr, f.Hostname)
	}
	// A label alone makes no machine.
	if f := facts(t, w, of(launcher("vm2", "office"), "net1")); f.HardwareAddr != nil || f.Workload != engine.VM {
		t.Errorf("no such machine: %+v", f)
	}
	if f := facts(t, w, of(launcher("vm1", `[{"name":"office","mac":"02:00:00:00:00:0b"}]`), "net1")); f.HardwareAddr.String() != "02:00:00:00:00:0b" {
		t.Errorf("the pod's own request: MAC %q", f.HardwareAddr)
	}
}
