package main

import (
	"bytes"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestUnknownVariables(t *testing.T) {
	// What the kubelet tells of a Service dhcp-engine and of another one whose name
	// begins so.
	services := map[string]string{
		"DHCP_ENGINE_SERVICE_HOST": "10.96.0.9", "DHCP_ENGINE_SERVICE_PORT": "9767", "DHCP_ENGINE_SERVICE_PORT_HTTP_METRICS": "9767",
		"DHCP_ENGINE_PORT": "tcp://10.96.0.9:9767", "DHCP_ENGINE_PORT_9767_TCP": "tcp://10.96.0.9:9767",
		"DHCP_ENGINE_PORT_9767_TCP_PROTO": "tcp", "DHCP_ENGINE_PORT_9767_TCP_PORT": "9767", "DHCP_ENGINE_PORT_9767_TCP_ADDR": "10.96.0.9",
		"DHCP_ENGINE_METRICS_SERVICE_HOST": "10.96.0.10", "DHCP_ENGINE_METRICS_SERVICE_PORT": "1", "DHCP_ENGINE_METRICS_PORT": "udp://10.96.0.10:1",
		"DHCP_ENGINE_METRICS_PORT_1_UDP": "udp://10.96.0.10:1", "DHCP_ENGINE_METRICS_PORT_1_UDP_ADDR": "10.96.0.10",
	}
	for _, tt := range []struct {
		name string
		env  map[string]string
		want string // empty: no error
	}{
		{"OK of other commands", map[string]string{"DHCP_ENGINE_BIN_DIR": "/opt/cni/bin", "DHCP_ENGINE_MODE": "plain"}, ""},
		{"OK others' variables", map[string]string{"DHCP_SOCKET": "x", "PATH": "/bin", "MY_DHCP_ENGINE_SOCKET": "x", "DHCP_ENGINE": "x"}, ""},
		{"OK an empty one is none", map[string]string{"DHCP_ENGINE_PROTECTED_NETWROK": ""}, ""},
		{"OK Services", services, ""},
		{"bad letters exchanged", map[string]string{"DHCP_ENGINE_PROTECTED_NETWROK": "10.0.0.0/8"},
			"run: DHCP_ENGINE_PROTECTED_NETWROK: unknown variable; is DHCP_ENGINE_PROTECTED_NETWORK meant?"},
		{"bad plural", map[string]string{"DHCP_ENGINE_PROTECTED_NETWORKS": "10.0.0.0/8"},
			"run: DHCP_ENGINE_PROTECTED_NETWORKS: unknown variable; is DHCP_ENGINE_PROTECTED_NETWORK meant?"},
		{"bad short one", map[string]string{"DHCP_ENGINE_MODUS": "plain"}, "run: DHCP_ENGINE_MODUS: unknown variable; dhcp-engine run -h lists those of the engine"},
		{"bad small letters", map[string]string{"DHCP_ENGINE_log_level": "debug"}, "run: DHCP_ENGINE_log_level: unknown variable; is DHCP_ENGINE_LOG_LEVEL meant?"},
		{"bad like nothing", map[string]string{"DHCP_ENGINE_COLOUR": "red"}, "run: DHCP_ENGINE_COLOUR: unknown variable; dhcp-engine run -h lists those of the engine"},
		{"bad like a Service's, without one", map[string]string{"DHCP_ENGINE_METRICS_PORT": "9767"},
			"run: DHCP_ENGINE_METRICS_PORT: unknown variable; dhcp-engine run -h lists those of the engine"},
		{"bad beside Services", map[string]string{"DHCP_ENGINE_SERVICE_HOST": "10.96.0.9", "DHCP_ENGINE_PORT_RANGE": "1"},
			"run: DHCP_ENGINE_PORT_RANGE: unknown variable; dhcp-engine run -h lists those of the engine"},
		{"bad beside other problems", map[string]string{"DHCP_ENGINE_SOKET": "/s", "DHCP_ENGINE_LOGLEVEL": "info", "DHCP_ENGINE_STATE_DIR": "state"}, strings.Join([]string{
			"run: 3 problems:",
			"DHCP_ENGINE_LOGLEVEL: unknown variable; is DHCP_ENGINE_LOG_LEVEL meant?",
			"DHCP_ENGINE_SOKET: unknown variable; is DHCP_ENGINE_SOCKET meant?",
			`DHCP_ENGINE_STATE_DIR: "state" is no absolute path`,
		}, "\n")},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := parseConfig([]string{"--no-kubernetes"}, environment(tt.env))
			got := ""
			if err != nil {
				got = err.Error()
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("error (-want +got):\n%s", diff)
			}
		})
	}
}

// commandNames are the commands that have flags, each with the operands that it wants.
func commandNames(t *testing.T) map[string][]string {
	t.Helper()
	names := map[string][]string{}
	for _, m := range regexp.MustCompile(`(?m)^  dhcp-engine (\w+)(?: \[flags\])?( ID| FILE)?`).FindAllStringSubmatch(usage, -1) {
		switch {
		case m[1] == "version":
		case m[2] != "":
			names[m[1]] = []string{"x"}
		default:
			names[m[1]] = nil
		}
	}
	if len(names) < 10 {
		t.Fatalf("commands of the usage text: %v", names)
	}
	return names
}

// Every command refuses a variable that is none, before it does anything, and tells of
// its flags all the same.
func TestUnknownVariableOfEveryCommand(t *testing.T) {
	wrong := environment(map[string]string{"DHCP_ENGINE_SOKET": "/nowhere"})
	for name, operands := range commandNames(t) {
		var stdout, stderr bytes.Buffer
		if code := run(t.Context(), append([]string{name}, operands...), wrong, &stdout, &stderr); code != exitUsage || !strings.Contains(stderr.String(), "DHCP_ENGINE_SOKET: unknown variable; is DHCP_ENGINE_SOCKET meant?") {
			t.Errorf("%s: exit code %d, standard error:\n%s", name, code, &stderr)
		}
		stdout.Reset()
		if code := run(t.Context(), []string{name, "-h"}, wrong, &stdout, &stderr); code != exitOK || !strings.HasPrefix(stdout.String(), "Usage: ") {
			t.Errorf("%s -h: exit code %d:\n%s", name, code, &stdout)
		}
	}
}

// The known variables are those of the commands' helps, no more and no fewer, and none
// can be mistaken for one of a Service, whatever that is called.
func TestKnownVariables(t *testing.T) {
	var helps []string
	for name := range commandNames(t) {
		var stdout, stderr bytes.Buffer
		if code := run(t.Context(), []string{name, "-h"}, nil, &stdout, &stderr); code != exitOK {
			t.Fatalf("%s -h: exit code %d: %s", name, code, &stderr)
		}
		for _, m := range regexp.MustCompile(`\((`+variablePrefix+`\w+)\)`).FindAllStringSubmatch(stdout.String(), -1) {
			helps = append(helps, m[1])
		}
	}
	slices.Sort(helps)
	known := knownVariables()
	if diff := cmp.Diff(slices.Compact(helps), known); diff != "" {
		t.Errorf("variables (-help +known):\n%s", diff)
	}
	for _, name := range known {
		for at, r := range name {
			if r == '_' && at >= len("DHCP_ENGINE") && ofService([]string{name[:at]}, name) {
				t.Errorf("%s is what Kubernetes says of a Service %s", name, strings.ReplaceAll(strings.ToLower(name[:at]), "_", "-"))
			}
		}
	}
}
