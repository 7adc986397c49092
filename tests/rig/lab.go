package rig

import (
	"maps"
	"testing"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine/api"
)

// Object is a JSON object of a network configuration.
type Object = map[string]any

// Lab is a LAN with an engine on its node.
type Lab struct {
	*LAN
	Engine *Engine
}

// NewLab makes a LAN and starts an engine.
func NewLab(t testing.TB) *Lab {
	t.Helper()
	lan := NewLAN(t)
	return &Lab{LAN: lan, Engine: StartEngine(t, lan.Node)}
}

// Macvlan is a network of form delegate: dhcp-meta in front of macvlan on the
// node's uplink. The settings are added to the dhcp object.
func (l *Lab) Macvlan(settings Object) Object {
	return l.Delegate(Object{"type": "macvlan", "master": Uplink, "mode": "bridge"}, settings)
}

// Delegate is a network of form delegate in front of any plugin.
func (l *Lab) Delegate(delegate, settings Object) Object {
	return Object{
		"cniVersion": "1.1.0",
		"name":       "site",
		"type":       "dhcp-meta",
		"delegate":   delegate,
		"dhcp":       l.Settings(settings),
	}
}

// Settings is a dhcp object that names the lab's engine.
func (l *Lab) Settings(more Object) Object {
	dhcp := Object{"socket": l.Engine.Socket, "stateDir": l.Engine.StateDir}
	maps.Copy(dhcp, more)
	return dhcp
}

// Status is what the engine says of an interface of the sandbox; the test ends
// when it knows none.
func (l *Lab) Status(t testing.TB, s *Sandbox, ifName string) api.Status {
	t.Helper()
	for _, st := range l.Engine.Leases(t) {
		if st.ContainerID == s.ID && st.IfName == ifName {
			return st
		}
	}
	t.Fatalf("the engine knows nothing of %s:%s", s.ID, ifName)
	return api.Status{}
}
