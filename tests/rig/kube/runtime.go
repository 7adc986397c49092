package kube

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"testing"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"
	nadv1 "github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/apis/k8s.cni.cncf.io/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/dhcp-meta/dhcp-meta/tests/rig"
	"github.com/dhcp-meta/dhcp-meta/tests/rig/node"
)

// multusConfig is what the daemon writes for the runtime.
const multusConfig = cniConfig + "/00-multus.conf"

// Runtime calls CNI on a node as a container runtime does: by libcni, with the
// configuration that Multus wrote.
type Runtime struct {
	// Multus is the daemon.
	Multus *rig.Process

	cluster *Cluster
	node    *node.Node
}

// Sandbox is a sandbox of a pod.
type Sandbox struct {
	*rig.Sandbox
	Object *corev1.Pod

	runtime *Runtime
	cni     *libcni.CNIConfig
}

// Sandbox makes a sandbox of a pod. A pod may have several, one after another.
func (r *Runtime) Sandbox(t testing.TB, pod *corev1.Pod) *Sandbox {
	t.Helper()
	s := rig.NewSandbox(t)
	s.Pod, s.UID = pod.Name, string(pod.UID)
	return &Sandbox{
		Sandbox: s, Object: pod, runtime: r,
		cni: libcni.NewCNIConfigWithCacheDir([]string{node.Plugins}, r.node.Path("/var/lib/cni"), inNode{r.node}),
	}
}

// TryAdd has the pod's networks made. It may be called from any goroutine.
func (s *Sandbox) TryAdd(ctx context.Context) (*current.Result, error) {
	list, err := s.runtime.network()
	if err != nil {
		return nil, err
	}
	got, err := s.cni.AddNetworkList(ctx, list, s.conf())
	if err != nil {
		return nil, err
	}
	return current.NewResultFromResult(got)
}

// TryDel has them taken down.
func (s *Sandbox) TryDel(ctx context.Context) error {
	list, err := s.runtime.network()
	if err != nil {
		return err
	}
	return s.cni.DelNetworkList(ctx, list, s.conf())
}

// Add is TryAdd, and must succeed. The result is the default network's; of the
// others tells NetworkStatus.
func (s *Sandbox) Add(t testing.TB) *current.Result {
	t.Helper()
	result, err := s.TryAdd(t.Context())
	if err != nil {
		t.Fatalf("ADD of pod %s: %v", s.Pod, err)
	}
	return result
}

// Del is TryDel, and must succeed.
func (s *Sandbox) Del(t testing.TB) {
	t.Helper()
	if err := s.TryDel(t.Context()); err != nil {
		t.Fatalf("DEL of pod %s: %v", s.Pod, err)
	}
}

// network reads what Multus wrote, as a runtime does at each call: a single plugin,
// of which it makes a list.
func (r *Runtime) network() (*libcni.NetworkConfigList, error) {
	plugin, err := os.ReadFile(r.node.Path(multusConfig))
	if err != nil {
		return nil, err
	}
	var conf types.NetConf
	if err := json.Unmarshal(plugin, &conf); err != nil {
		return nil, fmt.Errorf("read %s: %w", multusConfig, err)
	}
	list, err := json.Marshal(map[string]any{
		"cniVersion": conf.CNIVersion, "name": conf.Name, "plugins": []json.RawMessage{plugin},
	})
	if err != nil {
		return nil, err
	}
	return libcni.NetworkConfFromBytes(list)
}

func (s *Sandbox) conf() *libcni.RuntimeConf {
	return &libcni.RuntimeConf{
		ContainerID: s.ID, NetNS: s.Path, IfName: "eth0",
		Args: [][2]string{
			{"IgnoreUnknown", "1"},
			{"K8S_POD_NAMESPACE", s.Object.Namespace},
			{"K8S_POD_NAME", s.Object.Name},
			{"K8S_POD_INFRA_CONTAINER_ID", s.ID},
			{"K8S_POD_UID", string(s.Object.UID)},
		},
	}
}

// NetworkStatus is what Multus wrote on the pod: an entry an interface.
func (s *Sandbox) NetworkStatus(t testing.TB) []nadv1.NetworkStatus {
	t.Helper()
	c := s.runtime.cluster
	pod := c.AwaitPod(t, s.Object.Namespace, s.Object.Name, "a network status", func(p *corev1.Pod) bool {
		return p.Annotations[nadv1.NetworkStatusAnnot] != ""
	})
	var status []nadv1.NetworkStatus
	if err := json.Unmarshal([]byte(pod.Annotations[nadv1.NetworkStatusAnnot]), &status); err != nil {
		t.Fatalf("network status of pod %s: %v", pod.Name, err)
	}
	return status
}

// StatusOf is the entry of an interface; the test ends when there is none.
func (s *Sandbox) StatusOf(t testing.TB, ifName string) nadv1.NetworkStatus {
	t.Helper()
	status := s.NetworkStatus(t)
	i := slices.IndexFunc(status, func(st nadv1.NetworkStatus) bool { return st.Interface == ifName })
	if i < 0 {
		t.Fatalf("the network status of pod %s knows no %s: %+v", s.Pod, ifName, status)
	}
	return status[i]
}

// inNode executes plugins on a node; libcni does the rest here.
type inNode struct{ node *node.Node }

func (e inNode) ExecPlugin(ctx context.Context, path string, stdin []byte, environ []string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, path)
	cmd.Env = environ
	var stdout, stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(stdin), &stdout, &stderr
	err := e.node.Enter(cmd).Run()
	if err == nil {
		return stdout.Bytes(), nil
	}
	if said := new(types.Error); json.Unmarshal(stdout.Bytes(), said) == nil && said.Msg != "" {
		return nil, said
	}
	return nil, errors.Join(err, errors.New(stdout.String()+stderr.String()))
}

func (e inNode) FindInPath(plugin string, _ []string) (string, error) {
	return node.Plugins + "/" + plugin, nil
}

func (e inNode) Decode(b []byte) (version.PluginInfo, error) {
	return new(version.PluginDecoder).Decode(b)
}
