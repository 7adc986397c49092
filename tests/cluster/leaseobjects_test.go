package cluster

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/dhcp-meta/dhcp-meta/tests/rig"
	"github.com/dhcp-meta/dhcp-meta/tests/rig/kube"
	"github.com/dhcp-meta/dhcp-meta/tests/rig/node"
)

// dhcpLease is an object DHCPLease as anybody reads it.
type dhcpLease struct {
	metav1.ObjectMeta `json:"metadata"`
	Status            struct {
		Pod, Interface, Network, Node, MACAddress, Address, Server, State, LeaseTime string
		Since                                                                        metav1.Time
	} `json:"status"`
}

// leaseObjects are the objects of a Kubernetes namespace; without the kind there are
// none.
func (l *lab) leaseObjects(t *testing.T) []dhcpLease {
	t.Helper()
	var list struct{ Items []dhcpLease }
	text, err := l.kube.Client.Discovery().RESTClient().Get().AbsPath(l.objects()).DoRaw(t.Context())
	if err == nil {
		err = json.Unmarshal(text, &list)
	}
	if err != nil {
		t.Logf("list objects: %v", err)
	}
	return list.Items
}

// objects is the path of the namespace's objects.
func (l *lab) objects() string {
	return "/apis/dhcp-meta.io/v1alpha1/namespaces/" + l.ns + "/dhcpleases"
}

// leaseObject is the text of one, whose status, label and owner say this.
func leaseObject(ns, node, label, owner string) string {
	return fmt.Sprintf(`{"apiVersion":"dhcp-meta.io/v1alpha1","kind":"DHCPLease",
		"metadata":{"name":"other","namespace":%q,"labels":{"dhcp-meta.io/node":%q},"ownerReferences":[{"apiVersion":"v1","kind":%q,"name":"x","uid":"x"}]},
		"status":{"pod":"x","interface":"net1","node":%q,"state":"Bound","since":"2026-01-01T00:00:00Z"}}`, ns, label, owner, node)
}

// asEngine is a client with the token of an engine's pod.
func (l *lab) asEngine(t *testing.T, pod *corev1.Pod) rest.Interface {
	t.Helper()
	return clientAs(t, l.kube, l.kube.Token(t, kube.EngineNamespace, kube.EngineAccount, pod, time.Hour)).Discovery().RESTClient()
}

// awaitLeaseObjects waits until the namespace's objects are as they should be, with
// the patience that it takes to find a kind that comes late.
func (l *lab) awaitLeaseObjects(t *testing.T, what string, ok func([]dhcpLease) bool) []dhcpLease {
	t.Helper()
	deadline := time.After(2*time.Minute + rig.Patience)
	again := time.NewTicker(50 * time.Millisecond)
	defer again.Stop()
	for {
		have := l.leaseObjects(t)
		if ok(have) {
			return have
		}
		select {
		case <-again.C:
		case <-deadline:
			t.Fatalf("objects of %s are not: %s; there are %+v\nlog:\n%s", l.ns, what, have, strings.Join(l.engine.Log(), "\n"))
		}
	}
}

func one(have []dhcpLease) bool { return len(have) == 1 }

// leaseWrites are the writes of this namespace's objects by others than the test.
func (l *lab) leaseWrites(t *testing.T) []kube.Request {
	t.Helper()
	return l.kube.Requests(t, func(r kube.Request) bool {
		return r.Writes() && r.Resource == "dhcpleases" && r.Namespace == l.ns && strings.HasPrefix(r.User, "system:serviceaccount:")
	})
}

// A lease is an object as soon as the pod has it, with columns for people, owned by
// the pod, by one request; neither renewals nor a restart of the engine write it
// again. It goes with the attachment.
func TestU13O03LeaseObjects(t *testing.T) {
	t.Parallel()
	l := newLab(t, kube.Multus{})
	server := rig.StartDnsmasq(t, l.Server, rig.Pool(0, 0))
	s := l.pod(t, l.network(t, "site", delegateNetwork(nil), nil))
	s.Add(t)
	addr := l.leased(t, s, "net1", server)
	have := l.awaitLeaseObjects(t, "one", one)[0]
	mac := s.HardwareAddr(t, "net1").String()
	wantOwner := []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: s.Object.Name, UID: s.Object.UID}}
	if diff := cmp.Diff(wantOwner, have.OwnerReferences); diff != "" {
		t.Errorf("owner (-want +got):\n%s", diff)
	}
	wantLabels := map[string]string{"dhcp-meta.io/node": l.node.Name, "dhcp-meta.io/pod": s.Object.Name, "app.kubernetes.io/managed-by": "dhcp-engine"}
	if diff := cmp.Diff(wantLabels, have.Labels); diff != "" {
		t.Errorf("labels (-want +got):\n%s", diff)
	}
	if st := have.Status; st.MACAddress != mac || st.Network != l.ns+"/site" {
		t.Errorf("status %+v", st)
	}

	lines := strings.Split(strings.TrimSpace(l.kube.Kubectl(t, "", "get", "dl", "-A", "-l", "dhcp-meta.io/node="+l.node.Name)), "\n")
	if head := strings.Join(strings.Fields(lines[0]), " "); head != "NAMESPACE NAME POD INTERFACE ADDRESS SERVER STATE LEASE SINCE NODE" || len(lines) != 2 {
		t.Fatalf("kubectl get dl:\n%s", strings.Join(lines, "\n"))
	}
	row := strings.Fields(lines[1])
	row = slices.Delete(row, 8, 9) // SINCE
	want := []string{l.ns, have.Name, s.Object.Name, "net1", addr.String() + "/24", rig.ServerAddr.Addr().String(), "Bound",
		have.Status.LeaseTime, l.node.Name}
	if diff := cmp.Diff(want, row); diff != "" || have.Status.LeaseTime == "" {
		t.Errorf("kubectl get dl (-want +got):\n%s", diff)
	}

	for range 20 {
		l.engine.MustCommand(t, "renew", s.ID+":net1")
	}
	l.engine.MustCommand(t, "rebind", s.ID+":net1")
	l.engine.Kill(t)
	// What is left of an attachment that has ended meanwhile: when it is gone, the
	// engine has compared.
	pod := l.kube.GetPod(t, kube.EngineNamespace, "dhcp-engine-"+l.node.Name)
	stale := leaseObject(l.ns, l.node.Name, l.node.Name, "Pod")
	if err := l.asEngine(t, pod).Post().AbsPath(l.objects()).Body([]byte(stale)).Do(t.Context()).Error(); err != nil {
		t.Fatal(err)
	}
	l.engine.Start(t)
	l.engine.MustCommand(t, "renew", s.ID+":net1")
	again := l.awaitLeaseObjects(t, "one", one)[0]
	if again.ResourceVersion != have.ResourceVersion {
		t.Errorf("the object has changed: %+v", again)
	}
	writes := slices.DeleteFunc(l.leaseWrites(t), func(r kube.Request) bool { return r.Name != have.Name })
	if len(writes) != 1 {
		t.Errorf("%d writes, want the first one alone: %v", len(writes), writes)
	}

	s.Del(t)
	l.awaitLeaseObjects(t, "none", func(have []dhcpLease) bool { return len(have) == 0 })
}

// Whoever looks at the objects sees what becomes of a lease while it does: which node
// and server it is of, that it is lost, and the address that comes after it.
func TestU12U14LeaseObjectsFollow(t *testing.T) {
	t.Parallel()
	l := newLab(t, kube.Multus{})
	cfg := rig.Pool(3*time.Second, 6*time.Second)
	cfg.Lifetime = 10 * time.Second
	kea := rig.StartKea(t, l.Server, cfg)
	s := l.pod(t, l.network(t, "site", delegateNetwork(nil), nil))
	s.Add(t)
	old := l.leased(t, s, "net1", kea)
	state := func(state, address string) func([]dhcpLease) bool {
		return func(have []dhcpLease) bool {
			return one(have) && have[0].Status.State == state && have[0].Status.Node == l.node.Name &&
				(address == "" && have[0].Status.Address == "" || address != "" && strings.HasPrefix(have[0].Status.Address, address))
		}
	}
	first := l.awaitLeaseObjects(t, "bound", state("Bound", old.String()+"/24"))[0]
	kea.Stop(t)
	l.awaitLeaseObjects(t, "lost", state("Lost", ""))

	cfg.First = netip.MustParseAddr("10.77.0.100")
	cfg.Last = netip.MustParseAddr("10.77.0.109")
	rig.StartKea(t, l.Server, cfg)
	last := l.awaitLeaseObjects(t, "bound to another address", state("Bound", "10.77.0.10"))[0]
	if last.UID != first.UID || last.Status.Server != rig.ServerAddr.Addr().String() || !first.Status.Since.Before(&last.Status.Since) {
		t.Errorf("from %+v\nto %+v", first, last)
	}
}

// Objects are the engines' own: others may read and delete them, and an engine writes
// those of its node alone.
func TestU11U16LeaseObjectsAreReadOnly(t *testing.T) {
	t.Parallel()
	l := newLab(t, kube.Multus{})
	rig.StartDnsmasq(t, l.Server, rig.Pool(0, 0))
	s := l.pod(t, l.network(t, "site", delegateNetwork(nil), nil))
	s.Add(t)
	have := l.awaitLeaseObjects(t, "one", one)[0]

	const readOnly = "DHCPLease objects are managed by dhcp-engine: a change here changes no lease"
	kubectl := func(who string, stdin, want string, args ...string) {
		t.Helper()
		out, err := l.kube.TryKubectl(stdin, append([]string{"-n", l.ns}, args...)...)
		if err == nil || !strings.Contains(out, want) {
			t.Errorf("%s: kubectl %s: %v; want a refusal that says %q:\n%s", who, strings.Join(args, " "), err, want, out)
		}
	}
	kubectl("the admin", "", readOnly, "patch", "dl", have.Name, "--type=merge", `-p={"status":{"address":"10.0.0.1/8"}}`)
	kubectl("the admin", "", readOnly, "label", "dl", have.Name, "team=shop")
	kubectl("the admin", leaseObject(l.ns, "a", "a", "Pod"), readOnly, "create", "-f", "-")

	// The engine of another node, whose token says so.
	other := node.New(t, rig.NewNetns(t, "other"))
	l.kube.Join(t, other)
	engine := l.asEngine(t, l.kube.EnginePod(t, other))
	refuse := func(what, want string, r *rest.Request) {
		t.Helper()
		if err := r.Do(t.Context()).Error(); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), want) {
			t.Errorf("another engine, %s: %v; want a refusal that says %q", what, err, want)
		}
	}
	create := func(node, label, owner string) *rest.Request {
		return engine.Post().AbsPath(l.objects()).Body([]byte(leaseObject(l.ns, node, label, owner)))
	}
	const notThisNode = "dhcp-engine may write DHCPLease objects of its own node only"
	refuse("a change", notThisNode, engine.Patch(types.MergePatchType).AbsPath(l.objects(), have.Name).Body([]byte(`{"status":{"node":"`+other.Name+`"}}`)))
	refuse("a deletion", notThisNode, engine.Delete().AbsPath(l.objects(), have.Name))
	refuse("a node in the status", notThisNode, create(l.node.Name, other.Name, "Pod"))
	refuse("a node in the label", notThisNode, create(other.Name, l.node.Name, "Pod"))
	refuse("an owner", "dhcp-engine makes pods the owners", create(other.Name, other.Name, "Node"))
	if err := create(other.Name, other.Name, "Pod").Param("dryRun", "All").Do(t.Context()).Error(); err != nil {
		t.Errorf("an object of its own node: %v", err)
	}

	// What somebody deletes is there again: it is a view, no more.
	l.kube.Kubectl(t, "", "-n", l.ns, "delete", "dl", have.Name)
	l.awaitLeaseObjects(t, "another one", func(again []dhcpLease) bool { return one(again) && again[0].UID != have.UID })

	// Whoever may look at the namespace may look at its leases.
	l.kube.Apply(t, fmt.Sprintf(`
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: viewer, namespace: %[1]s}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: dhcp-meta-view}
subjects: [{kind: ServiceAccount, name: default, namespace: %[1]s}]
`, l.ns))
	l.kube.AwaitAccess(t, l.ns, "default", authorizationv1.ResourceAttributes{Verb: "list", Group: "dhcp-meta.io", Resource: "dhcpleases", Namespace: l.ns})
}

// The engine starts without the kind, and pods get their addresses; it writes all when
// the kind comes. The pod's object is removed with it by Kubernetes' own garbage
// collector, and nobody else.
func TestU07KindComesLate(t *testing.T) {
	t.Parallel()
	c := kube.Start(t)
	c.InstallManifests(t)
	c.Kubectl(t, "", "delete", "crd", "dhcpleases.dhcp-meta.io")
	l := newLabIn(t, c, kube.Multus{})
	server := rig.StartDnsmasq(t, l.Server, rig.Pool(0, 0))
	s := l.pod(t, l.network(t, "site", delegateNetwork(nil), nil))
	s.Add(t)
	l.leased(t, s, "net1", server)
	if have := l.leaseObjects(t); len(have) != 0 {
		t.Fatalf("objects without the kind: %+v", have)
	}
	c.Apply(t, manifest(t, "crd-dhcpleases.yaml"))
	have := l.awaitLeaseObjects(t, "one", one)[0]
	said := 0
	for _, line := range l.engine.Log() {
		if strings.Contains(line, "DHCPLease objects") && !strings.Contains(line, "level=DEBUG") {
			said++
		}
	}
	if said != 2 {
		t.Errorf("%d lines about DHCPLease objects, want that there are none and that there are:\n%s", said, strings.Join(l.engine.Log(), "\n"))
	}

	c.StartControllers(t)
	s.Del(t)
	c.DeletePod(t, s.Object)
	l.awaitLeaseObjects(t, "none", func(have []dhcpLease) bool { return len(have) == 0 })
	removed := slices.DeleteFunc(l.leaseWrites(t), func(r kube.Request) bool { return r.Verb != "delete" || r.Name != have.Name })
	if len(removed) != 1 || removed[0].User != "system:serviceaccount:kube-system:generic-garbage-collector" {
		t.Errorf("removed by %v", removed)
	}
	l.engine.AwaitNoRecords(t)

	// A namespace goes with all that is in it.
	again := l.pod(t, "site")
	again.Add(t)
	l.awaitLeaseObjects(t, "one", one)
	again.Del(t)
	c.Kubectl(t, "", "delete", "pod", "-n", l.ns, again.Object.Name, "--force")
	c.Kubectl(t, "", "delete", "namespace", l.ns, "--timeout=90s")
}
