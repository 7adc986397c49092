package network

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// maxSocket is the longest path that fits into a unix socket address with its
// closing zero.
const maxSocket = 107

// optionFQDN is the code of the client FQDN option (RFC 4702).
const optionFQDN = 81

// maxMetric is the largest metric of a route: the kernel has 32 bits for it.
const maxMetric = 1<<32 - 1

// Problems is why a dhcp object is refused: one entry a problem, each beginning
// with the path of its field, sorted.
type Problems []string

func (p Problems) Error() string { return strings.Join(p, "; ") }

// Parse turns a dhcp object into settings: it decodes strictly, fills in the
// defaults, checks ranges and what contradicts itself. Its error is a Problems
// that lists all that is wrong. An empty raw, or null, gives the defaults; a
// key that is null counts as absent.
//
// The settings are also returned beside an error; they then hold what could be
// understood and the defaults for the rest. A DEL needs no more than that: it
// must find the engine and the state folder of an attachment whose network was
// spoiled since.
func Parse(raw json.RawMessage) (Settings, error) {
	s := defaults()
	if raw = bytes.TrimSpace(raw); len(raw) == 0 {
		return s, nil
	}
	d := &decoder{}
	d.object("dhcp", raw, d.keys(&s))
	d.contradictions(s)
	if len(d.problems) == 0 {
		return s, nil
	}
	slices.Sort(d.problems)
	return s, d.problems
}

// Keys are the keys that a dhcp object may have, sorted.
func Keys() []string { return slices.Sorted(maps.Keys((&decoder{}).keys(new(Settings)))) }

// keys are the keys of a dhcp object, each with what puts its value into s. What stands
// above a key is for docs/reference.md; docs/configuration.md tells more of it.
func (d *decoder) keys(s *Settings) map[string]field {
	return map[string]field{
		// path of the unix socket of dhcp-engine, at most 107 bytes; default "/run/dhcp-meta/engine.sock"
		"socket": func(path string, v json.RawMessage) { d.socket(path, v, &s.Socket) },
		// folder that the plugin shares with dhcp-engine, whose --state-dir it is; default "/var/lib/dhcp-meta"
		"stateDir": func(path string, v json.RawMessage) { d.absPath(path, v, &s.StateDir) },
		// how long DHCP may take at ADD, 1s to 110s; default what the runtime leaves
		"timeout": func(path string, v json.RawMessage) { d.timeout(path, v, &s.Timeout) },
		// the interface's own MAC, or one made of namespace, pod, network and interface; default "keep"
		"mac": func(path string, v json.RawMessage) { d.choice(path, v, "keep", "derive", &s.DeriveMAC) },
		// client identifier, option 61: mac, none, duid, hex: and digits, or a template; default "mac", for a VM "none"
		"clientID": func(path string, v json.RawMessage) {
			s.ClientIDSet = true
			d.clientID(path, v, &s.ClientID)
		},
		// template of the host name, option 12; an empty one sends none; default "{name}"
		"hostname": func(path string, v json.RawMessage) { d.hostname(path, v, &s.Hostname) },
		// vendor class identifier, option 60; not sent by default
		"vendorClass": func(path string, v json.RawMessage) { d.vendorClass(path, v, &s.VendorClass) },
		// codes of options to ask for besides those that always are; default []
		"request": func(path string, v json.RawMessage) { d.request(path, v, &s.Request) },
		// codes of options without which an offer is not taken; default []
		"require": func(path string, v json.RawMessage) { d.request(path, v, &s.Require) },
		// options to send, each a code and a value; default []
		"options": func(path string, v json.RawMessage) { d.options(path, v, &s.Options) },
		// whether a default route of the lease is installed; default "never"
		"defaultRoute": func(path string, v json.RawMessage) { d.choice(path, v, "never", "always", &s.DefaultRoute) },
		// metric of all routes of the lease; default 0
		"routeMetric": func(path string, v json.RawMessage) { d.metric(path, v, &s.RouteMetric) },
		// prefixes, in the lists allow and deny, that narrow which routes of a lease are installed; default {}
		"routes": func(path string, v json.RawMessage) { d.routes(path, v, &s.Routes) },
		// server identifiers, option 54, that are listened to, empty for all; default []
		"servers": func(path string, v json.RawMessage) { d.servers(path, v, &s.Servers) },
		// server identifiers that are not listened to; default []
		"denyServers": func(path string, v json.RawMessage) { d.servers(path, v, &s.DenyServers) },
		// whether servers are asked to answer by broadcast; default false
		"broadcast": func(path string, v json.RawMessage) { d.bool(path, v, &s.Broadcast) },
		// whether an address is asked for in two messages, option 80 (RFC 4039); default false
		"rapidCommit": func(path string, v json.RawMessage) { d.bool(path, v, &s.RapidCommit) },
		// how an address is looked for on the link before it is used (RFC 5227); default "fast"
		"conflictDetection": func(path string, v json.RawMessage) {
			word(d, path, v, &s.ConflictDetection, ConflictDetectionOff, ConflictDetectionFast, ConflictDetectionFull)
		},
		// whether conflicts are looked for while the address is in use (RFC 5227, 2.4); default false
		"defend": func(path string, v json.RawMessage) { d.bool(path, v, &s.Defend) },
		// what happens when a lease in use comes back with other contents; default "apply"
		"onChange": func(path string, v json.RawMessage) {
			word(d, path, v, &s.OnChange, OnChangeApply, OnChangeKeep)
		},
		// IPv4 address that is asked for first, option 50; none by default
		"address": func(path string, v json.RawMessage) { d.address(path, v, &s.Address) },
		// how far the port of the interface is pinned to the lease; default "auto"
		"portSecurity": func(path string, v json.RawMessage) {
			word(d, path, v, &s.PortSecurity, PortSecurityAuto, PortSecurityAddress, PortSecurityMAC)
		},
		// what an ADD does while its address cannot be written into the pod's annotation; default "auto"
		"publish": func(path string, v json.RawMessage) {
			word(d, path, v, &s.Publish, PublishAuto, PublishRequire, PublishEventual)
		},
		// whether a container whose device is on vfio-pci is served, as a VM is; default "refuse"
		"vfioContainers": func(path string, v json.RawMessage) { d.choice(path, v, "refuse", "discover", &s.DiscoverVFIO) },
	}
}

// contradictions refuses what is right key by key and wrong together.
func (d *decoder) contradictions(s Settings) {
	// RFC 4702, 3.1: a client sends either its FQDN or its host name.
	if d.fqdn != "" && s.Hostname != "" {
		d.problem(d.fqdn, `%d (client FQDN) takes the place of the host name: set hostname to ""`, optionFQDN)
	}
	if s.Defend && s.ConflictDetection == ConflictDetectionOff {
		d.problem("dhcp.defend", `needs conflictDetection "fast" or "full": an address that was never probed cannot be defended`)
	}
	for _, a := range s.DenyServers {
		if slices.Contains(s.Servers, a) {
			d.problem("dhcp.denyServers", "%s is in servers too", a)
		}
	}
	d.contradictingRoutes(s)
}

func (d *decoder) socket(path string, raw json.RawMessage, into *string) {
	var s string
	if !d.absPath(path, raw, &s) {
		return
	}
	if len(s) > maxSocket {
		d.problem(path, "has %d bytes, a unix socket's path at most %d", len(s), maxSocket)
		return
	}
	*into = s
}

func (d *decoder) absPath(path string, raw json.RawMessage, into *string) bool {
	s, ok := d.string(path, raw)
	if !ok {
		return false
	}
	if !filepath.IsAbs(s) || strings.ContainsRune(s, 0) {
		d.problem(path, "%q is no absolute path", s)
		return false
	}
	*into = filepath.Clean(s)
	return true
}

func (d *decoder) timeout(path string, raw json.RawMessage, into *time.Duration) {
	s, ok := d.string(path, raw)
	if !ok {
		return
	}
	t, err := time.ParseDuration(s)
	switch {
	case err != nil:
		d.problem(path, `%q is no duration; write "30s" or "1m30s"`, s)
	case t < MinTimeout || t > MaxTimeout:
		d.problem(path, "%s is not between %s and %s (the runtime ends a plugin after 2m)", t, MinTimeout, MaxTimeout)
	default:
		*into = t
	}
}

// choice sets into to whether the value is the second of the two words.
func (d *decoder) choice(path string, raw json.RawMessage, no, yes string, into *bool) {
	s, ok := d.string(path, raw)
	if !ok {
		return
	}
	if s != no && s != yes {
		d.problem(path, "%q is neither %q nor %q", s, no, yes)
		return
	}
	*into = s == yes
}

// word sets into to the value when it is one of words.
func word[T ~string](d *decoder, path string, raw json.RawMessage, into *T, words ...T) {
	s, ok := d.string(path, raw)
	if !ok {
		return
	}
	if !slices.Contains(words, T(s)) {
		d.problem(path, "%q is none of %q", s, words)
		return
	}
	*into = T(s)
}

func (d *decoder) clientID(path string, raw json.RawMessage, into *string) {
	s, ok := d.string(path, raw)
	if !ok {
		return
	}
	if digits, ok := strings.CutPrefix(s, ClientIDHex); ok {
		if n, err := hex.DecodeString(digits); err != nil || len(n) == 0 || len(n) > maxOption {
			d.problem(path, "%q is not 1 to %d bytes in hexadecimal digits after hex:", s, maxOption)
			return
		}
		*into = s
		return
	}
	if s != ClientIDMAC && s != ClientIDNone && s != ClientIDDUID {
		parts, err := parseTemplate(s)
		if err != nil {
			d.problem(path, "template %q %v", s, err)
			return
		}
		// Without a placeholder all clients of the network would be one client
		// to the server; it is a policy's name misspelt.
		if !hasPlaceholder(parts) {
			d.problem(path, `%q is an unknown policy; known are "mac", "none", "duid", and templates with a placeholder such as {pod}`, s)
			return
		}
	}
	*into = s
}

func (d *decoder) hostname(path string, raw json.RawMessage, into *string) {
	s, ok := d.string(path, raw)
	if !ok {
		return
	}
	parts, err := parseTemplate(s)
	if err != nil {
		d.problem(path, "template %q %v", s, err)
		return
	}
	if s != "" && !hasPlaceholder(parts) && legalHostname(s) == "" {
		d.problem(path, "%q has no letter or digit of a host name", s)
		return
	}
	*into = s
}

func (d *decoder) vendorClass(path string, raw json.RawMessage, into *string) {
	s, ok := d.string(path, raw)
	if !ok {
		return
	}
	if len(s) == 0 || len(s) > maxOption {
		d.problem(path, "has %d bytes, not 1 to %d", len(s), maxOption)
		return
	}
	*into = s
}

func (d *decoder) request(path string, raw json.RawMessage, into *[]uint8) {
	var codes []uint8
	d.array(path, raw, func(path string, raw json.RawMessage) {
		code, ok := d.code(path, raw)
		if !ok {
			return
		}
		if slices.Contains(codes, code) {
			d.problem(path, "%d is asked for twice", code)
			return
		}
		codes = append(codes, code)
	})
	*into = codes
}

func (d *decoder) options(path string, raw json.RawMessage, into *[]Option) {
	var options []Option
	d.array(path, raw, func(path string, raw json.RawMessage) {
		o, ok := d.option(path, raw)
		if !ok {
			return
		}
		if slices.ContainsFunc(options, func(other Option) bool { return other.Code == o.Code }) {
			d.problem(path+".code", "%d is sent twice", o.Code)
			return
		}
		options = append(options, o)
	})
	*into = options
}

// option decodes one entry of options. It is ok when code and value are.
func (d *decoder) option(path string, raw json.RawMessage) (Option, bool) {
	var (
		o         Option
		code, set bool
	)
	if !d.object(path, raw, map[string]field{
		"code": func(path string, raw json.RawMessage) {
			if o.Code, code = d.code(path, raw); !code {
				return
			}
			if hint := ownedBy(o.Code); hint != "" {
				d.problem(path, "%d is not free: %s", o.Code, hint)
				code = false
			}
			if o.Code == optionFQDN {
				d.fqdn = path
			}
		},
		"value": func(path string, raw json.RawMessage) { o.Value, set = d.optionValue(path, raw) },
	}) {
		return o, false
	}
	d.required(path, "code")
	d.required(path, "value")
	return o, code && set
}

func (d *decoder) optionValue(path string, raw json.RawMessage) ([]byte, bool) {
	s, ok := d.string(path, raw)
	if !ok {
		return nil, false
	}
	value := []byte(s)
	if digits, isHex := strings.CutPrefix(s, "hex:"); isHex {
		var err error
		if value, err = hex.DecodeString(digits); err != nil {
			d.problem(path, "%q has no even number of hexadecimal digits after hex:", s)
			return nil, false
		}
	}
	if len(value) == 0 || len(value) > maxOption {
		d.problem(path, "has %d bytes, not 1 to %d", len(value), maxOption)
		return nil, false
	}
	return value, true
}

// ownedBy says for an option that may not be set by hand who sets it; empty
// for all others. All of them are needed for the client to be one of RFC 2131,
// or have a key of their own.
func ownedBy(code uint8) string {
	switch code {
	case 12:
		return "use hostname"
	case 60:
		return "use vendorClass"
	case 61:
		return "use clientID"
	case 55:
		return "use request"
	case 54:
		return "the client sets it; to listen to some servers only, use servers"
	case 50, 51, 52, 53, 56, 57, 58, 59:
		return "the client sets it"
	case 80:
		return "use rapidCommit"
	case 82:
		return "relay agents set it (RFC 3046)"
	}
	return ""
}

func (d *decoder) code(path string, raw json.RawMessage) (uint8, bool) {
	n, ok := d.integer(path, raw)
	if !ok {
		return 0, false
	}
	// 0 is padding and 255 the end of the options (RFC 2132, 3.1 and 3.2).
	if n < 1 || n > 254 {
		d.problem(path, "%d is no option code, which is 1 to 254", n)
		return 0, false
	}
	return uint8(n), true
}

func (d *decoder) metric(path string, raw json.RawMessage, into *int) {
	n, ok := d.integer(path, raw)
	if !ok {
		return
	}
	if n < 0 || n > maxMetric {
		d.problem(path, "%d is not between 0 and %d", n, int64(maxMetric))
		return
	}
	*into = int(n)
}
