package integration

import (
	"testing"

	"github.com/insomniacslk/dhcp/dhcpv4"

	"github.com/dhcp-meta/dhcp-meta/tests/rig"
)

// A pod that crashes twenty times holds one address of a pool of five, and its last
// sandbox works. Nobody sends a DEL for the sandboxes before.
func TestB84TwentyCrashesPoolOfFive(t *testing.T) {
	for _, tt := range []struct {
		name     string
		settings object
		// gone says that a sandbox is no longer there when the next one comes;
		// otherwise its interface is.
		gone bool
	}{
		{"derived MAC, sandbox gone", object{"mac": "derive"}, true},
		{"other MACs, duid, sandbox gone", object{"clientID": "duid"}, true},
		{"other MACs, other identities", nil, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			onThreeServers(t, func(t *testing.T, l *lab, start rig.StartFunc) {
				cfg := rig.Pool(0, 0)
				cfg.Last = cfg.First.Next().Next().Next().Next()
				server := start(t, l.Server, cfg)
				l.crashes(t, server, l.Macvlan(tt.settings), tt.gone)
			})
		})
	}
}

func (l *lab) crashes(t *testing.T, server rig.Server, conf object, gone bool) {
	t.Helper()
	pod := newSandbox(t)
	sandboxes := []*sandbox{pod}
	for i := range 20 {
		addr := leased(t, pod.mustAdd(t, l, pod.Call("net1", conf)))
		server.AwaitHeld(t, "one lease for the pod", rig.Holds(pod.HardwareAddr(t, "net1"), addr.Addr()))
		if i == 19 {
			break
		}
		if gone {
			pod.ends(t, l)
		}
		pod = pod.again(t)
		sandboxes = append(sandboxes, pod)
	}
	if n := l.Capture.Count(0, rig.Type(dhcpv4.MessageTypeNak, nil)); n != 0 {
		t.Errorf("%d NAKs", n)
	}
	have := pod.Addresses(t, "net1")
	if len(have) != 1 {
		t.Fatalf("net1 carries %v, want one address", have)
	}
	pod.expectPing(t, have[0].Addr.Addr(), rig.ServerAddr.Addr())
	for _, s := range sandboxes {
		l.Node.Del(t, s.Call("net1", conf))
	}
	server.AwaitHeld(t, "empty", rig.Nothing)
	l.expectNothingLeft(t)
}
