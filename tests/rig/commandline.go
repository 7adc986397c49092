package rig

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// Ran is what came of a command of dhcp-engine.
type Ran struct {
	Stdout, Stderr string
	Code           int
}

// Command runs dhcp-engine as a person does beside the running one, or instead of
// it. It finds socket and state folder in its environment.
func (e *Engine) Command(t testing.TB, args ...string) Ran {
	t.Helper()
	cmd := exec.Command(Program("dhcp-engine"), args...)
	cmd.Env = append(os.Environ(), "DHCP_ENGINE_SOCKET="+e.Socket, "DHCP_ENGINE_STATE_DIR="+e.StateDir)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		t.Fatalf("dhcp-engine %s: %v", strings.Join(args, " "), err)
	}
	return Ran{stdout.String(), stderr.String(), cmd.ProcessState.ExitCode()}
}

// MustCommand is Command for one that must succeed; it returns standard output.
func (e *Engine) MustCommand(t testing.TB, args ...string) string {
	t.Helper()
	r := e.Command(t, args...)
	if r.Code != 0 {
		t.Fatalf("dhcp-engine %s: exit code %d\n%s%s", strings.Join(args, " "), r.Code, r.Stdout, r.Stderr)
	}
	return r.Stdout
}
