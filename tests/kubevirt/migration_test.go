package kubevirt

import (
	"net"
	"slices"
	"testing"

	"github.com/insomniacslk/dhcp/dhcpv4"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dhcp-meta/dhcp-meta/internal/kube/podnetworks"
	"github.com/dhcp-meta/dhcp-meta/tests/rig"
)

// instance makes or changes a VirtualMachineInstance whose migration goes to a pod;
// an empty target is none.
func (s *site) instance(t *testing.T, vm string, mac net.HardwareAddr, target string) {
	t.Helper()
	vmis := s.kube.Dynamic.Resource(schema.GroupVersionResource{Group: "kubevirt.io", Version: "v1", Resource: "virtualmachineinstances"}).Namespace(s.ns)
	o := &unstructured.Unstructured{Object: object{
		"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "metadata": object{"name": vm},
		"spec": object{
			"domain":   object{"devices": object{"interfaces": []any{object{"name": "lan", "bridge": object{}, "macAddress": mac.String()}}}},
			"networks": []any{object{"name": "lan", "multus": object{"networkName": "lan"}}},
		},
	}}
	if target == "" {
		if _, err := vmis.Create(t.Context(), o, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		return
	}
	old, err := vmis.Get(t.Context(), vm, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	old.Object["status"] = object{"migrationState": object{"targetPod": target}}
	if _, err := vmis.Update(t.Context(), old, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// A virtual machine goes to another node while its guest runs: the pod there has the
// same MAC, its ADD finds the same address although the guest answers for it, the
// guest keeps its lease and renews it from there, and the end of the first pod sends
// nothing. MAC and labels of neither pod are changed, so what policies go by stays.
func TestK19Q34LiveMigration(t *testing.T) {
	t.Parallel()
	site := newSite(t)
	source, target := site.machine(t), site.machine(t)
	server := rig.StartDnsmasq(t, site.server, rig.Pool(0, 0))
	site.network(t, "lan", nil, nil)
	mac := newMAC(t)
	site.instance(t, "vm1", mac, "")

	from := source.launcher(t, "vm1", "lan", mac)
	from.Add(t)
	addr := site.reported(t, from, "lan")
	g := boot(t, plug(t, from, lanIface))
	c := g.udhcpc(t, identities[0])
	if got := c.bound(t, g); got != addr {
		t.Fatalf("reported %v, the guest got %v", addr, got)
	}
	g.ping(t)

	to := target.launcher(t, "vm1", "lan", mac)
	site.instance(t, "vm1", mac, to.Pod)
	to.Add(t)
	if got := site.reported(t, to, "lan"); got != addr {
		t.Errorf("the target of the migration is reported with %v, want %v", got, addr)
	}
	if now := to.HardwareAddr(t, lanIface); now.String() != mac.String() {
		t.Errorf("the target's interface has MAC %v, want %v", now, mac)
	}
	// The guest runs where it was, and is reached there: the target's exchange had the
	// switch take its MAC for one of the target's, until the guest's next frame.
	g.ping(t)
	if declined := slices.Contains(site.messages(0, mac), dhcpv4.MessageTypeDecline); declined {
		t.Error("the guest's own address was declined as another host's")
	}

	g.runIn(plug(t, to, lanIface))
	mark := site.capture.Len()
	g.ping(t) // a hypervisor announces the MAC here
	from.Del(t)
	site.kube.DeletePod(t, from.Object)
	c.renew(t)
	if got := c.bound(t, g); got != addr {
		t.Errorf("after the migration the guest has %v, want %v", got, addr)
	}
	g.ping(t)
	if sent := site.messages(mark, mac); !slices.Equal(sent, []dhcpv4.MessageType{dhcpv4.MessageTypeRequest}) {
		t.Errorf("after the migration %v was sent with the guest's MAC, want the guest's renewal alone", sent)
	}
	server.AwaitHeld(t, "the guest's one lease", rig.Holds(mac, addr))
	if got := site.reported(t, to, "lan"); got != addr {
		t.Errorf("at the end %v is reported, want %v", got, addr)
	}
	labelsAre(t, target, to, launcherLabels("vm1"))
}

// A migration that fails: the target's pod goes, nothing of it is left, and the guest,
// who never knew, stays reported where it is.
func TestK19FailedMigration(t *testing.T) {
	t.Parallel()
	site := newSite(t)
	source, target := site.machine(t), site.machine(t)
	server := rig.StartDnsmasq(t, site.server, rig.Pool(0, 0))
	site.network(t, "lan", nil, nil)
	mac := newMAC(t)
	from := source.launcher(t, "vm1", "lan", mac)
	from.Add(t)
	addr := site.reported(t, from, "lan")
	g := boot(t, plug(t, from, lanIface))
	c := g.udhcpc(t, identities[1])
	c.bound(t, g)

	to := target.launcher(t, "vm1", "lan", mac)
	to.Add(t)
	site.reported(t, to, "lan")
	mark := site.capture.Len()
	to.Del(t)
	site.kube.AwaitPod(t, site.ns, to.Pod, "no annotation of ours", func(p *corev1.Pod) bool { return p.Annotations[podnetworks.OwnKey] == "" })
	site.kube.DeletePod(t, to.Object)
	g.ping(t)
	c.renew(t)
	if got := c.bound(t, g); got != addr {
		t.Errorf("the guest has %v, want %v", got, addr)
	}
	if sent := site.messages(mark, mac); !slices.Equal(sent, []dhcpv4.MessageType{dhcpv4.MessageTypeRequest}) {
		t.Errorf("%v was sent with the guest's MAC, want the guest's renewal alone", sent)
	}
	server.AwaitHeld(t, "the guest's one lease", rig.Holds(mac, addr))
	if got := site.reported(t, from, "lan"); got != addr {
		t.Errorf("%v is reported, want %v", got, addr)
	}
	target.engine.AwaitNoRecords(t)
}
