package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
)

// netConf is what of a network definition's config counts here. Unknown keys are
// ignored.
type netConf struct {
	CNIVersion string `json:"cniVersion"`
	Name       string `json:"name"`
	Type       string `json:"type"`
	NADName    string `json:"netAttachDefName"`
	Topology   string `json:"topology"`
	Role       string `json:"role"`
	Subnets    string `json:"subnets"`
	Physical   string `json:"physicalNetworkName"`
	VLAN       int    `json:"vlanID"`
	IPAM       struct {
		Type string `json:"type"`
	} `json:"ipam"`
	Plugins  []json.RawMessage `json:"plugins"`
	DeviceID string            `json:"deviceID"`
}

// errUnmanaged says that a definition belongs to another plugin.
var errUnmanaged = errors.New("net-attach-def not managed by OVN")

// parseNetwork reads a definition as the controllers do: errUnmanaged for those of
// others, another error for those that are refused with an event.
func parseNetwork(nad, config string) (netConf, error) {
	var c netConf
	if err := json.Unmarshal([]byte(config), &c); err != nil {
		return c, fmt.Errorf("error parsing Network Attachment Definition %s: %w", nad, err)
	}
	if len(c.Plugins) > 0 {
		name, version := c.Name, c.CNIVersion
		inner := netConf{}
		if err := json.Unmarshal(c.Plugins[0], &inner); err != nil {
			return c, fmt.Errorf("error parsing Network Attachment Definition %s: %w", nad, err)
		}
		if inner.Type != pluginName {
			return c, errUnmanaged
		}
		if len(c.Plugins) > 1 {
			return c, fmt.Errorf("error parsing Network Attachment Definition %s: CNI plugin chaining is not supported", nad)
		}
		c, c.Name, c.CNIVersion = inner, name, version
	}
	switch {
	case c.Type != pluginName:
		return c, errUnmanaged
	case c.IPAM.Type != "" && !c.ownDHCP(): // until autumn 2026 that was refused as well
		return c, fmt.Errorf("error parsing Network Attachment Definition %s: IPAM key is not supported. Use OVN-K provided IPAM via the `subnets` attribute", nad)
	case c.NADName != nad:
		return c, fmt.Errorf("error parsing Network Attachment Definition %s: net-attach-def name (%s) is inconsistent with config (%s)", nad, nad, c.NADName)
	case c.Topology != "localnet":
		return c, fmt.Errorf("error parsing Network Attachment Definition %s: topology %q is not served by this double", nad, c.Topology)
	}
	return c, nil
}

// dotted is how names stand in the names of OVN's objects.
func dotted(name string) string { return strings.NewReplacer("-", ".", "/", ".").Replace(name) }

// switchName and localnetName are the logical switch of a network and its port to
// the physical one.
func (c netConf) switchName() string { return dotted(c.Name) + "_ovn_localnet_switch" }

func (c netConf) localnetName() string { return dotted(c.Name) + "_ovn_localnet_port" }

// physical is the name of the physical network: that of the network unless the
// definition says another.
func (c netConf) physical() string {
	if c.Physical != "" {
		return c.Physical
	}
	return c.Name
}

// portName is the logical port of a pod on a network of which it has the key nad;
// on the default network for an empty key.
func portName(namespace, pod, nad string) string {
	name := namespace + "_" + pod
	if nad == "" {
		return name
	}
	return dotted(nad) + "_" + name
}
