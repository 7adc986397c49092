package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	view "github.com/dhcp-meta/dhcp-meta/internal/kube"
	"github.com/dhcp-meta/dhcp-meta/pkg/engine"
	"github.com/dhcp-meta/dhcp-meta/pkg/engine/api"
	"github.com/dhcp-meta/dhcp-meta/tests/rig"
	"github.com/dhcp-meta/dhcp-meta/tests/rig/kube"
)

// agent is how the package under test calls itself in the audit log; a test adds
// its node.
const agent = "dhcp-engine/"

// watching is the engine's view of a cluster, as its own account.
type watching struct {
	*view.Cluster
	node     string
	stateDir string
	config   *rest.Config
	// pods are the pods that came in, by namespace/name.
	mu   sync.Mutex
	pods map[string]int
}

// watch runs a view of a node, as the shipped account, until the test ends.
func watch(t *testing.T, c *kube.Cluster, node string) *watching {
	t.Helper()
	account(t, c)
	config := c.As(engineToken(t, c, enginePod(t, c, node)))
	w := newWatching(t, config, node)
	w.run(t)
	w.await(t)
	return w
}

func newWatching(t *testing.T, config *rest.Config, node string) *watching {
	t.Helper()
	config.UserAgent = agent + node
	w := &watching{node: node, stateDir: t.TempDir(), config: config, pods: map[string]int{}}
	var err error
	w.Cluster, err = view.New(view.Config{
		REST: config, NodeName: node, StateDir: w.stateDir,
		Log: slog.New(slog.NewTextHandler(testLog{t}, &slog.HandlerOptions{Level: slog.LevelDebug})),
	})
	if err != nil {
		t.Fatal(err)
	}
	w.OnPod(func(_, pod *corev1.Pod) {
		w.mu.Lock()
		defer w.mu.Unlock()
		if pod != nil {
			w.pods[pod.Namespace+"/"+pod.Name]++
		}
	})
	return w
}

// run runs it until the test ends.
func (w *watching) run(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	endedC := make(chan error, 1)
	go func() { endedC <- w.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		select {
		case err := <-endedC:
			if err != nil {
				t.Errorf("Run: %v", err)
			}
		case <-time.After(rig.Patience):
			t.Error("Run does not end")
		}
	})
}

func (w *watching) await(t *testing.T) {
	t.Helper()
	select {
	case <-w.Synced():
	case <-time.After(rig.Patience):
		t.Fatalf("not synced: %v", w.Ready())
	}
}

// sees waits until a pod is in the cache as it is wanted.
func (w *watching) sees(t *testing.T, pod *corev1.Pod) {
	t.Helper()
	eventually(t, "pod "+pod.Name+" is in the cache", func() bool {
		got, ok := w.Pod(pod.Namespace, pod.Name)
		return ok && got.UID == pod.UID
	})
}

// testLog writes the log of what is tested into that of the test.
type testLog struct{ t *testing.T }

func (l testLog) Write(b []byte) (int, error) {
	l.t.Log(strings.TrimSuffix(string(b), "\n"))
	return len(b), nil
}

// eventually is for conditions that have no event.
func eventually(t testing.TB, what string, is func() bool) {
	t.Helper()
	deadline := time.After(rig.Patience)
	again := time.NewTicker(5 * time.Millisecond)
	defer again.Stop()
	for !is() {
		select {
		case <-again.C:
		case <-deadline:
			t.Fatalf("not within %s: %s", rig.Patience, what)
		}
	}
}

// of is an attachment of a pod as the plugin would tell it.
func of(pod *corev1.Pod, ifName string) engine.Attachment {
	a := engine.Attachment{Pod: engine.Pod{Namespace: pod.Namespace, Name: pod.Name, UID: string(pod.UID)}}
	a.ContainerID, a.IfName = "0123456789abcdef", ifName
	return a
}

func facts(t *testing.T, w *watching, a engine.Attachment) engine.Facts {
	t.Helper()
	f, err := w.Facts(t.Context(), a)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// refusedFacts wants an error with a code and a text.
func refusedFacts(t *testing.T, w *watching, a engine.Attachment, code uint, text string) {
	t.Helper()
	_, err := w.Facts(t.Context(), a)
	if err == nil || api.CodeOf(err) != code || !strings.Contains(err.Error(), text) {
		t.Errorf("code %d, %v; want code %d and %q", api.CodeOf(err), err, code, text)
	}
}

const macvlan = `{"cniVersion":"1.0.0","type":"dhcp-meta","delegate":{"type":"macvlan"}}`

func ovnNetwork(nad, more string) string {
	return `{"cniVersion":"1.0.0","name":"office","type":"ovn-k8s-cni-overlay","topology":"localnet","role":"secondary","netAttachDefName":"` + nad + `"` + more + `}`
}

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
	select {
	case got := <-goneC:
		if got != id {
			t.Errorf("told of %v, want %v", got, id)
		}
	case <-time.After(rig.Patience):
		t.Fatal("nobody tells of the deletion")
	}
	if gone, err := w.Gone(t.Context(), id); !gone || err != nil {
		t.Errorf("a deleted pod: gone %v, %v", gone, err)
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

// Events are on the pod, with what kubectl describe shows; what repeats is one
// event that is counted up.
func TestEventsOnThePod(t *testing.T) {
	c := kube.Shared(t)
	ns := c.Namespace(t)
	w := watch(t, c, ns+"-n")
	pod := c.Pod(t, ns, kube.PodSpec{Node: w.node})
	a := of(pod, "net1")
	w.Events().Report(a, engine.Event{Reason: engine.AddressLeased, Message: "address 10.0.0.7/24 from DHCP server 10.0.0.1"})
	for range 3 {
		w.Events().Report(a, engine.Event{Reason: engine.NoServer, Message: "no server answered"})
	}
	var got map[string]corev1.Event
	eventually(t, "the events are there", func() bool {
		list, err := c.Client.CoreV1().Events(ns).List(t.Context(), metav1.ListOptions{
			FieldSelector: fields.Set{"involvedObject.kind": "Pod", "involvedObject.uid": string(pod.UID)}.String(),
		})
		if err != nil {
			t.Fatal(err)
		}
		got = map[string]corev1.Event{}
		for _, e := range list.Items {
			got[e.Reason] = e
		}
		return len(list.Items) == 2 && got["NoDHCPServer"].Count == 3
	})
	leased := got["AddressLeased"]
	if leased.Type != "Normal" || leased.Message != "net1: address 10.0.0.7/24 from DHCP server 10.0.0.1" || leased.Source.Component != "dhcp-engine" || leased.Source.Host != w.node {
		t.Errorf("%+v", leased)
	}
	if silent := got["NoDHCPServer"]; silent.Type != "Warning" || silent.Message != "net1: no server answered" {
		t.Errorf("%+v", silent)
	}
}

// While the API is away: what is known is used, what is not is said with code 11,
// the list on disk stays, events wait, nobody is called gone. Afterwards all goes on
// by itself.
func TestAPIAway(t *testing.T) {
	c := kube.Start(t)
	account(t, c)
	ns := c.Namespace(t)
	node := ns + "-n"
	c.NAD(t, ns, "office", ovnNetwork(ns+"/office", ""), map[string]string{"dhcp-meta.io/ipam": "dhcp"})
	pod := c.Pod(t, ns, kube.PodSpec{Node: node, Networks: "office"})
	config := c.As(engineToken(t, c, enginePod(t, c, node)))

	c.StopAPI(t)
	// An engine that starts meanwhile starts, is not ready, and leaves the list of
	// its life before alone.
	w := newWatching(t, config, node)
	list := filepath.Join(w.stateDir, api.NetworksFile)
	const before = `{"marked":["lab/old"]}`
	if err := os.WriteFile(list, []byte(before), 0o600); err != nil {
		t.Fatal(err)
	}
	w.run(t)
	refusedFacts(t, w, of(pod, "net1"), api.CodeTryAgain, "ask the Kubernetes API for pod ")
	eventually(t, "it says what it waits for", func() bool {
		err := w.Ready()
		return err != nil && strings.Contains(err.Error(), "refused")
	})
	if data, err := os.ReadFile(list); err != nil || string(data) != before {
		t.Errorf("the list without an API: %q, %v", data, err)
	}
	c.StartAPI(t)
	w.await(t)
	if got := networksFile(t, w); !slices.Equal(got, []string{ns + "/office"}) {
		t.Errorf("the list: %v", got)
	}
	w.sees(t, pod)

	c.StopAPI(t)
	if f := facts(t, w, of(pod, "net1")); f.NAD != ns+"/office" {
		t.Errorf("what is known: %+v", f)
	}
	if marked, err := w.Marked(t.Context(), ns+"/office"); !marked || err != nil {
		t.Errorf("marked %v, %v", marked, err)
	}
	if gone, err := w.Gone(t.Context(), engine.Pod{Namespace: ns, Name: "other", UID: "x"}); gone || api.CodeOf(err) != api.CodeTryAgain {
		t.Errorf("a pod that nobody knows: gone %v, %v", gone, err)
	}
	w.Events().Report(of(pod, "net1"), engine.Event{Reason: engine.LeaseLost, Message: "expired"})
	if got := networksFile(t, w); !slices.Equal(got, []string{ns + "/office"}) {
		t.Errorf("the list while the API is away: %v", got)
	}
	c.StartAPI(t)
	c.NAD(t, ns, "late", ovnNetwork(ns+"/late", ""), map[string]string{"dhcp-meta.io/ipam": "dhcp"})
	eventually(t, "the list goes on", func() bool { return slices.Contains(networksFile(t, w), ns+"/late") })
	eventually(t, "the event came through", func() bool {
		list, err := c.Client.CoreV1().Events(ns).List(t.Context(), metav1.ListOptions{})
		return err == nil && slices.ContainsFunc(list.Items, func(e corev1.Event) bool { return e.Reason == "LeaseLost" })
	})
}

// Without the kind NetworkAttachmentDefinition the engine is ready; when it comes,
// so do the networks.
func TestNetworksThatComeLater(t *testing.T) {
	c := kube.Start(t)
	account(t, c)
	crd := c.Kubectl(t, "", "get", "crd", "network-attachment-definitions.k8s.cni.cncf.io", "-o", "json")
	c.Kubectl(t, "", "delete", "crd", "network-attachment-definitions.k8s.cni.cncf.io")
	w := watch(t, c, "n1")
	if _, err := os.Stat(filepath.Join(w.stateDir, api.NetworksFile)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a list was written: %v", err)
	}
	if marked, err := w.Marked(t.Context(), "lab/office"); marked || err != nil {
		t.Errorf("marked %v, %v", marked, err)
	}
	var again map[string]any
	if err := json.Unmarshal([]byte(crd), &again); err != nil {
		t.Fatal(err)
	}
	again["metadata"] = rig.Object{"name": "network-attachment-definitions.k8s.cni.cncf.io"}
	delete(again, "status")
	text, err := json.Marshal(again)
	if err != nil {
		t.Fatal(err)
	}
	c.Apply(t, string(text))
	c.Kubectl(t, "", "wait", "--for=condition=Established", "--timeout=60s", "crd", "network-attachment-definitions.k8s.cni.cncf.io")
	ns := c.Namespace(t)
	c.NAD(t, ns, "office", ovnNetwork(ns+"/office", ""), map[string]string{"dhcp-meta.io/ipam": "dhcp"})
	eventually(t, "the list has the network", func() bool {
		data, err := os.ReadFile(filepath.Join(w.stateDir, api.NetworksFile))
		return err == nil && strings.Contains(string(data), ns+"/office")
	})
}

// A token that has expired is an error that a retry can mend; when the kubelet has
// put a new one into its file, the next question is answered.
func TestTokenExpires(t *testing.T) {
	c := kube.Shared(t)
	account(t, c)
	ns := c.Namespace(t)
	node := ns + "-n"
	c.NAD(t, ns, "office", macvlan, nil)
	pod := c.Pod(t, ns, kube.PodSpec{Node: node, Networks: "office"})
	mine := enginePod(t, c, node)
	file := filepath.Join(t.TempDir(), "token")
	write := func(token string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(token), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(c.Token(t, engineNamespace, engineAccount, mine, -2*time.Minute))
	config := c.As("")
	config.BearerTokenFile = file
	w := newWatching(t, config, node)
	w.run(t)
	refusedFacts(t, w, of(pod, "net1"), api.CodeTryAgain, "Unauthorized")
	write(engineToken(t, c, mine))
	eventually(t, "the new token is used", func() bool {
		f, err := w.Facts(t.Context(), of(pod, "net1"))
		return err == nil && f.NAD == ns+"/office"
	})
	w.await(t)
}
