package main

import (
	"context"
	"os"
	"runtime/debug"
	"sync"
	"time"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine/api"
)

// An ADD makes nearly a megabyte of garbage, most of it buffers for answers of the
// kernel. At gcPercent a third of what the engine does for it would be to collect that.
// So while calls come it is collected less often, and what that took is given back
// soon after the last one.
const (
	busyPercent = 200
	calmAfter   = time.Second
)

// garbage is how often garbage is collected. It leaves that alone where the operator
// has said how often.
type garbage struct {
	percent func(int) int // debug.SetGCPercent
	free    func()        // debug.FreeOSMemory

	mu   sync.Mutex
	busy bool
	last time.Time // when a call came or ended
}

func newGarbage() *garbage {
	if os.Getenv("GOGC") != "" {
		return &garbage{percent: func(int) int { return 0 }, free: func() {}}
	}
	return &garbage{percent: debug.SetGCPercent, free: debug.FreeOSMemory}
}

// call says that a call has come or ended.
func (g *garbage) call() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.last = time.Now()
	if !g.busy {
		g.busy = true
		g.percent(busyPercent)
		time.AfterFunc(calmAfter, g.calm)
	}
}

// calm is the end of a busy time, unless there was a call meanwhile.
func (g *garbage) calm() {
	if g.ended() {
		g.free() // which takes a while, and holds up no call
	}
}

func (g *garbage) ended() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if left := calmAfter - time.Since(g.last); left > 0 {
		time.AfterFunc(left, g.calm)
		return false
	}
	g.busy = false
	g.percent(gcPercent)
	return true
}

// watched is a Backend whose calls are told to garbage.
type watched struct {
	api.Backend
	garbage *garbage
}

// Attach implements api.Backend.
func (w watched) Attach(ctx context.Context, r api.Request) (api.Lease, error) {
	w.garbage.call()
	defer w.garbage.call()
	return w.Backend.Attach(ctx, r)
}

// Detach implements api.Backend.
func (w watched) Detach(ctx context.Context, id api.AttachmentID) error {
	w.garbage.call()
	defer w.garbage.call()
	return w.Backend.Detach(ctx, id)
}
