package rig

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
)

// Call is one execution of dhcp-meta as a container runtime makes it.
type Call struct {
	ContainerID string
	IfName      string
	// Netns is CNI_NETNS, a path.
	Netns string
	// Args is CNI_ARGS.
	Args string
	// Conf is the network configuration; a []byte goes as it is, everything else
	// as JSON.
	Conf any
	// Path is CNI_PATH; empty: the reference plugins.
	Path string
}

// Outcome is what came of a call.
type Outcome struct {
	// Result is the result of a successful ADD, nil otherwise.
	Result *current.Result
	// Err is the CNI error that the plugin printed, nil on success.
	Err *types.Error
	// Stdout and Stderr are what it wrote.
	Stdout, Stderr string
	Took           time.Duration
}

// CNI executes dhcp-meta in the node's namespace with a CNI verb. It may be called
// from any goroutine: it never ends the test.
func (n *Netns) CNI(verb string, c Call) (Outcome, error) {
	cmd, stdout, stderr, err := n.command(verb, c)
	if err != nil {
		return Outcome{}, err
	}
	begin := time.Now()
	if err := n.Do(cmd.Start); err != nil {
		return Outcome{}, err
	}
	err = cmd.Wait()
	o := Outcome{Stdout: stdout.String(), Stderr: stderr.String(), Took: time.Since(begin)}
	if exit := new(exec.ExitError); errors.As(err, &exit) {
		o.Err = new(types.Error)
		if err := json.Unmarshal(stdout.Bytes(), o.Err); err != nil {
			return o, errors.Join(errors.New("a failed plugin printed no CNI error: "+o.Stdout+o.Stderr), err)
		}
		return o, nil
	}
	if err != nil {
		return o, err
	}
	if verb == "ADD" {
		o.Result = new(current.Result)
		if err := json.Unmarshal(stdout.Bytes(), o.Result); err != nil {
			return o, errors.Join(errors.New("the plugin printed no CNI result: "+o.Stdout), err)
		}
	}
	return o, nil
}

// command is the execution of a call that has not been started.
func (n *Netns) command(verb string, c Call) (cmd *exec.Cmd, stdout, stderr *bytes.Buffer, err error) {
	conf, ok := c.Conf.([]byte)
	if !ok {
		if conf, err = json.Marshal(c.Conf); err != nil {
			return nil, nil, nil, err
		}
	}
	path := c.Path
	if path == "" {
		path = Plugins()
	}
	cmd = exec.Command(Program("dhcp-meta"))
	cmd.Env = append(os.Environ(),
		"CNI_COMMAND="+verb,
		"CNI_CONTAINERID="+c.ContainerID,
		"CNI_IFNAME="+c.IfName,
		"CNI_NETNS="+c.Netns,
		"CNI_ARGS="+c.Args,
		"CNI_PATH="+path,
	)
	stdout, stderr = new(bytes.Buffer), new(bytes.Buffer)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(conf), stdout, stderr
	return cmd, stdout, stderr, nil
}

// Add executes ADD, which must succeed.
func (n *Netns) Add(t testing.TB, c Call) Outcome {
	t.Helper()
	return n.must(t, "ADD", c)
}

// Del executes DEL, which must succeed.
func (n *Netns) Del(t testing.TB, c Call) Outcome {
	t.Helper()
	return n.must(t, "DEL", c)
}

// Check executes CHECK with result as prevResult, and must succeed.
func (n *Netns) Check(t testing.TB, c Call, result *current.Result) Outcome {
	t.Helper()
	return n.must(t, "CHECK", c.WithPrev(t, result))
}

func (n *Netns) must(t testing.TB, verb string, c Call) Outcome {
	t.Helper()
	o, err := n.CNI(verb, c)
	if err != nil {
		t.Fatalf("%s %s: %v", verb, c.ContainerID, err)
	}
	if o.Err != nil {
		t.Fatalf("%s %s: %v\n%s", verb, c.ContainerID, o.Err, o.Stderr)
	}
	return o
}

// Refuse executes a verb that must fail, with the CNI code, and with each of the
// words in its message.
func (n *Netns) Refuse(t testing.TB, verb string, c Call, code uint, words ...string) Outcome {
	t.Helper()
	o, err := n.CNI(verb, c)
	if err != nil {
		t.Fatalf("%s %s: %v", verb, c.ContainerID, err)
	}
	if o.Err == nil {
		t.Fatalf("%s %s succeeded, want CNI code %d:\n%s", verb, c.ContainerID, code, o.Stdout)
	}
	if o.Err.Code != code {
		t.Errorf("%s: CNI code %d, want %d: %v", verb, o.Err.Code, code, o.Err)
	}
	for _, word := range words {
		if !strings.Contains(o.Err.Msg+" "+o.Err.Details, word) {
			t.Errorf("%s: the error does not say %q: %q, details %q", verb, word, o.Err.Msg, o.Err.Details)
		}
	}
	return o
}

// WithPrev returns the call with result as prevResult, as CHECK and chained
// plugins get it. The configuration must be a map.
func (c Call) WithPrev(t testing.TB, result *current.Result) Call {
	t.Helper()
	conf, ok := c.Conf.(map[string]any)
	if !ok {
		t.Fatalf("a prevResult needs a configuration that is a map, not %T", c.Conf)
	}
	with := map[string]any{"prevResult": result}
	for k, v := range conf {
		with[k] = v
	}
	c.Conf = with
	return c
}
