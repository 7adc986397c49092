package kubevirt

import (
	"encoding/json"
	"os"
	"regexp"
	"testing"

	nadv1 "github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/apis/k8s.cni.cncf.io/v1"
	kubevirtv1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine/network"
)

// The objects of docs/kubevirt.md are what KubeVirt and Multus take, and belong
// together: the machine's network is the one that is shown, which can be told a MAC.
func TestDocumentedObjects(t *testing.T) {
	doc, err := os.ReadFile("../../docs/kubevirt.md")
	if err != nil {
		t.Fatal(err)
	}
	var vm kubevirtv1.VirtualMachine
	var nad nadv1.NetworkAttachmentDefinition
	for _, m := range regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllSubmatch(doc, -1) {
		var kind struct{ Kind string }
		if err := yaml.Unmarshal(m[1], &kind); err != nil {
			t.Fatalf("%v in\n%s", err, m[1])
		}
		into := map[string]any{"VirtualMachine": &vm, "NetworkAttachmentDefinition": &nad}[kind.Kind]
		if into == nil {
			t.Fatalf("what is a %q?", kind.Kind)
		}
		if err := yaml.UnmarshalStrict(m[1], into); err != nil {
			t.Errorf("%v in\n%s", err, m[1])
		}
	}
	if vm.Spec.Template == nil || len(vm.Spec.Template.Spec.Networks) != 1 || vm.Spec.Template.Spec.Networks[0].Multus == nil {
		t.Fatalf("no machine with a secondary network is shown: %+v", vm.Spec)
	}
	name := nad.Namespace + "/" + nad.Name
	if used := vm.Spec.Template.Spec.Networks[0].Multus.NetworkName; used != name {
		t.Errorf("the machine uses network %s, shown is %s", used, name)
	}
	devices := vm.Spec.Template.Spec.Domain.Devices.Interfaces
	if len(devices) != 1 || devices[0].Bridge == nil || devices[0].MacAddress == "" {
		t.Errorf("the machine's interfaces %+v, want one with bridge binding and a MAC", devices)
	}

	type mayTell struct {
		Capabilities struct{ Mac bool }
	}
	var conf struct {
		mayTell
		Type, Name, NetAttachDefName string
		Delegate                     mayTell
		DHCP                         json.RawMessage
	}
	if err := json.Unmarshal([]byte(nad.Spec.Config), &conf); err != nil {
		t.Fatalf("%v in %s", err, nad.Spec.Config)
	}
	if conf.Type != "dhcp-meta" || conf.NetAttachDefName != name || !conf.Capabilities.Mac || !conf.Delegate.Capabilities.Mac {
		t.Errorf("the network is %+v", conf)
	}
	if _, err := network.Parse(conf.DHCP); err != nil {
		t.Error(err)
	}
}
