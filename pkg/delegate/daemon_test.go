package delegate

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestEngineArguments(t *testing.T) {
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	const socket, limit, alone = "--dhcp-socket=/run/cni/dhcp.sock", "--dhcp-timeout=3m28s", "--no-kubernetes"
	for _, tt := range []struct {
		name string
		args []string
		node string
		want []string
	}{
		{"OK none", nil, "", []string{"run", socket, limit, alone}},
		{"OK in a cluster", nil, "n1", []string{"run", socket, limit}},
		{"OK all", []string{"-pidfile", "/run/d.pid", "-hostprefix", "/host", "-socketpath", "/a/d.sock", "-broadcast", "-timeout", "2s",
			"-resendmax", "8s", "-resendtimeout", "10s"}, "",
			[]string{"run", "--dhcp-socket=/a/d.sock", "--dhcp-timeout=10s", "--host-prefix=/host", "--pidfile=/run/d.pid", "--dhcp-broadcast", alone}},
		{"OK all with two dashes and =", []string{"--pidfile=/run/d.pid", "--hostprefix=/host", "--socketpath=/a/d.sock", "--broadcast=true",
			"--timeout=2s", "--resendmax=8s", "--resendtimeout=10s"}, "",
			[]string{"run", "--dhcp-socket=/a/d.sock", "--dhcp-timeout=10s", "--host-prefix=/host", "--pidfile=/run/d.pid", "--dhcp-broadcast", alone}},
		{"OK no broadcast", []string{"-broadcast=false"}, "", []string{"run", socket, limit, alone}},
		{"OK empty values are the defaults", []string{"-socketpath", "", "-hostprefix=", "-pidfile="}, "", []string{"run", socket, limit, alone}},
		{"OK a limit that the engine has not", []string{"-resendtimeout", "10h"}, "", []string{"run", socket, "--dhcp-timeout=1h0m0s", alone}},
		{"OK no limit to speak of", []string{"-resendtimeout", "0"}, "", []string{"run", socket, "--dhcp-timeout=1s", alone}},
		{"OK paths from here", []string{"-socketpath", "d.sock"}, "", []string{"run", "--dhcp-socket=" + here + "/d.sock", limit, alone}},
		{"OK a prefix from here", []string{"-hostprefix", "host"}, "", []string{"run", socket, limit, "--host-prefix=" + here + "/host", alone}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := engineArguments(tt.args, func(name string) string {
				if name == "DHCP_ENGINE_NODE_NAME" {
					return tt.node
				}
				return ""
			})
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("arguments (-want +got):\n%s", diff)
			}
		})
	}
	for _, args := range [][]string{{"-socket", "/a"}, {"-resendtimeout", "soon"}, {"-broadcast", "-", "x"}} {
		if got, err := engineArguments(args, os.Getenv); err == nil {
			t.Errorf("%q became %q, want an error", args, got)
		}
	}
}

// TestProcessDaemon: `dhcp daemon` becomes the engine beside it, in its own process:
// systemd and scripts know it by that.
func TestProcessDaemon(t *testing.T) {
	p := newProcess(t, "bin", "dhcp", "")
	run := func(args ...string) (stdout, stderr string, pid int, code int) {
		t.Helper()
		c := exec.Command(filepath.Join(p.path[0], "dhcp"), append([]string{"daemon"}, args...)...)
		c.Env = []string{"DHCP_ENGINE_LOG_LEVEL=debug", "PATH=/usr/bin:/bin"}
		var out, errs bytes.Buffer
		c.Stdout, c.Stderr = &out, &errs
		err := c.Run()
		if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
			t.Fatal(err)
		}
		return out.String(), errs.String(), c.Process.Pid, c.ProcessState.ExitCode()
	}
	if _, stderr, _, code := run(); code != 1 || !strings.Contains(stderr, "find dhcp-engine") || strings.Count(stderr, "\n") != 1 {
		t.Errorf("without an engine: exit code %d, want one line that says so: %s", code, stderr)
	}
	engine := "#!/bin/sh\necho $$ \"$DHCP_ENGINE_LOG_LEVEL\" \"$@\"\nexit 7\n"
	if err := os.WriteFile(filepath.Join(p.path[0], "dhcp-engine"), []byte(engine), 0o755); err != nil {
		t.Fatal(err)
	}
	stdout, stderr, pid, code := run("-socketpath", "/a/d.sock")
	want := fmt.Sprintf("%d debug run --dhcp-socket=/a/d.sock --dhcp-timeout=3m28s --no-kubernetes\n", pid)
	if stdout != want || code != 7 {
		t.Errorf("exit code %d, want 7, %s; output (-want +got):\n%s", code, stderr, cmp.Diff(want, stdout))
	}
	if stdout, stderr, _, code := run("-h"); code != 0 || stdout != "" || !strings.Contains(stderr, "-socketpath") {
		t.Errorf("-h: exit code %d: %s%s", code, stdout, stderr)
	}
	if stdout, stderr, _, code := run("-socket=/a"); code != 2 || stdout != "" || !strings.Contains(stderr, "-socket") {
		t.Errorf("unknown flag: exit code %d: %s%s", code, stdout, stderr)
	}
}

// TestProcessDaemonOfOtherName: only a program of the name dhcp has a daemon.
func TestProcessDaemonOfOtherName(t *testing.T) {
	p := newProcess(t, "bin", pluginName, "")
	c := exec.Command(filepath.Join(p.path[0], pluginName), "daemon")
	c.Env = []string{"PATH=/usr/bin:/bin"}
	if out, _ := c.CombinedOutput(); strings.Contains(string(out), "dhcp daemon:") {
		t.Errorf("became the daemon: %s", out)
	}
}
