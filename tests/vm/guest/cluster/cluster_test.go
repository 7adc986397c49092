// Package cluster has the tests of virtual machines on a node that is in a cluster:
// who is one, and where its address is written, is the API server's to say.
package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/dhcp-meta/dhcp-meta/tests/rig"
	"github.com/dhcp-meta/dhcp-meta/tests/vm/guest"
)

func TestMain(m *testing.M) { guest.Main(m) }

// Labels that make a pod a virtual machine's.
var launcher = map[string]string{"kubevirt.io": "virt-launcher", "vm.kubevirt.io/name": "web"}

// A lab is a node in a cluster with the engine on it.
type lab struct {
	*guest.Lab
	cluster guest.Facts
	admin   kubernetes.Interface
}

func newLab(t *testing.T) *lab {
	t.Helper()
	l := &lab{Lab: guest.NewLabWithout(t), cluster: guest.Cluster(t)}
	l.Lab.Server = guest.StartServer(t)
	config, err := clientcmd.BuildConfigFromFlags("", guest.AdminConfig)
	if err != nil {
		t.Fatal(err)
	}
	if l.admin, err = kubernetes.NewForConfig(config); err != nil {
		t.Fatal(err)
	}
	e := l.Engine
	l.Engine = rig.NewEngineAt(guest.Node, e.StateDir, e.Socket, "--state-dir="+e.StateDir, "--socket="+e.Socket,
		"--kubeconfig="+guest.EngineConfig, "--node-name="+l.cluster.Node, "--ovn-nb=off", "--vfio-window=1m")
	l.Engine.Start(t)
	return l
}

// A pod is an object of the API with a sandbox on this node.
type pod struct {
	*rig.Sandbox
	object *corev1.Pod
	call   rig.Call
}

// newPod makes both. conf is the configuration as Multus hands it on.
func (l *lab) newPod(t *testing.T, labels, annotations map[string]string, conf any) pod {
	t.Helper()
	s := rig.NewSandbox(t)
	object, err := l.admin.CoreV1().Pods(l.cluster.Namespace).Create(t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: s.Pod, Labels: labels, Annotations: annotations},
		Spec:       corev1.PodSpec{NodeName: l.cluster.Node, Containers: []corev1.Container{{Name: "compute", Image: "none"}}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatalf("create a pod: %v", err)
	}
	call := s.Call("net1", conf)
	call.Args = fmt.Sprintf("IgnoreUnknown=1;K8S_POD_NAMESPACE=%s;K8S_POD_NAME=%s;K8S_POD_UID=%s;K8S_POD_INFRA_CONTAINER_ID=%s",
		l.cluster.Namespace, s.Pod, object.UID, s.ID)
	return pod{s, object, call}
}

// delete ends the object at once, as the kubelet does.
func (l *lab) delete(t *testing.T, p pod) {
	t.Helper()
	if err := l.admin.CoreV1().Pods(l.cluster.Namespace).Delete(t.Context(), p.Pod, *metav1.NewDeleteOptions(0)); err != nil {
		t.Fatal(err)
	}
}

// entry is an entry of the pod annotation.
type entry struct {
	Addresses []string `json:"ip_addresses"`
	MAC       string   `json:"mac_address"`
	Gateways  []string `json:"gateway_ips"`
	Mode      string   `json:"ipam_mode"`
	Role      string   `json:"role"`
}

// published reads an annotation of the pod's object.
func (l *lab) published(t *testing.T, p pod, key string) map[string]entry {
	t.Helper()
	object, err := l.admin.CoreV1().Pods(l.cluster.Namespace).Get(t.Context(), p.Pod, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	entries := map[string]entry{}
	if text := object.Annotations[key]; text != "" {
		if err := json.Unmarshal([]byte(text), &entries); err != nil {
			t.Fatalf("annotation %s: %v in %s", key, err, text)
		}
	}
	return entries
}

// network makes a NetworkAttachmentDefinition in the cluster, and returns its
// configuration as Multus hands it on with a device.
func (l *lab) network(t *testing.T, name string, conf rig.Object, vf guest.Device) rig.Object {
	t.Helper()
	text, err := json.Marshal(conf)
	if err != nil {
		t.Fatal(err)
	}
	object, err := json.Marshal(rig.Object{
		"apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition",
		"metadata": rig.Object{"name": name}, "spec": rig.Object{"config": string(text)},
	})
	if err != nil {
		t.Fatal(err)
	}
	path := "/apis/k8s.cni.cncf.io/v1/namespaces/" + l.cluster.Namespace + "/network-attachment-definitions"
	client := l.admin.CoreV1().RESTClient()
	if err := client.Post().AbsPath(path).Body(object).Do(t.Context()).Error(); err != nil {
		t.Fatalf("create the network %s: %v", name, err)
	}
	t.Cleanup(func() {
		ctx := context.Background() // the test's own has ended
		if err := client.Delete().AbsPath(path + "/" + name).Do(ctx).Error(); err != nil {
			t.Logf("delete the network %s: %v", name, err)
		}
	})
	handed := rig.Object{"deviceID": string(vf), "pciBusID": string(vf)}
	for k, v := range conf {
		handed[k] = v
	}
	return handed
}

// ovn puts a plugin named ovn-k8s-cni-overlay beside the reference ones, and returns
// the folder. It does of the real one what matters here: the physical function gets
// the MAC that the annotation says, the representor is plugged, nothing is put into
// the pod. A call is written down in the file calls.
func ovn(t *testing.T, vf int, mac string) (folder, calls string) {
	t.Helper()
	folder = t.TempDir()
	calls = filepath.Join(folder, "calls")
	script := fmt.Sprintf(`#!/bin/sh
[ "$CNI_COMMAND" != VERSION ] || { echo '{"cniVersion":"1.0.0","supportedVersions":["0.3.1","0.4.0","1.0.0"]}'; exit; }
echo "$CNI_COMMAND" >>%s
[ "$CNI_COMMAND" = ADD ] || exit 0
ip link set %s vf %d mac %s || exit 1
cat <<END
{"cniVersion": "1.0.0", "interfaces": [
  {"name": "rep0"}, {"name": "$CNI_IFNAME", "mac": "%s", "sandbox": "$CNI_NETNS"}]}
END
`, calls, guest.PF.Netdev(t), vf, mac, mac)
	if err := os.WriteFile(filepath.Join(folder, "ovn-k8s-cni-overlay"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		guest.Run(t, "ip", "link", "set", guest.PF.Netdev(t), "vf", fmt.Sprint(vf), "mac", guest.MAC(vf).String())
	})
	return folder, calls
}
