package dhcp4

import (
	"encoding/hex"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
)

// player plays a transcript: see TestTranscripts.
type player struct {
	t    *testing.T
	cfg  Config
	m    *Machine
	now  time.Time
	xids []dhcpv4.TransactionID // in order of first use; the last one sent is current
}

func (p *player) event(line string) string {
	verb, args := p.parse(line)
	switch verb {
	case "config":
		p.configure(args)
		return ""
	case "start":
		if args["previous"] == "" {
			return p.step(Start{})
		}
		l := p.lease(args["previous"], args)
		return p.step(Start{Previous: &l})
	case "resume":
		return p.step(Resume{Lease: p.lease(args["0"], args)})
	case "offer", "ack", "nak":
		in := received(p.message(verb, args))
		if args["from"] != "" {
			in.From = netip.MustParseAddr(args["from"])
		}
		return p.step(in)
	case "probed":
		return p.step(Probed{Owner: p.mac(args["0"])})
	case "conflict":
		return p.step(Conflict{Owner: p.mac(args["0"])})
	case "elapsed":
		return p.elapsed(args["0"])
	case "renew":
		return p.step(Renew{Rebind: args["0"] == "rebind"})
	case "stop":
		return p.step(Stop{Release: args["0"] == "release"})
	}
	p.t.Fatalf("unknown event %q", line)
	return ""
}

// parse splits a line; arguments without a name are named by their number.
func (p *player) parse(line string) (verb string, args map[string]string) {
	fields := strings.Fields(line)
	if offset, ok := strings.CutPrefix(fields[0], "@"); ok {
		p.now = epoch.Add(p.duration(offset))
		fields = fields[1:]
	}
	args = map[string]string{}
	for _, f := range fields[1:] {
		name, value, ok := strings.Cut(f, "=")
		if !ok {
			name, value = "0", f
		}
		args[name] = value
	}
	return fields[0], args
}

func (p *player) configure(args map[string]string) {
	for name, value := range args {
		switch name {
		case "client-id":
			p.cfg.ClientID = p.hex(value)
		case "hostname":
			p.cfg.Hostname = value
		case "servers":
			p.cfg.Servers = addrs(value)
		case "deny":
			p.cfg.DenyServers = addrs(value)
		case "address":
			p.cfg.Address = netip.MustParseAddr(value)
		case "broadcast":
			p.cfg.Broadcast = true
		case "probe":
			p.cfg.Probe = true
		case "rapid":
			p.cfg.RapidCommit = true
		default:
			p.t.Fatalf("unknown setting %q", name)
		}
	}
	p.m = New(p.cfg)
}

func (p *player) elapsed(times string) string {
	n := 1
	if count, ok := strings.CutPrefix(times, "x"); ok {
		n, _ = strconv.Atoi(count)
	}
	var out string
	for range n {
		if d := p.m.Deadline(); d.After(p.now) {
			p.now = d
		}
		if n > 1 {
			out += p.offset(p.now) + "\n"
		}
		out += p.step(Elapsed{})
	}
	return out
}

// step takes an event and tells what came of it.
func (p *player) step(ev Event) string {
	var out strings.Builder
	for _, a := range p.m.Step(p.now, ev) {
		fmt.Fprintf(&out, "  %s\n", p.action(a))
		if u, ok := a.(Use); ok {
			for _, r := range u.Remarks {
				fmt.Fprintf(&out, "    %s\n", r)
			}
		}
	}
	next := "never"
	if d := p.m.Deadline(); !d.IsZero() {
		next = p.offset(d)
	}
	fmt.Fprintf(&out, "%s next %s\n", p.m.State(), next)
	return out.String()
}

func (p *player) action(a Action) string {
	switch a := a.(type) {
	case Claim:
		return fmt.Sprintf("claim %s of %s", a.Lease.Addr, a.Lease.Server)
	case Send:
		return p.sent(a)
	case Probe:
		return fmt.Sprintf("probe %s of %s", a.Lease.Addr, a.Lease.Server)
	case Use:
		return p.used(a.Lease)
	case Drop:
		if a.Detail != "" {
			return fmt.Sprintf("drop %s: %s (%s)", a.Lease.Addr, a.Reason, a.Detail)
		}
		return fmt.Sprintf("drop %s: %s", a.Lease.Addr, a.Reason)
	case Ignore:
		return "ignore " + p.xidNames(a.Reason)
	}
	p.t.Fatalf("unknown action %T", a)
	return ""
}

func (p *player) sent(s Send) string {
	msg := s.Msg
	out := fmt.Sprintf("send %s %s secs=%d", msg.MessageType(), p.xidName(msg.TransactionID), msg.NumSeconds)
	if msg.IsBroadcast() {
		out += " flag"
	}
	if from := addr4(msg.ClientIPAddr); !from.IsUnspecified() {
		out += fmt.Sprintf(" ciaddr=%s", from)
	}
	for _, code := range []uint8{optRequestedAddr, optServerID} {
		if v, ok := msg.Options[code]; ok {
			out += fmt.Sprintf(" %d=%s", code, net.IP(v))
		}
	}
	if v, ok := msg.Options[optClientID]; ok {
		out += fmt.Sprintf(" 61=%x", v)
	}
	if _, ok := msg.Options[optRapidCommit]; ok {
		out += " 80"
	}
	if v, ok := msg.Options[optMessage]; ok {
		out += fmt.Sprintf(" 56=%q", v)
	}
	if s.To.IsValid() {
		return fmt.Sprintf("%s to %s via %s", out, s.To, s.Via)
	}
	return out + " to all"
}

func (p *player) used(l Lease) string {
	out := fmt.Sprintf("use %s of %s from %s", l.Addr, l.Server, p.offset(l.Start))
	if l.Lifetime == Infinite {
		out += " for ever"
	} else {
		out += fmt.Sprintf(" t1=%s t2=%s end=%s", p.offset(l.RenewAt()), p.offset(l.RebindAt()), p.offset(l.ExpireAt()))
	}
	for _, r := range l.Routes {
		out += fmt.Sprintf(" route=%s", r.Dst)
		if r.Gateway.IsValid() {
			out += fmt.Sprintf(">%s", r.Gateway)
		}
	}
	if len(l.DNS) > 0 {
		out += fmt.Sprintf(" dns=%s", l.DNS)
	}
	if l.Domain != "" {
		out += " domain=" + l.Domain
	}
	if l.MTU != 0 {
		out += fmt.Sprintf(" mtu=%d", l.MTU)
	}
	return out
}

// lease is one that was got at the epoch.
func (p *player) lease(addr string, args map[string]string) Lease {
	l := Lease{Addr: netip.MustParsePrefix(addr), Server: netip.MustParseAddr("10.0.0.1"), Start: epoch, Lifetime: time.Hour}
	if s := args["server"]; s != "" {
		l.Server = netip.MustParseAddr(s)
	}
	switch s := args["lease"]; s {
	case "":
	case "infinite":
		l.Lifetime = Infinite
	default:
		l.Lifetime = p.duration(s)
	}
	l.T1, l.T2, _ = timers(l.Lifetime, 0, 0)
	if s := args["t1"]; s != "" {
		l.T1 = p.duration(s)
	}
	if s := args["t2"]; s != "" {
		l.T2 = p.duration(s)
	}
	return l
}

func (p *player) duration(s string) time.Duration {
	d, err := time.ParseDuration(s)
	if err != nil {
		p.t.Fatal(err)
	}
	return d
}

func (p *player) hex(s string) []byte {
	b, err := hex.DecodeString(s)
	if err != nil {
		p.t.Fatal(err)
	}
	return b
}

func (p *player) offset(t time.Time) string {
	s := t.Sub(epoch).Round(time.Millisecond).String()
	s = strings.TrimSuffix(s, "0s")
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	if s == "" || strings.ContainsAny(s[len(s)-1:], "0123456789.") {
		s += "0s"
	}
	return "@" + s
}

// xidName numbers the transactions of a story.
func (p *player) xidName(xid dhcpv4.TransactionID) string {
	for i, known := range p.xids {
		if known == xid {
			return fmt.Sprintf("x%d", i+1)
		}
	}
	p.xids = append(p.xids, xid)
	return fmt.Sprintf("x%d", len(p.xids))
}

func (p *player) xidNames(text string) string {
	for i, xid := range p.xids {
		text = strings.ReplaceAll(text, xid.String(), fmt.Sprintf("x%d", i+1))
	}
	return text
}
