// Package doctor looks for what is wrong with an installation, from where the engine
// stands: in its container, with its settings, its account and its view of the node.
//
// A check reads something and judges it. What it reads is small and plain (a Multus,
// a list of mounts, a folder of plugins), so that judging is pure, and each mistake
// that people make is a row of a table. Nothing is changed anywhere: the API server is
// asked by dry runs, state folder and plugins are only looked at, and a DISCOVER is
// sent when a network is named.
//
// A finding has an id that stays, so that a page can explain it (docs/operations.md)
// and a script can look for it.
package doctor

import (
	"context"
	"fmt"
	"slices"
	"time"

	"k8s.io/client-go/rest"

	"github.com/dhcp-meta/dhcp-meta/internal/install"
	"github.com/dhcp-meta/dhcp-meta/internal/ovnnb"
	"github.com/dhcp-meta/dhcp-meta/pkg/sriov"
)

// Level is how bad a finding is.
type Level string

// The levels, best first.
const (
	// OK is that a check has found nothing that must be mended.
	OK Level = "ok"
	// Note is what somebody may want to know.
	Note Level = "note"
	// Warning is what costs something, or will.
	Warning Level = "warning"
	// Error is what keeps pods from their addresses.
	Error Level = "error"
)

// Finding is what a check has to say.
type Finding struct {
	ID    ID    `json:"id"`
	Level Level `json:"level"`
	// What is one line: what is wrong, or what was found well.
	What string `json:"what"`
	// How is how that is known, Do what to do about it; empty for OK.
	How string `json:"how,omitempty"`
	Do  string `json:"do,omitempty"`
}

// Report is what an examination has found, in the order of the checks.
type Report struct {
	Version  string    `json:"version"`
	Node     string    `json:"node,omitempty"`
	Findings []Finding `json:"findings"`
}

// Count is how many findings have a level.
func (r Report) Count(l Level) int {
	n := 0
	for _, f := range r.Findings {
		if f.Level == l {
			n++
		}
	}
	return n
}

// Config is where to look, as the engine was told.
type Config struct {
	Version string
	// OwnPlugin is the plugin that came with this program.
	OwnPlugin string
	// BinDir is the folder of the node's CNI plugins.
	BinDir string
	// Installer reads what an installer of ours is told by the words behind install and
	// by its variables, "NAME=value" each. Its error is that it would not take them.
	Installer func(args, environment []string) (install.Plan, error)

	Socket, StateDir string
	// MetricsAddress is where the engine serves its metrics; empty: nowhere.
	MetricsAddress string
	// DHCPSocket is where the engine serves the dhcp plugin; empty: nowhere.
	DHCPSocket  string
	DHCPTimeout time.Duration
	NetnsRoots  []string
	// InPod says that the engine is a pod: what it is to see of the node must be mounted.
	InPod bool
	// VFIOWindow is for how long a device may be away from vfio-pci; PCI is where
	// devices are, the zero value the machine itself.
	VFIOWindow time.Duration
	PCI        sriov.Config

	// Kubernetes is how the API is reached, or Connect why that is not known; without
	// both there is no cluster.
	Kubernetes *rest.Config
	Connect    error
	NodeName   string
	// LeaseObjects is whether the engine shows leases as objects.
	LeaseObjects bool
	// Northbound is OVN's north database; an empty address: it is not used.
	Northbound ovnnb.Config

	// Network is a definition, "namespace/name", or the name in its configuration, on
	// which a DISCOVER shall be sent; empty: none.
	Network string
}

// checkTime bounds one check: an API server or a socket that hangs must not keep the
// others from being told of.
const checkTime = 15 * time.Second

// examination is one run, and what its earlier checks know for the later ones.
type examination struct {
	cfg     Config
	report  Report
	cluster *cluster
	// multus is nil when none was found, or nobody could be asked.
	multus *Multus
	// attachments are nil when no engine answers.
	attachments []attachment
}

// Run examines the node.
func Run(ctx context.Context, cfg Config) Report {
	e := &examination{cfg: cfg, report: Report{Version: cfg.Version, Node: cfg.NodeName}}
	for _, c := range []struct {
		area ID
		do   func(context.Context) (found []Finding, well string)
	}{
		{AreaKernel, e.checkKernel},
		{AreaEngine, e.checkEngine},
		{AreaState, e.checkState},
		{AreaKubernetes, e.checkKubernetes},
		{AreaNamespaces, e.checkNamespaces},
		{AreaNetworks, e.checkNetworks},
		{AreaMultus, e.checkMultus},
		{AreaPlugins, e.checkPlugins},
		{AreaDHCPSocket, e.checkDHCPSocket},
		{AreaOVN, e.checkOVN},
		{AreaVFIO, e.checkVFIO},
		{AreaDiscover, e.discover},
	} {
		ctx, cancel := context.WithTimeout(ctx, checkTime)
		found, well := c.do(ctx)
		cancel()
		e.add(c.area, found, well)
	}
	return e.report
}

// add takes what a check has found. Where nothing has to be mended, and there is
// something to say, it says what is well.
func (e *examination) add(area ID, found []Finding, well string) {
	bad := slices.ContainsFunc(found, func(f Finding) bool { return f.Level == Warning || f.Level == Error })
	if !bad && well != "" {
		e.report.Findings = append(e.report.Findings, Finding{ID: area, Level: OK, What: well})
	}
	e.report.Findings = append(e.report.Findings, found...)
}

// seen makes the text of how something is known.
func seen(format string, args ...any) string { return fmt.Sprintf(format, args...) }
