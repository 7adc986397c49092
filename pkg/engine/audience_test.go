package engine

import (
	"context"
	"fmt"
	"net/netip"
	"sync"
)

// audience is a Publisher and a Reporter that write down what they are told.
type audience struct {
	mu     sync.Mutex
	told   []string
	events []Event
	err    error                         // of Publish and Withdraw
	fails  func(what string) error       // of a call, "reset", "publish" or "withdraw"
	waits  func(context.Context, string) // before a call answers
	shown  map[AttachmentID]netip.Prefix
	last   Publication
}

func (a *audience) tell(format string, args ...any) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.told = append(a.told, fmt.Sprintf(format, args...))
}

func (a *audience) since() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	told := a.told
	a.told = nil
	return told
}

// eventsOf are the messages of the events with a reason.
func (a *audience) eventsOf(reason EventReason) []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	var messages []string
	for _, e := range a.events {
		if e.Reason == reason {
			messages = append(messages, e.Message)
		}
	}
	return messages
}

// outcome is the answer to a call.
func (a *audience) outcome(ctx context.Context, what string) error {
	if a.waits != nil {
		a.waits(ctx, what)
		if err := context.Cause(ctx); err != nil {
			return err
		}
	}
	if a.fails != nil {
		return a.fails(what)
	}
	return nil
}

// show makes an address visible, or takes it away.
func (a *audience) show(id AttachmentID, addr netip.Prefix) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.shown == nil {
		a.shown = make(map[AttachmentID]netip.Prefix)
	}
	if a.shown[id] = addr; !addr.IsValid() {
		delete(a.shown, id)
	}
}

func (a *audience) seen(id AttachmentID) netip.Prefix {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.shown[id]
}

func (a *audience) Reset(ctx context.Context, at Attachment, w Workload) error {
	if w == VM {
		a.tell("reset %s VM", at.ContainerID)
	}
	return a.outcome(ctx, "reset")
}

func (a *audience) Forget(at Attachment) { a.tell("forget %s", at.ContainerID) }

func (a *audience) Publish(ctx context.Context, p Publication) error {
	a.tell("publish %s %s", p.ContainerID, p.Addr)
	a.mu.Lock()
	a.last = p
	a.mu.Unlock()
	if err := a.outcome(ctx, "publish"); err != nil {
		return err
	}
	if a.err == nil {
		a.show(p.AttachmentID, p.Addr)
	}
	return a.err
}

func (a *audience) Withdraw(ctx context.Context, at Attachment) error {
	a.tell("withdraw %s", at.ContainerID)
	if err := a.outcome(ctx, "withdraw"); err != nil {
		return err
	}
	if a.err == nil {
		a.show(at.AttachmentID, netip.Prefix{})
	}
	return a.err
}

func (a *audience) Report(at Attachment, e Event) {
	a.tell("%s %s", e.Reason, at.ContainerID)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.events = append(a.events, e)
}
