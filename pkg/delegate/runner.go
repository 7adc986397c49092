package delegate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"strings"

	current "github.com/containernetworking/cni/pkg/types/100"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine/api"
)

// runner runs the verbs of one delegate with one configuration.
type runner struct {
	exec    Exec
	environ []string
	// path is the program, find where it is when it is there no longer, conf what it
	// gets on standard input, version the CNI version of conf.
	path    string
	find    func() (string, error)
	conf    object
	version string
}

// runner finds the delegate of c. Nothing runs yet.
func (p *Plugin) runner(c conf, cniPath string) (runner, error) {
	find := func() (string, error) { return p.find(c, cniPath) }
	path, err := find()
	if err != nil {
		return runner{}, api.WithCode(api.CodeConfig, err)
	}
	return runner{exec: p.Exec, environ: p.Environ, path: path, find: find, conf: c.delegate, version: c.version}, nil
}

// add runs ADD and returns the delegate's result.
func (r runner) add(ctx context.Context, prevResult json.RawMessage) (*current.Result, error) {
	out, err := r.run(ctx, "ADD", prevResult)
	if err != nil {
		return nil, err
	}
	result, err := decodeResult(out, r.version)
	if err != nil {
		return nil, fmt.Errorf("result of %s: %w", r.path, err)
	}
	return result, nil
}

// run runs a verb and returns what the delegate printed.
func (r runner) run(ctx context.Context, verb string, prevResult json.RawMessage) ([]byte, error) {
	in, err := stdin(r.conf, prevResult)
	if err != nil {
		return nil, fmt.Errorf("encode the configuration of %s: %w", r.path, err)
	}
	for try := 0; ; try++ {
		out, err := r.exec.ExecPlugin(ctx, r.path, in, withCommand(r.environ, verb))
		if !errors.Is(err, fs.ErrNotExist) || try == movedRetries {
			return out, err
		}
		// An installer has moved it since it was found.
		path, lost := r.find()
		if lost != nil {
			return nil, err
		}
		r.path = path
	}
}

const movedRetries = 10

// withCommand is our own environment with the verb of the delegate, which is
// another one when an ADD is undone by a DEL.
func withCommand(environ []string, verb string) []string {
	const key = "CNI_COMMAND="
	out := make([]string, 0, len(environ)+1)
	for _, kv := range environ {
		if !strings.HasPrefix(kv, key) {
			out = append(out, kv)
		}
	}
	return append(out, key+verb)
}
