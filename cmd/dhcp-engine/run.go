package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"

	"github.com/dhcp-meta/dhcp-meta/internal/build"
)

// Exit codes.
const (
	exitOK     = 0
	exitFailed = 1
	exitUsage  = 2 // flags or environment; nothing was started
)

const usage = `dhcp-engine gives the interfaces of this node's pods their addresses by DHCP.

Usage:
  dhcp-engine run [flags]       serve the plugin dhcp-meta until SIGTERM
  dhcp-engine leases [flags]    list the leases of the running engine
  dhcp-engine version           print the version

Each has its flags behind -h.
`

// run executes the program and returns its exit code. It ends when ctx does.
func run(ctx context.Context, args []string, getenv func(string) string, stdout, stderr io.Writer) int {
	name := ""
	if len(args) > 0 {
		name, args = args[0], args[1:]
	}
	var err error
	switch name {
	case "run":
		err = runEngine(ctx, args, getenv, stderr)
	case "leases":
		err = runLeases(ctx, args, getenv, stdout)
	case "version":
		_, err = fmt.Fprintln(stdout, build.Version())
	case "help", "-h", "-help", "--help":
		_, err = io.WriteString(stdout, usage)
	case "":
		err = usageError{fmt.Errorf("no command\n\n%s", usage)}
	default:
		err = usageError{fmt.Errorf("unknown command %q\n\n%s", name, usage)}
	}
	var help helpError
	var wrong usageError
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &help):
		_, _ = io.WriteString(stdout, string(help))
		return exitOK
	case errors.As(err, &wrong):
		_, _ = fmt.Fprintf(stderr, "dhcp-engine: %v\n", err)
		return exitUsage
	default:
		_, _ = fmt.Fprintf(stderr, "dhcp-engine: %v\n", err)
		return exitFailed
	}
}

// usageError is an error in what the user wrote.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

// helpError is the text of a subcommand's -h, which somebody asked for.
type helpError string

func (helpError) Error() string { return "help" }

// runEngine is `dhcp-engine run`.
func runEngine(ctx context.Context, args []string, getenv func(string) string, stderr io.Writer) error {
	cfg, err := parseConfig(args, getenv)
	if err != nil {
		return err
	}
	return serve(ctx, cfg, newLog(cfg, stderr))
}

func newLog(cfg config, w io.Writer) *slog.Logger {
	opts := &slog.HandlerOptions{Level: cfg.logLevel}
	if cfg.logFormat == "json" {
		return slog.New(slog.NewJSONHandler(w, opts))
	}
	return slog.New(slog.NewTextHandler(w, opts))
}
