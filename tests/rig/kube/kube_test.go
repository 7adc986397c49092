package kube_test

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/dhcp-meta/dhcp-meta/tests/rig"
	"github.com/dhcp-meta/dhcp-meta/tests/rig/kube"
	"github.com/dhcp-meta/dhcp-meta/tests/rig/node"
)

func TestMain(m *testing.M) { kube.Main(m) }

// The rig is proven without the programs that it is for: Multus plugs two reference
// plugins, says so on the pod, and takes both down.
func TestMultusPlugsAPod(t *testing.T) {
	t.Parallel()
	c := kube.Shared(t)
	ns := c.Namespace(t)
	lan := rig.NewLAN(t)
	n := node.New(t, lan.Node)
	n.InstallPlugins(t)
	recorder := rig.NewRecorder(t, []string{"macvlan"})
	n.InstallRecorder(t, recorder)
	c.Join(t, n)
	runtime := c.StartMultus(t, n, kube.Multus{})
	c.NAD(t, ns, "site", rig.Object{
		"cniVersion": "1.0.0", "name": "site", "type": "macvlan", "master": rig.Uplink, "mode": "bridge",
		"ipam": rig.Object{"type": "static", "addresses": []rig.Object{{"address": "10.77.0.9/24"}}},
	}, nil)
	pod := c.Pod(t, ns, kube.PodSpec{Node: n.Name, Networks: "site"})

	s := runtime.Sandbox(t, pod)
	result := s.Add(t)
	if len(result.IPs) != 1 || !strings.HasPrefix(result.IPs[0].Address.String(), "10.244.0.") {
		t.Errorf("eth0 has %v", result.IPs)
	}
	if got := s.StatusOf(t, "net1").IPs; !slices.Equal(got, []string{"10.77.0.9"}) {
		t.Errorf("Multus says net1 has %v", got)
	}
	if have := s.Addresses(t, "net1"); len(have) != 1 || have[0].Addr != netip.MustParsePrefix("10.77.0.9/24") {
		t.Errorf("net1 has %v", have)
	}
	s.Del(t)
	if out, err := s.TryIP("link", "show", "dev", "net1"); err == nil {
		t.Errorf("net1 is there after DEL: %s", out)
	}
	calls := recorder.Calls(t)
	if len(calls) < 2 || calls[0].Verb != "ADD" || calls[len(calls)-1].Verb != "DEL" || calls[0].ContainerID != s.ID {
		t.Errorf("macvlan was called %v", calls)
	}
}

// A token of a pod says which node the pod is on, is worth what RBAC gives its
// account, and what is done with it is in the audit log.
func TestTokensAndTheAuditLog(t *testing.T) {
	t.Parallel()
	c := kube.Shared(t)
	ns := c.Namespace(t)
	pod := c.Pod(t, ns, kube.PodSpec{})
	client, err := kubernetes.NewForConfig(c.As(c.Token(t, ns, "default", pod, 10*time.Minute)))
	if err != nil {
		t.Fatal(err)
	}
	_, err = client.CoreV1().Pods(ns).Get(t.Context(), pod.Name, metav1.GetOptions{})
	if !apierrors.IsForbidden(err) {
		t.Fatalf("an account without a role reads a pod: %v", err)
	}
	c.Apply(t, strings.ReplaceAll(`
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: pods, namespace: NS}
rules: [{apiGroups: [""], resources: [pods], verbs: ["*"]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: pods, namespace: NS}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: pods}
subjects: [{kind: ServiceAccount, name: default, namespace: NS}]
`, "NS", ns))
	c.AwaitAccess(t, ns, "default", authorizationv1.ResourceAttributes{Namespace: ns, Verb: "update", Resource: "pods"})
	got, err := client.CoreV1().Pods(ns).Get(t.Context(), pod.Name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	got.Annotations = map[string]string{"a": "b"}
	if _, err := client.CoreV1().Pods(ns).Update(t.Context(), got, metav1.UpdateOptions{FieldManager: "x"}); err != nil {
		t.Fatal(err)
	}
	user := "system:serviceaccount:" + ns + ":default"
	writes := c.Requests(t, func(r kube.Request) bool { return r.User == user && r.Writes() })
	if len(writes) != 1 || writes[0].Verb != "update" || writes[0].Name != pod.Name || writes[0].Code != 200 ||
		!strings.Contains(string(writes[0].Body), `"a":"b"`) {
		t.Errorf("the audit log has %v", writes)
	}

	// Signed by the test, since the API gives none that ends so soon.
	stale, err := kubernetes.NewForConfig(c.As(c.Token(t, ns, "default", pod, -2*time.Minute)))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stale.CoreV1().Pods(ns).Get(t.Context(), pod.Name, metav1.GetOptions{}); !apierrors.IsUnauthorized(err) {
		t.Errorf("an expired token: %v", err)
	}
	fresh, err := kubernetes.NewForConfig(c.As(c.Token(t, ns, "default", pod, time.Minute)))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := fresh.CoreV1().Pods(ns).Get(t.Context(), pod.Name, metav1.GetOptions{}); err != nil {
		t.Errorf("a token that the test signed: %v", err)
	}
}

func TestAwaitPodSeesAChange(t *testing.T) {
	t.Parallel()
	c := kube.Shared(t)
	ns := c.Namespace(t)
	pod := c.Pod(t, ns, kube.PodSpec{})
	value := "here"
	seen := 0
	c.AwaitPod(t, ns, pod.Name, "its mark", func(p *corev1.Pod) bool {
		if seen++; seen == 1 {
			c.Annotate(t, pod, "mark", &value)
		}
		return p.Annotations["mark"] == value
	})
	if seen < 2 {
		t.Error("the watch began with a pod that was already changed")
	}
}

// A cluster of a test's own loses its API server and gets it back, with all that was
// there.
func TestAPIGoesAndComes(t *testing.T) {
	t.Parallel()
	c := kube.Start(t)
	ns := c.Namespace(t)
	pod := c.Pod(t, ns, kube.PodSpec{})
	c.StopAPI(t)
	if _, err := c.Client.CoreV1().Pods(ns).Get(t.Context(), pod.Name, metav1.GetOptions{}); err == nil {
		t.Error("the API answers without a server")
	}
	c.StartAPI(t)
	if got := c.GetPod(t, ns, pod.Name); got.UID != pod.UID {
		t.Errorf("the pod came back with UID %s, was %s", got.UID, pod.UID)
	}
}

// Nodes come and go beside a test's own, and its connections to the API server stay: the
// server's MAC is not one that comes and goes with them.
func TestServerKeepsItsMAC(t *testing.T) {
	t.Parallel()
	c := kube.Shared(t)
	address := func() string {
		_, rest, _ := strings.Cut(c.Net.IP(t, "-o", "link", "show", "dev", "br0"), "link/ether ")
		return strings.Fields(rest)[0]
	}
	before := address()
	// A bridge without a MAC of its own takes the lowest of its ports.
	port := "low" + rig.RandomHex(3)
	c.Net.IP(t, "link", "add", port, "address", "02:00:00:00:00:01", "type", "veth", "peer", "name", port+"p")
	defer c.Net.IP(t, "link", "del", port)
	c.Net.IP(t, "link", "set", port, "master", "br0", "up")
	if now := address(); now != before {
		t.Errorf("the API server's MAC was %s, and is %s since a port has come", before, now)
	}
}
