package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine/api"
)

// listLimit is how long the engine may take to list its leases.
const listLimit = 10 * time.Second

// runLeases is `dhcp-engine leases`.
func runLeases(ctx context.Context, args []string, getenv func(string) string, stdout io.Writer) error {
	in := newInput("leases", getenv)
	socket := in.text("socket", api.DefaultSocket, "`path` of the engine's unix socket")
	output := in.flagOnly("o", "table", "`format`: table or json")
	if err := in.parse(args); err != nil {
		return err
	}
	in.check("socket", absolute(*socket))
	if *output != "table" && *output != "json" {
		in.check("o", fmt.Errorf("%q is neither table nor json", *output))
	}
	if err := in.err(); err != nil {
		return err
	}

	ctx, cancel := context.WithTimeout(ctx, listLimit)
	defer cancel()
	all, err := api.Client{Socket: *socket}.List(ctx)
	if err != nil {
		return fmt.Errorf("list the leases: %w", err)
	}
	if *output == "json" {
		e := json.NewEncoder(stdout)
		e.SetIndent("", "  ")
		return e.Encode(all)
	}
	return writeTable(stdout, all, time.Now())
}

// writeTable writes one line an attachment; T1, T2 and EXPIRES count from now.
func writeTable(w io.Writer, all []api.Status, now time.Time) error {
	tw := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	row := func(columns ...string) {
		for i, c := range columns {
			columns[i] = cmp.Or(printable(c), "-")
		}
		_, _ = fmt.Fprintln(tw, strings.Join(columns, "\t")) // Flush has the error
	}
	row("ATTACHMENT", "POD", "INTERFACE", "ADDRESS", "SERVER", "STATE", "T1", "T2", "EXPIRES", "LAST ERROR")
	for _, s := range all {
		pod := s.Pod.Name
		if s.Pod.Namespace != "" {
			pod = s.Pod.Namespace + "/" + s.Pod.Name
		}
		expiry := until(s.Expiry, now)
		if s.Infinite {
			expiry = "infinite"
		}
		row(short(s.ContainerID), pod, s.IfName, s.Address, s.Server, s.State, until(s.T1, now), until(s.T2, now), expiry, s.LastError)
	}
	return tw.Flush()
}

// short is a container id as crictl and others show it: 64 digits fill a line,
// and 13 tell the sandboxes of a node apart.
func short(containerID string) string { return containerID[:min(len(containerID), 13)] }

// until is the time from now to t.
func until(t *time.Time, now time.Time) string {
	if t == nil {
		return ""
	}
	d := t.Sub(now).Round(time.Second)
	if d < 0 {
		return (-d).String() + " ago"
	}
	return d.String()
}

// printable keeps what came from elsewhere from breaking the table, or talking
// to the terminal.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, s)
}
