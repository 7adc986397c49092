package doctor

import (
	"cmp"
	"encoding/json"
	"errors"
	"slices"
	"strings"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"
	nadv1 "github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/apis/k8s.cni.cncf.io/v1"
	nadutils "github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/utils"

	"github.com/dhcp-meta/dhcp-meta/internal/kube"
	"github.com/dhcp-meta/dhcp-meta/pkg/delegate"
	"github.com/dhcp-meta/dhcp-meta/pkg/engine/network"
)

// Types of plugins in a configuration.
const (
	ourType  = "dhcp-meta"
	ovnType  = "ovn-k8s-cni-overlay"
	ipamType = "dhcp"
)

// definition is a NetworkAttachmentDefinition, as far as it is looked at.
type definition struct {
	name string // namespace/name
	// network is what its configuration calls it.
	network string
	nad     *nadv1.NetworkAttachmentDefinition
	// ours: its addresses come by us; annotated: by its annotation.
	ours, annotated bool
	settings        network.Settings
	// unread is why nobody can make a call of its configuration.
	unread error
	// refused is why the plugin refuses its calls, in their order. described is why the
	// engine refuses an ADD on it for what the definition itself says.
	refused   []error
	described error
	// passed says that it is meant to be ours, and that no call of its plugins can be
	// known for one of ours.
	passed bool
	// served: a call of its plugins is one of ours.
	served bool
	// names are the definitions that its calls go by, by their names: its own too.
	names []string
	// interposed are the plugins under whose names dhcp-meta must be found.
	interposed []string
	// misread is what stands under the key dhcp and makes it nobody's of ours.
	misread string
	// plugins are all in its configuration, each after that which wraps it.
	plugins []pluginConf
}

// pluginConf is what is read of one plugin's configuration.
type pluginConf struct {
	Type   string `json:"type"`
	Master string `json:"master"`
	// InContainer says that the master is one of the pod's own interfaces.
	InContainer bool `json:"linkInContainer"`
	IPAM        struct {
		Type string `json:"type"`
	} `json:"ipam"`
	Delegate *pluginConf  `json:"delegate"`
	Plugins  []pluginConf `json:"plugins"`
}

func (p pluginConf) all() []pluginConf {
	list := []pluginConf{p}
	for _, inner := range p.Plugins {
		list = append(list, inner.all()...)
	}
	if p.Delegate != nil {
		list = append(list, p.Delegate.all()...)
	}
	return list
}

// define reads a definition; marked tells which ones are ours by their annotations.
func define(nad *nadv1.NetworkAttachmentDefinition, marked func(name string) bool) definition {
	d := definition{name: nad.Namespace + "/" + nad.Name, nad: nad, annotated: kube.Annotated(nad)}
	d.ours, d.settings = kube.Describe(nad)
	d.described = kube.Refusal(nad, nad)
	var outer struct {
		pluginConf
		Name string `json:"name"`
	}
	if json.Unmarshal([]byte(nad.Spec.Config), &outer) == nil { // otherwise unread or described has it
		d.plugins = outer.all()
	}
	d.network = cmp.Or(outer.Name, nad.Name) // as Multus has it
	all, err := callsOf(nad)
	if err != nil {
		d.unread = err
		d.ours = d.ours || strings.Contains(nad.Spec.Config, "dhcp") // it cannot be told more surely
		return d
	}
	d.judgeCalls(all, marked)
	return d
}

// defineAll reads definitions, of which one may name another.
func defineAll(list []nadv1.NetworkAttachmentDefinition) (all []definition) {
	marks := map[string]bool{}
	for i := range list {
		marks[list[i].Namespace+"/"+list[i].Name] = kube.Annotated(&list[i])
	}
	for i := range list {
		all = append(all, define(&list[i], func(name string) bool { return marks[name] }))
	}
	return all
}

// call is one of a plugin, as an ADD on a network makes it.
type call struct {
	plugin string
	conf   []byte
	// behind says that another plugin stands before it in a list.
	behind bool
}

// callsOf makes the calls of a definition as Multus does, with what Multus does it by.
// Without a configuration there are none: it stands in a file on the node.
func callsOf(nad *nadv1.NetworkAttachmentDefinition) (all []call, err error) {
	if strings.TrimSpace(nad.Spec.Config) == "" {
		return nil, nil
	}
	text, err := nadutils.GetCNIConfigFromSpec(nad.Spec.Config, nad.Name)
	if err != nil {
		return nil, err
	}
	var outer types.PluginConf
	if err := json.Unmarshal(text, &outer); err != nil {
		return nil, err
	}
	if outer.Type != "" {
		return []call{{plugin: outer.Type, conf: text}}, nil
	}
	list, err := libcni.NetworkConfFromBytes(text)
	if err != nil {
		return nil, err
	}
	if len(list.Plugins) == 0 {
		return nil, errors.New("it has neither a type nor plugins")
	}
	for i, p := range list.Plugins {
		if p, err = libcni.InjectConf(p, map[string]any{"name": list.Name, "cniVersion": list.CNIVersion}); err != nil {
			return nil, err
		}
		all = append(all, call{plugin: p.Network.Type, conf: p.Bytes, behind: i > 0})
	}
	return all, nil
}

// dhcp is what the call's configuration has under that key, written just so.
func (c call) dhcp() string {
	var keys map[string]json.RawMessage
	_ = json.Unmarshal(c.conf, &keys) // was read before
	return string(keys["dhcp"])
}

// judgeCalls holds the calls that come to us against the rules of an ADD. Under another
// plugin's name only those do that are known for ours, by a dhcp object or by the name
// of a marked definition, as aside.Run has it; there dhcp-meta must be found.
func (d *definition) judgeCalls(all []call, marked func(name string) bool) {
	own := slices.ContainsFunc(all, func(c call) bool { return c.plugin == ourType })
	for _, c := range all {
		named, err := delegate.Refusal(c.plugin, c.conf, c.behind)
		switch text := c.dhcp(); {
		case c.plugin == ourType:
		case own:
			continue
		case strings.HasPrefix(text, "{"), marked(named):
			d.interposed = append(d.interposed, c.plugin)
		default:
			if text != "null" {
				d.misread = cmp.Or(d.misread, text)
			}
			continue
		}
		d.served = true
		d.refused = also(d.refused, err)
		if named = cmp.Or(named, d.name); !slices.Contains(d.names, named) {
			d.names = append(d.names, named)
		}
	}
	d.ours = d.ours || d.served
	d.passed = d.ours && len(all) > 0 && !d.served && !d.asks()
	switch {
	case d.passed && d.annotated: // whoever tells the plugin of the mark needs this too
		d.interposed = []string{all[0].plugin}
	case !d.served && !d.passed: // the pod names it
		d.names = []string{d.name}
	}
}

// also adds an error that is not told yet.
func also(told []error, err error) []error {
	if err == nil || slices.ContainsFunc(told, func(t error) bool { return strings.Contains(t.Error(), err.Error()) }) {
		return told
	}
	return append(told, err)
}

// asks tells whether a plugin asks the IPAM plugin dhcp.
func (d definition) asks() bool {
	return slices.ContainsFunc(d.plugins, func(p pluginConf) bool { return p.IPAM.Type == ipamType })
}

// asksDaemon tells whether it is the daemon of that plugin who gives it its addresses,
// marked or not: dhcp-meta takes that wish out of what it wraps.
func (d definition) asksDaemon() bool { return d.unread == nil && !d.served && d.asks() }

// simplest has people wrap the plugin, before which nobody has to stand then, and says
// how else it is to be told: by a mark, for a plugin before which dhcp-meta stands. With
// OVN-Kubernetes that is the only way.
func (d definition) simplest(mark string) string {
	i := slices.IndexFunc(d.plugins, func(p pluginConf) bool { return p.Type != "" })
	if i < 0 || d.ovn() {
		return mark
	}
	plugin := d.plugins[i].Type
	return wrapping(plugin, d.isList()) + "; or " + mark + ", and have dhcp-meta stand before " + plugin + " (docs/install.md)"
}

// wrapping is what to write where dhcp-meta does not stand before a plugin.
func wrapping(plugin string, list bool) string {
	if list {
		return "put {\"type\": \"dhcp-meta\"} behind " + plugin + " in the list of plugins (docs/configuration.md)"
	}
	return "write \"type\": \"dhcp-meta\", with " + plugin + " in \"delegate\" (docs/configuration.md)"
}

// isList tells whether the configuration is a list of plugins.
func (d definition) isList() bool { return len(d.plugins) > 0 && d.plugins[0].Type == "" }

func (d definition) ovn() bool {
	return slices.ContainsFunc(d.plugins, func(p pluginConf) bool { return p.Type == ovnType })
}
