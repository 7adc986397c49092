package kube

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/dhcp-meta/dhcp-meta/tests/rig"
	"github.com/dhcp-meta/dhcp-meta/tests/rig/node"
)

const (
	// cniConfig is where the runtime finds its network.
	cniConfig = "/etc/cni/net.d"
	// accountFolder is where a program finds what a pod gets of its service account.
	accountFolder = "/run/secrets/kubernetes.io/serviceaccount"
)

// defaultNetwork is the network of every pod's eth0: a bridge on the node. It is a
// single plugin, since Multus forgets the rest of a list's configuration at DEL.
const defaultNetwork = `{"cniVersion":"1.0.0","name":"default-net","type":"bridge","bridge":"cni0","isGateway":true,
"ipam":{"type":"host-local","ranges":[[{"subnet":"10.244.0.0/24"}]],"routes":[{"dst":"0.0.0.0/0"}]}}`

// Multus is how Multus is set up on a node.
type Multus struct {
	// Interposed has it search node.Wrappers before node.Plugins.
	Interposed bool
	// Default is the configuration of the default network; empty: a bridge.
	Default string
}

// StartMultus starts the thick daemon on a node that has joined and has plugins, and
// returns the runtime that calls it.
func (c *Cluster) StartMultus(t testing.TB, n *node.Node, m Multus) *Runtime {
	t.Helper()
	bin, err := rig.ToolCache("multus")
	if err != nil {
		t.Fatal(err)
	}
	n.Link(t, filepath.Join(bin, "multus-shim"), filepath.Join(node.Plugins, "multus-shim"))
	n.Write(t, accountFolder+"/token", []byte(c.Token(t, "kube-system", "multus", nil, time.Hour)))
	n.Write(t, accountFolder+"/ca.crt", c.pki.CA)
	n.Write(t, accountFolder+"/namespace", []byte("kube-system"))
	if m.Default == "" {
		m.Default = defaultNetwork
	}
	n.Write(t, cniConfig+"/10-default.conf", []byte(m.Default))

	// 1.0.0 and not 1.1.0: the daemon answers STATUS and GC with an error, which turns
	// a node of a runtime that asks for them unready.
	config := rig.Object{
		"cniVersion": "1.0.0", "logLevel": "verbose", "logToStderr": true,
		"cniConfigDir": cniConfig, "multusAutoconfigDir": cniConfig, "multusConfigFile": "auto",
		"socketDir": "/run/multus/",
	}
	env := []string{
		"PATH=" + os.Getenv("PATH"),
		"KUBERNETES_SERVICE_HOST=" + APIHost, "KUBERNETES_SERVICE_PORT=" + apiPort, "MULTUS_NODE_NAME=" + n.Name,
	}
	if m.Interposed {
		config["binDir"] = node.Wrappers
		env = append(env, "CNI_PATH="+node.Plugins)
	}
	b, err := json.Marshal(config)
	if err != nil {
		t.Fatal(err)
	}
	n.Write(t, cniConfig+"/multus.d/daemon-config.json", b)
	cmd := exec.Command(filepath.Join(bin, "multus-daemon"))
	cmd.Env = env
	r := &Runtime{cluster: c, node: n, Multus: n.Start(t, "multus-daemon", cmd)}
	r.awaitReady(t)
	return r
}

// awaitReady waits for the daemon's socket and for the configuration that it writes
// for the runtime. The daemon makes both folders anew, so there is nothing to watch.
func (r *Runtime) awaitReady(t testing.TB) {
	t.Helper()
	deadline := time.After(startPatience)
	again := time.NewTicker(10 * time.Millisecond)
	defer again.Stop()
	for {
		_, socket := os.Stat(r.node.Path("/run/multus/multus.sock"))
		_, config := os.Stat(r.node.Path(multusConfig))
		if socket == nil && config == nil {
			return
		}
		select {
		case <-again.C:
		case <-r.Multus.Exited():
			t.Fatalf("multus-daemon has ended:\n%s", strings.Join(r.Multus.Lines.Since(0), "\n"))
		case <-deadline:
			t.Fatalf("multus-daemon is not ready (socket: %v, configuration: %v):\n%s", socket, config, strings.Join(r.Multus.Lines.Since(0), "\n"))
		}
	}
}
