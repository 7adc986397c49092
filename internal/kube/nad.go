package kube

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	nadv1 "github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/apis/k8s.cni.cncf.io/v1"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine/api"
	"github.com/dhcp-meta/dhcp-meta/pkg/engine/network"
)

// The annotations that mark a NetworkAttachmentDefinition whose configuration
// nobody may edit. OVN-Kubernetes copies those of a ClusterUserDefinedNetwork to
// the definitions that it makes, and keeps them there.
const (
	ipamAnnotation   = "dhcp-meta.io/ipam"
	configAnnotation = "dhcp-meta.io/config"
	ipamDHCP         = "dhcp"
)

// Types of plugins in a configuration.
const (
	ourType = "dhcp-meta"
	ovnType = "ovn-k8s-cni-overlay"
)

// What OVN-Kubernetes says of its own networks with DHCP (OKEP-6224), word by
// word: the rule is the same wherever it is met.
const (
	subnetsForbidden = "Subnets is forbidden when ipam.mode is DHCP; addresses are assigned by the external DHCP server"
	localnetOnly     = "DHCP ipam.mode is only supported for Localnet Secondary networks"
	layer2Refused    = "DHCP ipam.mode is not supported for Layer2 topology, use Localnet topology instead"
)

// annotated tells whether a definition is marked as ours by an annotation. A value
// that makes no sense is a mark too: whoever wrote it wants DHCP, and should hear
// what is wrong with it. Settings are none where the network asks for its address
// itself.
func annotated(nad *nadv1.NetworkAttachmentDefinition) bool {
	if _, ipam := nad.Annotations[ipamAnnotation]; ipam {
		return true
	}
	if _, config := nad.Annotations[configAnnotation]; !config {
		return false
	}
	plugins, _ := pluginsOf(nad.Spec.Config)
	return !slices.ContainsFunc(plugins, pluginConf.asksForAddress)
}

// definition is what a NetworkAttachmentDefinition says of DHCP.
type definition struct {
	// name is "<namespace>/<name>".
	name string
	// settings are those of the annotation; nil when there are none.
	settings json.RawMessage
	// ovn says that OVN-Kubernetes plugs the interface.
	ovn bool
}

// overlay are the settings, key by key.
func (d definition) overlay() overlay {
	var o overlay
	_ = json.Unmarshal(d.settings, &o) // was read before
	return o
}

// define reads a definition for an attachment whose own configuration has the
// dhcp object inline; empty: none. All that is wrong with it is one error with
// api.CodeConfig.
func define(nad *nadv1.NetworkAttachmentDefinition, inline json.RawMessage) (definition, error) {
	d := definition{name: nad.Namespace + "/" + nad.Name}
	plugins, problems := pluginsOf(nad.Spec.Config)

	ipam, marked := nad.Annotations[ipamAnnotation]
	if marked && ipam != ipamDHCP {
		problems = append(problems, fmt.Sprintf("annotation %s is %q; the only value is %q", ipamAnnotation, ipam, ipamDHCP))
	}
	for _, p := range plugins {
		if p.dhcp != nil || p.Type == ourType {
			marked = true
		}
		if !hasKeys(inline) {
			inline = p.dhcp
		}
	}
	if text, ok := nad.Annotations[configAnnotation]; ok {
		var more []string
		d.settings, more = annotatedSettings(text)
		problems = append(problems, more...)
		if !marked && !slices.ContainsFunc(plugins, pluginConf.asksForAddress) {
			problems = append(problems, fmt.Sprintf("annotation %s is there, and the mark is missing: annotation %s: %q, or a dhcp object in spec.config",
				configAnnotation, ipamAnnotation, ipamDHCP))
		}
		if hasKeys(d.settings) && hasKeys(inline) {
			problems = append(problems, fmt.Sprintf("annotation %s and the dhcp object in spec.config both have settings: only one of them can", configAnnotation))
		}
	}
	if i := slices.IndexFunc(plugins, func(p pluginConf) bool { return p.Type == ovnType }); i >= 0 {
		d.ovn = true
		if marked {
			problems = append(problems, plugins[i].ovnProblems(d.name)...)
		}
	}
	if len(problems) > 0 {
		return d, api.WithCode(api.CodeConfig, fmt.Errorf("NetworkAttachmentDefinition %s: %s", d.name, strings.Join(problems, "; ")))
	}
	return d, nil
}

// annotatedSettings reads a dhcp object that stands in an annotation.
func annotatedSettings(text string) (settings json.RawMessage, problems []string) {
	settings = json.RawMessage(text)
	if !isObject(settings) {
		return nil, []string{fmt.Sprintf("annotation %s is no JSON object", configAnnotation)}
	}
	if _, err := network.Parse(settings); err != nil {
		return nil, []string{fmt.Sprintf("annotation %s: %v", configAnnotation, err)}
	}
	var keys map[string]json.RawMessage
	_ = json.Unmarshal(settings, &keys) // is an object
	for _, key := range []string{"socket", "stateDir"} {
		// The plugin needs them to find the engine; it sees no annotation.
		if _, ok := keys[key]; ok {
			problems = append(problems, fmt.Sprintf("annotation %s: %s can stand in spec.config only", configAnnotation, key))
		}
	}
	return settings, problems
}

// pluginConf is what is read of one plugin's configuration.
type pluginConf struct {
	Type     string          `json:"type"`
	NADName  string          `json:"netAttachDefName"`
	Topology string          `json:"topology"`
	Role     string          `json:"role"`
	Subnets  json.RawMessage `json:"subnets"`
	IPAM     json.RawMessage `json:"ipam"`

	Delegate json.RawMessage   `json:"delegate"`
	Plugins  []json.RawMessage `json:"plugins"`

	// dhcp is the dhcp object; nil when there is none. Other than the rest, its
	// key is ours, and as strict about case as the plugin.
	dhcp json.RawMessage
}

// pluginsOf reads the configuration of a definition: the plugin itself, those of
// its list, and those that they wrap. Nothing of ours is nested deeper. An empty
// one stands in a file on the node, where we do not look.
func pluginsOf(config string) (plugins []pluginConf, problems []string) {
	if strings.TrimSpace(config) == "" {
		return nil, nil
	}
	outer, err := decodePlugin([]byte(config))
	if err != nil {
		return nil, []string{fmt.Sprintf("spec.config: %v", err)}
	}
	plugins = []pluginConf{outer}
	inner := outer.Plugins
	if isObject(outer.Delegate) {
		inner = append(inner, outer.Delegate)
	}
	for _, raw := range inner {
		p, err := decodePlugin(raw)
		if err != nil {
			return nil, []string{fmt.Sprintf("spec.config: a plugin in it: %v", err)}
		}
		plugins = append(plugins, p)
		if !isObject(p.Delegate) {
			continue
		}
		wrapped, err := decodePlugin(p.Delegate)
		if err != nil {
			return nil, []string{fmt.Sprintf("spec.config: delegate of a plugin in it: %v", err)}
		}
		plugins = append(plugins, wrapped)
	}
	return plugins, nil
}

func decodePlugin(raw []byte) (pluginConf, error) {
	var p pluginConf
	if !isObject(raw) {
		return p, fmt.Errorf("is no JSON object")
	}
	if err := json.Unmarshal(raw, &p); err != nil {
		return p, err
	}
	var exact map[string]json.RawMessage
	if err := json.Unmarshal(raw, &exact); err != nil {
		return p, err
	}
	if isObject(exact["dhcp"]) {
		p.dhcp = exact["dhcp"]
	}
	return p, nil
}

// ovnProblems holds a configuration of OVN-Kubernetes that is marked as ours
// against the rules of OKEP-6224, and against what makes OVN-Kubernetes take it.
func (p pluginConf) ovnProblems(name string) (problems []string) {
	switch p.NADName {
	case name:
	case "":
		problems = append(problems, fmt.Sprintf("netAttachDefName is missing: OVN-Kubernetes wants it to be %q", name))
	default:
		problems = append(problems, fmt.Sprintf("netAttachDefName is %q: OVN-Kubernetes wants it to be %q", p.NADName, name))
	}
	switch {
	case p.Topology == "layer2":
		problems = append(problems, layer2Refused)
	case p.Topology != "localnet" || p.Role != "" && p.Role != "secondary":
		problems = append(problems, fmt.Sprintf("%s (topology is %q, role is %q)", localnetOnly, p.Topology, p.Role))
	}
	if s := string(p.Subnets); s != "" && s != "null" && s != `""` {
		problems = append(problems, subnetsForbidden)
	}
	if p.asksForAddress() {
		problems = append(problems, `ipam.type is "dhcp": OVN-Kubernetes asks for an address itself, and the mark has it asked for once more; only one of them can`)
	}
	return problems
}

// asksForAddress tells whether the plugin asks the IPAM plugin dhcp itself.
func (p pluginConf) asksForAddress() bool {
	var ipam struct {
		Type string `json:"type"`
	}
	return json.Unmarshal(p.IPAM, &ipam) == nil && ipam.Type == ipamDHCP
}

// isObject tells whether raw is one whole JSON object.
func isObject(raw []byte) bool {
	return bytes.HasPrefix(bytes.TrimLeft(raw, " \t\r\n"), []byte("{")) && json.Valid(raw)
}

// hasKeys tells whether raw is an object that says something.
func hasKeys(raw json.RawMessage) bool {
	var keys map[string]json.RawMessage
	return json.Unmarshal(raw, &keys) == nil && len(keys) > 0
}
