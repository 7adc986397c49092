package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine/api"
)

// leastID is how much of a container id is printed at least: what crictl and
// others print, of the 64 digits that fill a line.
const leastID = 13

// shortIDs returns, by container id, as much of its beginning as tells it from
// all others in the list, and no less than leastID. An id that is the beginning
// of another one is whole.
func shortIDs(all []api.Status) map[string]string {
	ids := make([]string, 0, len(all))
	for _, s := range all {
		ids = append(ids, s.ContainerID)
	}
	slices.Sort(ids)
	ids = slices.Compact(ids)
	short := make(map[string]string, len(ids))
	for i, id := range ids {
		n := leastID
		if i > 0 {
			n = max(n, common(ids[i-1], id)+1)
		}
		if i+1 < len(ids) {
			n = max(n, common(id, ids[i+1])+1)
		}
		short[id] = id[:min(n, len(id))]
	}
	return short
}

// namesForSure tells whether text, which has found s, has at least as much of the
// container id as is ever printed. Said again after it has worked, something shorter
// may find another attachment.
func namesForSure(text string, s api.Status) bool {
	container, _, _ := strings.Cut(text, ":")
	return len(container) >= min(leastID, len(s.ContainerID))
}

// common is the length of what two texts begin with.
func common(a, b string) int {
	n := 0
	for n < len(a) && n < len(b) && a[n] == b[n] {
		n++
	}
	return n
}

// find returns the attachment that text names: container:interface, where the
// container may be the beginning of an id, and the interface be left out when
// there is one only. A whole id goes before those that begin with it.
func find(all []api.Status, text string) (api.Status, error) {
	container, ifName, named := strings.Cut(text, ":")
	var whole, begins []api.Status
	for _, s := range all {
		switch {
		case container == "" || named && s.IfName != ifName || !strings.HasPrefix(s.ContainerID, container):
		case s.ContainerID == container:
			whole = append(whole, s)
		default:
			begins = append(begins, s)
		}
	}
	if len(whole) > 0 {
		begins = whole
	}
	switch len(begins) {
	case 0:
		return api.Status{}, fmt.Errorf("no attachment %q: dhcp-engine leases lists those that there are", text)
	case 1:
		return begins[0], nil
	}
	short := shortIDs(all)
	var names []string
	for _, s := range begins {
		names = append(names, short[s.ContainerID]+":"+s.IfName)
	}
	return api.Status{}, fmt.Errorf("attachment %q is ambiguous: it may be %s", text, strings.Join(names, ", "))
}
