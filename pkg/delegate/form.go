package delegate

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/dhcp-meta/dhcp-meta/pkg/delegate/aside"
)

// pluginName is the type of a network that is ours, and the base name of the
// program unless it was installed under the name of another plugin.
const pluginName = aside.OwnName

// form is how the plugin was put around, or behind, another one.
type form string

// The forms.
const (
	// interposed: the program stands under another plugin's name, in a folder
	// that is searched before the real one's. The whole configuration is the
	// delegate's; a network is ours only if it is marked.
	interposed form = "interposed"
	// bothKeys: "plugins" with one entry beside "type": "dhcp-meta".
	// OVN-Kubernetes sees its network in it, everybody else one plugin.
	bothKeys form = "both keys"
	// wrapping: "delegate" beside "type": "dhcp-meta".
	wrapping form = "delegate"
	// chained: another plugin of a list ran before us. There is no delegate.
	chained form = "chained"
)

// shape is a configuration taken apart.
type shape struct {
	form form
	// delegate is the wrapped plugin's object as it was written; nil when chained.
	delegate object
	// dhcp is the dhcp object as it was written; nil when there is none.
	dhcp json.RawMessage
}

// interposes tells whether the program, started under this base name, stands
// before the plugin of that name. "type": "dhcp-meta" is always ours.
func interposes(name string, conf object) bool {
	return name != pluginName && conf.text("type") != pluginName
}

// classify finds out the form of a configuration.
func classify(name string, conf object) (shape, error) {
	if interposes(name, conf) {
		return shape{form: interposed, delegate: conf, dhcp: conf["dhcp"]}, nil
	}
	// The usual slip when a network of today is wrapped. Left aside in silence, it
	// would be missed only when the addresses do not come.
	if ipam, err := decodeObject("ipam", conf["ipam"]); err == nil && ipam.text("type") != "" && ipam.text("type") != "dhcp" {
		return shape{}, fmt.Errorf("ipam: %s takes none of its own; ipam of type %q belongs into delegate", pluginName, ipam.text("type"))
	}
	switch {
	case conf.has("delegate") && conf.has("plugins"):
		return shape{}, errors.New("delegate and plugins: only one of them can be")
	case conf.has("delegate"):
		return wrap(wrapping, "delegate", conf["delegate"], conf)
	case conf.has("plugins"):
		var entries []json.RawMessage
		if err := json.Unmarshal(conf["plugins"], &entries); err != nil {
			return shape{}, fmt.Errorf("plugins: is no list: %w", err)
		}
		if len(entries) != 1 {
			return shape{}, fmt.Errorf("plugins: has %d entries; beside \"type\": %q it must be one, the wrapped plugin", len(entries), pluginName)
		}
		return wrap(bothKeys, "plugins[0]", entries[0], conf)
	}
	return shape{form: chained, dhcp: conf["dhcp"]}, nil
}

// wrap takes the delegate's object out of ours. The dhcp object may stand in
// either, but not in both: nobody could say which counts.
func wrap(f form, path string, raw json.RawMessage, conf object) (shape, error) {
	delegate, err := decodeObject(path, raw)
	if err != nil {
		return shape{}, err
	}
	switch delegate.text("type") {
	case "":
		if delegate.has("type") {
			return shape{}, fmt.Errorf("%s.type: is not the name of a plugin", path)
		}
		return shape{}, fmt.Errorf("%s.type: is missing: which plugin makes the interface?", path)
	case pluginName:
		return shape{}, fmt.Errorf("%s.type: %s cannot wrap itself", path, pluginName)
	}
	dhcp := conf["dhcp"]
	if delegate.has("dhcp") {
		if conf.has("dhcp") {
			return shape{}, fmt.Errorf("dhcp and %s.dhcp: only one of them can be", path)
		}
		dhcp = delegate["dhcp"]
	}
	return shape{form: f, delegate: delegate, dhcp: dhcp}, nil
}
