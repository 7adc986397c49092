package delegate

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine/api"
)

// Engine is what the plugin asks of dhcp-engine; api.Client is the real one.
// It is an interface so that the waiting for an engine that is away can be
// tested on a clock that does not run.
type Engine interface {
	Prepare(ctx context.Context, r api.Request) error
	Attach(ctx context.Context, r api.Request) (api.Lease, error)
	Check(ctx context.Context, r api.Request) (api.Lease, error)
	Detach(ctx context.Context, id api.AttachmentID) error
	Sweep(ctx context.Context, s api.Sweep) error
	Status(ctx context.Context) error
	Healthy(ctx context.Context) error
}

var _ Engine = api.Client{}

const (
	// awayLimit is how long a DEL waits for an engine that is away. One that is
	// being restarted comes back in this time, and can still release the lease
	// while the link is there.
	awayLimit = 2 * time.Second
	awayPoll  = 100 * time.Millisecond
	// detachLimit is how long an engine that answers may take.
	detachLimit = 10 * time.Second
	// attachSlack is how much longer than its own limit we wait for Attach, so
	// that the engine's error arrives, not ours.
	attachSlack = 2 * time.Second
)

// errAway says that no engine answered while we waited for one.
var errAway = errors.New("dhcp-engine is away, which leaves the lease to it when it is back")

// detach asks the engine to give the lease back, and waits for it to come up.
// An engine that hangs is one that is away: the kernel takes connections for it,
// so health is asked for first.
func detach(ctx context.Context, e Engine, id api.AttachmentID, limit time.Duration) error {
	away, cancel := context.WithTimeout(ctx, awayLimit)
	defer cancel()
	for {
		err := e.Healthy(away)
		if err == nil {
			if err = detachOnce(ctx, e, id, limit); !errors.Is(err, api.ErrUnreachable) {
				return err
			}
		}
		select {
		case <-away.Done():
			return fmt.Errorf("%w: %w", errAway, err)
		case <-time.After(awayPoll):
		}
	}
}

func detachOnce(ctx context.Context, e Engine, id api.AttachmentID, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	err := e.Detach(ctx, id)
	if err != nil && ctx.Err() != nil {
		// The engine carries on with it; see api.Client.Detach.
		return fmt.Errorf("%w: no answer to Detach in %s", errAway, limit)
	}
	return err
}

// attachTimeout is the time that Attach may take: that of the network, but not
// more than is left of ctx. 0: no limit but the engine's own.
func attachTimeout(ctx context.Context, network time.Duration) time.Duration {
	deadline, ok := ctx.Deadline()
	if !ok {
		return network
	}
	left := time.Until(deadline)
	if network == 0 || left < network {
		return max(left, 0)
	}
	return network
}
