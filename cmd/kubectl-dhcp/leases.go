package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"text/tabwriter"
	"time"
	"unicode"

	"golang.org/x/sync/errgroup"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine/api"
)

// How many engines are asked at once, and how long one may take.
const (
	sideBySide = 16
	patience   = 15 * time.Second
)

// lease is an attachment of a node's engine.
type lease struct {
	Node string `json:"node"`
	api.Status
}

// runLeases is `kubectl dhcp leases`.
func runLeases(ctx context.Context, args []string, std streams) error {
	in := newInput("leases", "")
	all := in.flags.BoolP("all-namespaces", "A", false, "the pods of all namespaces, and attachments without a pod")
	node := in.flags.String("node", "", "ask the engine of this `node` alone")
	output := in.flags.StringP("output", "o", "table", "`format`, table, wide or json")
	if _, err := in.parse(args, 0, 0); err != nil {
		return err
	}
	if !slices.Contains([]string{"table", "wide", "json"}, *output) {
		return usageError{fmt.Errorf("leases: --output: %q is none of table, wide, json", *output)}
	}
	c, err := in.connect()
	if err != nil {
		return err
	}
	found, failed, err := c.gather(ctx, *node)
	if err != nil {
		return err
	}
	if !*all {
		found = slices.DeleteFunc(found, func(l lease) bool { return l.Pod.Namespace != c.namespace })
	}
	if *output == "json" {
		e := json.NewEncoder(std.stdout)
		e.SetIndent("", "  ")
		err = e.Encode(found)
	} else {
		err = table{now: time.Now(), namespaces: *all, wide: *output == "wide"}.write(std.stdout, found)
	}
	for _, f := range failed {
		_, _ = fmt.Fprintf(std.stderr, "kubectl dhcp: %v\n", f)
	}
	if err == nil && len(failed) > 0 {
		err = fmt.Errorf("leases: nodes whose leases are missing: %d", len(failed))
	}
	return err
}

// gather asks the engines of all nodes, or of one, side by side. failed has an error
// for each that could not be asked; the leases are sorted by pod and interface.
func (c *cluster) gather(ctx context.Context, node string) (found []lease, failed []error, err error) {
	engines, err := c.enginesOn(ctx, node)
	if err != nil {
		return nil, nil, err
	}
	found = []lease{}
	errs := make([]error, len(engines))
	var mu sync.Mutex
	var g errgroup.Group
	g.SetLimit(sideBySide)
	for i, engine := range engines {
		g.Go(func() error {
			ctx, cancel := context.WithTimeout(ctx, patience)
			defer cancel()
			list, err := c.leasesOf(ctx, engine)
			errs[i] = err
			mu.Lock()
			defer mu.Unlock()
			found = append(found, list...)
			return nil
		})
	}
	_ = g.Wait()
	slices.SortFunc(found, byPod)
	return found, slices.DeleteFunc(errs, func(err error) bool { return err == nil }), ctx.Err()
}

func byPod(a, b lease) int {
	return cmp.Or(cmp.Compare(a.Pod.Namespace, b.Pod.Namespace), cmp.Compare(a.Pod.Name, b.Pod.Name), cmp.Compare(a.IfName, b.IfName),
		cmp.Compare(a.Node, b.Node), cmp.Compare(a.ContainerID, b.ContainerID))
}

// table is how leases are printed: T1 and EXPIRES are the time that is left at now.
type table struct {
	now              time.Time
	namespaces, wide bool
}

func (t table) write(w io.Writer, all []lease) error {
	if len(all) == 0 {
		_, err := fmt.Fprintln(w, "No leases found.")
		return err
	}
	tw := tabwriter.NewWriter(w, 0, 8, 3, ' ', 0)
	line := func(namespace string, columns, wide []string, last string) {
		if t.namespaces {
			columns = append([]string{namespace}, columns...)
		}
		if t.wide {
			columns = append(columns, wide...)
		}
		columns = append(columns, last)
		for i, c := range columns {
			columns[i] = cmp.Or(printable(c), "-")
		}
		_, _ = fmt.Fprintln(tw, strings.Join(columns, "\t")) // Flush has the error
	}
	line("NAMESPACE", []string{"POD", "INTERFACE", "ADDRESS", "SERVER", "STATE", "T1", "EXPIRES", "NODE"},
		[]string{"NETWORK", "MAC", "CLIENT ID", "CONTAINER"}, "LAST ERROR")
	for _, l := range all {
		end := t.until(l.Expiry)
		if l.Infinite {
			end = "infinite"
		}
		line(l.Pod.Namespace, []string{l.Pod.Name, l.IfName, l.Address, l.Server, l.State, t.until(l.T1), end, l.Node},
			[]string{cmp.Or(l.NAD, l.Network), l.HardwareAddr, l.ClientID, l.ContainerID}, l.LastError)
	}
	return tw.Flush()
}

// until is the time from now to at.
func (t table) until(at *time.Time) string {
	if at == nil {
		return ""
	}
	if left := at.Sub(t.now).Round(time.Second); left >= 0 {
		return left.String()
	}
	return t.now.Sub(*at).Round(time.Second).String() + " ago"
}

// printable keeps what came from elsewhere from breaking the table, or talking to the
// terminal.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, s)
}
