package delegate

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine/api"
)

// engineLimit is how long the engine may take for what is quick when it is well.
const engineLimit = 10 * time.Second

// Check has the delegate and the engine look at what is theirs, and compares the
// lease with the result that the runtime keeps. Nothing is acquired or repaired.
func (p *Plugin) Check(ctx context.Context, args *skel.CmdArgs) error {
	c, err := p.call(args)
	if err != nil {
		return err
	}
	if err := c.needPrevResult("CHECK"); err != nil {
		return err
	}
	prev, err := decodeResult(c.prevResult, c.version)
	if err != nil {
		return api.WithCode(api.CodeConfig, fmt.Errorf("prevResult: %w", err))
	}
	if err := c.checkDelegate(ctx); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, engineLimit)
	defer cancel()
	lease, err := c.engine.Check(ctx, c.request())
	if err != nil {
		return err
	}
	if !holdsAddress(prev, lease.Address) {
		return fmt.Errorf("the lease is %s now, which is not in the result of the ADD: the server gave another address since", lease.Address)
	}
	return nil
}

func (c *call) checkDelegate(ctx context.Context) error {
	if c.delegate == nil {
		return nil
	}
	e, _, err := c.ledger.read(c.id)
	if err != nil {
		return err
	}
	r, err := c.runner(c.conf, c.cniPath)
	if err != nil {
		return err
	}
	_, err = r.run(ctx, "CHECK", c.ownResult(e))
	return err
}

// GC has the delegate and the engine end the attachments of the network that no
// longer exist, and forgets them. It goes on after an error.
func (p *Plugin) GC(ctx context.Context, args *skel.CmdArgs) error {
	c, err := p.call(args)
	if err != nil {
		return err
	}
	if c.valid == nil {
		// The key is required. Without it everything would be swept.
		return api.WithCode(api.CodeConfig, errors.New(validKey+": is missing"))
	}
	var errs []error
	delegateErr := c.gcDelegate(ctx)
	if delegateErr != nil {
		errs = append(errs, delegateErr)
	}
	if err := c.engine.Sweep(ctx, api.Sweep{Network: c.network, Valid: c.valid}); err != nil {
		errs = append(errs, err)
	}
	// A delegate that could not clean up may still get a DEL.
	if delegateErr == nil {
		errs = append(errs, c.forget(ctx)...)
	}
	return joined(errs)
}

func (c *call) gcDelegate(ctx context.Context) error {
	if c.delegate == nil {
		return nil
	}
	r, err := c.runner(c.conf, c.cniPath)
	if err != nil {
		return err
	}
	_, err = r.run(ctx, "GC", nil)
	return err
}

// forget removes the ledger's entries of this network that are not valid.
func (c *call) forget(ctx context.Context) []error {
	ids, err := c.ledger.list(c.network)
	if err != nil {
		return []error{err}
	}
	var errs []error
	for _, id := range ids {
		if slices.Contains(c.valid, id) {
			continue
		}
		k, err := c.ledger.lockKnown(ctx, id)
		if err == nil && k != nil {
			err = c.ledger.remove(id)
			k.unlock()
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("forget %s: %w", id, err))
		}
	}
	return errs
}

// Status tells whether an ADD can work: what the delegate says, and then what the
// engine does.
func (p *Plugin) Status(ctx context.Context, args *skel.CmdArgs) error {
	c, err := p.call(args)
	if err != nil {
		return err
	}
	if c.delegate != nil {
		r, err := c.runner(c.conf, c.cniPath)
		if err != nil {
			return err
		}
		if _, err := r.run(ctx, "STATUS", nil); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, engineLimit)
	defer cancel()
	err = c.engine.Status(ctx)
	if err == nil || api.CodeOf(err) == api.CodeLimited {
		return err
	}
	return types.NewError(api.CodeNotReady, err.Error(), "")
}
