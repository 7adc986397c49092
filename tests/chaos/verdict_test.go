package chaos

import (
	"fmt"
	"iter"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine/api"
	"github.com/dhcp-meta/dhcp-meta/tests/rig"
)

// looks yields as long as its user goes on, each time a channel that tells when to
// look again: the kernel's end of a namespace, and the engine's of a lease, have no
// event that could be waited for from outside.
func (s *storm) looks(t *testing.T) iter.Seq[<-chan time.Time] {
	return func(yield func(<-chan time.Time) bool) {
		tick := time.NewTicker(200 * time.Millisecond)
		defer tick.Stop()
		for !t.Failed() && yield(tick.C) {
		}
	}
}

// disagreements tells of every pod about which server, engine and interface do not
// say the same, and of what the engine has left of deleted ones.
func (s *storm) disagreements(t *testing.T) (apart []string) {
	t.Helper()
	known := map[string]api.Status{}
	for _, st := range s.Engine.Leases(t) {
		known[st.ContainerID] = st
	}
	held := map[string][]rig.Held{}
	for _, h := range s.server.Held(t) {
		held[h.MAC] = append(held[h.MAC], h)
	}
	for _, p := range s.live {
		st, have, lent := known[p.ID], p.Addresses(t, "net1"), held[p.mac]
		if st.State != "BOUND" || len(have) != 1 || st.Address != have[0].Addr.String() ||
			len(lent) != 1 || lent[0].Addr != have[0].Addr.Addr() {
			apart = append(apart, fmt.Sprintf("pod %s: engine %s %s %s, interface %v, server %v",
				p.Pod, st.State, st.Address, st.LastError, have, lent))
		}
		delete(known, p.ID)
	}
	for _, st := range known {
		apart = append(apart, fmt.Sprintf("pod %s is deleted: engine %s %s %s", st.Pod.Name, st.State, st.Address, st.LastError))
	}
	return apart
}

// unforgotten is what the engine still has of pods, in its memory and on its disk,
// and the ledger of the plugin.
func (s *storm) unforgotten(t *testing.T) (left []string) {
	t.Helper()
	for _, st := range s.Engine.Leases(t) {
		left = append(left, fmt.Sprintf("the engine knows %s of pod %s: %s %s", st.AttachmentID, st.Pod.Name, st.State, st.Address))
	}
	for _, folder := range []string{"attachments", "delegates", api.EndedFolder} {
		files, err := filepath.Glob(filepath.Join(s.Engine.StateDir, folder, "*"))
		if err != nil {
			t.Fatal(err)
		}
		left = append(left, files...)
	}
	return left
}

// load is what the engine says of its own size.
type load struct{ goroutines, descriptors int }

func (s *storm) load(t *testing.T) load {
	t.Helper()
	all := s.Node.Metrics(t, metricsAddress)
	return load{int(all["go_goroutines"]), int(all["process_open_fds"])}
}

// grown tells what the engine has more of than before.
func (s *storm) grown(t *testing.T, before load) (more []string) {
	t.Helper()
	if now := s.load(t); now.goroutines > before.goroutines || now.descriptors > before.descriptors {
		more = append(more, fmt.Sprintf("the engine has %+v, at the start it had %+v", now, before))
	}
	return more
}

// accountForHeld goes through what the server still holds when all pods are gone:
// for each lease the engine's log says why it was not given back, or a RELEASE was
// sent that the server cannot have heard.
func (s *storm) accountForHeld(t *testing.T) {
	t.Helper()
	log := s.Engine.Log()
	for _, h := range s.server.Held(t) {
		switch why := s.why(h, log); {
		case h.MAC == "" || strings.HasPrefix(h.MAC, strangers): // declined, or not ours
		case why == "":
			t.Errorf("the server holds %v for %s of pod %s, and nothing says why; of it the log says:\n%s",
				h.Addr, h.MAC, h.Hostname, lines(about(log, h.Hostname, h.Addr.String())))
		default:
			t.Logf("still held: %v by pod %s: %s", h.Addr, h.Hostname, why)
		}
	}
}

// excuses are the words of the log with which a lease stays at its server.
var excuses = []string{
	"lease is not given back, it stays at the server until it expires",
	"lease has ended, there is nothing to give back",
	"interface is gone, attachment is forgotten",
	"address is in use by another host, declining it",
}

// why tells why a lease is still held; "" when nobody knows.
func (s *storm) why(h rig.Held, log []string) string {
	mine := about(log, h.Hostname, h.Addr.String())
	slices.Reverse(mine)
	for _, line := range mine {
		for _, excuse := range excuses {
			if strings.Contains(line, excuse) {
				return line
			}
		}
		if strings.Contains(line, "lease given back") {
			return s.unheard(h)
		}
	}
	return ""
}

// unheard tells why the server has not heard the RELEASE that was sent for a lease;
// "" when it has.
func (s *storm) unheard(h rig.Held) string {
	heard := s.Capture.Count(0, func(f rig.Frame) bool {
		return f.Type == dhcpv4.MessageTypeRelease && f.Msg.ClientHWAddr.String() == h.MAC &&
			f.Msg.ClientIPAddr.Equal(h.Addr.AsSlice()) &&
			slices.ContainsFunc(s.up, func(up span) bool { return up.has(f.At) })
	})
	if heard > 0 {
		return ""
	}
	return "the wire lost its RELEASE, or no server ran"
}

// about are the lines of a log that name a pod and an address.
func about(log []string, pod, addr string) (found []string) {
	for _, line := range log {
		if strings.Contains(line, "/"+pod+" ") && (strings.Contains(line, "="+addr+" ") || strings.Contains(line, "="+addr+"/")) {
			found = append(found, line)
		}
	}
	return found
}

func lines(list []string) string { return "\t" + strings.Join(list, "\n\t") }
