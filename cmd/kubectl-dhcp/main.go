// Command kubectl-dhcp is a plugin of kubectl (kubectl dhcp): it has the dhcp-engine of
// the right node do what `dhcp-engine` does for somebody who is there.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"syscall"

	"github.com/spf13/pflag"
	"k8s.io/client-go/util/exec"
	"k8s.io/klog/v2"

	"github.com/dhcp-meta/dhcp-meta/internal/build"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	context.AfterFunc(ctx, stop) // a second signal kills at once
	klog.SetOutput(io.Discard)   // what matters of it is an error that somebody returns
	klog.LogToStderr(false)
	os.Exit(run(ctx, os.Args[1:], streams{os.Stdout, os.Stderr}))
}

// Exit codes of our own. What an engine was asked for ends with the engine's.
const (
	exitFailed = 1
	exitUsage  = 2
)

const usage = `kubectl dhcp asks the dhcp-engines of a cluster.

Usage:
  kubectl dhcp leases [-A] [--node NODE]         list the leases that the engines keep
  kubectl dhcp renew POD [INTERFACE]             have the server of a lease asked for it now
  kubectl dhcp rebind POD [INTERFACE]            have all servers asked for it now
  kubectl dhcp release --yes POD [INTERFACE]     take the address of a running pod away
  kubectl dhcp probe POD [INTERFACE]             tell which servers answer on an interface
  kubectl dhcp probe --network NAMESPACE/NAME    the same, on any pod's interface of a network
  kubectl dhcp doctor [--node NODE]              look for what is wrong with the installation
  kubectl dhcp version                           print the version

Each has its flags behind -h. Those by which kubectl finds a cluster (-n, --context, ...)
may stand before the command too.
`

// streams are where a command writes to.
type streams struct{ stdout, stderr io.Writer }

// command is a subcommand.
type command func(ctx context.Context, args []string, std streams) error

func commandNamed(name string) command {
	switch name {
	case "leases":
		return runLeases
	case "renew", "rebind":
		return func(ctx context.Context, args []string, std streams) error { return runRenew(ctx, name, args, std) }
	case "release":
		return runRelease
	case "probe":
		return runProbe
	case "doctor":
		return runDoctor
	case "version":
		return func(_ context.Context, _ []string, std streams) error {
			_, err := fmt.Fprintln(std.stdout, build.Version())
			return err
		}
	case "help":
		return func(context.Context, []string, streams) error { return helpError(usage) }
	}
	return nil
}

// run executes the program and returns its exit code.
func run(ctx context.Context, args []string, std streams) int {
	name, args, err := split(args)
	do := commandNamed(name)
	switch {
	case err != nil:
	case do != nil:
		err = do(ctx, args, std)
	case name == "":
		err = usageError{fmt.Errorf("no command\n\n%s", usage)}
	default:
		err = usageError{fmt.Errorf("unknown command %q\n\n%s", name, usage)}
	}
	var help helpError
	var wrong usageError
	var ended exec.CodeExitError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &help):
		_, _ = io.WriteString(std.stdout, string(help))
		return 0
	case errors.As(err, &ended): // it has said itself what is wrong
		return ended.Code
	}
	_, _ = fmt.Fprintf(std.stderr, "kubectl dhcp: %v\n", err)
	if errors.As(err, &wrong) {
		return exitUsage
	}
	return exitFailed
}

// split finds the command among args, and what it is given: flags for a connection may
// stand before it too, as kubectl itself takes them.
func split(args []string) (name string, rest []string, err error) {
	in := newInput("", "")
	in.flags.SetInterspersed(false)
	switch err := in.flags.Parse(args); {
	case errors.Is(err, pflag.ErrHelp):
		return "help", nil, nil
	case err != nil:
		return "", nil, usageError{fmt.Errorf("before the command: %w: its flags come after it (kubectl dhcp -h lists the commands)", err)}
	case in.flags.NArg() == 0:
		return "", nil, nil
	}
	at := len(args) - in.flags.NArg()
	return args[at], slices.Concat(args[:at], args[at+1:]), nil
}

// usageError is an error in what the user wrote.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

// helpError is the text of a -h that somebody asked for.
type helpError string

func (helpError) Error() string { return "help" }
