package cluster

import (
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
	"k8s.io/apimachinery/pkg/fields"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine"
	"github.com/dhcp-meta/dhcp-meta/pkg/engine/api"
	"github.com/dhcp-meta/dhcp-meta/tests/rig"
	"github.com/dhcp-meta/dhcp-meta/tests/rig/kube"
)

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
