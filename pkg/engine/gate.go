package engine

import (
	"context"
	"errors"
	"sync"
)

// gates bound how many questions of a network wait for an answer at one time, so
// that a node full of pods does not fall upon a server after a restart or a
// failure. Every network has a gate of its own: a slow server blocks no other.
type gates struct {
	width int
	mu    sync.Mutex
	m     map[string]chan struct{}
}

func (g *gates) of(network string) chan struct{} {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.m == nil {
		g.m = make(map[string]chan struct{})
	}
	c := g.m[network]
	if c == nil {
		c = make(chan struct{}, g.width)
		g.m[network] = c
	}
	return c
}

// errQueued says that a message was not sent because too many others of the
// network waited for their answers. It is as good as lost: the machine sends
// again in its own time.
var errQueued = errors.New("too many exchanges at once on this network")

// pass waits for a place in the gate, and takes it. The place is given back by
// leave: with the answer, or when the machine's patience is over. A session has
// one place at most.
func (s *session) pass(ctx context.Context) error {
	if s.passed != nil {
		return nil
	}
	gate := s.engine.gates.of(s.att.Network)
	select {
	case gate <- struct{}{}:
		s.passed = gate
		return nil
	default:
	}
	// The machine's time runs on meanwhile: at its deadline this message is late,
	// and the lease may have ended.
	patience := s.cfg.timer(s.machine.Deadline())
	defer patience.Stop()
	select {
	case gate <- struct{}{}:
		s.passed = gate
		return nil
	case <-patience.C:
		return errQueued
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// leave gives the place in the gate back, if there is one.
func (s *session) leave() {
	if s.passed != nil {
		<-s.passed
		s.passed = nil
	}
}
