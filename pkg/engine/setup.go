package engine

import (
	"context"
	"fmt"
	"net/netip"
	"reflect"
	"slices"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine/dhcp4"
	"github.com/dhcp-meta/dhcp-meta/pkg/engine/network"
	"github.com/dhcp-meta/dhcp-meta/pkg/engine/routing"
)

// setupOf is what the interface is to carry while l lasts; old is the lease
// before it. A renewal that changes nothing leaves the setup as it is. With
// keep-and-report the interface stays as it was at ADD, and carries nothing once
// its address is another one.
func (s *session) setupOf(ctx context.Context, old, l dhcp4.Lease) (Setup, error) {
	switch {
	case !s.plan.Configure:
		return Setup{}, nil
	case s.judged && s.rec.Phase == Leased && len(changes(old, l)) == 0:
		return s.rec.Setup, nil
	}
	if err := s.fitsIn(l); err != nil {
		if s.rec.Phase != Leased {
			return Setup{}, err
		}
		s.kept, s.judged = err, true
		return s.rec.Setup, nil
	}
	routes, err := s.admit(ctx, l)
	if err != nil {
		return Setup{}, err
	}
	s.judged = true
	says := setupFor(l, routes, s.settings.RouteMetric, s.linkMTU())
	says.Adopt = s.rec.IPAM
	s.kept = nil
	if s.settings.OnChange != network.OnChangeKeep || !s.answered.Addr.IsValid() {
		return says, nil
	}
	keep := Setup{}
	if s.answered.Addr.Addr() == l.Addr.Addr() {
		keep = s.answered
	}
	if !reflect.DeepEqual(says, keep) {
		s.kept = fmt.Errorf("the lease says %s, the interface has %s (onChange: keep-and-report)", says, keep)
	}
	return keep, nil
}

// fitsIn refuses a lease whose own subnet would take the traffic of a protected
// network inside it, or of nearly everything: the server chooses the mask as it
// chooses the routes. A lease on a protected network itself is fine: that is a pod
// on the network of its node.
func (s *session) fitsIn(l dhcp4.Lease) error {
	var inside []netip.Prefix
	for _, p := range s.cfg.Protected {
		if p.Bits() > l.Addr.Bits() {
			inside = append(inside, p)
		}
	}
	refusal, refused := routing.Connected(routing.Policy{Protected: inside}, l.Addr)
	if !refused {
		return nil
	}
	s.refuseRoutes([]routing.Refusal{refusal})
	return fmt.Errorf("lease %s of server %s is not safe here: %s", l.Addr, l.Server, refusal)
}

// admit returns those routes of a lease that may be installed in the namespace,
// and reports the others.
func (s *session) admit(ctx context.Context, l dhcp4.Lease) ([]dhcp4.Route, error) {
	if len(l.Routes) == 0 {
		return nil, nil
	}
	existing, err := s.cfg.Links.Routes(ctx, s.rec.Target())
	if err != nil {
		return nil, fmt.Errorf("look for routes that the lease must not override: %w", err)
	}
	routes, refused := routing.Admit(routing.Policy{
		DefaultRoute: s.settings.DefaultRoute && !s.hasItsDefault(existing),
		Allow:        s.settings.Routes.Allow,
		Deny:         s.settings.Routes.Deny,
		Protected:    s.cfg.Protected,
		Existing:     existing,
	}, l)
	s.refuseRoutes(refused)
	return routes, nil
}

// hasItsDefault tells whether the namespace of an attachment with IPAM has a default
// route already. Networks of this kind say nowhere whether they want one, and the
// pod's own stays, unless they name a metric for theirs.
func (s *session) hasItsDefault(existing []netip.Prefix) bool {
	isDefault := func(dst netip.Prefix) bool { return dst.Bits() == 0 }
	return s.rec.IPAM && s.settings.RouteMetric == 0 && slices.ContainsFunc(existing, isDefault) &&
		!slices.ContainsFunc(s.rec.Setup.Routes, func(r Route) bool { return isDefault(r.Dst) }) // it may be that of this lease
}

// refuseRoutes tells of routes that are not installed, once each. That a server
// names a router is no news on a secondary network.
func (s *session) refuseRoutes(refused []routing.Refusal) {
	var told []routing.Refusal
	for _, r := range refused {
		if r.Reason == routing.ReasonDefault {
			s.log.Debug("route of the lease is not installed", "route", r.String())
			continue
		}
		told = append(told, r)
		if slices.Contains(s.toldRoutes, r) {
			continue
		}
		s.cfg.Metrics.routes.WithLabelValues(string(r.Reason)).Inc()
		s.log.Warn("route of the lease is not installed", "route", r.String())
		s.report(RouteRefused, r.String())
	}
	s.toldRoutes = told
}

// linkMTU is the MTU that the link has without us.
func (s *session) linkMTU() int {
	if s.rec.Setup.MTU > 0 {
		return s.rec.Setup.PriorMTU
	}
	return s.link.MTU
}

// gatewayOf is the first router that is on the link of the address; the zero
// Addr when there is none.
func gatewayOf(l dhcp4.Lease) netip.Addr {
	for _, r := range l.Routers {
		if l.Addr.Masked().Contains(r) {
			return r
		}
	}
	return netip.Addr{}
}
