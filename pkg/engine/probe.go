package engine

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine/api"
	"github.com/dhcp-meta/dhcp-meta/pkg/engine/dhcp4"
	"github.com/dhcp-meta/dhcp-meta/pkg/engine/network"
)

// maxProbed bounds what a report holds of offers and of other replies: a network
// that answers more often is broken, and that is to be seen by then.
const maxProbed = 64

// Tally counts what arrives at an interface while a probe runs.
type Tally interface {
	// Seen returns how many frames of any kind have arrived, and how many of them
	// were DHCP replies to other clients.
	Seen() (frames, otherReplies int)
	Close() error
}

// tallier is what Links may do besides: a link on which nothing arrives is
// another trouble than one on which the server answers everybody else.
type tallier interface {
	Tally(ctx context.Context, t Target) (Tally, error)
}

// probeEvery is the time between two questions of a probe: the first wait of a
// client (RFC 2131, 4.1), and no longer ones, since somebody waits.
const probeEvery = 4 * time.Second

// probe asks for offers and takes none: it has no machine that could.
type probe struct {
	cfg    *Config
	client dhcp4.Config
	port   Port
	asked  []question
	// unsent is why the last message did not leave.
	unsent error
	// gone says that the interface has ended during the probe.
	gone   bool
	report *api.ProbeReport
}

// question is a DISCOVER that was sent.
type question struct {
	discover dhcp4.Send
	at       time.Time
}

// Probe tells which servers offer what on an interface, whether or not the
// engine has a lease there. It keeps no record and takes no turn: an exchange of
// the engine on the same interface goes on beside it.
func (e *Engine) Probe(ctx context.Context, r api.ProbeRequest) (api.ProbeReport, error) {
	link, err := e.cfg.Links.Inspect(ctx, Target{Netns: Netns{Path: r.Netns}, IfName: r.IfName})
	if err != nil {
		return api.ProbeReport{}, api.WithCode(api.CodeEnv, err)
	}
	clientID, err := probeClientID(r.ClientID, link.HardwareAddr)
	if err != nil {
		return api.ProbeReport{}, api.WithCode(api.CodeConfig, err)
	}
	limit := r.Timeout
	if limit <= 0 {
		limit = api.DefaultProbe
	}
	begun := e.cfg.Now()
	p := &probe{
		cfg: &e.cfg,
		client: dhcp4.Config{
			HardwareAddr: link.HardwareAddr, ClientID: clientID, Broadcast: r.Broadcast, MTU: link.MTU, Rand: e.cfg.Rand(),
		},
		report: &api.ProbeReport{
			Netns: r.Netns, IfName: r.IfName, HardwareAddr: link.HardwareAddr.String(), Kind: link.Kind,
			ClientID: hex.EncodeToString(clientID), Offers: []api.Offer{},
		},
	}
	within, cancel := context.WithTimeout(ctx, min(limit, api.MaxProbe))
	defer cancel()
	err = p.run(within, Target{Netns: link.Netns, IfName: r.IfName}, e.cfg.Links)
	if ctx.Err() != nil {
		return api.ProbeReport{}, api.WithCode(api.CodeTryAgain, fmt.Errorf("probe %s: %w", r.IfName, context.Cause(ctx)))
	}
	p.report.Waited = e.cfg.Now().Sub(begun)
	switch {
	case errors.Is(err, context.DeadlineExceeded): // the interface did not open in all that time
		p.report.Hint = err.Error()
	case err != nil:
		return api.ProbeReport{}, api.WithCode(api.CodeEnv, err)
	default:
		p.report.Hint = p.hint()
	}
	return *p.report, nil
}

// probeClientID reads ProbeRequest.ClientID.
func probeClientID(text string, mac net.HardwareAddr) ([]byte, error) {
	switch text {
	case "", network.ClientIDMAC, network.ClientIDNone:
		set := network.Settings{ClientID: text}
		if text == "" {
			set.ClientID = network.ClientIDMAC
		}
		return set.ClientIdentifier(network.Identity{HardwareAddr: mac})
	}
	id, err := hex.DecodeString(strings.ReplaceAll(text, ":", ""))
	switch {
	case err != nil:
		return nil, fmt.Errorf("client id %q is neither mac nor none nor hexadecimal", text)
	case len(id) < 2 || len(id) > 255: // RFC 2132, 9.14
		return nil, fmt.Errorf("client id has %d bytes, option 61 holds 2 to 255", len(id))
	}
	return id, nil
}

// run sends and collects until ctx ends. An error says that the interface could
// not be opened.
func (p *probe) run(ctx context.Context, t Target, links Links) error {
	var err error
	if p.port, err = links.Open(ctx, t); err != nil {
		return err
	}
	defer p.port.Close()
	if l, ok := links.(tallier); ok {
		// Without it the hint says less, and that is all.
		if seen, err := l.Tally(ctx, t); err == nil {
			defer p.heard(seen)
		}
	}
	again := time.NewTicker(probeEvery)
	defer again.Stop()
	p.ask(ctx)
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-again.C:
			p.ask(ctx)
		case r, ok := <-p.port.Received():
			if !ok {
				p.gone = true
				return nil
			}
			p.cfg.Metrics.received(r.Msg.MessageType())
			p.take(r)
		}
	}
}

// heard notes what has arrived besides.
func (p *probe) heard(t Tally) {
	frames, others := t.Seen()
	p.report.Heard = &api.Heard{Frames: frames, OtherReplies: others}
	_ = t.Close() // a socket that is done with
}

// ask sends a DISCOVER. One that cannot be sent is no end: the next may be.
func (p *probe) ask(ctx context.Context) {
	q := question{dhcp4.Discover(p.client), p.cfg.Now()}
	if p.unsent = p.port.Send(ctx, q.discover); p.unsent == nil {
		p.cfg.Metrics.sent(dhcpv4.MessageTypeDiscover)
		p.asked = append(p.asked, q)
		p.report.Discovers++
	}
}

// take notes a reply.
func (p *probe) take(r dhcp4.Received) {
	i := slices.IndexFunc(p.asked, func(q question) bool { return q.discover.Msg.TransactionID == r.Msg.TransactionID })
	if i < 0 {
		p.leaveAside(fmt.Sprintf("%s of another transaction", r.Msg.MessageType()))
		return
	}
	offered, err := dhcp4.ParseOffer(p.client, p.asked[i].discover, r)
	if err != nil && !offered.Lease.Server.IsValid() {
		p.leaveAside(err.Error())
		return
	}
	o := offerOf(r.Msg, offered)
	if err != nil {
		o.Problem = err.Error()
	}
	o.After, o.Discover = p.cfg.Now().Sub(p.asked[i].at), i+1
	known := slices.ContainsFunc(p.report.Offers, func(k api.Offer) bool {
		return k.Server == o.Server && k.From == o.From && k.Address == o.Address && k.Relay == o.Relay
	})
	if !known && len(p.report.Offers) < maxProbed {
		p.report.Offers = append(p.report.Offers, o)
	}
}

func (p *probe) leaveAside(what string) {
	if !slices.Contains(p.report.LeftAside, what) && len(p.report.LeftAside) < maxProbed {
		p.report.LeftAside = append(p.report.LeftAside, what)
	}
}

// offerOf is an offer for people. Of one that the engine could not use there is
// not much more than its options.
func offerOf(m *dhcpv4.DHCPv4, in dhcp4.Offer) api.Offer {
	l := in.Lease
	o := api.Offer{
		Server: l.Server.String(), Address: ipText(m.YourIPAddr), Remarks: in.Remarks,
		Options: make([]api.OfferedOption, 0, len(in.Options)),
	}
	if in.From.IsValid() {
		o.From = in.From.String()
	}
	if in.Relay.IsValid() {
		o.Relay = in.Relay.String()
	}
	for _, code := range in.Options {
		o.Options = append(o.Options, api.OfferedOption{Code: code, Value: hex.EncodeToString(m.Options[code])})
	}
	if !l.Addr.IsValid() {
		return o
	}
	o.Address, o.MTU = l.Addr.String(), l.MTU
	if o.Infinite = l.Lifetime == dhcp4.Infinite; !o.Infinite {
		o.LeaseSeconds, o.T1Seconds, o.T2Seconds = int64(l.Lifetime/time.Second), int64(l.T1/time.Second), int64(l.T2/time.Second)
	}
	o.Routers, o.NTP = texts(l.Routers), texts(l.NTP)
	o.DNS = api.DNS{Nameservers: texts(l.DNS), Domain: l.Domain, Search: l.Search}
	for _, route := range l.Routes {
		r := api.Route{Dst: route.Dst.String()}
		if route.Gateway.IsValid() {
			r.Gateway = route.Gateway.String()
		}
		o.Routes = append(o.Routes, r)
	}
	return o
}

// ipText is an address of the codec; empty when it is unspecified.
func ipText(ip net.IP) string {
	if len(ip) == 0 || ip.IsUnspecified() {
		return ""
	}
	return ip.String()
}

func texts[T fmt.Stringer](list []T) []string {
	var out []string
	for _, v := range list {
		out = append(out, v.String())
	}
	return out
}

// hint says where question or answer have stopped; empty when there is an offer
// that the engine would take.
func (p *probe) hint() string {
	r := p.report
	usable := slices.ContainsFunc(r.Offers, func(o api.Offer) bool { return o.Problem == "" })
	switch {
	case usable:
		return ""
	case len(r.Offers) > 0:
		return "servers answer, but no offer can be used: " + r.Offers[0].Problem
	case p.gone:
		return "the interface was set down or has gone during the probe"
	case r.Discovers == 0:
		return fmt.Sprintf("no message has left the interface: %v", p.unsent)
	case len(r.LeftAside) > 0:
		return "replies for this hardware address came, but none was an offer for this question; the first: " + r.LeftAside[0]
	}
	silence := fmt.Sprintf("%d DHCPDISCOVER left %s and no reply for %s came back; ", r.Discovers, r.IfName, r.HardwareAddr)
	switch {
	case r.Heard != nil && r.Heard.OtherReplies > 0:
		return silence + fmt.Sprintf("%d DHCP replies to other clients arrived meanwhile, so a server is near: "+
			"look in its log for this hardware address, at its pool, and at its lists of clients", r.Heard.OtherReplies)
	case r.Heard != nil && r.Heard.Frames == 0:
		return silence + "nothing else arrived either, the link is deaf; " + nearby(r.Kind)
	}
	return silence + nearby(r.Kind)
}

// nearby says where to look first when nothing was heard on an interface of the
// kind.
func nearby(kind string) string {
	const far = "then for the VLAN, a server or relay in it, and filters on UDP ports 67 and 68"
	switch kind {
	case "macvlan":
		return "look for a switch port or virtual switch that refuses a second hardware address (port security, forged transmits), " + far
	case "ipvlan":
		return "look whether replies are sent to the parent's hardware address, which this interface shares: probe with broadcast, " + far
	case "veth":
		return "look whether the bridge at its other end forwards to an uplink (a bridge that still learns swallows the first 30 s), " + far
	}
	return "look whether the port at its other end forwards this hardware address, " + far
}
