package integration

import (
	"fmt"
	"net/netip"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine/api"
	"github.com/dhcp-meta/dhcp-meta/tests/rig"
)

type object = rig.Object

// lab is the laboratory with the expectations of these tests.
type lab struct{ *rig.Lab }

func newLab(t *testing.T) *lab {
	t.Helper()
	return &lab{rig.NewLab(t)}
}

// sandbox is a pod's sandbox with the expectations of these tests.
type sandbox struct{ *rig.Sandbox }

func newSandbox(t testing.TB) *sandbox {
	t.Helper()
	return &sandbox{rig.NewSandbox(t)}
}

// onBothServers runs a test body with each of the two servers that the core of the
// main job is proven with, in a lab of its own.
func onBothServers(t *testing.T, body func(t *testing.T, l *lab, start rig.StartFunc)) {
	t.Parallel()
	for name, start := range map[string]rig.StartFunc{"dnsmasq": rig.StartDnsmasq, "Kea": rig.StartKea} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			body(t, newLab(t), start)
		})
	}
}

// mustAdd executes ADD and checks what every result must be.
func (s *sandbox) mustAdd(t testing.TB, l *lab, call rig.Call) rig.Outcome {
	t.Helper()
	o := l.Node.Add(t, call)
	leased(t, o)
	if i := o.Result.IPs[0].Interface; i == nil || *i >= len(o.Result.Interfaces) ||
		o.Result.Interfaces[*i].Name != call.IfName || o.Result.Interfaces[*i].Sandbox != s.Path {
		t.Errorf("ips[0].interface does not point at %s in the sandbox: %s", call.IfName, o.Stdout)
	}
	return o
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

func (l *lab) status(t testing.TB, s *sandbox, ifName string) api.Status {
	t.Helper()
	return l.Status(t, s.Sandbox, ifName)
}

// expectNothingLeft checks that the engine has forgotten all, on disk too.
func (l *lab) expectNothingLeft(t testing.TB) {
	t.Helper()
	l.Engine.AwaitNoRecords(t)
	for _, st := range l.Engine.Leases(t) {
		t.Errorf("the engine still knows %s in %s", st.AttachmentID, st.State)
	}
}

// expectPing checks that the pod reaches the server over the leased address.
func (s *sandbox) expectPing(t testing.TB, from, to netip.Addr) {
	t.Helper()
	err := s.Do(func() error {
		out, err := exec.Command("ping", "-c", "1", "-W", "5", "-I", from.String(), to.String()).CombinedOutput()
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	})
	if err != nil {
		t.Errorf("ping %s from %s: %v", to, from, err)
	}
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

// contains is a condition on lines.
func contains(part string) func(string) bool {
	return func(line string) bool { return strings.Contains(line, part) }
}

// seconds makes durations readable in calls.
func seconds(n int) time.Duration { return time.Duration(n) * time.Second }
