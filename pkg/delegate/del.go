package delegate

import (
	"context"
	"errors"
	"fmt"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine/api"
	"github.com/dhcp-meta/dhcp-meta/pkg/engine/network"
)

// Del has the engine give the lease back, while the link is still there, and
// then runs the delegate's DEL if its ADD ran and no DEL of it has succeeded
// since. It needs neither CNI_NETNS nor the engine: one that is away delays it
// for a moment and does not fail it.
func (p *Plugin) Del(ctx context.Context, args *skel.CmdArgs) error {
	c, err := p.call(args)
	// A dhcp object that was spoiled after the ADD must not keep a pod from ending.
	if problems := (network.Problems)(nil); err != nil && !errors.As(err, &problems) {
		return err
	}
	err = c.detach(ctx)
	if err == nil {
		c.remark(forgetPassed(c.settings.StateDir, c.id))
	}
	if delErr := c.delDelegate(ctx); delErr != nil {
		c.remark(err)
		return delErr
	}
	return err
}

// detach asks the engine to give the lease back. That nobody answers is no
// error: a note tells the engine when it is back.
func (c *call) detach(ctx context.Context) error {
	err := detach(ctx, c.engine, c.id, detachLimit)
	if errors.Is(err, errAway) {
		c.remark(err)
		c.remark(leaveNote(c.settings.StateDir, c.id))
		return nil
	}
	return err
}

// delDelegate runs the delegate's DEL if there is one to run.
func (c *call) delDelegate(ctx context.Context) error {
	k, err := c.ledger.lockKnown(ctx, c.id)
	if err == nil && k == nil {
		return c.delOlder(ctx)
	}
	if k == nil {
		return err
	}
	defer k.unlock()
	if k.waited {
		// It was an ADD that held the lock: what it attached came after our
		// first Detach.
		c.remark(c.detach(ctx))
	}
	return c.settle(ctx)
}

// delOlder runs the delegate's DEL for an interface that the ledger does not know: on
// a network that was marked after its pods had started, the ADD passed us by. Only an
// interface that is there can be one of these; any other has had its DEL.
func (c *call) delOlder(ctx context.Context) error {
	if c.form != interposed || c.netns == "" {
		return nil
	}
	if s, err := c.Look(c.netns, c.id.IfName); err != nil || !s.there {
		return err
	}
	k, err := c.ledger.lock(ctx, c.id)
	if err != nil {
		return api.WithCode(types.ErrIOFailure, err)
	}
	defer k.unlock()
	// Another DEL may have been quicker, or another sandbox have the path now.
	s, err := c.Look(c.netns, c.id.IfName)
	if err != nil || !s.there {
		return err
	}
	if other, err := c.ledger.holder(s.cookie, c.id.IfName); err != nil || other {
		return err
	}
	r, err := c.runner(c.conf, c.cniPath)
	if err != nil {
		return err
	}
	return c.runDel(ctx, r, entry{})
}

// runDel runs the delegate's DEL.
func (c *call) runDel(ctx context.Context, r runner, e entry) error {
	_, err := r.run(ctx, "DEL", c.ownResult(e))
	if hopeless(r.conf.text("type"), err) {
		c.remark(fmt.Errorf("the pod is gone, and nothing can be done about this: %w", err))
		return nil
	}
	return err
}

// settle runs the delegate's DEL that the ledger has open, and closes it when
// it has succeeded. Without an entry there is nothing to do. The lock is held.
func (c *call) settle(ctx context.Context) error {
	e, ok, err := c.ledger.read(c.id)
	if !ok {
		return err
	}
	conf := c.conf
	if conf.delegate == nil {
		conf.form, conf.delegate = e.Form, e.Conf
	}
	if conf.delegate == nil {
		return api.WithCode(api.CodeConfig, fmt.Errorf("which plugin made the interface? neither the configuration nor %s says so", c.ledger.path(c.id, entrySuffix)))
	}
	r, err := c.runner(conf, c.cniPath)
	if err != nil {
		return err
	}
	if err := c.spent(conf.delegate.text("type"), e); errors.Is(err, errSpent) {
		c.remark(err)
		c.remark(c.ledger.remove(c.id))
		return nil
	} else if err != nil {
		return err
	}
	if e.VFIO {
		e.Tried = true
		if err := c.ledger.write(c.id, e); err != nil {
			return api.WithCode(types.ErrIOFailure, err)
		}
	}
	if err := c.runDel(ctx, r, e); err != nil {
		return err
	}
	// The runtime must not call again for this: the delegate would run twice.
	c.remark(c.ledger.remove(c.id))
	return nil
}
