package dhcp4

import (
	"encoding/hex"
	"flag"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/insomniacslk/dhcp/dhcpv4"
)

var update = flag.Bool("update", false, "rewrite testdata/*.txt and docs/dhcp-states.md from what the machine does")

// TestTranscripts plays the stories in testdata. Each is a list of events, with
// what the machine did about them below a line of dashes. After a change of the
// machine run `go test -run Transcripts -update`, and commit the difference only
// if you can say why every line of it is right.
//
// A line is `[@time] event arguments`; times count from the beginning:
//
//	config client-id=01.. hostname=.. broadcast servers=A,B address=A mtu=N
//	start [previous=A/N server=A lease=D]
//	resume A/N server=A lease=D [t1=D t2=D]     (got at @0)
//	offer|ack|nak [A[/N]] [server=A lease=D t1=D t2=D router=A dns=A static=A,A
//	     routes=HEX mtu=N domain=S message=S xid=N mac=M id=HEX]
//	elapsed [xN]                                (when the deadline has come)
//	renew
//	stop [release]
func TestTranscripts(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no transcripts: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			got := play(t, string(want))
			if *update {
				if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if diff := cmp.Diff(strings.Split(string(want), "\n"), strings.Split(got, "\n")); diff != "" {
				t.Errorf("the story goes another way (-want +got):\n%s", diff)
			}
		})
	}
}

// play runs the events of a transcript and returns it with the output as it is
// now. Comments and empty lines between events stay.
func play(t *testing.T, text string) string {
	t.Helper()
	p := player{t: t, cfg: testConfig(), now: epoch}
	p.m = New(p.cfg)
	var out strings.Builder
	inOutput, gap := false, false
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		switch {
		case line == "----":
			inOutput = true
		case inOutput && line != "":
		case line == "" || strings.HasPrefix(line, "#"):
			inOutput, gap = false, false
			out.WriteString(line + "\n")
		default:
			if gap {
				out.WriteString("\n") // it ends the output before
			}
			out.WriteString(line + "\n")
			result := p.event(line)
			if gap = result != ""; gap {
				out.WriteString("----\n" + result)
			}
		}
	}
	return out.String()
}

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
		return p.step(received(p.message(verb, args)))
	case "elapsed":
		return p.elapsed(args["0"])
	case "renew":
		return p.step(Renew{})
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
			for s := range strings.SplitSeq(value, ",") {
				p.cfg.Servers = append(p.cfg.Servers, netip.MustParseAddr(s))
			}
		case "address":
			p.cfg.Address = netip.MustParseAddr(value)
		case "0":
			p.cfg.Broadcast = value == "broadcast"
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

// message builds a server's message; what is not said is as in grant.
func (p *player) message(kind string, args map[string]string) *dhcpv4.DHCPv4 {
	types := map[string]dhcpv4.MessageType{
		"offer": dhcpv4.MessageTypeOffer, "ack": dhcpv4.MessageTypeAck, "nak": dhcpv4.MessageTypeNak,
	}
	addr, bits, _ := strings.Cut(args["0"], "/")
	msg := answer(types[kind], p.m.xid, addr, optServerID, "10.0.0.1")
	if kind != "nak" {
		msg.Options[optLeaseTime] = wireValue(3600)
	}
	if n, err := strconv.Atoi(bits); err == nil {
		msg.Options[optSubnetMask] = net.CIDRMask(n, 32)
	}
	delete(args, "0")
	lists := map[string]uint8{"server": optServerID, "router": optRouter, "dns": optDNS, "static": optStaticRoute}
	times := map[string]uint8{"lease": optLeaseTime, "t1": optT1, "t2": optT2}
	for name, value := range args {
		if code, ok := lists[name]; ok {
			msg.Options[code] = wireValue(value)
			continue
		}
		if code, ok := times[name]; ok {
			p.seconds(msg, code, value)
			continue
		}
		switch name {
		case "routes":
			msg.Options[optClassless] = p.hex(value)
		case "mtu":
			n, _ := strconv.Atoi(value)
			msg.Options[optMTU] = []byte{byte(n >> 8), byte(n)}
		case "domain":
			msg.Options[optDomain] = []byte(value)
		case "message":
			msg.Options[optMessage] = []byte(strings.ReplaceAll(value, "_", " "))
		case "id":
			msg.Options[optClientID] = p.hex(value)
		case "mac":
			msg.ClientHWAddr, _ = net.ParseMAC(value)
		case "xid":
			n, _ := strconv.Atoi(value)
			msg.TransactionID = p.xids[n-1]
		default:
			p.t.Fatalf("unknown argument %q", name)
		}
	}
	return msg
}

func (p *player) seconds(msg *dhcpv4.DHCPv4, code uint8, value string) {
	switch value {
	case "none":
		delete(msg.Options, code)
	case "infinite":
		msg.Options[code] = wireValue(infiniteSeconds)
	default:
		msg.Options[code] = wireValue(int(p.duration(value) / time.Second))
	}
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
