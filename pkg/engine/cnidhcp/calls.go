package cnidhcp

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"runtime/debug"
	"time"

	"github.com/containernetworking/cni/pkg/skel"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/utils"

	"github.com/dhcp-meta/dhcp-meta/internal/ipamconf"
	"github.com/dhcp-meta/dhcp-meta/pkg/engine/api"
)

// Calls are the methods of the service DHCP for one connection. They are exported
// because net/rpc takes nothing else.
type Calls struct {
	s   *Server
	ctx context.Context // of the connection: net/rpc hands none on
}

// errNoMoreTries is the reference's word for a server that gave no lease in time;
// callers, and its own tests, know the error by it. The log has our own.
var errNoMoreTries = errors.New("no more tries")

// errPanicked is the answer to a call that panicked.
var errPanicked = errors.New("dhcp-engine panicked: its log has the stack")

// detachLimit bounds a Release, whose caller cannot.
const detachLimit = 30 * time.Second

// guard makes an error of a panic: net/rpc would let it end the engine.
func (c *Calls) guard(method string, err *error) {
	if v := recover(); v != nil {
		c.s.cfg.Log.Error("panic in a call of the dhcp plugin", "method", method, "panic", v, "stack", string(debug.Stack()))
		*err = errPanicked
	}
}

// Allocate leases an address for an interface, or tells the lease that it has: the
// plugin asks so at ADD and at CHECK.
func (c *Calls) Allocate(args *skel.CmdArgs, result *current.Result) (err error) {
	defer c.guard("Allocate", &err)
	conf, req, err := c.s.request(args)
	if err != nil {
		return err
	}
	for _, r := range conf.Remarks {
		c.s.cfg.Log.Warn("part of the ipam configuration is left out", "attachment", req.AttachmentID.String(), "network", conf.Network, "remark", r)
	}
	ctx := c.ctx
	if limit := c.s.cfg.Timeout; limit > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, limit)
		defer cancel()
	}
	lease, err := c.s.cfg.Engine.Attach(ctx, req)
	if err != nil {
		c.s.cfg.Log.Warn("no address for the dhcp plugin", "attachment", req.AttachmentID.String(), "network", conf.Network, "error", err)
		switch {
		case errors.Is(ctx.Err(), context.DeadlineExceeded):
			return errNoMoreTries
		case errors.Is(context.Cause(c.ctx), errEnding):
			return errEnding
		}
		return err
	}
	r, err := ipamconf.Result(lease, conf.Metric)
	if err != nil {
		return err
	}
	*result = *r
	return nil
}

// Release gives the address of an interface back; of one that is not known that is a
// quick success, for some callers send it for interfaces that never asked.
func (c *Calls) Release(args *skel.CmdArgs, _ *struct{}) (err error) {
	defer c.guard("Release", &err)
	id, err := attachmentID(args)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(c.ctx), detachLimit)
	defer cancel()
	return c.s.cfg.Engine.Detach(ctx, id)
}

// attachmentID holds what becomes part of file names to the rules of CNI.
func attachmentID(args *skel.CmdArgs) (api.AttachmentID, error) {
	id := api.AttachmentID{ContainerID: args.ContainerID, IfName: args.IfName}
	if err := utils.ValidateContainerID(id.ContainerID); err != nil {
		return id, err
	}
	if err := utils.ValidateInterfaceName(id.IfName); err != nil {
		return id, err
	}
	return id, nil
}

func (s *Server) request(args *skel.CmdArgs) (ipamconf.Config, api.Request, error) {
	id, err := attachmentID(args)
	if err != nil {
		return ipamconf.Config{}, api.Request{}, err
	}
	conf, err := ipamconf.Parse(args.StdinData, args.Args)
	switch {
	case err != nil:
		return conf, api.Request{}, err
	case args.Netns == "" || !filepath.IsAbs(args.Netns):
		return conf, api.Request{}, fmt.Errorf("netns: %q is no absolute path", args.Netns)
	}
	return conf, api.Request{
		AttachmentID: id, Netns: s.cfg.HostPrefix + args.Netns, Network: conf.Network, Pod: conf.Pod(),
		DHCP: s.cfg.Networks.over(conf), NAD: conf.NAD, Wrapped: conf.Type, IPAM: true,
	}, nil
}
