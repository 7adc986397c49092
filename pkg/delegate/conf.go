package delegate

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strings"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/dhcp-meta/dhcp-meta/pkg/delegate/aside"
	"github.com/dhcp-meta/dhcp-meta/pkg/engine/api"
	"github.com/dhcp-meta/dhcp-meta/pkg/engine/network"
)

// reserved is how keys begin that a runtime adds and no network writes (CNI
// specification, section 1).
const reserved = "cni.dev/"

// validKey holds the attachments that still exist, at GC.
const validKey = reserved + "valid-attachments"

// nadKey is where a configuration names its NetworkAttachmentDefinition, as
// "<namespace>/<name>".
const nadKey = "netAttachDefName"

// ovnPlugin is the type of OVN-Kubernetes' networks.
const ovnPlugin = "ovn-k8s-cni-overlay"

// conf is what standard input says, decoded and checked.
type conf struct {
	form             form
	version, network string
	// delegate is the configuration that the wrapped plugin gets, without a
	// prevResult; nil when there is no such plugin.
	delegate object
	// prevResult is the runtime's; nil when there is none.
	prevResult json.RawMessage
	// dhcp is the dhcp object as it was written, settings what it means.
	dhcp     json.RawMessage
	settings network.Settings
	// nad is the NetworkAttachmentDefinition that the configuration names, device
	// the PCI address of the device that the runtime has chosen; empty: none.
	nad, device string
	// valid are the attachments that exist, at GC; nil when the runtime did not
	// say.
	valid []api.AttachmentID
}

// parse decodes the configuration that the program, started under this base
// name, was given. All its errors have the code for a wrong configuration. When
// only the dhcp object is wrong, a network.Problems, the rest of conf is there,
// and settings hold what could be understood: enough for a DEL.
func parse(name string, stdin []byte) (conf, error) {
	outer, err := decodeObject("configuration", stdin)
	if err != nil {
		return conf{}, api.WithCode(api.CodeConfig, err)
	}
	s, err := classify(name, outer)
	if err != nil {
		return conf{}, api.WithCode(api.CodeConfig, err)
	}
	c := conf{
		form:    s.form,
		version: outer.text("cniVersion"),
		network: outer.text("name"),
		dhcp:    s.dhcp,
	}
	if outer.has("prevResult") {
		c.prevResult = outer["prevResult"]
	}
	if c.valid, err = validAttachments(outer); err != nil {
		return conf{}, api.WithCode(api.CodeConfig, err)
	}
	if s.delegate != nil {
		if c.delegate, err = derive(s, outer); err != nil {
			return conf{}, api.WithCode(api.CodeConfig, err)
		}
	}
	c.nad, c.device = nadOf(outer, c.delegate), deviceOf(outer, c.delegate)
	c.settings, err = network.Parse(s.dhcp)
	return c, api.WithCode(api.CodeConfig, err)
}

// nadOf finds the name of the NetworkAttachmentDefinition. Configurations for
// OVN-Kubernetes carry it; in ours it may stand in either object.
func nadOf(outer, delegate object) string {
	if nad := outer.text(nadKey); nad != "" {
		return nad
	}
	return delegate.text(nadKey)
}

// deviceOf finds the device that the runtime has chosen, where Multus and libcni
// put it, or the network itself.
func deviceOf(outer, delegate object) string {
	var texts []string
	for _, o := range []object{outer, delegate} {
		texts = append(texts, o.text("deviceID"), o.text("pciBusID"))
		if chosen, err := decodeObject("runtimeConfig", o["runtimeConfig"]); err == nil {
			texts = append(texts, chosen.text("deviceID"))
		}
	}
	return aside.PCIDevice(texts...)
}

// sound finds what must not be when an interface is to be made, and is no reason to
// keep a pod from ending.
func (c conf) sound(name string, stdin []byte) error {
	outer, err := decodeObject("configuration", stdin)
	if err != nil {
		return err
	}
	inner := c.delegate.text(nadKey)
	switch {
	case interposes(name, outer) && c.wrapsOVN() && (outer.has("delegate") || outer.has("plugins")):
		err = fmt.Errorf("delegate and plugins: stand beside \"type\": %q only, and the type is %q", pluginName, outer.text("type"))
	case c.nad != "" && !aside.IsNAD(c.nad):
		err = fmt.Errorf("%s: %q is not <namespace>/<name>", nadKey, c.nad)
	case inner != "" && inner != c.nad:
		err = fmt.Errorf("%s: is %q, and %q in the wrapped plugin's object: which one is it?", nadKey, c.nad, inner)
	}
	if err == nil && c.form == wrapping {
		err = misplaced(outer)
	}
	return api.WithCode(api.CodeConfig, err)
}

// misplaced finds settings of the dhcp object that stand beside it, in a network whose
// other keys are CNI's and the runtime's, and whose wrapped plugin has an object of its
// own. Left aside in silence, such a setting would be missed only by what it does not do.
func misplaced(outer object) error {
	var problems network.Problems
	for _, key := range network.Keys() {
		// This one is the name of a capability too.
		ours := key != "mac" || outer.text(key) == "keep" || outer.text(key) == "derive"
		if outer.has(key) && ours {
			problems = append(problems, key+": belongs into the dhcp object")
		}
	}
	if problems == nil {
		return nil
	}
	return problems
}

// wrapsOVN tells whether the wrapped plugin is that of OVN-Kubernetes.
func (c conf) wrapsOVN() bool { return c.delegate.text("type") == ovnPlugin }

// derive makes of the delegate's object the configuration that the runtime
// would have given it, had it been the plugin of this network: the same that
// libcni adds, and Multus for a device. Everything else stays as it was
// written, but for what asks for DHCP.
func derive(s shape, outer object) (object, error) {
	out := maps.Clone(s.delegate)
	delete(out, "dhcp")
	delete(out, "prevResult")
	if out.has("ipam") {
		ipam, err := decodeObject("ipam", out["ipam"])
		if err == nil && ipam.text("type") == "dhcp" {
			delete(out, "ipam")
		}
	}
	if s.form == interposed {
		return out, nil // the runtime gave it all of this itself
	}
	for key, raw := range outer {
		switch key {
		case "name", "cniVersion", "deviceID", "pciBusID", "args":
			out[key] = raw
		default:
			if strings.HasPrefix(key, reserved) {
				out[key] = raw
			}
		}
	}
	return out, deriveRuntimeConfig(out, outer)
}

// deriveRuntimeConfig hands on those capability arguments that the delegate
// declares (CNI specification, section 3). Like libcni it leaves the key alone
// when there are none.
func deriveRuntimeConfig(out, outer object) error {
	if !outer.has("runtimeConfig") || !out.has("capabilities") {
		return nil
	}
	given, err := decodeObject("runtimeConfig", outer["runtimeConfig"])
	if err != nil {
		return err
	}
	var declared map[string]bool
	if err := json.Unmarshal(out["capabilities"], &declared); err != nil {
		return fmt.Errorf("capabilities of %s: is no object of true and false", out.text("type"))
	}
	args := object{}
	for capability, supported := range declared {
		if supported && given.has(capability) {
			args[capability] = given[capability]
		}
	}
	if len(args) == 0 {
		return nil
	}
	out["runtimeConfig"], err = args.encode()
	return err
}

// stdin is the delegate's configuration with a prevResult, nil for none.
func stdin(delegate object, prevResult json.RawMessage) ([]byte, error) {
	if prevResult != nil {
		delegate = maps.Clone(delegate)
		delegate["prevResult"] = prevResult
	}
	return delegate.encode()
}

// validAttachments decodes the list of a GC: nil when the key is missing, empty
// when it is null, which is how libcni writes a list without entries.
func validAttachments(outer object) ([]api.AttachmentID, error) {
	raw, ok := outer[validKey]
	if !ok {
		return nil, nil
	}
	var list []types.GCAttachment
	if err := json.Unmarshal(raw, &list); err != nil {
		return nil, fmt.Errorf("%s: %w", validKey, err)
	}
	ids := make([]api.AttachmentID, len(list))
	for i, a := range list {
		ids[i] = api.AttachmentID{ContainerID: a.ContainerID, IfName: a.IfName}
	}
	return ids, nil
}

// podOf finds the pod in CNI_ARGS, "K=V;K=V". What it does not know, or cannot
// read, is for others: Multus passes on what users wrote.
func podOf(args string) api.Pod {
	var pod api.Pod
	for pair := range strings.SplitSeq(args, ";") {
		key, value, _ := strings.Cut(pair, "=")
		switch key {
		case "K8S_POD_NAMESPACE":
			pod.Namespace = value
		case "K8S_POD_NAME":
			pod.Name = value
		case "K8S_POD_UID":
			pod.UID = value
		}
	}
	return pod
}

// atLeast tells whether the network's CNI version is v or a later one.
func (c conf) atLeast(v string) bool {
	ok, err := version.GreaterThanOrEqualTo(c.version, v)
	return err == nil && ok
}

// needPrevResult is the error of a verb that cannot do without a prevResult.
func (c conf) needPrevResult(verb string) error {
	if c.prevResult != nil {
		return nil
	}
	err := errors.New("prevResult: is missing, though CHECK needs it")
	if verb == "ADD" {
		err = fmt.Errorf("neither delegate, nor plugins, nor prevResult: a network of type %s wraps a plugin or stands behind one in a list", pluginName)
	}
	return api.WithCode(api.CodeConfig, err)
}
