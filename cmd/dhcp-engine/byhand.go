package main

import (
	"context"
	"fmt"
	"time"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine/api"
)

// askLimit is above what the engine itself waits for a renewal, releaseLimit
// above what a release takes.
const (
	askLimit     = 40 * time.Second
	releaseLimit = 30 * time.Second
)

func runRenew(ctx context.Context, args []string, std streams) error {
	return ask(ctx, "renew", false, args, std)
}

func runRebind(ctx context.Context, args []string, std streams) error {
	return ask(ctx, "rebind", true, args, std)
}

// ask is `dhcp-engine renew` and `dhcp-engine rebind`.
func ask(ctx context.Context, command string, rebind bool, args []string, std streams) error {
	in := newInput(command, std.environment)
	id := in.operand("ID")
	socket := in.socket()
	output := in.output()
	if err := in.parse(args); err != nil {
		return err
	}
	if err := in.err(); err != nil {
		return err
	}
	before, err := lookUp(ctx, *socket, *id)
	if err != nil {
		return fmt.Errorf("%s: %w", command, err)
	}
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	after, err := api.Client{Socket: *socket}.Renew(ctx, before.AttachmentID, rebind)
	if err != nil {
		return fmt.Errorf("%s %s: %w", command, before.AttachmentID, err)
	}
	if *output == "json" {
		return writeJSON(std.stdout, after)
	}
	_, err = fmt.Fprintln(std.stdout, printable(renewed(before, after, time.Now())))
	return err
}

// lookUp finds the attachment that somebody has named.
func lookUp(ctx context.Context, socket, id string) (api.Status, error) {
	all, err := list(ctx, socket)
	if err != nil {
		return api.Status{}, err
	}
	return find(all, id)
}

// renewed says in one line what a renewal has brought.
func renewed(before, after api.Status, now time.Time) string {
	end := "for ever"
	if !after.Infinite && after.Expiry != nil {
		end = fmt.Sprintf("until %s (%s)", after.Expiry.Format(time.RFC3339), until(after.Expiry, now))
	}
	text := fmt.Sprintf("%s has %s from server %s %s", after.AttachmentID, after.Address, after.Server, end)
	switch {
	case before.Address != after.Address && before.Address != "":
		text += ", in place of " + before.Address
	case before.Server != after.Server && before.Server != "":
		text += ", in place of server " + before.Server
	}
	return text
}

// runRelease is `dhcp-engine release`.
func runRelease(ctx context.Context, args []string, std streams) error {
	in := newInput("release", std.environment)
	id := in.operand("ID")
	socket := in.socket()
	sure := in.yes("yes", "do it: the pod goes on to run, without this address, until it gets a new sandbox; the guest of a VM keeps it, and it is reported no longer")
	if err := in.parse(args); err != nil {
		return err
	}
	if err := in.err(); err != nil {
		return err
	}
	s, err := lookUp(ctx, *socket, *id)
	if err != nil {
		return fmt.Errorf("release: %w", err)
	}
	if !*sure {
		return usageError{fmt.Errorf("release: %s %s; say --yes if it shall be so", whose(s), releaseOf(s).costs)}
	}
	if !namesForSure(*id, s) {
		return usageError{fmt.Errorf("release: %q is too short to take an address away by, it is %s: give the id as dhcp-engine leases prints it", *id, whose(s))}
	}
	ctx, cancel := context.WithTimeout(ctx, releaseLimit)
	defer cancel()
	if err := (api.Client{Socket: *socket}).Release(ctx, s.AttachmentID); err != nil {
		return fmt.Errorf("release %s: %w", s.AttachmentID, err)
	}
	_, err = fmt.Fprintln(std.stdout, printable(whose(s)+" "+releaseOf(s).done))
	return err
}

// outcome is what a release does to an attachment, in words: before it, and after it.
type outcome struct{ costs, done string }

func releaseOf(s api.Status) outcome {
	switch s.State {
	case "REPORTED": // the lease is its guest's
		return outcome{"is reported no longer afterwards, until it gets a new sandbox, and its guest goes on with the address",
			"is reported no longer, and its guest goes on with the address"}
	case "ORPHANED":
		return outcome{"gives its address back, which waits for a new sandbox of its pod: that one may get another", "has given its address back"}
	case "SUPERSEDED", "RELEASING": // which the engine refuses
		return outcome{"has nothing to give back any longer", "has ended"}
	}
	return outcome{"has no address afterwards, until it gets a new sandbox", "has no address now, and is no longer kept by the engine"}
}

// whose is an attachment in words.
func whose(s api.Status) string {
	text := s.AttachmentID.String()
	if pod := podName(s.Pod); pod != "" {
		text += " of pod " + pod
	}
	if s.Address != "" {
		text += " (" + s.Address + ")"
	}
	return text
}
