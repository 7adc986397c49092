package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"runtime/debug"

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
  dhcp-engine run [flags]            serve the plugin dhcp-meta until SIGTERM
  dhcp-engine leases [flags]         list the leases of the running engine
  dhcp-engine renew [flags] ID       have the server of a lease asked for it now
  dhcp-engine rebind [flags] ID      have all servers asked for it now
  dhcp-engine release [flags] ID     take the address of a running pod away
  dhcp-engine probe [flags]          tell which servers answer on an interface
  dhcp-engine doctor [flags]         look for what is wrong on this node
  dhcp-engine export [flags]         write all records as one document
  dhcp-engine import [flags] FILE    put the records of such a document back
  dhcp-engine install [flags]        put the plugin dhcp-meta into the folder of CNI plugins
  dhcp-engine uninstall [flags]      take it out again
  dhcp-engine version                print the version

ID is an attachment as leases prints it. Each has its flags behind -h.
`

// command is a subcommand. What it writes to stdout is complete only if its error
// is nil.
type command func(ctx context.Context, args []string, std streams) error

// streams are what a command has of its surroundings.
type streams struct {
	environment    variables
	stdin          io.Reader
	stdout, stderr io.Writer
}

// commandNamed returns nil for a name that is none.
func commandNamed(name string) command {
	switch name {
	case "run":
		return runEngine
	case "leases":
		return runLeases
	case "renew":
		return runRenew
	case "rebind":
		return runRebind
	case "release":
		return runRelease
	case "probe":
		return runProbe
	case "doctor":
		return runDoctor
	case "export":
		return runExport
	case "import":
		return runImport
	case "install":
		return runInstall
	case "uninstall":
		return runUninstall
	case "version":
		return func(_ context.Context, _ []string, std streams) error {
			_, err := fmt.Fprintln(std.stdout, build.Version())
			return err
		}
	case "help", "-h", "-help", "--help":
		return func(context.Context, []string, streams) error { return helpError(usage) }
	}
	return nil
}

// run executes the program and returns its exit code. It ends when ctx does.
func run(ctx context.Context, args []string, environment variables, stdout, stderr io.Writer) int {
	name := ""
	if len(args) > 0 {
		name, args = args[0], args[1:]
	}
	var err error
	if do := commandNamed(name); do != nil {
		err = do(ctx, args, streams{environment, os.Stdin, stdout, stderr})
	} else if name == "" {
		err = usageError{fmt.Errorf("no command\n\n%s", usage)}
	} else {
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
func runEngine(ctx context.Context, args []string, std streams) error {
	cfg, err := parseConfig(args, std.environment)
	if err != nil {
		return err
	}
	if std.environment.get("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	return serve(ctx, cfg, newLog(cfg, std.stderr))
}

// gcPercent trades processor time, of which an engine that waits for T1 needs next
// to none, for memory, of which it should take little on every node. An operator
// can say otherwise by GOGC.
const gcPercent = 15

func newLog(cfg config, w io.Writer) *slog.Logger {
	opts := &slog.HandlerOptions{Level: cfg.logLevel}
	if cfg.logFormat == "json" {
		return slog.New(slog.NewJSONHandler(w, opts))
	}
	return slog.New(slog.NewTextHandler(w, opts))
}
