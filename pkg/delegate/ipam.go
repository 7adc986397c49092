package delegate

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"

	"github.com/dhcp-meta/dhcp-meta/internal/ipamconf"
	"github.com/dhcp-meta/dhcp-meta/pkg/delegate/aside"
	"github.com/dhcp-meta/dhcp-meta/pkg/engine/api"
	"github.com/dhcp-meta/dhcp-meta/pkg/engine/network"
)

// Started under the name "dhcp" the program is the IPAM plugin of that name: other
// plugins run it for an address, which they put on their interface themselves. It
// speaks to the engine as it does under its own name, on the socket on which the
// engine serves the reference's plugin too.

const aboutIPAM = "CNI IPAM plugin dhcp: gets addresses from the site's DHCP server by dhcp-engine; `dhcp daemon` starts that"

// ipamCall is one verb of the IPAM plugin for one attachment.
type ipamCall struct {
	*Plugin
	ipamconf.Config
	id       api.AttachmentID
	netns    string
	settings network.Settings
	engine   Engine
}

// ipamFuncs are the verbs of the IPAM plugin for skel.
func (p *Plugin) ipamFuncs(ctx context.Context) skel.CNIFuncs {
	bind := binder(ctx)
	return skel.CNIFuncs{
		Add:    bind(p.ipamAdd),
		Del:    bind(p.ipamDel),
		Check:  bind(p.ipamCheck),
		GC:     bind(p.ipamGC),
		Status: bind(p.ipamStatus),
	}
}

// ipamCall decodes what the runtime gave. With a network.Problems the call can serve
// a DEL.
func (p *Plugin) ipamCall(args *skel.CmdArgs) (*ipamCall, error) {
	c, err := ipamconf.Parse(args.StdinData, args.Args)
	if err != nil {
		return nil, api.WithCode(api.CodeConfig, err)
	}
	for _, r := range c.Remarks {
		p.remark(errors.New(r))
	}
	settings, err := network.Parse(c.DHCP)
	call := &ipamCall{
		Plugin: p, Config: c, id: api.AttachmentID{ContainerID: args.ContainerID, IfName: args.IfName},
		netns: args.Netns, settings: p.placed(settings),
	}
	if call.netns != "" {
		if abs, err := filepath.Abs(args.Netns); err == nil { // the engine has another working folder
			call.netns = abs
		}
	}
	call.engine = p.Dial(call.socket())
	return call, api.WithCode(api.CodeConfig, err)
}

// socket is where the engine is asked: where the network says, or the node's
// environment, or where the reference's daemon would be.
func (c *ipamCall) socket() string {
	switch {
	case c.settings.Socket != network.DefaultSocket:
		return c.settings.Socket
	case c.Socket != ipamconf.DefaultSocket:
		return c.Socket
	case c.variable(aside.SocketVariable) != "":
		return c.variable(aside.SocketVariable)
	}
	return ipamconf.DefaultSocket
}

func (c *ipamCall) request() (api.Request, error) {
	own, err := object(c.Own).encode()
	return api.Request{
		AttachmentID: c.id, Netns: c.netns, Network: c.Network, Pod: c.Pod(), DHCP: own,
		NAD: c.NAD, Wrapped: c.Type, IPAM: true,
	}, err
}

// ipamAdd leases an address. The caller puts it on the interface.
func (p *Plugin) ipamAdd(ctx context.Context, args *skel.CmdArgs) error {
	c, err := p.ipamCall(args)
	if err != nil {
		return err
	}
	r, err := c.request()
	if err != nil {
		return err
	}
	if r.Timeout = attachTimeout(ctx, c.settings.Timeout); r.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, r.Timeout+attachSlack)
		defer cancel()
	}
	lease, err := c.engine.Attach(ctx, r)
	if err == nil {
		if err = c.print(lease); err == nil {
			return nil
		}
	}
	undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoDetachLimit)
	defer cancel()
	if undoErr := detach(undo, c.engine, c.id, undoDetachLimit); undoErr != nil && !errors.Is(err, api.ErrUnreachable) {
		c.remark(fmt.Errorf("undo: %w", undoErr))
	}
	return err
}

func (c *ipamCall) print(lease api.Lease) error {
	result, err := ipamconf.Result(lease, c.Metric)
	if err != nil {
		return err
	}
	raw, err := encodeResult(result, c.Version)
	if err != nil {
		return fmt.Errorf("encode the result: %w", err)
	}
	if _, err := c.Stdout.Write(append(raw, '\n')); err != nil {
		return api.WithCode(types.ErrIOFailure, fmt.Errorf("print the result: %w", err))
	}
	return nil
}

// ipamDel gives the address back. That nobody answers is no error: a note tells the
// engine when it is back.
func (p *Plugin) ipamDel(ctx context.Context, args *skel.CmdArgs) error {
	c, err := p.ipamCall(args)
	if problems := (network.Problems)(nil); err != nil && !errors.As(err, &problems) {
		return err
	}
	err = detach(ctx, c.engine, c.id, detachLimit)
	if errors.Is(err, errAway) {
		c.remark(err)
		c.remark(leaveNote(c.settings.StateDir, c.id))
		return nil
	}
	return err
}

// ipamCheck holds the lease against the result that the runtime keeps. It acquires
// nothing.
func (p *Plugin) ipamCheck(ctx context.Context, args *skel.CmdArgs) error {
	c, err := p.ipamCall(args)
	if err != nil {
		return err
	}
	r, err := c.request()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, engineLimit)
	defer cancel()
	lease, err := c.engine.Check(ctx, r)
	if err != nil || c.Result == nil {
		return err
	}
	prev, err := decodeResult(c.Result, c.Version)
	if err != nil {
		return api.WithCode(api.CodeConfig, fmt.Errorf("prevResult: %w", err))
	}
	if !holdsAddress(prev, lease.Address) {
		return fmt.Errorf("the lease is %s now, which is not in the result of the ADD: the server gave another address since", lease.Address)
	}
	return nil
}

// ipamGC has the engine end the attachments of the network that no longer exist.
func (p *Plugin) ipamGC(ctx context.Context, args *skel.CmdArgs) error {
	c, err := p.ipamCall(args)
	if err != nil {
		return err
	}
	outer, err := decodeObject("configuration", args.StdinData)
	if err != nil {
		return api.WithCode(api.CodeConfig, err)
	}
	valid, err := validAttachments(outer)
	if err == nil && valid == nil {
		err = errors.New(validKey + ": is missing") // without it everything would be swept
	}
	if err != nil {
		return api.WithCode(api.CodeConfig, err)
	}
	return c.engine.Sweep(ctx, api.Sweep{Network: c.Network, Valid: valid})
}

// ipamStatus tells whether an ADD can work.
func (p *Plugin) ipamStatus(ctx context.Context, args *skel.CmdArgs) error {
	c, err := p.ipamCall(args)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, engineLimit)
	defer cancel()
	err = c.engine.Status(ctx)
	if err == nil || api.CodeOf(err) == api.CodeLimited {
		return err
	}
	return types.NewError(api.CodeNotReady, err.Error(), "")
}
