package kube

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/dhcp-meta/dhcp-meta/internal/kube/podnetworks"
	"github.com/dhcp-meta/dhcp-meta/pkg/engine/api"
	"github.com/dhcp-meta/dhcp-meta/pkg/engine/network"
)

// podKeys are the keys of a dhcp object that a pod may set for itself by the
// annotation <nad>.<namespace>.dhcp-meta.io/<key>.
var podKeys = []string{"address", "hostname", "clientID"}

// overlay is what a pod says for one of its networks: some keys of a dhcp object.
type overlay map[string]json.RawMessage

// overlayOf reads it from the pod's annotations and from its selection of the
// network, which may be nil. An annotation wins over the selection.
func overlayOf(annotations map[string]string, nad string, s *podnetworks.Selection) (overlay, error) {
	o := overlay{}
	if s != nil {
		if s.DefaultRoute {
			o["defaultRoute"] = json.RawMessage(`"always"`)
		}
		if err := o.requestedAddress(s.IPs); err != nil {
			return nil, err
		}
	}
	namespace, name, ok := strings.Cut(nad, "/")
	if !ok {
		return o, nil
	}
	prefix := name + "." + namespace + "." + domain + "/"
	for key, value := range annotations {
		if setting, short := strings.CutPrefix(key, name+"."+domain+"/"); short {
			return nil, fmt.Errorf("annotation %s: it names no namespace of its network: write %s%s", key, prefix, setting)
		}
		setting, ours := strings.CutPrefix(key, prefix)
		if !ours {
			continue
		}
		if err := o.set(setting, value); err != nil {
			return nil, fmt.Errorf("annotation %s: %w", key, err)
		}
	}
	return o, nil
}

// requestedAddress takes the first IPv4 address of a selection's ips, which have
// masks or not. The others are other plugins' business.
func (o overlay) requestedAddress(ips []string) error {
	for _, text := range ips {
		addr, err := netip.ParseAddr(text)
		if p, notPrefix := netip.ParsePrefix(text); notPrefix == nil {
			addr, err = p.Addr(), nil
		}
		if err != nil {
			return fmt.Errorf("annotation %s: ips: %q is no address", podnetworks.NetworksKey, text)
		}
		if !addr.Is4() {
			continue
		}
		if err := o.set("address", addr.String()); err != nil {
			return fmt.Errorf("annotation %s: ips: %w", podnetworks.NetworksKey, err)
		}
		return nil
	}
	return nil
}

// set takes a key whose value is a string, if a dhcp object may have it.
func (o overlay) set(key, value string) error {
	if !slices.Contains(podKeys, key) {
		return fmt.Errorf("a pod cannot set %q; it can set %s", key, strings.Join(podKeys, ", "))
	}
	raw, err := json.Marshal(value)
	if err != nil {
		return err
	}
	alone, err := json.Marshal(overlay{key: raw})
	if err != nil {
		return err
	}
	if _, err := network.Parse(alone); err != nil {
		return fmt.Errorf("%s", strings.TrimPrefix(err.Error(), "dhcp."+key+": "))
	}
	o[key] = raw
	return nil
}

// over is the dhcp object base with the overlay's keys in place of its own. An
// empty overlay leaves it as it was written.
func (o overlay) over(base json.RawMessage) (json.RawMessage, error) {
	if len(o) == 0 {
		return base, nil
	}
	// A key that is there twice must not get lost here before it is refused.
	if _, err := network.Parse(base); err != nil {
		return nil, api.WithCode(api.CodeConfig, err)
	}
	merged := overlay{}
	if len(bytes.TrimSpace(base)) > 0 {
		if err := json.Unmarshal(base, &merged); err != nil {
			return nil, api.WithCode(api.CodeConfig, err)
		}
	}
	if merged == nil { // base is null
		merged = overlay{}
	}
	for key, value := range o {
		merged[key] = value
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(merged); err != nil {
		return nil, err
	}
	return bytes.TrimSpace(b.Bytes()), nil
}
