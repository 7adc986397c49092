package main

import (
	"errors"
	"flag"
	"log/slog"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/dhcp-meta/dhcp-meta/pkg/sriov"
)

func environment(vars map[string]string) variables {
	var v variables
	for name, value := range vars {
		v = append(v, name+"="+value)
	}
	return v
}

func TestParseConfig(t *testing.T) {
	defaults := func(f func(*config)) config {
		c := config{
			stateDir: "/var/lib/dhcp-meta", socket: "/run/dhcp-meta/engine.sock",
			netnsRoots:          []string{"/run/netns", "/var/run/netns", "/proc"},
			exchangesPerNetwork: 16, startupSpread: 10 * time.Second,
			logLevel: slog.LevelInfo, logFormat: "text", vfio: vfioConfig{window: 20 * time.Second},
		}
		if f != nil {
			f(&c)
		}
		return c
	}
	all := func(c *config) {
		*c = config{
			stateDir: "/state", socket: "/s", metricsAddress: "127.0.0.1:9100",
			netnsRoots: []string{"/a", "/b"}, logLevel: slog.LevelDebug, logFormat: "json",
			protected:           []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("10.96.0.0/12")},
			exchangesPerNetwork: 1000, startupSpread: 10 * time.Minute, vfio: vfioConfig{window: 20 * time.Second},
		}
	}
	inCluster := func(f func(*config)) config {
		return defaults(func(c *config) {
			c.kubernetes = kubernetesConfig{on: true, node: "n1", leaseObjects: true}
			c.northbound.address = "auto"
			if f != nil {
				f(c)
			}
		})
	}
	for _, tt := range []struct {
		name string
		args []string
		env  map[string]string
		want config
	}{
		{"OK defaults", []string{"--no-kubernetes"}, nil, defaults(nil)},
		{"OK all by flags", []string{"--no-kubernetes", "--state-dir=/state", "--socket", "/s", "--metrics-address=127.0.0.1:9100",
			"--netns-root=/a", "--netns-root=/b", "--protected-network=10.244.0.0/16", "--protected-network", "10.96.0.0/12",
			"--exchanges-per-network=1000", "--startup-spread=10m", "--log-level=debug", "--log-format=json"}, nil, defaults(all)},
		{"OK all by environment", nil, map[string]string{
			"DHCP_ENGINE_NO_KUBERNETES": "true", "DHCP_ENGINE_STATE_DIR": "/state", "DHCP_ENGINE_SOCKET": "/s",
			"DHCP_ENGINE_METRICS_ADDRESS": "127.0.0.1:9100", "DHCP_ENGINE_NETNS_ROOT": "/a:/b",
			"DHCP_ENGINE_PROTECTED_NETWORK": "10.244.0.0/16:10.96.0.0/12", "DHCP_ENGINE_EXCHANGES_PER_NETWORK": "1000",
			"DHCP_ENGINE_STARTUP_SPREAD": "600s", "DHCP_ENGINE_LOG_LEVEL": "debug", "DHCP_ENGINE_LOG_FORMAT": "json",
		}, defaults(all)},
		{"OK a flag wins, whatever its variable says", []string{"--no-kubernetes", "--socket=/flag", "--netns-root=/a", "--log-level=warn"}, map[string]string{
			"DHCP_ENGINE_SOCKET": "/env", "DHCP_ENGINE_NETNS_ROOT": "/b", "DHCP_ENGINE_LOG_LEVEL": "nonsense", "DHCP_ENGINE_NO_KUBERNETES": "nonsense",
		}, defaults(func(c *config) { c.socket, c.netnsRoots, c.logLevel = "/flag", []string{"/a"}, slog.LevelWarn })},
		{"OK an empty variable is none", []string{"--no-kubernetes"}, map[string]string{"DHCP_ENGINE_SOCKET": "", "DHCP_ENGINE_NETNS_ROOT": ""}, defaults(nil)},
		{"OK metrics off, any address, any port", []string{"--no-kubernetes", "--metrics-address=:0"}, map[string]string{"DHCP_ENGINE_METRICS_ADDRESS": "off"},
			defaults(func(c *config) { c.metricsAddress = ":0" })},
		{"OK in a pod", []string{"--node-name=n1"}, nil, inCluster(nil)},
		{"OK in a pod, by the variable, no OVN", []string{"--ovn-nb=off"}, map[string]string{"DHCP_ENGINE_NODE_NAME": "n1"}, inCluster(func(c *config) {
			c.northbound = northboundConfig{}
		})},
		{"OK a cluster from outside", []string{"--node-name=n1", "--kubeconfig=/k", "--ovn-nb=ssl:10.0.0.1:6641,ssl:[fd00::1]:6641",
			"--ovn-nb-ca=/ca", "--ovn-nb-cert=/cert", "--ovn-nb-key=/key"}, nil, inCluster(func(c *config) {
			c.kubernetes.kubeconfig = "/k"
			c.northbound = northboundConfig{"ssl:10.0.0.1:6641,ssl:[fd00::1]:6641", "/ca", "/cert", "/key"}
		})},
		{"OK no objects", []string{"--node-name=n1", "--ovn-nb=off"}, map[string]string{"DHCP_ENGINE_LEASE_OBJECTS": "false"}, inCluster(func(c *config) {
			c.kubernetes.leaseObjects = false
			c.northbound = northboundConfig{}
		})},
		{"OK devices", []string{"--no-kubernetes", "--vfio-window=5s", "--vfio-allow=8086:154C,15b3:101e,8086:154c"}, map[string]string{"DHCP_ENGINE_VFIO_DENY": "8086:10ca"},
			defaults(func(c *config) {
				c.vfio = vfioConfig{5 * time.Second, sriov.Policy{
					Allow: []sriov.ID{{Vendor: 0x8086, Device: 0x154c}, {Vendor: 0x15b3, Device: 0x101e}},
					Deny:  []sriov.ID{{Vendor: 0x8086, Device: 0x10ca}},
				}}
			})},
		{"OK one exchange at once, no spread", []string{"--no-kubernetes", "--exchanges-per-network=1", "--startup-spread=0"}, nil,
			defaults(func(c *config) { c.exchangesPerNetwork, c.startupSpread = 1, 0 })},
		{"OK no protected networks, whatever the variable says", []string{"--no-kubernetes", "--protected-network=none"},
			map[string]string{"DHCP_ENGINE_PROTECTED_NETWORK": "10.0.0.0/8"}, defaults(nil)},
		{"OK a protected network twice is one", []string{"--no-kubernetes", "--protected-network=10.0.0.0/8", "--protected-network=10.0.0.0/8"}, nil,
			defaults(func(c *config) { c.protected = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")} })},
		{"OK in the place of the dhcp daemon", []string{"--no-kubernetes", "--dhcp-socket=/run/cni/dhcp.sock", "--host-prefix=/host/", "--dhcp-timeout=10s",
			"--dhcp-broadcast", "--dhcp-networks=/n.json", "--pidfile=/p"}, nil, defaults(func(c *config) {
			c.pidFile = "/p"
			c.dropIn = dropInConfig{socket: "/host/run/cni/dhcp.sock", hostPrefix: "/host", timeout: 10 * time.Second, broadcast: true, networks: "/n.json"}
		})},
		{"OK in the place of the dhcp daemon, by environment", []string{"--no-kubernetes"}, map[string]string{
			"DHCP_ENGINE_DHCP_SOCKET": "/run/cni/dhcp.sock", "DHCP_ENGINE_HOST_PREFIX": "/host", "DHCP_ENGINE_DHCP_TIMEOUT": "10s",
			"DHCP_ENGINE_DHCP_BROADCAST": "true", "DHCP_ENGINE_DHCP_NETWORKS": "/n.json", "DHCP_ENGINE_PIDFILE": "/p",
		}, defaults(func(c *config) {
			c.pidFile = "/p"
			c.dropIn = dropInConfig{socket: "/host/run/cni/dhcp.sock", hostPrefix: "/host", timeout: 10 * time.Second, broadcast: true, networks: "/n.json"}
		})},
		{"OK the host's root is ours", []string{"--no-kubernetes", "--dhcp-socket=/d", "--host-prefix=/"}, nil,
			defaults(func(c *config) { c.dropIn = dropInConfig{socket: "/d", timeout: 110 * time.Second} })},
		{"OK longest socket", []string{"--no-kubernetes", "--socket=/" + strings.Repeat("x", 106)}, nil,
			defaults(func(c *config) { c.socket = "/" + strings.Repeat("x", 106) })},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := parseConfig(tt.args, environment(tt.env))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, got, cmp.AllowUnexported(config{}, kubernetesConfig{}, northboundConfig{}, vfioConfig{}, dropInConfig{}),
				cmpopts.EquateComparable(netip.Prefix{}), cmpopts.IgnoreFields(config{}, "changed")); diff != "" {
				t.Errorf("config (-want +got):\n%s", diff)
			}
		})
	}
}

func TestParseConfigBad(t *testing.T) {
	for _, tt := range []struct {
		name string
		args []string
		env  map[string]string
		want string
	}{
		{"bad no node", nil, nil, "run: --node-name: is missing: which pods are this node's? (or say --no-kubernetes)"},
		{"bad mode switched off", []string{"--no-kubernetes=false"}, nil, "run: --node-name: is missing: which pods are this node's? (or say --no-kubernetes)"},
		{"bad cluster that is not wanted", []string{"--no-kubernetes", "--kubeconfig=/k", "--ovn-nb=unix:/s"}, nil, strings.Join([]string{
			"run: 2 problems:",
			"--kubeconfig: has no use with --no-kubernetes",
			"--ovn-nb: has no use with --no-kubernetes",
		}, "\n")},
		{"bad kubeconfig", []string{"--node-name=n1", "--kubeconfig=k"}, nil, `run: --kubeconfig: "k" is no absolute path`},
		{"bad databases", []string{"--node-name=n1", "--ovn-nb=10.0.0.1:6641,unix:s,tcp:10.0.0.1", "--ovn-nb-ca=ca"}, nil, strings.Join([]string{
			"run: 4 problems:",
			`--ovn-nb-ca: "ca" is no absolute path`,
			`--ovn-nb: "10.0.0.1:6641" is none of auto, off, unix:PATH, tcp:HOST:PORT, ssl:HOST:PORT`,
			`--ovn-nb: "unix:s": unix: needs an absolute path`,
			`--ovn-nb: "tcp:10.0.0.1": tcp: needs host:port`,
		}, "\n")},
		{"bad database without certificates", []string{"--node-name=n1", "--ovn-nb=ssl:10.0.0.1:6641", "--ovn-nb-ca=/ca"}, nil,
			"run: --ovn-nb: ssl: needs --ovn-nb-ca, --ovn-nb-cert and --ovn-nb-key"},
		{"bad wish for objects", []string{"--no-kubernetes", "--lease-objects=no thanks"}, nil, `run: --lease-objects: "no thanks" is neither true nor false`},
		{"bad window", []string{"--no-kubernetes", "--vfio-window=2m"}, nil, `run: --vfio-window: "2m" is no duration from 5s to 1m0s`},
		{"bad devices", []string{"--no-kubernetes", "--vfio-allow=8086", "--vfio-deny="}, nil, strings.Join([]string{
			"run: 2 problems:",
			`--vfio-allow: "8086" is no vendor:device of four hexadecimal digits each, such as 8086:154c`,
			`--vfio-deny: "" is no vendor:device of four hexadecimal digits each, such as 8086:154c`,
		}, "\n")},
		{"bad unknown flag", []string{"--no-kubernetes", "--colour"}, nil, "run: flag provided but not defined: -colour (dhcp-engine run -h lists the flags)"},
		{"bad argument", []string{"--no-kubernetes", "now"}, nil, `run: unexpected argument "now"`},
		{"bad socket too long", []string{"--no-kubernetes", "--socket=/" + strings.Repeat("x", 107)}, nil,
			`run: --socket: "/` + strings.Repeat("x", 107) + `" has 108 bytes, a socket's path at most 107`},
		{"bad empty by flag", []string{"--no-kubernetes", "--state-dir="}, nil, `run: --state-dir: "" is no absolute path`},
		{"bad root in the variable", []string{"--no-kubernetes"}, map[string]string{"DHCP_ENGINE_NETNS_ROOT": "/run/netns:"}, `run: DHCP_ENGINE_NETNS_ROOT: "" is no absolute path`},
		{"bad metrics port", []string{"--no-kubernetes", "--metrics-address=:http"}, nil, `run: --metrics-address: ":http": port "http" is no number up to 65535`},
		{"bad protected networks", []string{"--no-kubernetes", "--protected-network=10.244.0.1/16", "--protected-network=none", "--protected-network=fd00::/8"}, nil, strings.Join([]string{
			"run: 3 problems:",
			"--protected-network: 10.244.0.1/16 has bits behind its mask; is 10.244.0.0/16 meant?",
			`--protected-network: "none" is no IPv4 prefix such as 10.244.0.0/16`,
			`--protected-network: "fd00::/8" is no IPv4 prefix such as 10.244.0.0/16`,
		}, "\n")},
		{"bad protected networks with commas", []string{"--no-kubernetes"}, map[string]string{"DHCP_ENGINE_PROTECTED_NETWORK": "10.0.0.0/8,11.0.0.0/8"},
			`run: DHCP_ENGINE_PROTECTED_NETWORK: "10.0.0.0/8,11.0.0.0/8" is no IPv4 prefix such as 10.244.0.0/16; a variable has colons between several`},
		{"bad empty protected network", []string{"--no-kubernetes", "--protected-network="}, nil, `run: --protected-network: "" is no IPv4 prefix such as 10.244.0.0/16`},
		{"bad no exchange at all", []string{"--no-kubernetes", "--exchanges-per-network=0"}, nil, `run: --exchanges-per-network: "0" is no number from 1 to 1000`},
		{"bad too many exchanges", []string{"--no-kubernetes", "--exchanges-per-network=1001"}, nil, `run: --exchanges-per-network: "1001" is no number from 1 to 1000`},
		{"bad number of exchanges", []string{"--no-kubernetes"}, map[string]string{"DHCP_ENGINE_EXCHANGES_PER_NETWORK": "1e2"},
			`run: DHCP_ENGINE_EXCHANGES_PER_NETWORK: "1e2" is no number from 1 to 1000`},
		{"bad negative spread", []string{"--no-kubernetes", "--startup-spread=-1s"}, nil, `run: --startup-spread: "-1s" is no duration from 0s to 10m`},
		{"bad long spread", []string{"--no-kubernetes", "--startup-spread=10m1s"}, nil, `run: --startup-spread: "10m1s" is no duration from 0s to 10m`},
		{"bad spread without a unit", []string{"--no-kubernetes", "--startup-spread=10"}, nil, `run: --startup-spread: "10" is no duration from 0s to 10m`},
		{"bad mode in the variable", nil, map[string]string{"DHCP_ENGINE_NO_KUBERNETES": "perhaps"}, `run: DHCP_ENGINE_NO_KUBERNETES: "perhaps" is neither true nor false`},
		{"bad place of the dhcp daemon", []string{"--no-kubernetes", "--dhcp-socket=run/d", "--host-prefix=host", "--dhcp-timeout=0s", "--dhcp-broadcast=perhaps",
			"--dhcp-networks=n.json", "--pidfile=p"}, nil, strings.Join([]string{
			"run: 6 problems:",
			`--dhcp-broadcast: "perhaps" is neither true nor false`,
			`--dhcp-timeout: "0s" is no duration from 1s to 1h0m0s`,
			`--host-prefix: "host" is no absolute path`,
			`--dhcp-networks: "n.json" is no absolute path`,
			`--dhcp-socket: "run/d" is no absolute path`,
			`--pidfile: "p" is no absolute path`,
		}, "\n")},
		{"bad long socket for the dhcp plugin", []string{"--no-kubernetes", "--host-prefix=/host", "--dhcp-socket=/" + strings.Repeat("x", 102)}, nil,
			`run: --dhcp-socket: "/host/` + strings.Repeat("x", 102) + `" has 108 bytes, a socket's path at most 107`},
		{"bad all at once", []string{"--state-dir=state", "--metrics-address=9100", "--netns-root=/ok", "--netns-root=bad", "--log-level=INFO"},
			map[string]string{"DHCP_ENGINE_SOCKET": "sock", "DHCP_ENGINE_LOG_FORMAT": "xml"}, strings.Join([]string{
				"run: 7 problems:",
				`--state-dir: "state" is no absolute path`,
				`DHCP_ENGINE_SOCKET: "sock" is no absolute path`,
				`--metrics-address: "9100" is not of the form host:port`,
				`--netns-root: "bad" is no absolute path`,
				`--log-level: "INFO" is none of debug, info, warn, error`,
				`DHCP_ENGINE_LOG_FORMAT: "xml" is neither text nor json`,
				"--node-name: is missing: which pods are this node's? (or say --no-kubernetes)",
			}, "\n")},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := parseConfig(tt.args, environment(tt.env))
			var wrong usageError
			if !errors.As(err, &wrong) {
				t.Fatalf("error is %v, want a usageError", err)
			}
			if diff := cmp.Diff(tt.want, err.Error()); diff != "" {
				t.Errorf("error (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(config{}, got, cmp.AllowUnexported(config{}, kubernetesConfig{}, northboundConfig{}, vfioConfig{}, dropInConfig{}), cmpopts.EquateComparable(netip.Prefix{})); diff != "" {
				t.Errorf("config beside an error (-want +got):\n%s", diff)
			}
		})
	}
}

// What is not the default is in the log, in a form that people and machines can read.
func TestChangedSettings(t *testing.T) {
	for _, tt := range []struct {
		name string
		args []string
		env  map[string]string
		want string
	}{
		{"OK none but what must be said", nil, map[string]string{"DHCP_ENGINE_PROTECTED_NETWORK": "none", "DHCP_ENGINE_LOG_LEVEL": ""},
			"msg=x settings.node-name=n1\n"},
		{"OK by variable and by flag", []string{"--lease-objects=false", "--startup-spread=1m"}, map[string]string{"DHCP_ENGINE_PROTECTED_NETWORK": "10.128.0.0/14:172.30.0.0/16"},
			"msg=x settings.protected-network=10.128.0.0/14:172.30.0.0/16 settings.startup-spread=1m settings.node-name=n1 settings.lease-objects=false\n"},
		{"OK the default by flag, over the variable", []string{"--protected-network=none"}, map[string]string{"DHCP_ENGINE_PROTECTED_NETWORK": "10.0.0.0/8"},
			"msg=x settings.node-name=n1\n"},
		{"OK for machines", []string{"--log-format=json", "--protected-network=10.128.0.0/14", "--protected-network=172.30.0.0/16"}, nil,
			`"msg":"x","settings":{"protected-network":"10.128.0.0/14:172.30.0.0/16","log-format":"json","node-name":"n1"}}` + "\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			cfg, err := parseConfig(append([]string{"--node-name=n1"}, tt.args...), environment(tt.env))
			if err != nil {
				t.Fatal(err)
			}
			var line strings.Builder
			newLog(cfg, &line).Info("x", cfg.settings())
			if !strings.HasSuffix(line.String(), tt.want) {
				t.Errorf("the line is %s, want it to end in %s", &line, tt.want)
			}
		})
	}
}

// TestHelp holds that every flag is in the help with its variable.
func TestHelp(t *testing.T) {
	_, err := parseConfig([]string{"-h"}, environment(nil))
	var help helpError
	if !errors.As(err, &help) {
		t.Fatalf("error is %v, want the help", err)
	}
	for _, name := range []string{"state-dir", "socket", "metrics-address", "netns-root", "protected-network",
		"exchanges-per-network", "startup-spread", "log-level", "log-format", "no-kubernetes"} {
		if !strings.Contains(string(help), "--"+name+" ") || !strings.Contains(string(help), "("+envName(name)+")") {
			t.Errorf("help lacks --%s or %s:\n%s", name, envName(name), help)
		}
	}
	if errors.Is(err, flag.ErrHelp) {
		t.Error("the error of package flag came through")
	}
}
