package delegate

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"

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
// Started under the name of another plugin, it becomes that plugin, by execve,
// for every network that is not ours.
func Main(ctx context.Context, argv0 string) int {
	ctx, cancel := context.WithTimeout(ctx, verbLimit)
	defer cancel()
	dir, err := ownFolder(argv0)
	if err != nil {
		return fail(coded(err), nil)
	}
	p := &Plugin{
		Name:    filepath.Base(argv0),
		Dir:     dir,
		Environ: os.Environ(),
		Exec:    programs{},
		Dial:    func(socket string) Engine { return api.Client{Socket: socket} },
		Stdout:  os.Stdout,
	}
	if p.Name != pluginName {
		// It returns when the network is ours.
		if err := standAside(p.Name, p.Dir); err != nil {
			return fail(coded(err), nil)
		}
	}
	if err := skel.PluginMainFuncsWithError(p.Funcs(ctx), Versions(), about); err != nil {
		return fail(err, p.remarks)
	}
	if len(p.remarks) > 0 {
		fmt.Fprintln(os.Stderr, line("done, but", p.remarks))
	}
	return 0
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
	id := api.AttachmentID{ContainerID: os.Getenv("CNI_CONTAINERID"), IfName: os.Getenv("CNI_IFNAME")}
	if id != (api.AttachmentID{}) {
		verb += " " + id.String()
	}
	text := fmt.Sprintf("%s: %s %s %s", pluginName, verb, outcome, strings.Join(words, "; "))
	return strings.Join(strings.Fields(text), " ")
}
