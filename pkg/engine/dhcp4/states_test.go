package dhcp4

import (
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/insomniacslk/dhcp/dhcpv4"
)

// situation is a state, and how the machine may have come there.
type situation struct {
	name  string
	state State
	enter func(m *Machine)
}

// entered is when the situations have been reached: half an hour, so that a lease
// of the epoch is at its T1.
var entered = at(30 * time.Minute)

var testLease = Lease{
	Addr: netip.MustParsePrefix("10.0.0.5/24"), Server: netip.MustParseAddr("10.0.0.1"),
	Start: epoch, Lifetime: time.Hour, T1: 30 * time.Minute, T2: 52*time.Minute + 30*time.Second,
}

func situations() []situation {
	resumed := func(m *Machine) { m.Step(at(29*time.Minute), Resume{testLease}) }
	requesting := func(m *Machine) {
		m.Step(entered, Start{})
		m.Step(entered, received(answer(dhcpv4.MessageTypeOffer, m.xid, "10.0.0.5", grant()...)))
	}
	return []situation{
		{"INIT", Init, func(*Machine) {}},
		{"INIT, waiting", Init, func(m *Machine) {
			requesting(m)
			m.Step(entered, received(answer(dhcpv4.MessageTypeAck, m.xid, "10.0.0.5", optServerID, "10.0.0.1")))
		}},
		{"SELECTING", Selecting, func(m *Machine) { m.Step(entered, Start{}) }},
		{"REQUESTING", Requesting, requesting},
		{"PROBING", Probing, func(m *Machine) {
			m.cfg.Probe = true
			requesting(m)
			m.Step(entered, received(answer(dhcpv4.MessageTypeAck, m.xid, "10.0.0.5", grant()...)))
		}},
		{"REBOOTING", Rebooting, func(m *Machine) { m.Step(entered, Start{Previous: &testLease}) }},
		{"REBOOTING, address in use", Rebooting, func(m *Machine) { m.Step(entered, Resume{testLease}) }},
		{"BOUND", Bound, resumed},
		{"RENEWING", Renewing, func(m *Machine) { resumed(m); m.Step(entered, Elapsed{}) }},
		{"REBINDING", Rebinding, func(m *Machine) { resumed(m); m.Step(testLease.RebindAt(), Elapsed{}) }},
		{"STOPPED", Stopped, func(m *Machine) { m.Step(entered, Stop{}) }},
	}
}

// happening is an event; do returns what the machine does about it.
type happening struct {
	name string
	do   func(m *Machine) []Action
}

func happenings() []happening {
	ev := func(name string, ev Event) happening {
		return happening{name, func(m *Machine) []Action { return m.Step(later(m), ev) }}
	}
	reply := func(name string, kind dhcpv4.MessageType, yiaddr string, options ...any) happening {
		return happening{name, func(m *Machine) []Action {
			return m.Step(later(m), received(answer(kind, m.xid, yiaddr, options...)))
		}}
	}
	past := func(name string, t time.Time) happening {
		return happening{name, func(m *Machine) []Action {
			if !m.held {
				return nil // there is no such time
			}
			return m.Step(t, Elapsed{})
		}}
	}
	expired := testLease
	expired.Start = epoch.Add(-time.Hour)
	const offer, ack, nak = dhcpv4.MessageTypeOffer, dhcpv4.MessageTypeAck, dhcpv4.MessageTypeNak
	return []happening{
		ev("start", Start{}),
		ev("start with a lease", Start{Previous: &testLease}),
		{"resume before T1", func(m *Machine) []Action { return m.Step(at(time.Minute), Resume{testLease}) }},
		ev("resume past T1", Resume{testLease}),
		ev("resume past the end", Resume{expired}),
		reply("offer", offer, "10.0.0.5", grant()...),
		reply("offer without a mask", offer, "10.0.0.5", optServerID, "10.0.0.1", optLeaseTime, 3600),
		reply("ack", ack, "10.0.0.5", grant()...),
		{"ack with rapid commit, asked for", func(m *Machine) []Action {
			if m.state != Selecting {
				return nil // it is an ack like any other
			}
			m.cfg.RapidCommit = true
			return m.Step(later(m), received(answer(ack, m.xid, "10.0.0.5", grant(optRapidCommit, []byte{})...)))
		}},
		{"ack, addresses are probed", func(m *Machine) []Action {
			m.cfg.Probe = true
			return m.Step(later(m), received(answer(ack, m.xid, "10.0.0.5", grant()...)))
		}},
		reply("ack of another server", ack, "10.0.0.5", grant(optServerID, "10.0.0.2")...),
		reply("ack of another address", ack, "10.0.0.6", grant()...),
		reply("ack that cannot be used", ack, "10.0.0.5", optServerID, "10.0.0.1"),
		reply("nak", nak, "0.0.0.0", optServerID, "10.0.0.1"),
		reply("nak of another server", nak, "0.0.0.0", optServerID, "10.0.0.2"),
		{"deadline", func(m *Machine) []Action { return m.Step(m.Deadline(), Elapsed{}) }},
		{"last deadline", lastDeadline},
		past("deadline, past T2", testLease.RebindAt().Add(time.Second)),
		past("deadline, past the end", testLease.ExpireAt()),
		ev("renew", Renew{}),
		ev("renew by all servers", Renew{Rebind: true}),
		ev("probed, free", Probed{}),
		ev("probed, in use", Probed{Owner: otherMAC}),
		ev("conflict", Conflict{Owner: otherMAC}),
		ev("stop", Stop{}),
		ev("stop with release", Stop{Release: true}),
	}
}

// later is a moment after the situation was reached.
func later(m *Machine) time.Time {
	if m.state == Rebinding {
		return testLease.RebindAt().Add(time.Second)
	}
	return entered.Add(time.Second)
}

// lastDeadline lets the time run until the state changes.
func lastDeadline(m *Machine) (acts []Action) {
	state := m.State()
	for range 20 {
		if acts = m.Step(m.Deadline(), Elapsed{}); m.State() != state {
			return acts
		}
	}
	return nil
}

const statesDoc = "../../../docs/dhcp-states.md"

// TestEveryStateEveryEvent holds the table in docs/dhcp-states.md against the
// machine. An event that changes nothing but a deadline that had come, and asks
// for nothing but Ignore, has no line.
func TestEveryStateEveryEvent(t *testing.T) {
	doc, err := os.ReadFile(statesDoc)
	if err != nil {
		t.Fatal(err)
	}
	const begin, end = "<!-- the table: go test -update -->\n", "<!-- end of the table -->\n"
	before, rest, ok1 := strings.Cut(string(doc), begin)
	want, after, ok2 := strings.Cut(rest, end)
	if !ok1 || !ok2 {
		t.Fatalf("%s has no table between %q and %q", statesDoc, begin, end)
	}
	got := stateTable(t)
	if *update {
		if err := os.WriteFile(statesDoc, []byte(before+begin+got+end+after), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(strings.Split(want, "\n"), strings.Split(got, "\n")); diff != "" {
		t.Errorf("%s and the machine differ (-doc +machine):\n%s", statesDoc, diff)
	}
}

func stateTable(t *testing.T) string {
	var out strings.Builder
	out.WriteString("| state | event | then | actions |\n|---|---|---|---|\n")
	for _, s := range situations() {
		first := true
		for _, h := range happenings() {
			m := New(testConfig())
			s.enter(m)
			if m.State() != s.state {
				t.Fatalf("situation %q: the machine is in %s", s.name, m.State())
			}
			had, _ := m.Lease()
			acts := h.do(m)
			if m.State() == s.state && onlyIgnore(acts) {
				if lease, _ := m.Lease(); !cmp.Equal(had, lease, equalAddrs) {
					t.Errorf("%s, %s: the lease changes without an action", s.name, h.name)
				}
				continue
			}
			name := ""
			if first {
				name, first = s.name, false
			}
			fmt.Fprintf(&out, "| %s | %s | %s | %s |\n", name, h.name, m.State(), actionNames(acts))
		}
		if first {
			fmt.Fprintf(&out, "| %s | | | |\n", s.name)
		}
	}
	return out.String()
}

func onlyIgnore(acts []Action) bool {
	for _, a := range acts {
		if _, ok := a.(Ignore); !ok {
			return false
		}
	}
	return true
}

func actionNames(acts []Action) string {
	var names []string
	for _, a := range acts {
		switch a := a.(type) {
		case Claim:
			names = append(names, "Claim")
		case Send:
			names = append(names, "Send "+a.Msg.MessageType().String())
		case Probe:
			names = append(names, "Probe")
		case Use:
			names = append(names, "Use")
		case Drop:
			names = append(names, fmt.Sprintf("Drop(%s)", a.Reason))
		case Ignore:
			names = append(names, "Ignore")
		}
	}
	return strings.Join(names, ", ")
}
