package delegate

import (
	"fmt"
	"slices"
	"strings"

	"github.com/dhcp-meta/dhcp-meta/pkg/delegate/aside"
)

// refuseNulls finds the nulls in the lists of a result. CNI's types hold entries of
// lists as pointers, which its conversions between versions, and we, go through.
//
// It goes through the text, not through a decoded object: encoding/json takes a key
// in any case for a field's, and of one that is there twice merges the values, so
// that what has been decoded does not show what was. What is no JSON it leaves to
// the decoder.
func refuseNulls(result []byte) error {
	var first error
	aside.Members(result, func(key string, value []byte) {
		if first == nil && hasLists(key) {
			first = refuseNullsIn(key, value)
		}
	})
	return first
}

// hasLists tells whether encoding/json takes a key for one of those whose values are
// lists, or have some.
func hasLists(key string) bool {
	names := []string{"interfaces", "ips", "routes", "ip4", "ip6", "dns"}
	return slices.ContainsFunc(names, func(name string) bool { return strings.EqualFold(key, name) })
}

// refuseNullsIn finds an entry of a list, at any depth, that is null.
func refuseNullsIn(path string, value []byte) error {
	var (
		first error
		at    int
	)
	look := func(path string, value []byte) {
		if first == nil {
			first = refuseNullsIn(path, value)
		}
	}
	aside.Members(value, func(key string, value []byte) { look(path+"."+key, value) })
	aside.Elements(value, func(value []byte) {
		path := fmt.Sprintf("%s[%d]", path, at)
		if at++; first == nil && string(value) == "null" {
			first = fmt.Errorf("%s: is null", path)
		}
		look(path, value)
	})
	return first
}
