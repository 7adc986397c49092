package engine

import (
	"encoding/hex"
	"strings"
	"time"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine/api"
	"github.com/dhcp-meta/dhcp-meta/pkg/engine/dhcp4"
)

// wall is the wall-clock time, for people, of a time on the boot clock; nil for
// never.
func (c *Config) wall(at time.Time) *time.Time {
	if at.IsZero() {
		return nil
	}
	t := time.Now().Add(at.Sub(c.Now())).Round(time.Second)
	return &t
}

// answer is what the CNI result says of a session.
func answer(v view) api.Lease {
	l := api.Lease{
		HardwareAddr: v.hardwareAddr.String(),
		Address:      v.lease.Addr.String(),
		DNS:          api.DNS{Domain: v.lease.Domain, Search: v.lease.Search},
		MTU:          v.setup.MTU,
	}
	if gw := gatewayOf(v.lease); gw.IsValid() {
		l.Gateway = gw.String()
	}
	for _, a := range v.lease.DNS {
		l.DNS.Nameservers = append(l.DNS.Nameservers, a.String())
	}
	for _, r := range v.setup.Routes {
		route := api.Route{Dst: r.Dst.String(), Metric: r.Metric}
		if r.Gateway.IsValid() {
			route.Gateway = r.Gateway.String()
		}
		l.Routes = append(l.Routes, route)
	}
	return l
}

// stateText is the state for people: of the machine, or where there is none, of
// the attachment.
func stateText(v view) string {
	switch v.phase {
	case Superseded, Orphaned, Releasing:
		return strings.ToUpper(string(v.phase))
	case Leased:
		if !v.kept {
			return "REPORTED"
		}
	}
	return v.state.String()
}

// status is what `dhcp-engine leases` says of the session.
func (s *session) status(v view) api.Status {
	st := api.Status{
		AttachmentID: s.att.AttachmentID, Pod: s.att.Pod, Network: s.att.Network, NAD: s.att.NAD, Netns: s.att.Netns.Path,
		State: stateText(v), HardwareAddr: v.hardwareAddr.String(), ClientID: hex.EncodeToString(v.clientID),
		LastError: v.lastErr,
	}
	switch l := v.lease; {
	case l.Addr.IsValid() && !v.kept: // its times are the guest's
		st.Address, st.Server = l.Addr.String(), l.Server.String()
	case l.Addr.IsValid():
		st.Address, st.Server = l.Addr.String(), l.Server.String()
		st.T1, st.T2, st.Expiry = s.cfg.wall(l.RenewAt()), s.cfg.wall(l.RebindAt()), s.cfg.wall(l.ExpireAt())
		st.Infinite = l.Lifetime == dhcp4.Infinite
	case v.phase == Orphaned || v.phase == Releasing:
		st.Address, st.Expiry, st.Infinite = v.held.String(), s.cfg.wall(v.heldUntil), v.heldUntil.IsZero()
	}
	return st
}
