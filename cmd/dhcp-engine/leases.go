package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine/api"
)

// listLimit is how long the engine may take to list its leases.
const listLimit = 10 * time.Second

// runLeases is `dhcp-engine leases`.
func runLeases(ctx context.Context, args []string, std streams) error {
	in := newInput("leases", std.environment)
	socket := in.socket()
	output := in.output()
	pod := in.flags.String("pod", "", "`namespace/name`: only the attachments of this pod")
	network := in.flags.String("network", "", "`name`: only the attachments to this network, as its configuration calls it, or namespace/name of its NetworkAttachmentDefinition")
	wide := in.yes("w", "whole container ids, and network, MAC, client id and namespace too")
	if err := in.parse(args); err != nil {
		return err
	}
	if ns, name, ok := strings.Cut(*pod, "/"); *pod != "" && (!ok || ns == "" || name == "") {
		in.check("pod", fmt.Errorf("%q is not of the form namespace/name", *pod))
	}
	if err := in.err(); err != nil {
		return err
	}
	all, err := list(ctx, *socket)
	if err != nil {
		return err
	}
	t := table{short: shortIDs(all), now: time.Now(), wide: *wide}
	all = slices.DeleteFunc(all, func(s api.Status) bool {
		return *pod != "" && *pod != podName(s.Pod) || *network != "" && *network != s.Network && *network != s.NAD
	})
	if *output == "json" {
		return writeJSON(std.stdout, all)
	}
	return t.write(std.stdout, all)
}

// socket and output declare the settings that several commands share; both check
// themselves.
func (in *input) socket() *string {
	v := in.text("socket", api.DefaultSocket, "`path` of the engine's unix socket")
	in.checks = append(in.checks, func() { in.check("socket", absolute(*v)) })
	return v
}

func (in *input) output() *string {
	v := in.flagOnly("o", "table", "`format`: table or json")
	in.checks = append(in.checks, func() {
		if *v != "table" && *v != "json" {
			in.check("o", fmt.Errorf("%q is neither table nor json", *v))
		}
	})
	return v
}

func list(ctx context.Context, socket string) ([]api.Status, error) {
	ctx, cancel := context.WithTimeout(ctx, listLimit)
	defer cancel()
	all, err := api.Client{Socket: socket}.List(ctx)
	if err != nil {
		return nil, fmt.Errorf("list the leases: %w", err)
	}
	return all, nil
}

func writeJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

// table is how a list of attachments is printed: one line each, T1, T2 and
// EXPIRES counted from now.
type table struct {
	short map[string]string // shortIDs of all attachments, printed or not
	now   time.Time
	wide  bool
}

func (t table) write(w io.Writer, all []api.Status) error {
	head := []string{"ATTACHMENT", "POD", "INTERFACE", "ADDRESS", "SERVER", "STATE", "T1", "T2", "EXPIRES"}
	if t.wide {
		head = append(head, "NETWORK", "MAC", "CLIENT ID", "NETNS")
	}
	rows := [][]string{append(head, "LAST ERROR")}
	for _, s := range all {
		id := t.short[s.ContainerID]
		if t.wide {
			id = s.ContainerID
		}
		row := []string{id + ":" + s.IfName, podName(s.Pod), s.IfName, s.Address, s.Server, s.State,
			until(s.T1, t.now), until(s.T2, t.now), expiry(s, t.now)}
		if t.wide {
			row = append(row, s.Network, s.HardwareAddr, s.ClientID, s.Netns)
		}
		rows = append(rows, append(row, s.LastError))
	}
	return writeRows(w, rows)
}

// writeRows writes columns of text; an empty one is "-".
func writeRows(w io.Writer, rows [][]string) error {
	tw := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	for _, columns := range rows {
		for i, c := range columns {
			columns[i] = cmp.Or(printable(c), "-")
		}
		_, _ = fmt.Fprintln(tw, strings.Join(columns, "\t")) // Flush has the error
	}
	return tw.Flush()
}

// podName is namespace/name; empty where there is no pod.
func podName(p api.Pod) string {
	if p.Namespace == "" {
		return p.Name
	}
	return p.Namespace + "/" + p.Name
}

func expiry(s api.Status, now time.Time) string {
	if s.Infinite {
		return "infinite"
	}
	return until(s.Expiry, now)
}

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
