package dhcp4

import (
	"slices"
	"strings"
	"testing"

	"github.com/insomniacslk/dhcp/dhcpv4"
)

const optTFTPServer = 66

// asking returns a machine in SELECTING that requires option 66 and asks for 43.
func asking(rapid bool) *Machine {
	cfg := testConfig()
	cfg.Request, cfg.Require, cfg.RapidCommit = []uint8{43}, []uint8{optTFTPServer}, rapid
	m := New(cfg)
	m.Step(epoch, Start{})
	return m
}

func reasons(acts []Action) string {
	var all []string
	for _, a := range acts {
		if i, ok := a.(Ignore); ok {
			all = append(all, i.Reason)
		}
	}
	return strings.Join(all, "; ")
}

// TestRequire: a server that lacks a required option gets no REQUEST, and one that
// forgets it in its ACK gets the address back.
func TestRequire(t *testing.T) {
	const want = "lacks option 66, which the network requires"
	name := []byte("tftp.example.com")
	m := asking(false)
	acts := m.Step(epoch, received(answer(offerType, m.xid, "10.0.0.5", grant()...)))
	if m.State() != Selecting || !strings.Contains(reasons(acts), want) || len(sends(acts)) != 0 {
		t.Errorf("an offer without it: %s, %q, %d sent", m.State(), reasons(acts), len(sends(acts)))
	}
	acts = m.Step(epoch, received(answer(offerType, m.xid, "10.0.0.6", grant(optTFTPServer, name)...)))
	if s := sends(acts); len(s) != 1 || !slices.Contains(s[0].Msg.Options[optParameterList], optTFTPServer) {
		t.Fatalf("an offer with it: %s, %v", m.State(), acts)
	}
	acts = m.Step(epoch, received(answer(ackType, m.xid, "10.0.0.6", grant()...)))
	if s := sends(acts); !strings.Contains(reasons(acts), want) || len(s) == 0 || s[0].Msg.MessageType() != dhcpv4.MessageTypeRelease {
		t.Errorf("an ack without it: %q, sent %v", reasons(acts), s)
	}
	if _, held := m.Lease(); held {
		t.Error("a lease without it")
	}

	m = asking(true)
	acts = m.Step(epoch, received(answer(ackType, m.xid, "10.0.0.5", grant(optRapidCommit, []byte{})...)))
	if _, held := m.Lease(); held || !strings.Contains(reasons(acts), want) {
		t.Errorf("a rapid ack without it: %q", reasons(acts))
	}
}

// TestRequireKeepsALease: what is in use is not given up for an option, and what was
// asked for without being required is a remark.
func TestRequireKeepsALease(t *testing.T) {
	m := asking(false)
	with := grant(optTFTPServer, []byte("tftp"))
	m.Step(epoch, received(answer(offerType, m.xid, "10.0.0.5", with...)))
	acts := m.Step(epoch, received(answer(ackType, m.xid, "10.0.0.5", with...)))
	if u, ok := used(acts); !ok || !slices.Equal(u.Remarks, []string{"option 43 was asked for and is not in the ack"}) {
		t.Errorf("use %+v, %v", u, ok)
	}
	l, _ := m.Lease()
	m.Step(l.RenewAt(), Elapsed{})
	acts = m.Step(l.RenewAt(), received(answer(ackType, m.xid, "10.0.0.5", grant()...)))
	if u, ok := used(acts); !ok || len(u.Remarks) != 0 || m.State() != Bound {
		t.Errorf("renewed: use %+v, %v, in %s", u, ok, m.State())
	}
	l, _ = m.Lease()
	m.Step(l.RenewAt(), Elapsed{})
	m.Step(l.RebindAt(), Elapsed{})
	acts = m.Step(l.RebindAt(), received(answer(ackType, m.xid, "10.0.0.5", grant()...)))
	if u, ok := used(acts); !ok || len(u.Remarks) != 1 || m.State() != Bound {
		t.Errorf("rebound: use %+v, %v, in %s", u, ok, m.State())
	}
}

func used(acts []Action) (Use, bool) {
	for _, a := range acts {
		if u, ok := a.(Use); ok {
			return u, true
		}
	}
	return Use{}, false
}
