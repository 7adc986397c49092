package main

import (
	"context"

	"github.com/dhcp-meta/dhcp-meta/internal/nic"
	"github.com/dhcp-meta/dhcp-meta/pkg/engine"
)

// kernel is nic.Links in the words of the engine.
type kernel struct{ *nic.Links }

var _ engine.Links = kernel{}

// Tally counts what arrives at an interface, for `dhcp-engine probe`.
func (k kernel) Tally(ctx context.Context, t engine.Target) (engine.Tally, error) {
	tally, err := k.Links.Tally(ctx, t)
	if err != nil {
		return nil, err // not a nil *nic.Tally in an interface
	}
	return tally, nil
}
