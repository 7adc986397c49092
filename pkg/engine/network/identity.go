package network

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"strings"
)

// Sizes of what goes on the wire: the length octet of an option, a label of a
// host name (RFC 1035, 2.3.4) and a whole one (RFC 1123, 2.1).
const (
	maxOption   = 255
	maxLabel    = 63
	maxHostname = 255
)

// Type octets of a client identifier: hardware type Ethernet and "other than a
// hardware address" (RFC 2132, 9.14), and the form of RFC 4361.
const (
	clientIDEthernet = 0x01
	clientIDOther    = 0x00
	clientIDRFC4361  = 0xff
)

// duidUUID is the DUID type of RFC 6355.
const duidUUID = 4

// ErrNoPod is wrapped where an identity that follows the pod was asked for and
// the runtime told of no pod.
var ErrNoPod = errors.New("the runtime told no pod (CNI_ARGS has no K8S_POD_NAMESPACE and K8S_POD_NAME)")

// ClientIdentifier returns the value of option 61, its type octet included; nil
// when none is sent. The policies "duid" and "mac" and templates fail when the
// identity lacks what they are made of.
func (s Settings) ClientIdentifier(id Identity) ([]byte, error) {
	switch s.ClientID {
	case ClientIDNone:
		return nil, nil
	case ClientIDMAC:
		if len(id.HardwareAddr) != 6 {
			return nil, fmt.Errorf("clientID mac: %q is no Ethernet address", id.HardwareAddr)
		}
		return append([]byte{clientIDEthernet}, id.HardwareAddr...), nil
	case ClientIDDUID:
		return duid(id)
	}
	if digits, ok := strings.CutPrefix(s.ClientID, ClientIDHex); ok {
		return hex.DecodeString(digits)
	}
	text, err := expand(s.ClientID, id)
	if err != nil {
		return nil, fmt.Errorf("clientID: %w", err)
	}
	if n := 1 + len(text); n > maxOption {
		return nil, fmt.Errorf("clientID: template %q gives %d bytes with its type octet, option 61 holds at most %d", s.ClientID, n, maxOption)
	}
	return append([]byte{clientIDOther}, text...), nil
}

// CheckSharedMAC tells whether these settings work on an interface that shares
// its MAC with others, as those of ipvlan on one master do. A server that goes by
// the MAC takes all of them for one client and gives them one address, so the
// identifier must tell pods apart, and no MAC can be derived: the kernel refuses
// to set one. The error is a Problems that names each key and what to use.
//
// On such an interface the client must set the BROADCAST flag besides, whatever
// Broadcast says: a unicast answer goes to the MAC of all of them and to an
// address that none has yet, so the kernel gives it to nobody.
func (s Settings) CheckSharedMAC() error {
	const use = `use "duid", or a template that tells pods apart such as "{namespace}/{pod}/{interface}"`
	var p Problems
	switch s.ClientID {
	case ClientIDDUID:
	case ClientIDMAC, ClientIDNone:
		p = append(p, fmt.Sprintf("dhcp.clientID: %q makes all interfaces with this MAC one client; %s", s.ClientID, use))
	default:
		if !tellsPodsApart(s.ClientID) {
			p = append(p, fmt.Sprintf("dhcp.clientID: template %q can give several pods with this MAC one identifier; %s", s.ClientID, use))
		}
	}
	if s.DeriveMAC {
		p = append(p, `dhcp.mac: "derive" is impossible on an interface that shares its MAC with others; use "keep"`)
	}
	if p == nil {
		return nil
	}
	return p
}

// duid is the identifier of RFC 4361: the IAID tells the interfaces of a pod
// apart, the DUID stays with the pod's name, whichever sandbox or node it is
// in. The 16 octets are laid out as a UUID of version 8 (RFC 9562, 5.8).
func duid(id Identity) ([]byte, error) {
	if id.Namespace == "" || id.Pod == "" {
		return nil, fmt.Errorf("clientID duid: %w", ErrNoPod)
	}
	uuid := digest("duid", id.Namespace, id.Pod, id.Network)
	uuid[6] = uuid[6]&0x0f | 0x80
	uuid[8] = uuid[8]&0x3f | 0x80
	iaid := digest("iaid", id.IfName, id.Network)

	out := []byte{clientIDRFC4361}
	out = append(out, iaid[:4]...)
	out = binary.BigEndian.AppendUint16(out, duidUUID)
	return append(out, uuid[:16]...), nil
}

// HostnameFor returns the value of option 12, a legal host name; empty when
// none is sent. A template of which a placeholder has no value sends none: a
// name that many clients share is worse than no name.
func (s Settings) HostnameFor(id Identity) string {
	if s.Hostname == "" {
		return ""
	}
	name, err := expand(s.Hostname, id)
	if err != nil {
		return ""
	}
	return legalHostname(name)
}

// legalHostname makes text a host name of RFC 952 and RFC 1123, 2.1: what is
// neither letter, digit nor hyphen becomes a hyphen, labels and the whole are
// cut to size, and no label begins or ends with a hyphen. It may be empty.
func legalHostname(text string) string {
	clean := strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9', r == '-', r == '.':
			return r
		case r >= 'A' && r <= 'Z':
			return r - 'A' + 'a'
		}
		return '-'
	}, text)
	var labels []string
	for label := range strings.SplitSeq(clean, ".") {
		label = strings.TrimLeft(label, "-")
		if len(label) > maxLabel {
			label = label[:maxLabel]
		}
		if label = strings.TrimRight(label, "-"); label != "" {
			labels = append(labels, label)
		}
	}
	name := strings.Join(labels, ".")
	if len(name) > maxHostname {
		name = strings.TrimRight(name[:maxHostname], "-.")
	}
	return name
}

// DeriveMAC returns a locally administered unicast MAC that depends on
// namespace, pod, network and interface name alone. Without a pod there is
// nothing stable to derive it from, which is an error.
func DeriveMAC(id Identity) (net.HardwareAddr, error) {
	if id.Namespace == "" || id.Pod == "" {
		return nil, fmt.Errorf("mac derive: %w", ErrNoPod)
	}
	sum := digest("mac", id.Namespace, id.Pod, id.Network, id.IfName)
	mac := net.HardwareAddr(sum[:6])
	mac[0] = mac[0]&^0x01 | 0x02 // unicast, locally administered (IEEE 802, 8.2)
	return mac, nil
}

// digest hashes the fields for one purpose. Each field is preceded by its
// length, so that no two lists of fields run together to the same bytes.
func digest(purpose string, fields ...string) []byte {
	h := sha256.New()
	for _, f := range append([]string{"dhcp-meta/" + purpose}, fields...) {
		h.Write(binary.BigEndian.AppendUint32(nil, uint32(len(f))))
		h.Write([]byte(f))
	}
	return h.Sum(nil)
}
