package delegate

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/containernetworking/cni/pkg/types"
)

// Exec finds and runs plugins. It is the part of cni's invoke.Exec that is used
// here. Its own implementation is not: it links a tracing library, and the time
// for that is paid at every start of the program.
type Exec interface {
	// FindInPath returns the path of the plugin in the first of the folders that
	// has it.
	FindInPath(plugin string, paths []string) (string, error)
	// ExecPlugin runs a plugin and returns its standard output. What the plugin
	// says of its failure is the error, as the *types.Error that it printed.
	ExecPlugin(ctx context.Context, pluginPath string, stdin []byte, environ []string) ([]byte, error)
}

const (
	// killDelay is the time between SIGTERM, when ctx ends, and SIGKILL.
	killDelay = 2 * time.Second
	// busyRetries and busyDelay are for a plugin that is being installed by
	// writing into its file, which cannot be executed meanwhile.
	busyRetries = 10
	busyDelay   = 100 * time.Millisecond
)

// programs is the Exec of real plugins.
type programs struct{}

var _ Exec = programs{}

func (programs) FindInPath(plugin string, paths []string) (string, error) {
	if plugin == "" || strings.ContainsRune(plugin, filepath.Separator) {
		return "", fmt.Errorf("%q is no name of a plugin", plugin)
	}
	for _, dir := range paths {
		path := filepath.Join(dir, plugin)
		if fi, err := os.Stat(path); err == nil && fi.Mode().IsRegular() {
			return path, nil
		}
	}
	return "", fmt.Errorf("find plugin %s: it is in none of the folders searched: %q", plugin, paths)
}

func (programs) ExecPlugin(ctx context.Context, pluginPath string, stdin []byte, environ []string) ([]byte, error) {
	var stdout, stderr bytes.Buffer
	for try := 0; ; try++ {
		stdout.Reset()
		stderr.Reset()
		c := exec.CommandContext(ctx, pluginPath)
		c.Env, c.Stdin, c.Stdout, c.Stderr = environ, bytes.NewReader(stdin), &stdout, &stderr
		c.Cancel = func() error { return c.Process.Signal(syscall.SIGTERM) }
		c.WaitDelay = killDelay
		err := c.Run()
		if err == nil {
			_, _ = stderr.WriteTo(os.Stderr)
			return stdout.Bytes(), nil
		}
		if !errors.Is(err, syscall.ETXTBSY) || try == busyRetries {
			return nil, failure(ctx, pluginPath, err, &stdout, &stderr)
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("run %s: %w", pluginPath, ctx.Err())
		case <-time.After(busyDelay):
		}
	}
}

// failure is why a plugin did not do its work, in its own words where it has
// any: the error that it printed, untouched, or else what it wrote to standard
// error.
func failure(ctx context.Context, path string, err error, stdout, stderr *bytes.Buffer) error {
	if ctx.Err() != nil {
		return fmt.Errorf("run %s: %w (%v)", path, ctx.Err(), err)
	}
	var e types.Error
	if json.Unmarshal(stdout.Bytes(), &e) == nil && (e.Code != 0 || e.Msg != "") {
		// CNI has a delegate's standard error go out on ours.
		_, _ = stderr.WriteTo(os.Stderr)
		return &e
	}
	said := strings.TrimSpace(stderr.String())
	if said == "" {
		said = strings.TrimSpace(stdout.String())
	}
	if said == "" {
		return fmt.Errorf("run %s: %w, and it said nothing", path, err)
	}
	return fmt.Errorf("run %s: %w: %q", path, err, said)
}
