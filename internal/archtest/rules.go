// Package archtest holds the import rules of docs/architecture.md as data, and
// its tests hold the code against them. It exports nothing.
package archtest

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

const module = "github.com/dhcp-meta/dhcp-meta/"

// A rule says what one of our packages may import.
type rule struct {
	// ours are the packages of this module that it may import itself.
	ours []string
	// direct are the foreign packages and modules that it may import itself;
	// those of the standard library are always among them. nil: all.
	direct []string
	// never are packages, or everything below them, that must not be in the
	// program at all because of it, with the reason.
	never map[string]string
}

// What must not be linked, and why.
const (
	light = "dhcp-meta is started for every interface of every pod: keep it light"
	pure  = "the state machine has no world around it: time, chance and logs are the caller's"
	early = "it decides while the program is being initialised: what it imports is initialised before"
	edge  = "it is for packages at the rim to know of this"
)

const (
	netlink    = "github.com/vishvananda/netlink"
	packet     = "github.com/mdlayher"
	prometheus = "github.com/prometheus"
	codec      = "github.com/insomniacslk/dhcp"
	clientGo   = "k8s.io"
	nadClient  = "github.com/k8snetworkplumbingwg/network-attachment-definition-client"
	cniTypes   = "github.com/containernetworking/cni/pkg/types"
)

var plugin = map[string]string{
	netlink: light, packet: light, prometheus: light, codec: light, clientGo: light,
	"net/http":                  light + " (net/http alone is a quarter of its start)",
	module + "pkg/engine":       light,
	module + "pkg/engine/dhcp4": light,
}

// unready has what takes its time to be initialised, or waits for what does.
var unready = map[string]string{
	"bufio": early, "bytes": early, "context": early, "encoding": early, "fmt": early, "io": early, "log": early,
	"net": early, "os": early, "path": early, "reflect": early, "regexp": early, "strconv": early, "strings": early,
}

var noRim = map[string]string{netlink: edge, packet: edge, clientGo: edge}

// rules has every package of ours but those below cmd, where all is allowed
// that is not in never, and tests.
var rules = map[string]rule{
	"cmd/dhcp-engine": {ours: []string{
		"internal/boot", "internal/build", "internal/doctor", "internal/install", "internal/nic",
		"internal/kube", "internal/leaseobjects", "internal/ovnnb", "internal/podannotation", "internal/publish", "internal/vfio",
		"pkg/engine", "pkg/engine/api", "pkg/engine/api/server", "pkg/engine/cnidhcp", "pkg/engine/network", "pkg/engine/store", "pkg/sriov",
	}},
	"cmd/kubectl-dhcp": {
		ours:  []string{"internal/build", "pkg/engine/api"},
		never: map[string]string{netlink: edge, packet: edge, module + "pkg/engine": "it runs on an administrator's machine"},
	},
	"cmd/dhcp-meta": {ours: []string{"internal/build", "pkg/delegate", "pkg/delegate/aside/early"}, never: plugin},

	"internal/archtest":   {direct: []string{}},
	"internal/atomicfile": {direct: []string{}},
	"internal/boot":       {direct: []string{"golang.org/x/sys/unix"}},
	"internal/build":      {direct: []string{}},
	"internal/doctor": {ours: []string{
		"internal/install", "internal/ipamconf", "internal/kube", "internal/ovnnb", "pkg/delegate",
		"pkg/delegate/aside", "pkg/engine/api", "pkg/engine/network", "pkg/engine/store", "pkg/sriov",
	}},
	"internal/install":  {ours: []string{"internal/atomicfile", "pkg/delegate/aside"}, direct: []string{"golang.org/x/sys/unix"}},
	"internal/ipamconf": {ours: []string{"pkg/engine/api"}, direct: []string{cniTypes}, never: plugin},
	"internal/nic":      {ours: []string{"pkg/engine", "pkg/engine/dhcp4"}, never: map[string]string{clientGo: edge}},
	"internal/ovnnb": {
		ours:   []string{"internal/publish", "pkg/engine", "pkg/engine/network"},
		direct: []string{"github.com/ovn-kubernetes/libovsdb", prometheus + "/client_golang/prometheus", "golang.org/x/sync/errgroup", "golang.org/x/time/rate"},
		never:  noRim,
	},
	"internal/kube": {
		ours:  []string{"internal/atomicfile", "internal/build", "internal/kube/podnetworks", "pkg/engine", "pkg/engine/api", "pkg/engine/network"},
		never: map[string]string{netlink: edge, packet: edge},
	},
	"internal/kube/podnetworks": {direct: []string{nadClient}},
	"internal/leaseobjects": {
		ours:   []string{"pkg/engine", "pkg/engine/dhcp4"},
		direct: []string{clientGo, prometheus},
		never:  map[string]string{netlink: edge, packet: edge},
	},
	"internal/podannotation": {
		ours:   []string{"internal/kube/podnetworks", "internal/publish", "pkg/engine"},
		direct: []string{clientGo, prometheus},
		never:  map[string]string{netlink: edge, packet: edge},
	},
	"internal/publish": {ours: []string{"pkg/engine", "pkg/engine/dhcp4", "pkg/engine/network"}, direct: []string{}, never: noRim},

	"internal/vfio": {
		ours:  []string{"internal/atomicfile", "internal/boot", "pkg/engine", "pkg/engine/api", "pkg/sriov"},
		never: map[string]string{clientGo: edge},
	},

	"pkg/delegate": {
		ours:  []string{"internal/atomicfile", "internal/build", "internal/ipamconf", "pkg/delegate/aside", "pkg/engine/api", "pkg/engine/network"},
		never: plugin,
	},
	"pkg/delegate/aside":       {direct: []string{}, never: unready},
	"pkg/delegate/aside/early": {ours: []string{"pkg/delegate/aside"}, direct: []string{}, never: unready},
	"pkg/engine": {
		ours:  []string{"pkg/engine/api", "pkg/engine/dhcp4", "pkg/engine/network", "pkg/engine/routing"},
		never: noRim,
	},
	"pkg/engine/api": {
		direct: []string{cniTypes},
		never:  plugin,
	},
	"pkg/engine/api/server": {
		ours:   []string{"pkg/engine/api"},
		direct: []string{cniTypes, "github.com/containernetworking/cni/pkg/utils", "golang.org/x/sys/unix"},
		never:  noRim,
	},
	"pkg/engine/cnidhcp": {
		ours:   []string{"internal/ipamconf", "pkg/engine/api"},
		direct: []string{"github.com/containernetworking/cni"},
		never:  noRim,
	},
	"pkg/engine/dhcp4": {
		direct: []string{codec},
		never:  noRim,
	},
	"pkg/engine/network": {
		direct: []string{},
		never:  plugin,
	},
	"pkg/engine/routing": {
		ours:   []string{"pkg/engine/dhcp4"},
		direct: []string{},
		never:  noRim,
	},
	"pkg/engine/store": {
		ours:   []string{"internal/atomicfile", "internal/boot", "pkg/engine", "pkg/engine/api", "pkg/engine/dhcp4"},
		direct: []string{"github.com/fsnotify/fsnotify", "golang.org/x/sys/unix"},
		never:  noRim,
	},
	"pkg/sriov": {
		direct: []string{"github.com/jaypipes/ghw", "github.com/jaypipes/pcidb", "golang.org/x/sys/unix"},
		never:  noRim,
	},
	"pkg/sriov/sysfstest": {
		direct: []string{"golang.org/x/sys/unix"},
		never:  noRim,
	},
}

// A listed is a package as `go list -json` shows it.
type listed struct {
	ImportPath string
	Standard   bool
	Imports    []string
	Deps       []string
	Dir        string
	GoFiles    []string
}

// violations holds packages, with all that they depend on among them, against
// rules: one sentence each.
func violations(all []listed, rules map[string]rule) []string {
	standard := map[string]bool{"C": true, "unsafe": true}
	for _, p := range all {
		standard[p.ImportPath] = standard[p.ImportPath] || p.Standard
	}
	var out []string
	seen := map[string]bool{}
	for _, p := range all {
		name, own := strings.CutPrefix(p.ImportPath, module)
		if !own || name == "tests" || strings.HasPrefix(name, "tests/") {
			continue
		}
		seen[name] = true
		r, ok := rules[name]
		if !ok {
			out = append(out, name+" has no rule: give it one, and a line in docs/architecture.md")
			continue
		}
		for _, imp := range p.Imports {
			ours, own := strings.CutPrefix(imp, module)
			switch {
			case own && !slices.Contains(r.ours, ours):
				out = append(out, fmt.Sprintf("%s imports %s: of ours it may import %v", name, ours, r.ours))
			case !own && !standard[imp] && r.direct != nil && !slices.ContainsFunc(r.direct, func(d string) bool { return within(imp, d) }):
				out = append(out, fmt.Sprintf("%s imports %s: besides the standard library it may import %v", name, imp, r.direct))
			}
		}
		for _, banned := range slices.Sorted(maps.Keys(r.never)) {
			if i := slices.IndexFunc(p.Deps, func(d string) bool { return d == banned || !strings.HasPrefix(banned, module) && within(d, banned) }); i >= 0 {
				out = append(out, fmt.Sprintf("%s links %s: %s", name, p.Deps[i], r.never[banned]))
			}
		}
	}
	for name := range rules {
		if !seen[name] {
			out = append(out, name+" has a rule and does not exist")
		}
	}
	slices.Sort(out)
	return out
}

// within tells whether the package path is root or below it.
func within(path, root string) bool { return path == root || strings.HasPrefix(path, root+"/") }
