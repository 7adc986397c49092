// Package ipamconf reads the configuration of a plugin that asks the IPAM plugin
// "dhcp" for an address, and says what it means as a dhcp object of ours.
//
// It is pure, and as lenient as that plugin is: no network that has worked with it
// may stop working. What it could not send, or would send as nonsense, is left out
// with a remark.
package ipamconf

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// DefaultSocket is where the daemon of the reference plugin listens.
const DefaultSocket = "/run/cni/dhcp.sock"

// Config is what a configuration says.
type Config struct {
	// Version, Network and Type are cniVersion, name and the type of the plugin that
	// asks. NAD is netAttachDefName.
	Version, Network, Type, NAD string
	// Args are the pairs of CNI_ARGS.
	Args map[string]string
	// Result is prevResult; nil: there is none.
	Result json.RawMessage
	// Socket is where the daemon listens; never empty.
	Socket string
	// DHCP is the dhcp object: what ipam says, and over it what a dhcp object in the
	// configuration, or in ipam, says.
	DHCP json.RawMessage
	// Own are the keys of DHCP that the configuration says itself, other than those
	// that follow from its being one of this kind.
	Own map[string]json.RawMessage
	// Metric is that of all routes in the result; 0 is the kernel's default.
	Metric int
	// Remarks are what was left out, in words.
	Remarks []string
}

// errNoIPAM is for a request that ends the reference daemon.
var errNoIPAM = errors.New(`ipam: is missing: a plugin asks for an address by "ipam": {"type": "dhcp"}`)

// netConf is what is read of a configuration.
type netConf struct {
	CNIVersion string          `json:"cniVersion"`
	Name       string          `json:"name"`
	Type       string          `json:"type"`
	NAD        string          `json:"netAttachDefName"`
	PrevResult json.RawMessage `json:"prevResult"`
	IPAM       *ipam           `json:"ipam"`
	DHCP       json.RawMessage `json:"dhcp"`
}

type ipam struct {
	DaemonSocketPath string          `json:"daemonSocketPath"`
	Provide          []provided      `json:"provide"`
	Request          []requested     `json:"request"`
	Priority         int             `json:"priority"`
	DHCP             json.RawMessage `json:"dhcp"`
}

type provided struct {
	Option  string `json:"option"`
	Value   string `json:"value"`
	FromArg string `json:"fromArg"`
}

type requested struct {
	Option string `json:"option"`
	// Required is ours: the reference documents that an option which the server does
	// not give is an error, and goes on without it.
	Required bool `json:"required"`
}

// Parse reads a configuration; args are CNI_ARGS.
func Parse(stdin []byte, args string) (Config, error) {
	var n netConf
	if err := json.Unmarshal(stdin, &n); err != nil {
		return Config{}, fmt.Errorf("configuration: %w", err)
	}
	c := Config{Version: n.CNIVersion, Network: n.Name, Type: n.Type, NAD: n.NAD, Args: argsOf(args), Result: n.PrevResult, Socket: DefaultSocket}
	if n.IPAM == nil {
		return c, errNoIPAM
	}
	if n.IPAM.DaemonSocketPath != "" {
		c.Socket = n.IPAM.DaemonSocketPath
	}
	c.Metric = n.IPAM.Priority
	b := builder{keys: make(map[string]json.RawMessage)}
	if err := b.provide(n.IPAM.Provide, c.Args); err != nil {
		return c, err
	}
	if err := b.request(n.IPAM.Request); err != nil {
		return c, err
	}
	if n.IPAM.Priority != 0 {
		b.set("routeMetric", n.IPAM.Priority)
	}
	for path, own := range map[string]json.RawMessage{"dhcp": n.DHCP, "ipam.dhcp": n.IPAM.DHCP} {
		if err := b.over(path, own); err != nil {
			return c, err
		}
	}
	c.Own, c.Remarks = b.keys, b.remarks
	c.DHCP = c.Over(nil)
	return c, nil
}

// Over is the dhcp object with the keys of defaults below the configuration's own.
func (c Config) Over(defaults map[string]json.RawMessage) json.RawMessage {
	all := map[string]json.RawMessage{
		// As from the reference: whoever asks gets the default route, and no name is
		// sent that nobody asked to be sent.
		"defaultRoute": json.RawMessage(`"always"`),
		"hostname":     json.RawMessage(`""`),
	}
	for _, keys := range []map[string]json.RawMessage{defaults, c.Own} {
		for key, value := range keys {
			all[key] = value
		}
	}
	raw, err := json.Marshal(all)
	if err != nil {
		panic("ipamconf: encode what was decoded: " + err.Error())
	}
	return raw
}

// argsOf are the pairs of CNI_ARGS; of two with one key the later counts.
func argsOf(text string) map[string]string {
	args := make(map[string]string)
	for pair := range strings.SplitSeq(text, ";") {
		if key, value, ok := strings.Cut(pair, "="); ok {
			args[key] = value
		}
	}
	return args
}

// The options that have a key of their own in a dhcp object, or a meaning here.
const (
	optionHostname    = 12
	optionAddress     = 50
	optionVendorClass = 60
	optionClientID    = 61
	maxValue          = 255
)

// codeOf is the code of an option: a name of dhcp-options(5) that the reference
// knows, or a number.
func codeOf(option string) (uint8, error) {
	switch option {
	case "dhcp-client-identifier":
		return optionClientID, nil
	case "subnet-mask":
		return 1, nil
	case "routers":
		return 3, nil
	case "host-name":
		return optionHostname, nil
	case "user-class":
		return 77, nil
	case "vendor-class-identifier":
		return optionVendorClass, nil
	}
	code, err := strconv.ParseUint(option, 10, 8)
	if err != nil {
		return 0, fmt.Errorf("option %q is neither a number up to 255 nor one of dhcp-client-identifier, subnet-mask, routers, host-name, "+
			"user-class, vendor-class-identifier", option)
	}
	return uint8(code), nil
}

// builder makes the keys of a dhcp object.
type builder struct {
	keys    map[string]json.RawMessage
	remarks []string
}

func (b *builder) set(key string, value any) {
	raw, err := json.Marshal(value)
	if err != nil {
		panic("ipamconf: encode " + key + ": " + err.Error()) // texts and numbers
	}
	b.keys[key] = raw
}

func (b *builder) remark(format string, args ...any) {
	b.remarks = append(b.remarks, fmt.Sprintf(format, args...))
}

// option is an entry of the options of a dhcp object.
type option struct {
	Code  uint8  `json:"code"`
	Value string `json:"value"`
}

// provide takes the options that are to be sent; of two with one code the later
// counts.
func (b *builder) provide(list []provided, args map[string]string) error {
	values := make(map[uint8]string)
	for i, p := range list {
		code, err := codeOf(p.Option)
		if err != nil {
			return fmt.Errorf("ipam.provide[%d]: %w", i, err)
		}
		value, ok := args[p.FromArg]
		if !ok {
			value = p.Value
		}
		if len(value) > maxValue {
			return fmt.Errorf("ipam.provide[%d]: the value of option %q has %d bytes, at most %d can be sent", i, p.Option, len(value), maxValue)
		}
		if value != "" {
			values[code] = value
		}
	}
	var options []option
	for code := range 256 {
		if value, ok := values[uint8(code)]; ok && !b.known(uint8(code), value) {
			options = append(options, option{uint8(code), inHex(value)})
		}
	}
	if options != nil {
		b.set("options", options)
	}
	return nil
}

func inHex(value string) string { return "hex:" + hex.EncodeToString([]byte(value)) }

// known takes a value whose option is more than a few bytes to be sent.
func (b *builder) known(code uint8, value string) bool {
	switch code {
	case optionHostname:
		if strings.ContainsAny(value, "{}") || !strings.ContainsFunc(value, isNamePart) {
			b.remark("ipam.provide: host-name %q is none and is not sent", value)
			return true
		}
		b.set("hostname", value)
	case optionVendorClass:
		b.set("vendorClass", value)
	case optionClientID:
		b.set("clientID", inHex(value))
	case optionAddress:
		addr, err := netip.ParseAddr(value)
		if err != nil || !addr.Is4() {
			b.remark("ipam.provide: %q is no address to ask for in option 50", value)
			return true
		}
		b.set("address", value)
	case 51, 52, 53, 54, 55, 56, 57, 58, 59, 80, 82, 0, 255:
		b.remark("ipam.provide: option %d is the client's own and is not taken from the configuration", code)
	default:
		return false
	}
	return true
}

func isNamePart(r rune) bool {
	return r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z'
}

// request takes the options that are to be asked for. What the client needs is asked
// for always, so that skipDefault has nothing to say.
func (b *builder) request(list []requested) error {
	var codes, required []int
	for i, r := range list {
		if r.Option == "" {
			continue
		}
		code, err := codeOf(r.Option)
		if err != nil {
			return fmt.Errorf("ipam.request[%d]: %w", i, err)
		}
		if code == 0 || code == 255 { // padding, and the end of the options
			b.remark("ipam.request: %d is no option that can be asked for", code)
			continue
		}
		if !slices.Contains(codes, int(code)) {
			codes = append(codes, int(code))
		}
		if r.Required && !slices.Contains(required, int(code)) {
			required = append(required, int(code))
		}
	}
	if codes != nil {
		b.set("request", codes)
	}
	if required != nil {
		b.set("require", required)
	}
	return nil
}

// over puts the keys of a dhcp object over those that ipam gives.
func (b *builder) over(path string, raw json.RawMessage) error {
	var keys map[string]json.RawMessage
	if len(raw) == 0 {
		return nil
	}
	if err := json.Unmarshal(raw, &keys); err != nil {
		return fmt.Errorf("%s: is no object: %w", path, err)
	}
	for key, value := range keys {
		b.keys[key] = value
	}
	return nil
}
