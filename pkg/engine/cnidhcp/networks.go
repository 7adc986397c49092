package cnidhcp

import (
	"context"
	"encoding/json"

	"github.com/dhcp-meta/dhcp-meta/internal/ipamconf"
	"github.com/dhcp-meta/dhcp-meta/pkg/engine/api"
)

// Networks are the dhcp objects of networks that cannot say more of DHCP than that
// they want it, by name; that of AllNetworks is for all others. What a network says
// itself counts more, key by key.
type Networks map[string]map[string]json.RawMessage

// AllNetworks is the name, in Networks, of what is for all that have no entry.
const AllNetworks = "*"

func (n Networks) over(c ipamconf.Config) json.RawMessage {
	defaults, ok := n[c.Network]
	if !ok {
		defaults = n[AllNetworks]
	}
	return c.Over(defaults)
}

// complete puts what the network is known for below what a request says of it.
func (n Networks) complete(r api.Request) api.Request {
	if !r.IPAM {
		return r
	}
	c := ipamconf.Config{Network: r.Network}
	if len(r.DHCP) > 0 && json.Unmarshal(r.DHCP, &c.Own) != nil {
		return r // the engine says what is wrong with it
	}
	r.DHCP = n.over(c)
	return r
}

// Completed is the engine for requests of our own dhcp plugin, which knows nothing of
// Networks.
type Completed struct {
	api.Backend
	Networks Networks
}

// Prepare implements api.Backend.
func (c Completed) Prepare(ctx context.Context, r api.Request) error {
	return c.Backend.Prepare(ctx, c.Networks.complete(r))
}

// Attach implements api.Backend.
func (c Completed) Attach(ctx context.Context, r api.Request) (api.Lease, error) {
	return c.Backend.Attach(ctx, c.Networks.complete(r))
}
