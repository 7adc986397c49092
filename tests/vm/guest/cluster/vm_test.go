package cluster

import (
	"net"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/insomniacslk/dhcp/dhcpv4"

	"github.com/dhcp-meta/dhcp-meta/tests/rig"
	"github.com/dhcp-meta/dhcp-meta/tests/vm/guest"
)

// The annotations that have addresses.
const (
	ovnKey = "k8s.ovn.org/pod-networks"
	ownKey = "dhcp-meta.io/pod-networks"
)

// hostDevice is a network whose plugin is the reference host-device.
func (l *lab) hostDevice(t *testing.T, vf guest.Device, dhcp rig.Object) rig.Object {
	t.Helper()
	conf := l.Delegate(rig.Object{"type": "host-device", "pciBusID": string(vf)}, dhcp)
	conf["netAttachDefName"] = l.cluster.Namespace + "/site"
	return l.network(t, "site", conf, vf)
}

// A virtual machine's pod with a device on vfio-pci: its address is found out during
// ADD, and is in the CNI result and in the annotation. Nothing of it is configured,
// kept, renewed or given back, not even when the pod is gone.
func TestK05K17K45VirtualMachine(t *testing.T) {
	vf := guest.VF(t, 0)
	l := newLab(t)
	p := l.newPod(t, launcher, nil, l.hostDevice(t, vf, nil))
	o := l.Node.Add(t, p.call)
	vf.MustBeBack(t)
	t.Logf("ADD took %v", o.Took)
	if len(o.Result.IPs) != 1 {
		t.Fatalf("the result has no address:\n%s", o.Stdout)
	}
	address := o.Result.IPs[0].Address.String()
	want := entry{Addresses: []string{address}, Gateways: []string{rig.ServerAddr.Addr().String()}, MAC: guest.MAC(0).String(), Mode: "dhcp", Role: "secondary"}
	if diff := cmp.Diff(map[string]entry{l.cluster.Namespace + "/site": want}, l.published(t, p, ownKey)); diff != "" {
		t.Errorf("the annotation (-want +got):\n%s", diff)
	}
	if out := p.IP(t, "-o", "link"); strings.Contains(out, "net1") {
		t.Errorf("the pod has an interface:\n%s", out)
	}
	// The guest's own client, which may have any client identifier, is to get the
	// same address: the engine has sent none.
	for _, f := range l.Capture.Since(0) {
		if f.FromClient() && f.Msg.Options.Get(dhcpv4.OptionClientIdentifier) != nil {
			t.Errorf("a message with a client identifier: %v", f)
		}
	}
	mark := l.Capture.Len()
	l.delete(t, p)
	l.Node.Del(t, p.call)
	l.Engine.AwaitNoRecords(t)
	vf.MustBeBack(t)
	if frames := l.Capture.Since(mark); len(frames) != 0 {
		t.Errorf("messages after the ADD: %v", frames)
	}
}

// The same behind OVN-Kubernetes, whose plugin plugs the representor and gives the
// device a MAC by its physical function: the exchange runs with that MAC, and the
// entry that OVN-Kubernetes has made is completed.
func TestK17K71BehindOVNKubernetes(t *testing.T) {
	const mac = "0a:58:0a:4d:00:07"
	vf := guest.VF(t, 0)
	l := newLab(t)
	path, calls := ovn(t, 0, mac)
	nad := l.cluster.Namespace + "/localnet"
	conf := l.network(t, "localnet", rig.Object{
		"cniVersion": "1.0.0", "name": "localnet", "type": "dhcp-meta", "netAttachDefName": nad, "topology": "localnet",
		"plugins": []rig.Object{{"type": "ovn-k8s-cni-overlay", "name": "localnet", "netAttachDefName": nad, "topology": "localnet"}},
		"dhcp":    l.Settings(nil),
	}, vf)
	before := `{"default":{"ip_addresses":["10.244.0.5/24"],"mac_address":"0a:58:0a:f4:00:05","role":"primary"},"` +
		nad + `":{"ip_addresses":null,"mac_address":"` + mac + `","role":"secondary"}}`
	p := l.newPod(t, launcher, map[string]string{ovnKey: before}, conf)
	p.call.Path = path
	o := l.Node.Add(t, p.call)
	vf.MustBeBack(t)
	t.Logf("ADD took %v", o.Took)
	if len(o.Result.IPs) != 1 {
		t.Fatalf("the result has no address:\n%s", o.Stdout)
	}
	address := o.Result.IPs[0].Address.String()
	got := l.published(t, p, ovnKey)
	want := entry{Addresses: []string{address}, Gateways: []string{rig.ServerAddr.Addr().String()}, MAC: mac, Mode: "dhcp", Role: "secondary"}
	if diff := cmp.Diff(want, got[nad]); diff != "" {
		t.Errorf("the annotation (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"10.244.0.5/24"}, got["default"].Addresses); diff != "" {
		t.Errorf("the entry of another network (-want +got):\n%s", diff)
	}
	hw, err := net.ParseMAC(mac)
	if err != nil {
		t.Fatal(err)
	}
	l.Capture.AwaitType(t, 0, rig.Patience, dhcpv4.MessageTypeAck, hw)
	for _, f := range l.Capture.Since(0) {
		if f.FromClient() && f.Msg.ClientHWAddr.String() != mac {
			t.Errorf("a message of another MAC: %v", f)
		}
	}
	l.Node.Del(t, p.call)
	l.Engine.AwaitNoRecords(t)
	b, err := os.ReadFile(calls)
	if err != nil {
		t.Fatal(err)
	}
	if verbs := strings.Fields(string(b)); !slices.Equal(verbs, []string{"ADD", "DEL"}) {
		t.Errorf("the wrapped plugin was called for %v", verbs)
	}
	for _, f := range l.Capture.Since(0) {
		if f.Type == dhcpv4.MessageTypeRelease {
			t.Errorf("a RELEASE: %v", f)
		}
	}
	l.delete(t, p)
}

// The API says that the pod is no virtual machine's: its device is not touched.
func TestK48ContainerInTheCluster(t *testing.T) {
	vf := guest.VF(t, 0)
	l := newLab(t)
	p := l.newPod(t, nil, nil, l.hostDevice(t, vf, nil))
	o := l.Node.Refuse(t, "ADD", p.call, 7, string(vf), "vfio")
	t.Logf("refused: %v", o.Err)
	l.Node.Del(t, p.call)
	l.Engine.AwaitNoRecords(t)
	if n := l.Capture.Len(); n != 0 {
		t.Errorf("%d DHCP messages", n)
	}
	if e := l.published(t, p, ownKey); len(e) != 0 {
		t.Errorf("the annotation has %v", e)
	}
	l.delete(t, p)
}

// The address cannot be written into the annotation, and the network insists on it:
// the ADD fails while the device is still there to give the address back with.
func TestReleaseWhenItCannotBePublished(t *testing.T) {
	vf := guest.VF(t, 0)
	l := newLab(t)
	conf := l.hostDevice(t, vf, rig.Object{"publish": "require", "timeout": "15s"})
	// Somebody has left there what is no JSON, which nobody may overwrite.
	p := l.newPod(t, launcher, map[string]string{ownKey: "{"}, conf)
	o, err := l.Node.CNI("ADD", p.call)
	if err != nil {
		t.Fatal(err)
	}
	if o.Err == nil {
		t.Fatalf("the ADD succeeded: %s", o.Stdout)
	}
	t.Logf("refused after %v: %v", o.Took, o.Err)
	vf.MustBeBack(t)
	l.Capture.AwaitType(t, 0, rig.Patience, dhcpv4.MessageTypeAck, guest.MAC(0))
	l.Capture.AwaitType(t, 0, rig.Patience, dhcpv4.MessageTypeRelease, guest.MAC(0))
	l.Lab.Server.AwaitHeld(t, "an empty table", rig.Nothing)
	l.Node.Del(t, p.call)
	l.Engine.AwaitNoRecords(t)
	l.delete(t, p)
}

// The pod asks for another MAC than the physical function has set: the exchange runs
// with what the pod asks for, and the physical function has its own again afterwards.
func TestK71MACThatThePodAsksFor(t *testing.T) {
	const mac = "52:54:00:0a:0b:0c"
	vf := guest.VF(t, 0)
	l := newLab(t)
	selection := `[{"name":"site","namespace":"` + l.cluster.Namespace + `","interface":"net1","mac":"` + mac + `"}]`
	p := l.newPod(t, launcher, map[string]string{"k8s.v1.cni.cncf.io/networks": selection}, l.hostDevice(t, vf, nil))
	o := l.Node.Add(t, p.call)
	vf.MustBeBack(t)
	if i := o.Result.Interfaces; len(o.Result.IPs) != 1 || len(i) == 0 || i[len(i)-1].Mac != mac {
		t.Errorf("the result is not of %s:\n%s", mac, o.Stdout)
	}
	for _, f := range l.Capture.Since(0) {
		if f.FromClient() && f.Msg.ClientHWAddr.String() != mac {
			t.Errorf("a message of another MAC: %v", f)
		}
	}
	if out := guest.Run(t, "ip", "link", "show", guest.PF.Netdev(t)); !strings.Contains(out, guest.MAC(0).String()) || strings.Contains(out, mac) {
		t.Errorf("the physical function has not its own MAC again:\n%s", out)
	}
	l.Node.Del(t, p.call)
	l.Engine.AwaitNoRecords(t)
	l.delete(t, p)
}
