package delegate

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/dhcp-meta/dhcp-meta/pkg/delegate/aside"
	"github.com/dhcp-meta/dhcp-meta/pkg/engine/api"
)

// verbLimit is the time for one verb. Runtimes kill a plugin after 120 s; the
// rest is for taking back what an ADD began.
const verbLimit = 110 * time.Second

// about is what a person sees who starts the program without CNI_COMMAND.
const about = "CNI plugin dhcp-meta: wraps another plugin and gets its interface an address from the site's DHCP server"

// Main serves the call that the environment and standard input hold, and returns
// the exit code. Its standard output is that of a CNI plugin; a failure adds one
// line to standard error. When ctx ends, the verb ends early, and an ADD is
// taken back first.
//
// args are those of the process. Started under the name of another plugin it
// becomes that plugin, by execve, for every network that is not ours: o is what
// package early has found out about that.
func Main(ctx context.Context, args []string, o aside.Outcome) int {
	ctx, cancel := context.WithTimeout(ctx, verbLimit)
	defer cancel()
	program, ok := aside.NewProgram(args)
	if !ok {
		return fail(coded(errors.New("find own folder: neither argument 0 nor /proc/self/exe tells it")), nil)
	}
	if runsDaemon(program, args) {
		return runDaemon(program, args[2:])
	}
	p := &Plugin{
		Name:    program.Name,
		Dir:     program.Dir,
		Environ: os.Environ(),
		Exec:    programs{},
		Dial:    func(socket string) Engine { return api.Client{Socket: socket} },
		Look:    lookInto,
		SysFS:   "/sys",
		Stdout:  os.Stdout,
	}
	if o.Way == aside.Undecided {
		o = aside.Run(program)
	}
	switch o.Way {
	case aside.SettlePassed:
		p.settlePassed(ctx, attachmentOfProcess())
		if len(p.remarks) > 0 {
			fmt.Fprintln(os.Stderr, line("goes on, but", p.remarks))
		}
		return fail(foreign(program.Become()), nil)
	case aside.Failed:
		return fail(foreign(o.Err), nil)
	}
	funcs, versions, words := p.Funcs(ctx), Versions(), about
	if p.Name == aside.IPAMName {
		funcs, versions, words = p.ipamFuncs(ctx), version.All, aboutIPAM
	}
	if err := skel.PluginMainFuncsWithError(funcs, versions, words); err != nil {
		return fail(err, p.remarks)
	}
	if len(p.remarks) > 0 {
		fmt.Fprintln(os.Stderr, line("done, but", p.remarks))
	}
	return 0
}

// foreign is an error of package aside with its code.
func foreign(e *aside.Error) error { return types.NewError(e.Code, e.Error(), "") }

func attachmentOfProcess() api.AttachmentID {
	return api.AttachmentID{ContainerID: os.Getenv("CNI_CONTAINERID"), IfName: os.Getenv("CNI_IFNAME")}
}

// fail prints an error for the runtime and, in one line, for people.
func fail(err error, remarks []string) int {
	e, ok := err.(*types.Error)
	if !ok {
		e = types.NewError(types.ErrInternal, err.Error(), "")
	}
	words := append([]string{e.Error()}, remarks...)
	fmt.Fprintln(os.Stderr, line(fmt.Sprintf("failed with code %d:", e.Code), words))
	if err := e.Print(); err != nil {
		fmt.Fprintln(os.Stderr, line("print the error:", []string{err.Error()}))
	}
	return 1
}

// line is a line for standard error: who did what for which attachment, and what
// came of it. Messages of others may hold line breaks.
func line(outcome string, words []string) string {
	verb := os.Getenv("CNI_COMMAND")
	id := attachmentOfProcess()
	if id != (api.AttachmentID{}) {
		verb += " " + id.String()
	}
	text := fmt.Sprintf("%s: %s %s %s", pluginName, verb, outcome, strings.Join(words, "; "))
	return strings.Join(strings.Fields(text), " ")
}
