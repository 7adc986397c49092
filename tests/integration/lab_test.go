package integration

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"maps"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine/api"
	"github.com/dhcp-meta/dhcp-meta/tests/rig"
)

// object is a JSON object of a network configuration.
type object = map[string]any

// lab is a LAN with a running engine on its node.
type lab struct {
	*rig.LAN
	engine *rig.Engine
}

func newLab(t *testing.T) *lab {
	t.Helper()
	lan := rig.NewLAN(t)
	return &lab{LAN: lan, engine: rig.StartEngine(t, lan.Node)}
}

// macvlan is a network of form delegate: dhcp-meta in front of macvlan on the
// node's uplink. The settings are added to the dhcp object.
func (l *lab) macvlan(settings object) object {
	return l.delegate(object{"type": "macvlan", "master": rig.Uplink, "mode": "bridge"}, settings)
}

func (l *lab) delegate(delegate, settings object) object {
	return object{
		"cniVersion": "1.1.0",
		"name":       "site",
		"type":       "dhcp-meta",
		"delegate":   delegate,
		"dhcp":       l.settings(settings),
	}
}

// settings is a dhcp object that names the lab's engine.
func (l *lab) settings(more object) object {
	dhcp := object{"socket": l.engine.Socket, "stateDir": l.engine.StateDir}
	maps.Copy(dhcp, more)
	return dhcp
}

// sandbox is a pod's network namespace as a runtime makes it.
type sandbox struct {
	*rig.Netns
	id, pod, uid string
}

func newSandbox(t testing.TB) *sandbox {
	t.Helper()
	id := randomHex(32)
	return &sandbox{Netns: rig.NewNetns(t, "pod"), id: id, pod: "web-" + id[:6], uid: randomHex(16)}
}

// call is the execution of dhcp-meta for an interface of the sandbox.
func (s *sandbox) call(ifName string, conf any) rig.Call {
	return rig.Call{
		ContainerID: s.id, IfName: ifName, Netns: s.Path, Conf: conf,
		Args: fmt.Sprintf("IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=%s;K8S_POD_UID=%s;K8S_POD_INFRA_CONTAINER_ID=%s", s.pod, s.uid, s.id),
	}
}

func randomHex(bytes int) string {
	b := make([]byte, bytes)
	rand.Read(b)
	return hex.EncodeToString(b)
}

// leased is the one address of a result.
func leased(t testing.TB, o rig.Outcome) netip.Prefix {
	t.Helper()
	if o.Result == nil || len(o.Result.IPs) != 1 {
		t.Fatalf("want a result with one address: %s", o.Stdout)
	}
	p, err := netip.ParsePrefix(o.Result.IPs[0].Address.String())
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// status is what the engine says of an interface of the sandbox; the test ends
// when it knows none.
func (l *lab) status(t testing.TB, s *sandbox, ifName string) api.Status {
	t.Helper()
	for _, st := range l.engine.Leases(t) {
		if st.ContainerID == s.id && st.IfName == ifName {
			return st
		}
	}
	t.Fatalf("the engine knows nothing of %s:%s", s.id, ifName)
	return api.Status{}
}

// expectNothingLeft checks that the engine has forgotten all, on disk too.
func (l *lab) expectNothingLeft(t testing.TB) {
	t.Helper()
	if left := l.engine.Leases(t); len(left) != 0 {
		t.Errorf("the engine still knows %+v", left)
	}
	if left := l.engine.Records(t); len(left) != 0 {
		t.Errorf("records left: %v", left)
	}
}

// seconds makes durations readable in calls.
func seconds(n int) time.Duration { return time.Duration(n) * time.Second }

// contains is a condition on lines.
func contains(part string) func(string) bool {
	return func(line string) bool { return strings.Contains(line, part) }
}

// awaitPast returns when d has passed since the last ACK: the passing of time is
// the event that the test is about.
func awaitPast(t testing.TB, l *lab, d time.Duration) {
	t.Helper()
	var last time.Time
	for _, f := range l.Capture.Since(0) {
		if f.Type == dhcpv4.MessageTypeAck {
			last = f.At
		}
	}
	if last.IsZero() {
		t.Fatal("no ACK yet")
	}
	<-time.After(time.Until(last.Add(d)))
}
