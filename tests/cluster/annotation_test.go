package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/dhcp-meta/dhcp-meta/internal/kube/podnetworks"
	"github.com/dhcp-meta/dhcp-meta/internal/podannotation"
	"github.com/dhcp-meta/dhcp-meta/pkg/engine"
	"github.com/dhcp-meta/dhcp-meta/tests/rig"
	"github.com/dhcp-meta/dhcp-meta/tests/rig/kube"
)

// publishing is a publisher on a view of a node, as the engine has them.
type publishing struct {
	*watching
	*podannotation.Publisher
	kube *kube.Cluster
	ns   string
}

// publisher runs one, as the shipped account.
func publisher(t *testing.T, c *kube.Cluster) *publishing {
	t.Helper()
	account(t, c)
	ns := c.Namespace(t)
	node := ns + "-n"
	p := newPublishing(t, c, ns, c.As(engineToken(t, c, enginePod(t, c, node))))
	p.await(t)
	return p
}

// newPublishing runs one with a connection of the caller's; it may not be there yet.
func newPublishing(t *testing.T, c *kube.Cluster, ns string, config *rest.Config) *publishing {
	t.Helper()
	p := &publishing{watching: newWatching(t, config, ns+"-n"), kube: c, ns: ns}
	p.Publisher = podannotation.New(podannotation.Config{
		Client: p.Cluster.Client(), Pods: p.Cluster,
		Log: slog.New(slog.NewTextHandler(testLog{t}, &slog.HandlerOptions{Level: slog.LevelDebug})),
	})
	p.Cluster.OnPod(p.PodChanged)
	p.watching.run(t)
	ctx, cancel := context.WithCancel(context.Background())
	endedC := make(chan error, 1)
	go func() { endedC <- p.Publisher.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-endedC; err != nil {
			t.Errorf("Run of the publisher: %v", err)
		}
	})
	return p
}

// ovnWrote is what OVN-Kubernetes writes for a pod with two networks, one of which is
// without IPAM; what it does not know itself is between.
const ovnWrote = `{"default":{"ip_addresses":["10.244.0.3/24"],"mac_address":"0a:58:0a:f4:00:03","gateway_ips":["10.244.0.1"],` +
	`"routes":[{"dest":"10.244.0.0/16","nextHop":"10.244.0.1"}],"ip_address":"10.244.0.3/24","gateway_ip":"10.244.0.1","role":"primary"},` +
	"\n\t" + `"other/net" : {"n": 1.50, "s":"\u003c\/"} ,` +
	`"%s/office":{"ip_addresses":null,"mac_address":"0a:58:aa:bb:cc:01","role":"secondary"}}`

// pod makes a pod with OVN-Kubernetes' annotation, and waits until it is in the cache.
func (p *publishing) pod(t *testing.T, annotation string) *corev1.Pod {
	t.Helper()
	pod := p.kube.Pod(t, p.ns, kube.PodSpec{Node: p.node, Networks: "office", Annotations: map[string]string{podnetworks.OVNKey: annotation}})
	p.sees(t, pod)
	return pod
}

func (p *publishing) wrote() string { return fmt.Sprintf(ovnWrote, p.ns) }

// withLease is what wrote is to become.
func (p *publishing) withLease(addr string) string {
	return strings.Replace(p.wrote(), `"ip_addresses":null,"mac_address":"0a:58:aa:bb:cc:01","role":"secondary"`,
		`"ip_addresses":["`+addr+`"],"mac_address":"0a:58:aa:bb:cc:01","role":"secondary","gateway_ips":["10.1.192.1"],"ipam_mode":"dhcp"`, 1)
}

// sandbox is an attachment of a pod by its number of sandbox.
func (p *publishing) sandbox(pod *corev1.Pod, n int) engine.Attachment {
	a := of(pod, "net1")
	a.ContainerID = fmt.Sprintf("%016d", n)
	a.Network, a.NAD, a.Wrapped = "office", p.ns+"/office", ovnPlugin
	return a
}

func lease(a engine.Attachment, addr string) engine.Publication {
	return engine.Publication{Attachment: a, OVN: true, HardwareAddr: net.HardwareAddr{0x0a, 0x58, 0xaa, 0xbb, 0xcc, 1},
		Addr: netip.MustParsePrefix(addr), Gateways: []netip.Addr{netip.MustParseAddr("10.1.192.1")}}
}

// publish must succeed, and the annotation say so by then.
func (p *publishing) publish(t *testing.T, pub engine.Publication) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), rig.Patience)
	defer cancel()
	if err := p.Publish(ctx, pub); err != nil {
		t.Fatal(err)
	}
}

func (p *publishing) says(t *testing.T, pod *corev1.Pod, want string) {
	t.Helper()
	if got := p.kube.GetPod(t, pod.Namespace, pod.Name).Annotations[podnetworks.OVNKey]; got != want {
		t.Errorf("annotation is\n%s\nwant\n%s", got, want)
	}
}

// asked are the publisher's requests about a pod: "patch 200".
func (p *publishing) asked(t *testing.T, pod *corev1.Pod) []string {
	t.Helper()
	var list []string
	for _, r := range p.kube.Requests(t, func(r kube.Request) bool {
		return r.Resource == "pods" && r.Namespace == pod.Namespace && r.Name == pod.Name && r.Agent == agent+p.node
	}) {
		list = append(list, strings.TrimSpace(fmt.Sprint(r.Verb, " ", r.Code, " ", r.Subresource)))
	}
	return list
}

// An ADD and a DEL on the real API: one write each, of the pod and not of its status,
// and nothing read; the address is there before Publish returns, everything else is
// as it was, byte for byte.
func TestK06K34K36Q36OneWriteBeforeTheAnswer(t *testing.T) {
	p := publisher(t, kube.Shared(t))
	pod := p.pod(t, p.wrote())
	a := p.sandbox(pod, 1)
	if err := p.Reset(t.Context(), a, engine.Container); err != nil {
		t.Fatal(err)
	}
	p.publish(t, lease(a, "10.1.192.213/24"))
	p.says(t, pod, p.withLease("10.1.192.213/24"))
	if got := p.asked(t, pod); !slices.Equal(got, []string{"patch 200"}) {
		t.Errorf("an ADD asked the API: %q", got)
	}
	if err := p.Withdraw(t.Context(), a); err != nil {
		t.Fatal(err)
	}
	p.says(t, pod, p.wrote())
	if got := p.asked(t, pod); !slices.Equal(got, []string{"patch 200", "patch 200"}) {
		t.Errorf("ADD and DEL asked the API: %q", got)
	}
}

// A virtual machine: the mode is there early, in a write that takes an old address
// away too; the address comes with the second.
func TestK32ModeOfAVMIsEarly(t *testing.T) {
	p := publisher(t, kube.Shared(t))
	pod := p.pod(t, p.withLease("10.1.192.9/24"))
	a := p.sandbox(pod, 1)
	if err := p.Reset(t.Context(), a, engine.VM); err != nil {
		t.Fatal(err)
	}
	p.says(t, pod, strings.Replace(p.wrote(), `"role":"secondary"`, `"role":"secondary","ipam_mode":"dhcp"`, 1))
	pub := lease(a, "10.1.192.213/24")
	pub.Workload = engine.VM
	p.publish(t, pub)
	entries, err := podnetworks.Parse(p.kube.GetPod(t, p.ns, pod.Name).Annotations[podnetworks.OVNKey])
	if err != nil {
		t.Fatal(err)
	}
	if e, _, err := entries.Entry(p.ns + "/office"); err != nil || e.Mode != podnetworks.ModeDHCP || len(e.Addrs) != 1 || e.Addrs[0].String() != "10.1.192.213/24" {
		t.Errorf("entry %+v, %v", e, err)
	}
	if got := p.asked(t, pod); !slices.Equal(got, []string{"patch 200", "patch 200"}) {
		t.Errorf("asked the API: %q", got)
	}
}

// Interfaces of other plugins are in an annotation of ours, which comes and goes.
func TestOwnAnnotationComesAndGoes(t *testing.T) {
	p := publisher(t, kube.Shared(t))
	pod := p.kube.Pod(t, p.ns, kube.PodSpec{Node: p.node, Networks: "office"})
	p.sees(t, pod)
	pub := lease(p.sandbox(pod, 1), "10.1.192.213/24")
	pub.Wrapped, pub.OVN = "macvlan", false
	p.publish(t, pub)
	want := `{"` + p.ns + `/office":{"mac_address":"0a:58:aa:bb:cc:01","role":"secondary","ip_addresses":["10.1.192.213/24"],"gateway_ips":["10.1.192.1"],"ipam_mode":"dhcp"}}`
	if got := p.kube.GetPod(t, p.ns, pod.Name).Annotations; got[podnetworks.OwnKey] != want || len(got) != 2 {
		t.Errorf("annotations: %v", got)
	}
	if err := p.Withdraw(t.Context(), pub.Attachment); err != nil {
		t.Fatal(err)
	}
	if got := p.kube.GetPod(t, p.ns, pod.Name).Annotations; len(got) != 1 {
		t.Errorf("annotations after the DEL: %v", got)
	}

	// A pod that has no annotation at all.
	bare := p.kube.Pod(t, p.ns, kube.PodSpec{Node: p.node})
	p.sees(t, bare)
	pub.Attachment = p.sandbox(bare, 2)
	pub.Wrapped = "macvlan"
	p.publish(t, pub)
	if got := p.kube.GetPod(t, p.ns, bare.Name).Annotations[podnetworks.OwnKey]; got != want {
		t.Errorf("annotation: %s", got)
	}
}

// asOVN changes a pod's annotation as OVN-Kubernetes does: a JSON patch that tests
// the whole old value, tried again until it fits.
func asOVN(t *testing.T, c *kube.Cluster, pod *corev1.Pod, change func(string) string) {
	for {
		before := c.GetPod(t, pod.Namespace, pod.Name).Annotations[podnetworks.OVNKey]
		path := "/metadata/annotations/" + strings.ReplaceAll(podnetworks.OVNKey, "/", "~1")
		body, err := json.Marshal([]rig.Object{{"op": "test", "path": path, "value": before}, {"op": "add", "path": path, "value": change(before)}})
		if err != nil {
			t.Error(err)
			return
		}
		_, err = c.Client.CoreV1().Pods(pod.Namespace).Patch(t.Context(), pod.Name, types.JSONPatchType, body, metav1.PatchOptions{}, "status")
		if !apierrors.IsInvalid(err) && !apierrors.IsConflict(err) {
			if err != nil {
				t.Errorf("write as OVN-Kubernetes: %v", err)
			}
			return
		}
	}
}

// OVN-Kubernetes writes another network of the pod and drops what it does not know.
func TestK40ModeIsPutBack(t *testing.T) {
	p := publisher(t, kube.Shared(t))
	pod := p.pod(t, p.wrote())
	p.publish(t, lease(p.sandbox(pod, 1), "10.1.192.213/24"))
	asOVN(t, p.kube, pod, func(text string) string {
		return strings.Replace(strings.Replace(text, `,"ipam_mode":"dhcp"`, ``, 1), `"n": 1.50`, `"n":2`, 1)
	})
	want := strings.Replace(p.withLease("10.1.192.213/24"), `"n": 1.50`, `"n":2`, 1)
	p.kube.AwaitPod(t, p.ns, pod.Name, "have its mode back", func(pod *corev1.Pod) bool {
		return pod.Annotations[podnetworks.OVNKey] == want
	})
}

// Two writers of one annotation at the same time: no change of either is lost.
func TestK41ConcurrentWritersLoseNothing(t *testing.T) {
	const rounds = 25
	p := publisher(t, kube.Shared(t))
	pod := p.pod(t, strings.Replace(p.wrote(), `"n": 1.50`, `"n":0`, 1))
	doneC := make(chan struct{})
	go func() {
		defer close(doneC)
		for i := range rounds {
			asOVN(t, p.kube, pod, func(text string) string {
				return strings.Replace(text, fmt.Sprintf(`"n":%d`, i), fmt.Sprintf(`"n":%d`, i+1), 1)
			})
		}
	}()
	a := p.sandbox(pod, 1)
	for i := range rounds {
		p.publish(t, lease(a, fmt.Sprintf("10.1.192.%d/24", i+1)))
	}
	<-doneC
	text := p.kube.GetPod(t, p.ns, pod.Name).Annotations[podnetworks.OVNKey]
	for _, part := range []string{fmt.Sprintf(`"n":%d`, rounds), fmt.Sprintf(`["10.1.192.%d/24"]`, rounds)} {
		if !strings.Contains(text, part) {
			t.Errorf("%s is not there: %s", part, text)
		}
	}
	t.Logf("the publisher asked: %q", p.asked(t, pod))
}

// A sandbox that was superseded, a pod that is gone, and one that was made again
// under its name: nothing is written for them.
func TestAbandonedAddWritesNothing(t *testing.T) {
	p := publisher(t, kube.Shared(t))
	pod := p.pod(t, p.wrote())
	old, young := p.sandbox(pod, 1), p.sandbox(pod, 2)
	if err := errors.Join(p.Reset(t.Context(), old, engine.Container), p.Reset(t.Context(), young, engine.Container)); err != nil {
		t.Fatal(err)
	}
	p.publish(t, lease(young, "10.1.192.214/24"))
	if err := p.Publish(t.Context(), lease(old, "10.1.192.213/24")); !errors.Is(err, engine.ErrSuperseded) {
		t.Errorf("Publish of a superseded sandbox: %v", err)
	}
	if err := p.Withdraw(t.Context(), old); err != nil {
		t.Errorf("Withdraw of a superseded sandbox: %v", err)
	}
	p.says(t, pod, p.withLease("10.1.192.214/24"))

	p.kube.DeletePod(t, pod)
	if err := p.Publish(t.Context(), lease(young, "10.1.192.215/24")); !errors.Is(err, engine.ErrSuperseded) {
		t.Errorf("Publish for a pod that is gone: %v", err)
	}
	again := p.kube.Pod(t, p.ns, kube.PodSpec{Name: pod.Name, Node: p.node, Networks: "office", Annotations: map[string]string{podnetworks.OVNKey: p.wrote()}})
	if err := p.Publish(t.Context(), lease(young, "10.1.192.216/24")); !errors.Is(err, engine.ErrSuperseded) {
		t.Errorf("Publish for a pod that was made again: %v", err)
	}
	if err := p.Withdraw(t.Context(), young); err != nil {
		t.Errorf("Withdraw for a pod that was made again: %v", err)
	}
	p.says(t, again, p.wrote())
	p.publish(t, lease(p.sandbox(again, 3), "10.1.192.217/24"))
	p.says(t, again, p.withLease("10.1.192.217/24"))
}

// The API server is killed: an ADD that requires publication fails in its time, a
// DEL does not wait long, and what both wanted is there by itself when it is back.
func TestP07APIServerAwayAtAddAndDel(t *testing.T) {
	c := kube.Start(t)
	p := publisher(t, c)
	adding, ending := p.pod(t, p.wrote()), p.pod(t, p.wrote())
	p.publish(t, lease(p.sandbox(ending, 2), "10.1.192.214/24"))
	c.StopAPI(t)

	begin := time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	err := p.Publish(ctx, lease(p.sandbox(adding, 1), "10.1.192.213/24"))
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "refused") || !strings.Contains(err.Error(), adding.Name) {
		t.Errorf("Publish without an API: %v", err)
	}
	ctx, cancel = context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if err := p.Withdraw(ctx, p.sandbox(ending, 2)); err == nil {
		t.Error("Withdraw without an API succeeded")
	}
	if took := time.Since(begin); took > 4*time.Second+rig.Patience {
		t.Errorf("took %s", took)
	}
	c.StartAPI(t)
	for pod, want := range map[*corev1.Pod]string{adding: p.withLease("10.1.192.213/24"), ending: p.wrote()} {
		c.AwaitPod(t, p.ns, pod.Name, "what was wanted", func(pod *corev1.Pod) bool { return pod.Annotations[podnetworks.OVNKey] == want })
	}
}

// The token has expired: Publish goes on until the kubelet has put a new one there.
func TestPublishWithAnExpiredToken(t *testing.T) {
	c := kube.Shared(t)
	account(t, c)
	ns := c.Namespace(t)
	mine := enginePod(t, c, ns+"-n")
	file := filepath.Join(t.TempDir(), "token")
	write := func(token string) {
		if err := os.WriteFile(file, []byte(token), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(c.Token(t, engineNamespace, engineAccount, mine, -2*time.Minute))
	config := c.As("")
	config.BearerTokenFile = file
	p := newPublishing(t, c, ns, config)
	pod := c.Pod(t, ns, kube.PodSpec{Node: p.node, Networks: "office", Annotations: map[string]string{podnetworks.OVNKey: p.wrote()}})
	a := p.sandbox(pod, 1)

	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if err := p.Publish(ctx, lease(a, "10.1.192.213/24")); err == nil || !strings.Contains(err.Error(), "Unauthorized") {
		t.Errorf("with an expired token: %v", err)
	}
	fresh := engineToken(t, c, mine)
	errC := make(chan error, 1)
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), rig.Patience)
		defer cancel()
		errC <- p.Publish(ctx, lease(a, "10.1.192.213/24"))
	}()
	write(fresh)
	if err := <-errC; err != nil {
		t.Error(err)
	}
	p.says(t, pod, p.withLease("10.1.192.213/24"))
}

// What RBAC or the admission policy refuses is refused once, with a word of where to
// look: here it is a pod of another node.
func TestRefusedWriteSaysWhatToLookAt(t *testing.T) {
	p := publisher(t, kube.Shared(t))
	pod := p.kube.Pod(t, p.ns, kube.PodSpec{Node: p.ns + "-elsewhere", Networks: "office", Annotations: map[string]string{podnetworks.OVNKey: p.wrote()}})
	err := p.Publish(t.Context(), lease(p.sandbox(pod, 1), "10.1.192.213/24"))
	if err == nil || !strings.Contains(err.Error(), "admission policy may stand in its way") {
		t.Errorf("got %v", err)
	}
	p.says(t, pod, p.wrote())
	if got := p.asked(t, pod); !slices.Equal(got, []string{"get 200", "patch 403"}) {
		t.Errorf("asked the API: %q", got)
	}
}
