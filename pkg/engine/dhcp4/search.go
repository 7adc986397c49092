package dhcp4

import (
	"errors"
	"fmt"
	"strings"
)

const (
	maxDomain = 253 // of a domain name as text; RFC 1035, 2.3.4
	maxLabel  = 63
	// maxSearch is how many names of option 119 are used; Kubernetes allows a pod
	// no more. Compression lets a small option say many long names.
	maxSearch = 32
)

// search reads option 119; RFC 3397.
func (o *options) search() []string {
	v, ok := o.all[optSearch]
	if !ok {
		return nil
	}
	names, err := parseSearch(v)
	if err != nil {
		o.remark("option 119 (search list) %v: not used", err)
		return nil
	}
	if len(names) > maxSearch {
		o.remark("option 119 (search list) has more than %d names: the others are not used", maxSearch)
		names = names[:maxSearch]
	}
	return names
}

// parseSearch reads a list of domain names that are compressed by RFC 1035,
// 4.1.4, offsets counted from the start of the option. It stops after one name
// more than are used.
func parseSearch(v []byte) ([]string, error) {
	var names []string
	for at := 0; at < len(v) && len(names) <= maxSearch; {
		name, next, err := parseName(v, at)
		if err != nil {
			return nil, err
		}
		at = next
		if name == "" {
			continue // the root, nothing to search in
		}
		if !isDomain(name) {
			return nil, fmt.Errorf("has the name %.64q", name)
		}
		names = append(names, name)
	}
	if len(names) == 0 {
		return nil, errors.New("has no name")
	}
	return names, nil
}

// parseName reads the name that begins at an offset, and returns where the next
// one begins. A pointer must point before the name or the part in which it
// stands, so that every jump goes back and the way comes to an end.
func parseName(v []byte, at int) (name string, next int, err error) {
	var b strings.Builder
	part := at // where the run of labels began that is being read
	for at < len(v) {
		n := int(v[at])
		switch {
		case n == 0:
			if next == 0 {
				next = at + 1
			}
			return b.String(), next, nil
		case n >= 0xc0:
			if at+1 >= len(v) {
				return "", 0, errors.New("ends within a pointer")
			}
			to := (n&^0xc0)<<8 | int(v[at+1])
			if to >= part {
				return "", 0, fmt.Errorf("has a pointer from %d to %d, which is not backwards", at, to)
			}
			if next == 0 {
				next = at + 2
			}
			at, part = to, to
		case n > maxLabel:
			return "", 0, fmt.Errorf("has a label of type %#x", n&0xc0)
		case at+1+n > len(v):
			return "", 0, errors.New("ends within a label")
		default:
			if b.Len() > 0 {
				b.WriteByte('.')
			}
			b.Write(v[at+1 : at+1+n])
			at += 1 + n
			if b.Len() > maxDomain {
				return "", 0, fmt.Errorf("has a name of more than %d bytes", maxDomain)
			}
		}
	}
	return "", 0, errors.New("ends within a name")
}

// isDomain tells whether a name can go into a resolv.conf and into DNS: labels of
// letters, digits, '-' and '_'.
func isDomain(name string) bool {
	if len(name) > maxDomain {
		return false
	}
	for label := range strings.SplitSeq(name, ".") {
		if label == "" || len(label) > maxLabel {
			return false
		}
		for _, c := range []byte(label) {
			switch {
			case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '-', c == '_':
			default:
				return false
			}
		}
	}
	return true
}
