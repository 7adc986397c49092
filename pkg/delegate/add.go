package delegate

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/containernetworking/cni/pkg/ns"
	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine/api"
)

const (
	// undoLimit is the time for taking back a failed ADD. It is not part of the
	// time for the ADD, whose end may be the reason for the failure.
	undoLimit = 10 * time.Second
	// undoDetachLimit is the engine's part of it; the rest is the delegate's.
	undoDetachLimit = 4 * time.Second
)

// Add runs the delegate's ADD, has the engine put an address on the interface,
// and prints both as one result. When it fails, or ctx ends, nothing is left of
// it. The delegate does not run when the engine is not ready or the
// configuration is wrong.
func (p *Plugin) Add(ctx context.Context, args *skel.CmdArgs) error {
	c, err := p.call(args)
	if err != nil {
		return err
	}
	if err := c.refusal(p.Name, args.StdinData); err != nil {
		return err
	}
	if err := c.addable(); err != nil {
		return err
	}
	// skel looks at this too, but only after the result has been printed.
	override := args.NetnsOverride == "1" || strings.EqualFold(args.NetnsOverride, "true")
	if own, err := ns.CheckNetNS(args.Netns); err == nil && own && !override {
		return types.NewError(types.ErrInvalidNetNS, "CNI_NETNS is the plugin's own network namespace", args.Netns)
	}
	var r runner
	if c.form != chained {
		if r, err = p.runner(c.conf, c.cniPath); err != nil {
			return err
		}
	}
	if err := c.prepare(ctx); err != nil {
		return err
	}
	if c.form != chained {
		k, err := c.ledger.lock(ctx, c.id)
		if err != nil {
			return api.WithCode(types.ErrIOFailure, err)
		}
		defer k.unlock()
	}
	var u undo
	if err = c.add(ctx, r, &u); err != nil {
		c.takeBack(ctx, &u)
	}
	return err
}

// add is the part of an ADD that leaves traces; u takes them back.
func (c *call) add(ctx context.Context, r runner, u *undo) error {
	own, e, err := c.wrapped(ctx, r, u)
	if err != nil {
		return err
	}
	// What is merged may have an interface that the delegate has left out; its own
	// verbs get back what it said.
	full, at, err := c.withTarget(own)
	if err != nil {
		return fmt.Errorf("plugin %s: %w", c.wrappedName(), err)
	}
	lease, err := c.attach(ctx, u, full, at)
	if err != nil {
		return err
	}
	merged, err := merge(full, at, lease, c.conf)
	if err != nil {
		return err
	}
	if c.form != chained {
		if at < len(own.Interfaces) {
			own = asAttached(own, at, lease)
		}
		e.Result, err = encodeResult(own, c.version)
		if err != nil {
			return fmt.Errorf("encode the result of %s: %w", c.wrappedName(), err)
		}
		if err := c.remember(e); err != nil {
			return err
		}
	}
	return c.print(merged)
}

// prepare asks the engine before anything is touched. At ADD an engine that is
// not ready is one to try again with.
func (c *call) prepare(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, engineLimit)
	defer cancel()
	err := c.engine.Prepare(ctx, c.request())
	if err != nil && api.CodeOf(err) == api.CodeNotReady {
		return types.NewError(api.CodeTryAgain, err.Error(), "")
	}
	return err
}

// wrapped returns the result to which the lease is added: that of the delegate,
// which it runs, with its entry in the ledger, or that of the plugin before us.
func (c *call) wrapped(ctx context.Context, r runner, u *undo) (*current.Result, entry, error) {
	if c.form == chained {
		own, err := decodeResult(c.prevResult, c.version)
		if err != nil {
			return nil, entry{}, api.WithCode(api.CodeConfig, fmt.Errorf("prevResult: %w", err))
		}
		return own, entry{}, nil
	}
	before, stands, err := c.ledger.read(c.id)
	if err != nil {
		return nil, entry{}, err
	}
	e := entry{Network: c.network, Netns: c.netns, Form: c.form, Conf: c.delegate}
	if err := c.identify(&e); err != nil {
		return nil, entry{}, err
	}
	// Written before the ADD: after a crash, too, the DEL must know of it.
	if err := c.remember(e); err != nil {
		return nil, entry{}, err
	}
	own, err := r.add(ctx, c.prevResult)
	if err != nil && stands && before.Result != nil {
		// An ADD of it stands already, and the delegate has said so. It goes on as
		// it was: the runtime has not asked for its end.
		c.remark(c.ledger.write(c.id, before))
		return nil, entry{}, err
	}
	u.push(c.settle)
	return own, e, err
}

// wrappedName names the plugin that made the interface, for errors.
func (c *call) wrappedName() string {
	if c.form == chained {
		return "before us in the list"
	}
	return c.delegate.text("type")
}

// remember makes the ledger's entry.
func (c *call) remember(e entry) error {
	return api.WithCode(types.ErrIOFailure, c.ledger.write(c.id, e))
}

// attach has the engine give the interface its address: the one at that place of the
// result.
func (c *call) attach(ctx context.Context, u *undo, result *current.Result, at int) (api.Lease, error) {
	u.push(func(ctx context.Context) error { return detach(ctx, c.engine, c.id, undoDetachLimit) })
	r := c.request()
	r.HardwareAddr, r.Addresses = result.Interfaces[at].Mac, addressesOf(result, at)
	if r.Timeout = attachTimeout(ctx, c.settings.Timeout); r.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, r.Timeout+attachSlack)
		defer cancel()
	}
	return c.engine.Attach(ctx, r)
}

// print prints the result in the version of the configuration.
func (c *call) print(r *current.Result) error {
	raw, err := encodeResult(r, c.version)
	if err != nil {
		return fmt.Errorf("encode the result: %w", err)
	}
	if _, err := c.Stdout.Write(append(raw, '\n')); err != nil {
		return api.WithCode(types.ErrIOFailure, fmt.Errorf("print the result: %w", err))
	}
	return nil
}

// takeBack undoes a failed ADD, also when ctx has ended.
func (c *call) takeBack(ctx context.Context, u *undo) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoLimit)
	defer cancel()
	for _, err := range u.run(ctx) {
		c.remark(fmt.Errorf("undo: %w", err))
	}
}
