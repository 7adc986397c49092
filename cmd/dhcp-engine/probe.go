package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine/api"
)

// probeMargin is what the engine may take besides the time in which it listens.
const probeMargin = 10 * time.Second

// errNoOffer is the end of a probe that nobody answered as one could use it.
var errNoOffer = errors.New("no server has offered an address that can be used")

// runProbe is `dhcp-engine probe`.
func runProbe(ctx context.Context, args []string, std streams) error {
	in := newInput("probe", std.environment)
	socket := in.socket()
	output := in.output()
	netns := in.flags.String("netns", "", "`path` of the network namespace; required")
	ifName := in.flags.String("interface", "", "`name` of the interface in it; required")
	timeout := in.duration("timeout", api.DefaultProbe, "`time` in which offers are collected, up to "+api.MaxProbe.String())
	clientID := in.flagOnly("client-id", "mac", "`id`: mac, none, or hexadecimal with the type octet")
	broadcast := in.yes("broadcast", "ask servers to answer by broadcast")
	if err := in.parse(args); err != nil {
		return err
	}
	in.check("netns", absolute(*netns))
	if *ifName == "" {
		in.check("interface", errors.New("is required"))
	}
	if *timeout <= 0 || *timeout > api.MaxProbe {
		in.check("timeout", fmt.Errorf("%v is not between 0 and %v", *timeout, api.MaxProbe))
	}
	if err := in.err(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, *timeout+probeMargin)
	defer cancel()
	report, err := api.Client{Socket: *socket}.Probe(ctx, api.ProbeRequest{
		Netns: *netns, IfName: *ifName, Timeout: *timeout, ClientID: *clientID, Broadcast: *broadcast})
	if err != nil {
		return fmt.Errorf("probe: %w", err)
	}
	write := writeProbe
	if *output == "json" {
		write = func(w io.Writer, r api.ProbeReport) error { return writeJSON(w, r) }
	}
	if err := write(std.stdout, report); err != nil {
		return err
	}
	if report.Hint != "" {
		return fmt.Errorf("probe: %w", errNoOffer)
	}
	return nil
}

// writeProbe writes a report for people.
func writeProbe(w io.Writer, r api.ProbeReport) error {
	head := fmt.Sprintf("%s (%s, %s) in %s: DHCPDISCOVER sent: %d, offers within %s: %d", r.IfName, r.HardwareAddr, r.Kind, r.Netns,
		r.Discovers, r.Waited.Round(10*time.Millisecond), len(r.Offers))
	if _, err := fmt.Fprintln(w, printable(head)); err != nil {
		return err
	}
	if len(r.Offers) > 0 {
		rows := [][]string{{"SERVER", "ADDRESS", "LEASE TIME", "ROUTER", "DNS", "DOMAIN", "ROUTES", "MTU", "RELAY", "AFTER", "OPTIONS"}}
		for _, o := range r.Offers {
			rows = append(rows, []string{o.Server, o.Address, leaseTime(o), strings.Join(o.Routers, ","), strings.Join(o.DNS.Nameservers, ","),
				o.DNS.Domain, routesText(o.Routes), numberText(o.MTU), o.Relay, o.After.Round(time.Millisecond).String(), codes(o.Options)})
		}
		if err := writeRows(w, rows); err != nil {
			return err
		}
	}
	for _, n := range notes(r) {
		if _, err := fmt.Fprintln(w, printable(n)); err != nil {
			return err
		}
	}
	return nil
}

// notes are the lines under the table.
func notes(r api.ProbeReport) []string {
	var notes []string
	for _, o := range r.Offers {
		for _, remark := range o.Remarks {
			notes = append(notes, "remark on "+o.Server+": "+remark)
		}
		if o.Problem != "" {
			notes = append(notes, "not usable: "+o.Problem)
		}
	}
	for _, a := range r.LeftAside {
		notes = append(notes, "left aside: "+a)
	}
	if r.Hint != "" {
		notes = append(notes, "hint: "+r.Hint)
	}
	return notes
}

func leaseTime(o api.Offer) string {
	switch {
	case o.Infinite:
		return "infinite"
	case o.LeaseSeconds == 0:
		return ""
	}
	return (time.Duration(o.LeaseSeconds) * time.Second).String()
}

func routesText(routes []api.Route) string {
	var out []string
	for _, r := range routes {
		if r.Gateway == "" {
			out = append(out, r.Dst+" on link")
			continue
		}
		out = append(out, r.Dst+" via "+r.Gateway)
	}
	return strings.Join(out, ", ")
}

func numberText(n int) string {
	if n == 0 {
		return ""
	}
	return strconv.Itoa(n)
}

func codes(options []api.OfferedOption) string {
	var out []string
	for _, o := range options {
		out = append(out, strconv.Itoa(int(o.Code)))
	}
	return strings.Join(out, ",")
}
