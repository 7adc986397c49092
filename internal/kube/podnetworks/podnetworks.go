// Package podnetworks reads the annotation in which a pod asks for its networks,
// and reads and edits the one in which OVN-Kubernetes says what each interface of a
// pod has: an object with an entry for each network.
//
// An edit touches the keys of one entry that a lease is about, and nothing else:
// other entries, unknown keys, order, white space, the way numbers and characters
// are written, all stay byte for byte, since they are somebody else's. What
// cannot be edited that way (no JSON, an entry that is no object, a key that
// stands there twice) is an error, and nothing is changed.
//
// It is pure.
package podnetworks

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// The annotations that have this form.
const (
	// OVNKey is OVN-Kubernetes' own.
	OVNKey = "k8s.ovn.org/pod-networks"
	// OwnKey is for interfaces that another plugin makes.
	OwnKey = "dhcp-meta.io/pod-networks"
)

// ModeDHCP is the ipam_mode of an interface whose address an external DHCP server
// gives.
const ModeDHCP = "dhcp"

// RoleSecondary is the role of an interface besides the pod's first.
const RoleSecondary = "secondary"

// The keys of an entry that a lease is about. The two legacy ones repeat the
// first of a list; OVN-Kubernetes writes them where there is one, and refuses an
// entry in which they do not agree.
const (
	keyAddresses     = "ip_addresses"
	keyMAC           = "mac_address"
	keyGateways      = "gateway_ips"
	keyMode          = "ipam_mode"
	keyRole          = "role"
	keyLegacyAddress = "ip_address"
	keyLegacyGateway = "gateway_ip"
)

var knownKeys = []string{keyAddresses, keyMAC, keyGateways, keyMode, keyRole, keyLegacyAddress, keyLegacyGateway}

// Annotation is an annotation that can be edited. The zero value is none.
type Annotation struct{ entries object }

// Parse takes the text of an annotation apart.
func Parse(text string) (Annotation, error) {
	if !utf8.ValidString(text) {
		return Annotation{}, errors.New("not UTF-8")
	}
	var raw json.RawMessage
	if err := json.Unmarshal([]byte(text), &raw); err != nil {
		return Annotation{}, fmt.Errorf("no JSON: %w", err)
	}
	start := skipSpace(text, 0)
	if text[start] != '{' {
		return Annotation{}, fmt.Errorf("not an object: it begins with %.16q", text[start:])
	}
	entries, err := scanObject(text, start)
	return Annotation{entries}, err
}

// String is the text.
func (a Annotation) String() string { return a.entries.text }

// Empty tells whether there is no entry.
func (a Annotation) Empty() bool { return len(a.entries.members) == 0 }

// Key is the key of the entry for the interface of a pod that is the index-th,
// from 0, of those on one NetworkAttachmentDefinition, "<namespace>/<name>".
func Key(nad string, index int) string {
	if index == 0 {
		return nad
	}
	return nad + "/" + strconv.Itoa(index)
}

// Keys are the keys of a NetworkAttachmentDefinition's entries, by index.
func (a Annotation) Keys(nad string) []string {
	var indices []int
	for _, m := range a.entries.members {
		if m.name == nad {
			indices = append(indices, 0)
			continue
		}
		rest, found := strings.CutPrefix(m.name, nad+"/")
		if i, err := strconv.Atoi(rest); found && err == nil && i > 0 && strconv.Itoa(i) == rest {
			indices = append(indices, i)
		}
	}
	slices.Sort(indices)
	var keys []string
	for _, i := range indices {
		keys = append(keys, Key(nad, i))
	}
	return keys
}
