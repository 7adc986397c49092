package onenode

import (
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/dhcp-meta/dhcp-meta/tests/rig"
	"github.com/dhcp-meta/dhcp-meta/tests/rig/kubelet"
)

// From the reference's daemon to the drop-in and back, as docs/upgrade.md says: networks
// and workloads stay as they were written. Pods that ran keep their addresses until they
// are made anew; the end of a pod of the old daemon is answered, and gives nothing back.
// Until there is an engine a new pod waits.
func TestChangeOverFromTheReferenceDaemonAndBack(t *testing.T) {
	s := shared(t)
	s.tell(t)
	ns := s.Namespace(t)
	s.NAD(t, ns, "site", referenced(), nil)
	s.startReference(t)
	t.Cleanup(func() {
		s.Kubectl(t, "", "delete", "deployments", "--all", "--namespace="+ns, "--timeout="+patience.String())
		s.Kubectl(t, "", "wait", "pods", "--all", "--for=delete", "--namespace="+ns, "--timeout="+patience.String())
		s.Kubectl(t, "", "delete", "network-attachment-definitions", "--all", "--namespace="+ns) // nobody serves them now, says doctor
		s.endReference(t)
		s.node.Run(t, "rm", "-r", filepath.Dir(referenceSocket))
	})
	s.deploy(t, ns)
	old := s.leasesOf(t, ns)

	ok := t.Run("forth", func(t *testing.T) {
		s.endReference(t)
		early := s.pod(t, ns, "site")
		s.awaitEvent(t, early, referenceSocket)
		s.install(t, dropIn)
		early = s.awaitRunning(t, early)
		s.leased(t, early, "net1")
		s.delete(t, early)

		mark := s.server.Lines.Len()
		s.restart(t, ns)
		fresh := s.leasesOf(t, ns)
		out := s.kubectlDHCP(t, ns)("leases")
		for _, i := range fresh {
			if slices.Contains(old, i) {
				t.Errorf("%v was leased by the old daemon: there is no pod anew", i)
			}
			if !strings.Contains(out, i.addr.String()) {
				t.Errorf("kubectl dhcp leases does not have %v:\n%s", i.addr, out)
			}
		}
		for _, i := range old {
			for _, e := range s.server.Events(mark) {
				if e.MAC == i.mac {
					t.Errorf("of %v, whose pod was the old daemon's: %v", i, e)
				}
			}
		}
		s.scale(t, ns, 0)
		for _, i := range fresh {
			s.awaitReleased(t, mark, i)
		}
	})
	if !ok {
		return
	}
	s.startReference(t)
	s.scale(t, ns, replicas)
	s.leasesOf(t, ns)
}

// The daemon of the CNI project's IPAM plugin dhcp, as a cluster has it.
const (
	referenceImage  = "localhost/reference-dhcp:1"
	referenceSocket = "/run/cni/dhcp.sock"
	reference       = `apiVersion: apps/v1
kind: DaemonSet
metadata: {name: reference-dhcp, namespace: kube-system}
spec:
  selector: {matchLabels: {app: reference-dhcp}}
  template:
    metadata: {labels: {app: reference-dhcp}}
    spec:
      hostNetwork: true
      hostPID: true
      terminationGracePeriodSeconds: 1
      tolerations: [{operator: Exists}]
      containers:
      - name: dhcp
        image: ` + referenceImage + `
        args: [daemon]
        securityContext: {privileged: true}
        volumeMounts:
        - {name: socket, mountPath: /run/cni}
        - {name: netns, mountPath: /run/netns, mountPropagation: HostToContainer}
      volumes:
      - name: socket
        hostPath: {path: /run/cni, type: DirectoryOrCreate}
      - name: netns
        hostPath: {path: /run/netns}
`
)

func (s *site) startReference(t *testing.T) {
	t.Helper()
	s.node.Import(t, kubelet.Image{
		Name: referenceImage, Entrypoint: []string{"/dhcp"},
		Programs: map[string]string{"dhcp": filepath.Join(rig.Plugins(), "dhcp")},
		Links:    map[string]string{"var/run": "../run"}, // by which containerd names namespaces
	})
	s.Apply(t, reference)
	s.node.RolloutStatus(t, "kube-system", "reference-dhcp")
}

// endReference removes the daemon's DaemonSet, which may not be there, and waits for its
// end.
func (s *site) endReference(t *testing.T) {
	t.Helper()
	s.Kubectl(t, "", "delete", "daemonset", "reference-dhcp", "--namespace=kube-system", "--ignore-not-found", "--timeout="+patience.String())
	s.Kubectl(t, "", "wait", "pods", "--selector=app=reference-dhcp", "--for=delete", "--namespace=kube-system", "--timeout="+patience.String())
}

// replicas is how many pods the workload of deploy has.
const replicas = 2

// deploy makes a workload on the network site, and waits until it runs.
func (s *site) deploy(t *testing.T, ns string) {
	t.Helper()
	s.Apply(t, fmt.Sprintf(workload, ns, replicas, kubelet.Pause))
	s.awaitRollout(t, ns)
}

const workload = `apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: %s}
spec:
  replicas: %d
  selector: {matchLabels: {app: web}}
  template:
    metadata:
      labels: {app: web}
      annotations: {k8s.v1.cni.cncf.io/networks: site}
    spec:
      terminationGracePeriodSeconds: 1
      containers: [{name: web, image: %q}]
`

// restart makes the workload's pods anew, and waits until the new ones run.
func (s *site) restart(t *testing.T, ns string) {
	t.Helper()
	s.Kubectl(t, "", "rollout", "restart", "deployment/web", "--namespace="+ns)
	s.awaitRollout(t, ns)
}

func (s *site) awaitRollout(t *testing.T, ns string) {
	t.Helper()
	s.Kubectl(t, "", "rollout", "status", "deployment/web", "--namespace="+ns, "--timeout="+patience.String())
}

// scale gives the workload so many pods, and waits until they run, or until all are gone.
func (s *site) scale(t *testing.T, ns string, pods int) {
	t.Helper()
	s.Kubectl(t, "", "scale", "deployment/web", "--namespace="+ns, "--replicas="+strconv.Itoa(pods))
	s.awaitRollout(t, ns)
	if pods == 0 {
		s.Kubectl(t, "", "wait", "pods", "--selector=app=web", "--for=delete", "--namespace="+ns, "--timeout="+patience.String())
	}
}

// leasesOf returns the leases that the server keeps of the workload's pods.
func (s *site) leasesOf(t *testing.T, ns string) []iface {
	t.Helper()
	var found []iface
	list, err := s.Client.CoreV1().Pods(ns).List(t.Context(), metav1.ListOptions{LabelSelector: "app=web"})
	if err != nil {
		t.Fatal(err)
	}
	for _, pod := range list.Items {
		if pod.DeletionTimestamp == nil {
			found = append(found, s.leased(t, &pod, "net1"))
		}
	}
	if len(found) != replicas {
		t.Fatalf("%d pods have an address, want %d: %v", len(found), replicas, found)
	}
	return found
}
