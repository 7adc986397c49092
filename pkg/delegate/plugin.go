// Package delegate is the CNI plugin dhcp-meta: it runs the plugin that it wraps,
// asks dhcp-engine for an address, and answers with both in one result.
//
// It promises the wrapped plugin, the delegate, to be no other runtime than the
// one around it: the delegate gets the configuration and the environment that it
// would have had, its own result at DEL and CHECK, and one DEL for each ADD. It
// promises the runtime that a failed ADD leaves nothing behind, that a DEL needs
// neither the engine nor the network namespace, and that a CHECK acquires
// nothing.
//
// A process serves one verb and ends. It links no netlink, no Kubernetes client
// and no DHCP codec, since it starts for every interface of every pod; what
// needs those is the engine's work.
package delegate

import (
	"context"
	"encoding/json"
	"io"
	"strings"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/dhcp-meta/dhcp-meta/pkg/delegate/aside"
	"github.com/dhcp-meta/dhcp-meta/pkg/engine/api"
	"github.com/dhcp-meta/dhcp-meta/pkg/engine/network"
)

// Plugin serves one call of the runtime. All fields are set by Main; tests set
// their own. It is not safe for concurrent use.
type Plugin struct {
	// Name is the base name under which the program was started, Dir the folder
	// that it was started from.
	Name, Dir string
	// Environ is the environment for delegates.
	Environ []string
	Exec    Exec
	// Dial returns the engine at a socket; it does not connect yet.
	Dial func(socket string) Engine
	// Stdout takes the result of an ADD.
	Stdout io.Writer
	// Look looks into a network namespace.
	Look func(netns, ifName string) (seen, error)
	// SysFS is where sysfs is mounted.
	SysFS string

	// remarks are what went wrong and did not fail the verb, or came after what
	// failed it.
	remarks []string
}

// call is one verb for one attachment.
type call struct {
	*Plugin
	conf
	id api.AttachmentID
	// netns and cniPath are CNI_NETNS and CNI_PATH.
	netns, cniPath string
	pod            api.Pod
	engine         Engine
	ledger         ledger
}

// call decodes what the runtime gave. Its error is that of parse; with a
// network.Problems the call can serve a DEL.
func (p *Plugin) call(args *skel.CmdArgs) (*call, error) {
	c, err := parse(p.Name, args.StdinData)
	c.settings = p.placed(c.settings)
	return &call{
		Plugin:  p,
		conf:    c,
		id:      api.AttachmentID{ContainerID: args.ContainerID, IfName: args.IfName},
		netns:   args.Netns,
		cniPath: args.Path,
		pod:     podOf(args.Args),
		engine:  p.Dial(c.settings.Socket),
		ledger:  openLedger(c.settings.StateDir),
	}, err
}

// request describes the attachment to the engine.
func (c *call) request() api.Request {
	return api.Request{
		AttachmentID: c.id, Netns: c.netns, Network: c.network, Pod: c.pod, DHCP: c.dhcp,
		NAD: c.nad, Wrapped: c.delegate.text("type"), DeviceID: c.device,
	}
}

// placed puts the node's places where the network names none: one that is marked by
// its annotation cannot.
func (p *Plugin) placed(s network.Settings) network.Settings {
	if dir := p.variable(aside.StateDirVariable); dir != "" && (s.StateDir == network.DefaultStateDir || s.StateDir == "") {
		s.StateDir = dir
	}
	if socket := p.variable(aside.SocketVariable); socket != "" && (s.Socket == network.DefaultSocket || s.Socket == "") {
		s.Socket = socket
	}
	return s
}

// variable is the value of a variable of the environment; empty: none.
func (p *Plugin) variable(key string) string {
	for _, kv := range p.Environ {
		if k, v, _ := strings.Cut(kv, "="); k == key {
			return v
		}
	}
	return ""
}

// remark keeps an error that does not become the verb's.
func (p *Plugin) remark(err error) {
	if err != nil {
		p.remarks = append(p.remarks, err.Error())
	}
}

// Funcs are the verbs for skel. Their errors are of the type *types.Error, with
// the code for the runtime.
func (p *Plugin) Funcs(ctx context.Context) skel.CNIFuncs {
	bind := binder(ctx)
	return skel.CNIFuncs{
		Add:    bind(p.Add),
		Del:    bind(p.Del),
		Check:  bind(p.Check),
		GC:     bind(p.GC),
		Status: bind(p.Status),
	}
}

// binder makes of a verb what skel takes.
func binder(ctx context.Context) func(func(context.Context, *skel.CmdArgs) error) func(*skel.CmdArgs) error {
	return func(verb func(context.Context, *skel.CmdArgs) error) func(*skel.CmdArgs) error {
		return func(args *skel.CmdArgs) error { return coded(verb(ctx, args)) }
	}
}

// Versions are the CNI versions that the plugin speaks.
func Versions() version.PluginInfo { return version.PluginSupports("0.3.1", "0.4.0", "1.0.0", "1.1.0") }

// coded is the one border at which errors get their CNI code. An error that is
// a plugin's, or the engine's, own passes as it is.
func coded(err error) error {
	if err == nil {
		return nil
	}
	if e, ok := err.(*types.Error); ok {
		return e
	}
	return types.NewError(api.CodeOf(err), err.Error(), "")
}

// joined is the error of a verb that goes on after one: all messages, and the
// code of the first.
func joined(errs []error) error {
	switch len(errs) {
	case 0:
		return nil
	case 1:
		return errs[0]
	}
	var words []string
	for _, err := range errs {
		words = append(words, err.Error())
	}
	return types.NewError(api.CodeOf(errs[0]), strings.Join(words, "; "), "")
}

// ownResult is the prevResult for the delegate's later verbs: what itself
// returned, or what the runtime has if the ledger does not know. Like libcni it
// gives none before CNI 0.4.0.
func (c *call) ownResult(e entry) json.RawMessage {
	if !c.atLeast("0.4.0") {
		return nil
	}
	r, err := decodeResult(e.Result, c.version)
	if err != nil {
		return c.prevResult
	}
	raw, err := encodeResult(r, c.version)
	if err != nil {
		return c.prevResult
	}
	return raw
}
