package doctor

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/dhcp-meta/dhcp-meta/internal/ipamconf"
	"github.com/dhcp-meta/dhcp-meta/pkg/engine/api"
)

// runtimeLimit is what a runtime gives a plugin, containerd and CRI-O alike.
const runtimeLimit = 2 * time.Minute

// checkDHCPSocket looks at the socket of the IPAM plugin dhcp, which is the reference
// daemon's unless the engine has its place.
func (e *examination) checkDHCPSocket(ctx context.Context) ([]Finding, string) {
	socket, ours := e.cfg.DHCPSocket, e.cfg.DHCPSocket != ""
	if !ours {
		socket = ipamconf.DefaultSocket
		if _, err := os.Stat(filepath.Dir(socket)); err != nil { // not mounted, or nobody has ever listened there
			return e.judgeHiddenSocket(socket, heldSockets(), e.asking()), ""
		}
	}
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", socket)
	if err == nil {
		conn.Close()
	}
	engine := err == nil && healthy(ctx, api.Client{Socket: socket}) == nil
	found := e.judgeDHCPSocket(socket, ours, err, engine, e.asking())
	if ours && e.cfg.DHCPTimeout > runtimeLimit {
		found = append(found, Finding{DHCPTimeout, Warning, "calls on the dhcp socket may take longer than the runtime waits",
			seen("--dhcp-timeout is %s, a runtime ends a plugin after %s", e.cfg.DHCPTimeout, runtimeLimit), "leave it at 110s"})
	}
	if !ours {
		return found, ""
	}
	return found, "the engine answers at " + socket
}

// asking are the networks whose plugins ask the daemon of the IPAM plugin dhcp.
func (e *examination) asking() (names []string) {
	for _, d := range e.networks() {
		if d.asksDaemon() {
			names = append(names, d.name)
		}
	}
	return names
}

// heldSockets are the paths of the sockets that somebody listens at in this network
// namespace, which is the node's, as /proc/net/unix has them: each as its owner calls it.
func heldSockets() (paths []string) {
	text, err := os.ReadFile("/proc/net/unix")
	if err != nil {
		return nil // the kernel's check has told of a missing /proc
	}
	const path, flags, acceptsCalls = 7, 3, 0x10000 // __SO_ACCEPTCON
	for line := range strings.Lines(string(text)) {
		f := strings.Fields(line)
		if len(f) <= path {
			continue
		}
		if set, err := strconv.ParseUint(f[flags], 16, 32); err == nil && set&acceptsCalls != 0 {
			paths = append(paths, f[path])
		}
	}
	return paths
}

// judgeHiddenSocket tells of the socket of the dhcp plugin where its folder cannot be
// seen. The reference daemon may have it under a longer path: its --hostprefix.
func (e *examination) judgeHiddenSocket(socket string, held, asking []string) []Finding {
	if len(asking) == 0 || slices.ContainsFunc(held, func(path string) bool { return strings.HasSuffix(path, socket) }) {
		return nil
	}
	return []Finding{e.unserved(asking, seen("%s cannot be seen from here, and nobody in the node's network namespace listens there", socket))}
}

// unserved: how says why nobody serves the dhcp plugin, which networks ask.
func (e *examination) unserved(asking []string, how string) Finding {
	return Finding{DHCPSocketMissing, Warning, fmt.Sprintf("networks ask the dhcp plugin, whose daemon does not run: %v", asking), how, e.dropIn()}
}

// dropIn is what to do for networks that ask the dhcp plugin, which nobody serves. A mark
// would not do: their plugin would ask all the same.
func (e *examination) dropIn() string {
	serve := "set DHCP_ENGINE_DHCP_SOCKET=" + ipamconf.DefaultSocket + " for the engine (docs/dropin.md)"
	if e.cfg.InPod { // where the folder of the socket is not mounted, that would end it
		serve = "install with manifests/overlays/drop-in, or with mode=drop-in of the Helm chart (docs/dropin.md)"
	}
	return serve + "; or rewrite the network: \"type\": \"dhcp-meta\" with its plugin in \"delegate\", and without ipam (docs/configuration.md)"
}

// judgeDHCPSocket: ours says that the engine should listen there, engine that it does;
// err is of the dial.
func (e *examination) judgeDHCPSocket(socket string, ours bool, err error, engine bool, asking []string) []Finding {
	switch {
	case ours && err != nil:
		return []Finding{{DHCPSocketMissing, Error, "nobody listens at the socket of the dhcp plugin", err.Error(),
			"look at the engine's log: --dhcp-socket names this socket"}}
	case ours && !engine:
		return []Finding{{DHCPSocketForeign, Error, "another daemon has the socket of the dhcp plugin", seen("who listens at %s answers no call of dhcp-engine", socket),
			"end the reference dhcp daemon (its DaemonSet or unit), then restart the engine"}}
	case !ours && err == nil && !engine:
		return []Finding{{DHCPDaemon, Note, "a dhcp daemon of the CNI project runs on this node too", seen("somebody listens at %s, and --dhcp-socket is off", socket),
			"both can be, for different networks; docs/dropin.md has how the engine takes its place"}}
	case !ours && err != nil && len(asking) > 0:
		return []Finding{e.unserved(asking, err.Error())}
	}
	return nil
}
